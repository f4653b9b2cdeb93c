"""A stream of documents as blocks of one length: every token once, in order, and the place kept across a stop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from trainyard.errors import InvalidInput


class StreamPacker:
    """Cuts documents, laid end to end, into blocks of `block` tokens.

    What does not fill a block waits for the next document; `finish` gives the rest as a shorter block. The state holds
    what waits and how many documents were taken, so a stream that is opened again can be continued at that document.
    """

    def __init__(self, block: int) -> None:
        if block < 1:
            raise InvalidInput(f"A block of {block} tokens holds nothing.", do="Use 1 or more.", code="E-PACKER-BLOCK")
        self.block = block
        self.documents = 0
        """Documents taken."""
        self.waiting: list[int] = []
        """Tokens that do not fill a block yet: fewer than `block`."""

    def add(self, document: list[int]) -> list[list[int]]:
        """Take a document; returns the blocks that it fills."""
        stream = self.waiting + document
        whole = len(stream) - len(stream) % self.block
        self.waiting = stream[whole:]
        self.documents += 1
        return [stream[at : at + self.block] for at in range(0, whole, self.block)]

    def finish(self) -> list[int]:
        """What is left, as a last block; empty if nothing is."""
        rest, self.waiting = self.waiting, []
        return rest

    def pack(self, documents: Iterable[list[int]]) -> Iterator[list[int]]:
        """All blocks of the rest of a stream, the short one last."""
        for document in documents:
            yield from self.add(document)
        if rest := self.finish():
            yield rest

    def state_dict(self) -> dict[str, Any]:
        return {"block": self.block, "documents": self.documents, "waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken. Raises `InvalidInput` (`E-PACKER-BLOCK`) for blocks of another length."""
        if state["block"] != self.block:
            raise InvalidInput(
                f"The packer's state is of blocks of {state['block']} tokens, and this one makes {self.block}.",
                why="Other blocks would begin at other tokens: the rest of the run would not be the same run.",
                do="Continue with the same max_length, or start anew.",
                code="E-PACKER-BLOCK",
            )
        self.documents, self.waiting = state["documents"], list(state["waiting"])
