"""From rows to token ids, with an account of every token.

A conversation is rendered by the tokenizer's own chat template and cut where the learner changes: text that the model
is shown (masked) and turns of the assistant (trained, up to and including the end-of-turn token). Each piece is
tokenised separately, so the ids of a prompt are the same here as when the model is served.

The ledger balances for every data set:  read = trained + masked + truncated + dropped  (tokens of one pass).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from trainyard.data.renderers.rendering import Piece, Renderer, turn_of
from trainyard.data.rows import TRAIN, LabelledRow, Message, PreferenceRow, PromptRow, SftRow, TextRow
from trainyard.errors import InvalidInput
from trainyard.train.head import IGNORED

Encoded = dict[str, list[int]]
AnyRow = TypeVar("AnyRow", SftRow, PreferenceRow, LabelledRow, TextRow, SftRow | PromptRow)
Found = TypeVar("Found")


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
    sets: dict[str, Counter[str]] = field(default_factory=dict)
    """Set of a mixture -> its rows and its tokens, by the names of `tokens()`."""

    @property
    def balanced(self) -> bool:
        return self.read == self.trained + self.masked + self.truncated + self.dropped

    def tokens(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("read", "trained", "masked", "truncated", "dropped")}

    def enter(self, read: int, trained: int, masked: int, lost: str = "") -> None:
        """Enter a row of `read` tokens, of which the rest was cut; one with a reason why it is `lost` is dropped."""
        self.read += read
        if lost:
            self.dropped += read
            self.rows[f"dropped_{lost}"] += 1
            return
        self.trained += trained
        self.masked += masked
        self.truncated += read - trained - masked
        self.rows["trained"] += 1
        self.rows["truncated"] += read > trained + masked

    def enter_set(self, source: str, before: dict[str, int]) -> None:
        """Enter what changed with one row under the set of a mixture that its source begins with."""
        name, known, _ = source.partition("/")
        if known:
            account = self.sets.setdefault(name, Counter())
            account["rows"] += 1
            account.update({key: value - before[key] for key, value in self.tokens().items()})

    def keep_sets(self, names: Collection[str]) -> None:
        """Keep the accounts of these sets; sources of other rows may begin with a folder."""
        self.sets = {name: account for name, account in self.sets.items() if name in names}

    def line(self) -> str:
        """The ledger as a person reads it."""
        names = ("trained", "masked", "truncated", "dropped")
        balance = f"tokens: read {self.read:,} = " + " + ".join(f"{name} {getattr(self, name):,}" for name in names)
        notes = [
            f"; the chat template does not show the {name.removeprefix('hidden_')} of {count:,} rows"
            for name, count in self.rows.items()
            if name.startswith("hidden_")
        ]
        return balance + "".join(notes)


def encode_rows(
    rows: Iterable[AnyRow],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    encode: Callable[[Renderer, AnyRow, int, TokenLedger], Found | None],
) -> tuple[list[Found], TokenLedger]:
    """The examples of the rows that are not held out, and their account.

    `encode(renderer, row, max_length, ledger)` enters its row, and returns None where nothing is left of it. A row that
    the template refuses (wrong order of roles, say) is counted instead.
    """
    renderer, ledger, examples = Renderer(tokenizer), TokenLedger(), []
    for row in training_rows(rows, ledger):
        try:
            example = encode(renderer, row, max_length, ledger)
        except TemplateError:
            ledger.rows["dropped_template"] += 1
            continue
        if example is not None:
            examples.append(example)
    assert ledger.balanced, ledger
    return examples, ledger


def training_rows(rows: Iterable[AnyRow], ledger: TokenLedger) -> Iterator[AnyRow]:
    """The rows that are not held out, counted. The tokens of one are entered before the next one is taken."""
    for row in rows:
        if row.split == TRAIN:
            ledger.rows["read"] += 1
            before = ledger.tokens()
            yield row
            ledger.enter_set(row.source, before)
        else:
            ledger.rows["held_out"] += 1


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


def encode_sft(
    rows: Iterable[SftRow], tokenizer: PreTrainedTokenizerBase, max_length: int, *, last_turn: bool = False
) -> tuple[list[Encoded], TokenLedger]:
    """Rows as {input_ids, labels} of at most `max_length` tokens; a label is the id itself or -100 (no loss).

    With `last_turn` only the last of the assistant's turns that would be learned is. A row whose assistant turns do not
    survive the cut is dropped and counted. The first token of a row has no predecessor that could predict it and is
    always masked.
    """
    return encode_rows(rows, tokenizer, max_length, partial(encode_conversation, last_turn=last_turn))


def encode_conversation(
    renderer: Renderer, row: SftRow, max_length: int, ledger: TokenLedger, *, last_turn: bool = False
) -> Encoded | None:
    pieces = renderer.pieces(row.messages, row.tools)
    count_hidden(row.messages, pieces, ledger)
    last = max((number for number, piece in enumerate(pieces) if piece.learned), default=0)
    ids: list[int] = []
    labels: list[int] = []
    for number, piece in enumerate(pieces):
        own = (renderer.learned_ids if piece.learned else renderer.ids)(piece.text, start=number == 0)
        ids += own
        learned = piece.learned and (number == last or not last_turn)
        labels += own if learned else [IGNORED] * len(own)
    labels[:1] = [IGNORED] * len(labels[:1])
    kept = {"input_ids": ids[:max_length], "labels": labels[:max_length]}
    trained = sum(label != IGNORED for label in kept["labels"])
    lost = "" if trained else "truncated" if any(label != IGNORED for label in labels) else "no_target"
    ledger.enter(len(ids), trained, len(kept["labels"]) - trained, lost)
    return None if lost else kept


def encode_preference(
    rows: Iterable[PreferenceRow], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[Encoded], TokenLedger]:
    """Rows as {prompt_ids, chosen_ids, rejected_ids}; prompt and one answer together have at most `max_length` tokens.

    A pair is dropped when the cut leaves one answer empty or both the same: it could teach nothing. The prompt counts
    twice in the ledger, as it is read twice, before the chosen and before the rejected answer.
    """
    return encode_rows(rows, tokenizer, max_length, encode_pair)


def encode_pair(renderer: Renderer, row: PreferenceRow, max_length: int, ledger: TokenLedger) -> Encoded | None:
    prompt, (chosen, rejected) = encode_answers(renderer, row.prompt, (row.chosen, row.rejected), row.tools, ledger)
    room = max(0, max_length - len(prompt))
    kept = {"prompt_ids": prompt, "chosen_ids": chosen[:room], "rejected_ids": rejected[:room]}
    compares = kept["chosen_ids"] and kept["rejected_ids"] and kept["chosen_ids"] != kept["rejected_ids"]
    lost = "" if compares else "same" if chosen == rejected else "truncated"
    trained = len(kept["chosen_ids"]) + len(kept["rejected_ids"])
    ledger.enter(2 * len(prompt) + len(chosen) + len(rejected), trained, 2 * len(prompt), lost)
    return None if lost else kept


def encode_answers(
    renderer: Renderer, prompt: list[Message], answers: Sequence[list[Message]], tools: str | None, ledger: TokenLedger
) -> tuple[list[int], list[list[int]]]:
    """Ids of a prompt and of each answer to it. Raises jinja2's `TemplateError` for a row that the template refuses."""
    turns = [turn_of(message) for message in prompt]
    asked, said = renderer.answered(turns, [list(map(turn_of, answer)) for answer in answers], tools)
    count_hidden([*prompt, *(message for answer in answers for message in answer)], [asked, *said], ledger)
    return renderer.ids(asked), [renderer.learned_ids(text) for text in said]


STEPS_MISSING = "Give the rows their steps: reasoning_content, `steps`, or lines before `####`. "


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
        do=f"{STEPS_MISSING if ledger.rows['dropped_no_steps'] else ''}Raise max_length, or check that the rows end "
        "with a turn of the assistant.",
        code="E-DATA-EMPTY",
    )
