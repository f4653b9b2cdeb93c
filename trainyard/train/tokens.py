"""From rows to token ids, with an account of every token.

A conversation is rendered by the tokenizer's own chat template and cut where the learner changes: text that the model
is shown (masked) and turns of the assistant (trained, up to and including the end-of-turn token). Each piece is
tokenised separately, so the ids of a prompt are the same here as when the model is served.

The ledger balances for every data set:  read = trained + masked + truncated + dropped  (tokens of one pass).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from trainyard.data.rows import TRAIN, LabelledRow, Message, PreferenceRow, SftRow, TextRow
from trainyard.errors import InvalidInput
from trainyard.train.templates import Piece, Renderer, turn

IGNORED = -100
"""Label of a position that takes no part in the loss (the convention of torch and transformers)."""
Encoded = dict[str, list[int]]
AnyRow = TypeVar("AnyRow", SftRow, PreferenceRow, LabelledRow, TextRow)


@dataclass
class TokenLedger:
    """Where every token and every row of a data set went."""

    read: int = 0
    trained: int = 0
    masked: int = 0
    truncated: int = 0
    dropped: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """read, trained, truncated (of the trained ones), held_out, dropped_… by reason, and hidden_… by the field that the
    chat template leaves out."""

    @property
    def balanced(self) -> bool:
        return self.read == self.trained + self.masked + self.truncated + self.dropped

    def tokens(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("read", "trained", "masked", "truncated", "dropped")}

    def line(self) -> str:
        """The ledger as a person reads it."""
        names = ("trained", "masked", "truncated", "dropped")
        balance = f"tokens: read {self.read:,} = " + " + ".join(f"{name} {getattr(self, name):,}" for name in names)
        hidden = {
            name.removeprefix("hidden_"): count for name, count in self.rows.items() if name.startswith("hidden_")
        }
        notes = [f"; the chat template does not show the {name} of {count:,} rows" for name, count in hidden.items()]
        return balance + "".join(notes)


def encode_sft(
    rows: Iterable[SftRow], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[Encoded], TokenLedger]:
    """Rows as {input_ids, labels} of at most `max_length` tokens; a label is the id itself or -100 (no loss).

    A row whose assistant turns do not survive the cut is dropped and counted. The first token of a row has no
    predecessor that could predict it and is always masked.
    """
    renderer, ledger, examples = Renderer(tokenizer), TokenLedger(), []
    for row in training_rows(rows, ledger):
        pieces = render_or_count(renderer, row.messages, row.tools, ledger)
        if pieces is None:
            continue
        ids, labels = encode_pieces(renderer, pieces)
        if (example := account_sft(ids, labels, max_length, ledger)) is not None:
            examples.append(example)
    assert ledger.balanced, ledger
    return examples, ledger


def training_rows(rows: Iterable[AnyRow], ledger: TokenLedger) -> Iterator[AnyRow]:
    """The rows that are not held out, counted."""
    for row in rows:
        if row.split == TRAIN:
            ledger.rows["read"] += 1
            yield row
        else:
            ledger.rows["held_out"] += 1


def render_or_count(
    renderer: Renderer, messages: list[Message], tools: str | None, ledger: TokenLedger
) -> list[Piece] | None:
    """The pieces of a row; a row that the template refuses (wrong order of roles, say) is counted instead."""
    try:
        pieces = renderer.pieces(messages, tools)
    except TemplateError:
        ledger.rows["dropped_template"] += 1
        return None
    count_hidden(messages, pieces, ledger)
    return pieces


def count_hidden(messages: Sequence[Message], pieces: Sequence[Piece | str], ledger: TokenLedger) -> None:
    """Count a row whose reasoning or names the template leaves out: they are in the data and reach no token."""
    given = [message.extras for message in messages if message.more]
    if not given:
        return
    shown = "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)
    for name in ("reasoning_content", "name"):
        texts = [str(extras.get(name, "")).strip() for extras in given]
        if any(text not in shown for text in texts):
            ledger.rows[f"hidden_{name}"] += 1


def encode_pieces(renderer: Renderer, pieces: list[Piece]) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    labels: list[int] = []
    for number, piece in enumerate(pieces):
        own = (renderer.learned_ids if piece.learned else renderer.ids)(piece.text, start=number == 0)
        ids += own
        labels += own if piece.learned else [IGNORED] * len(own)
    if labels:
        labels[0] = IGNORED
    return ids, labels


def account_sft(ids: list[int], labels: list[int], max_length: int, ledger: TokenLedger) -> Encoded | None:
    """Cut a row, enter it in the ledger, and return it unless nothing is left to learn."""
    ledger.read += len(ids)
    kept_ids, kept_labels = ids[:max_length], labels[:max_length]
    trained = sum(label != IGNORED for label in kept_labels)
    if trained == 0:
        had_target = any(label != IGNORED for label in labels)
        ledger.dropped += len(ids)
        ledger.rows["dropped_truncated" if had_target else "dropped_no_target"] += 1
        return None
    ledger.trained += trained
    ledger.masked += len(kept_ids) - trained
    ledger.truncated += len(ids) - len(kept_ids)
    ledger.rows["trained"] += 1
    ledger.rows["truncated"] += len(kept_ids) < len(ids)
    return {"input_ids": kept_ids, "labels": kept_labels}


def encode_preference(
    rows: Iterable[PreferenceRow], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[Encoded], TokenLedger]:
    """Rows as {prompt_ids, chosen_ids, rejected_ids}; prompt and one answer together have at most `max_length` tokens.

    A pair is dropped when the cut leaves one answer empty or both the same: it could teach nothing. The prompt counts
    twice in the ledger, as it is read twice, before the chosen and before the rejected answer.
    """
    renderer, ledger, examples = Renderer(tokenizer), TokenLedger(), []
    for row in training_rows(rows, ledger):
        encoded = encode_pair(renderer, row, ledger)
        if encoded is not None and (example := account_pair(*encoded, max_length, ledger)) is not None:
            examples.append(example)
    assert ledger.balanced, ledger
    return examples, ledger


def encode_pair(
    renderer: Renderer, row: PreferenceRow, ledger: TokenLedger
) -> tuple[list[int], list[int], list[int]] | None:
    """Ids of prompt, chosen and rejected; None if the template refuses the row."""
    encoded = encode_answers(renderer, row.prompt, (row.chosen, row.rejected), row.tools, ledger)
    if encoded is None:
        return None
    prompt, (chosen, rejected) = encoded
    return prompt, chosen, rejected


def encode_answers(
    renderer: Renderer, prompt: list[Message], answers: Sequence[list[Message]], tools: str | None, ledger: TokenLedger
) -> tuple[list[int], list[list[int]]] | None:
    """Ids of a prompt and of each answer to it; a row that the template refuses is counted instead."""
    turns = [turn(message) for message in prompt]
    try:
        asked, said = renderer.answered(turns, [list(map(turn, answer)) for answer in answers], tools)
    except TemplateError:
        ledger.rows["dropped_template"] += 1
        return None
    count_hidden([*prompt, *(message for answer in answers for message in answer)], [asked, *said], ledger)
    return renderer.ids(asked), [renderer.learned_ids(text) for text in said]


def account_pair(
    prompt: list[int], chosen: list[int], rejected: list[int], max_length: int, ledger: TokenLedger
) -> Encoded | None:
    """Cut a pair, enter it in the ledger, and return it unless the pair has lost its difference."""
    read = 2 * len(prompt) + len(chosen) + len(rejected)
    room = max(0, max_length - len(prompt))
    kept = {"prompt_ids": prompt, "chosen_ids": chosen[:room], "rejected_ids": rejected[:room]}
    ledger.read += read
    if not kept["chosen_ids"] or not kept["rejected_ids"] or kept["chosen_ids"] == kept["rejected_ids"]:
        ledger.dropped += read
        ledger.rows["dropped_same" if chosen == rejected else "dropped_truncated"] += 1
        return None
    trained = len(kept["chosen_ids"]) + len(kept["rejected_ids"])
    ledger.trained += trained
    ledger.masked += 2 * len(prompt)
    ledger.truncated += read - trained - 2 * len(prompt)
    ledger.rows["trained"] += 1
    ledger.rows["truncated"] += trained + 2 * len(prompt) < read
    return kept


def require_targets(ledger: TokenLedger) -> None:
    """Raise `InvalidInput` when nothing is left to learn: such a run would report a loss and teach nothing."""
    if ledger.trained:
        return
    if not ledger.rows["read"]:
        held_out = ledger.rows["held_out"]
        raise InvalidInput(
            "The training data set has no rows.",
            why=f"All {held_out} rows are held out for the evaluation." if held_out else "It is empty.",
            do="Give the chain more documents or rows, or keep fewer for the evaluation.",
            code="E-DATA-EMPTY",
        )
    reasons = ", ".join(f"{count} {name}" for name, count in sorted(ledger.rows.items()) if name.startswith("dropped"))
    raise InvalidInput(
        f"All labels of the data set are masked: none of {ledger.rows['read']} rows has a token to learn.",
        why=f"Rows by reason: {reasons or 'none has an assistant turn'}.",
        do="Raise max_length, or check that the rows end with a turn of the assistant.",
        code="E-DATA-EMPTY",
    )
