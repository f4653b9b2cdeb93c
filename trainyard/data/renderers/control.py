"""Control tokens that a user writes stay text: `<|im_end|>` in a question must not end the turn.

Before a template runs, control tokens in the messages are put between two private-use characters; when the rendered
text is tokenised, the text between them is encoded without added tokens. The marking is that of transformers
(`mark_control_tokens`, `encode_marked_chat`), which does the same for a whole chat
(`apply_chat_template(sanitize_control_tokens=True)`); here it also works on pieces, and what the assistant says may
contain tokens that are not special, such as `<think>`, because it is what the model itself writes.
"""

from __future__ import annotations

import re
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import encode_marked_chat, mark_control_tokens

from trainyard.data.renderers.contract import Turn

OPEN, CLOSE = "\U000f0000", "\U000f0001"
MARKERS = re.compile(f"[{OPEN}{CLOSE}]")


class Control:
    """The control tokens of a tokenizer under a template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str) -> None:
        self.tokenizer = tokenizer
        added = [token for token in tokenizer.added_tokens_decoder.values() if token.content.strip()]
        special = {token.content for token in added if token.special}
        written = {token.content for token in added if token.content in template}
        self.anyone = pattern(special | written)
        """What nobody but the template may write: special tokens, and added tokens that the template uses."""
        self.special = pattern(special)
        """What the assistant may not write either."""
        self.longest = max(map(len, special | written), default=0)
        newline = tokenizer("\n", add_special_tokens=False)["input_ids"]
        self.keeps_start = tokenizer("\na", add_special_tokens=False)["input_ids"] == [
            *newline, *tokenizer("a", add_special_tokens=False)["input_ids"],
        ]  # fmt: skip
        """Whether a text is encoded alike at the start and elsewhere; SentencePiece may put a space before a start."""

    def marked(self, turns: list[Turn]) -> list[Turn]:
        """The turns with control tokens marked; roles are not data and stay as they are."""
        return [
            {
                key: value if key == "role" else self.text(value, assistant=turn.get("role") == "assistant")
                for key, value in turn.items()
            }
            for turn in turns
        ]

    def text(self, value: Any, *, assistant: bool = False) -> Any:
        """A text, list or mapping with control tokens marked."""
        return mark_control_tokens(value, self.special if assistant else self.anyone)

    def ids(self, text: str, *, start: bool = True) -> list[int]:
        """Ids of marked text; `start` says whether a sequence begins with it."""
        if MARKERS.search(text) or not (start or self.keeps_start):
            # A lone marker is dropped and has the rest encoded as text that continues.
            return encode_marked_chat(self.tokenizer, text if start else OPEN + text)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def pattern(tokens: set[str]) -> re.Pattern[str]:
    """A pattern that matches any of the tokens, the longest first; none never matches."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=lambda one: (-len(one), one)))) or "(?!)")


def remove_marks(text: str) -> str:
    return MARKERS.sub("", text)
