"""From rows to token ids, with an account of every token.

A conversation is rendered by the tokenizer's own chat template and cut where the learner changes: text that the model
is shown (masked) and turns of the assistant (trained, up to and including the end-of-turn token). Each piece is
tokenised separately, so the ids of a prompt are the same here as when the model is served. A turn that the template
writes in another way once more turns follow is learned in an example of its own, which ends with it.

The ledger balances for every data set:  read = trained + masked + truncated + dropped  (tokens of one pass).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from trainyard.data.renderers.rendering import Cut, Piece, Renderer
from trainyard.data.rows import TRAIN, LabelledRow, Message, PreferenceRow, PromptRow, SftRow, TextRow
from trainyard.errors import InvalidInput
from trainyard.train.contracts import IGNORED, Encoded

AnyRow = TypeVar("AnyRow", SftRow, PreferenceRow, LabelledRow, TextRow, SftRow | PromptRow)
Found = TypeVar("Found")
MOST_REASONS = 20
"""Different words of a template that a ledger keeps; the rest counts under `OTHER_REASONS`."""
MOST_REASON_CHARS = 200
OTHER_REASONS = "other reasons"
COMPLETION = "completion"
"""The name of a rated answer, of an example of stage kto."""


class Refusals(NamedTuple):
    """Rows that a chat template refuses for one reason."""

    rows: int
    first: str
    """Source of the first of them."""


@dataclass
class TokenLedger:
    """Ledger of every token and every row of a data set."""

    read: int = 0
    trained: int = 0
    masked: int = 0
    truncated: int = 0
    dropped: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """read, trained, truncated (of the trained ones), held_out, dropped_… by reason, and hidden_… by the part that the
    chat template leaves out; extra_examples of rows that make more than one. Counts of turns: empty_turns and
    unlearned_turns, which would be learned and are not."""
    sets: dict[str, Counter[str]] = field(default_factory=dict)
    """Set of a mixture -> its rows and its tokens, by the names of `tokens()`."""
    refused: dict[str, Refusals] = field(default_factory=dict)
    """The words of the chat template -> the rows that it refuses with them."""
    example_rows: list[int] = field(default_factory=list)
    """Number of the row that each example is made of."""

    @property
    def balanced(self) -> bool:
        return self.read == self.trained + self.masked + self.truncated + self.dropped

    def tokens(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("read", "trained", "masked", "truncated", "dropped")}

    def enter(self, read: int, trained: int, masked: int, lost: str = "", *, dropped: int = 0) -> None:
        """Enter a row of `read` tokens, of which the rest was cut; one with a reason why it is `lost` is dropped.

        `dropped` are the tokens of its examples that have nothing left to learn, where others have.
        """
        self.read += read
        if lost:
            self.dropped += read
            self.rows[f"dropped_{lost}"] += 1
            return
        self.trained += trained
        self.masked += masked
        self.dropped += dropped
        self.truncated += read - trained - masked - dropped
        self.rows["trained"] += 1
        self.rows["truncated"] += read > trained + masked

    def enter_cut(self, cut: Cut) -> None:
        """Count the parts of a row that its template hides, and the turns that are not learned."""
        for kind in sorted(cut.hidden):
            self.rows[f"hidden_{kind}"] += 1
        for name, turns in (("empty_turns", cut.empty), ("unlearned_turns", cut.unlearned)):
            if turns:
                self.rows[name] += turns

    def refuse(self, row: AnyRow, error: TemplateError) -> None:
        """Count a row that the chat template refuses, with the template's words."""
        self.rows["dropped_template"] += 1
        reason = " ".join(str(error).split())[:MOST_REASON_CHARS] or type(error).__name__
        reason = reason if reason in self.refused or len(self.refused) < MOST_REASONS else OTHER_REASONS
        before = self.refused.get(reason, Refusals(0, row.source))
        self.refused[reason] = Refusals(before.rows + 1, before.first)

    @property
    def refused_share(self) -> float:
        """Share of the rows that the chat template refuses."""
        return self.rows["dropped_template"] / max(1, self.rows["read"])

    def enter_set(self, source: str, before: dict[str, int]) -> None:
        """Enter what changed with one row under the set of a mixture that its source begins with."""
        name, separator, _ = source.partition("/")
        if separator:
            account = self.sets.setdefault(name, Counter())
            account["rows"] += 1
            account.update({key: value - before[key] for key, value in self.tokens().items()})

    def keep_sets(self, names: Collection[str]) -> None:
        """Keep the accounts of these sets; sources of other rows may begin with a folder."""
        self.sets = {name: account for name, account in self.sets.items() if name in names}

    def line(self) -> str:
        """Return the ledger as a person reads it."""
        names = ("trained", "masked", "truncated", "dropped")
        balance = f"tokens: read {self.read:,} = " + " + ".join(f"{name} {getattr(self, name):,}" for name in names)
        return "; ".join([balance, *self.notes()])

    def notes(self) -> list[str]:
        """Return as text the turns that the template refuses or hides, and those that are not learned."""
        notes = [
            f"the chat template does not show the {name.removeprefix('hidden_')} of {count:,} rows, so they are not "
            "learned; `trainyard renderers verify` lists the templates that do"
            for name, count in self.rows.items()
            if name.startswith("hidden_")
        ]
        notes += [f"{count:,} {TURN_NOTES[name]}" for name, count in self.rows.items() if name in TURN_NOTES]
        if self.refused:
            lost = f"{self.rows['dropped_template']:,} of {self.rows['read']:,} rows"
            notes.append(f"the chat template refuses {lost}: {self.refusal_words()}")
        return notes

    def refusal_words(self, most: int = 3) -> str:
        """Return the commonest reasons of the template, with their rows and the first of them."""
        common = sorted(self.refused.items(), key=lambda item: -item[1].rows)[:most]
        named = [
            f"{reason} ({counted.rows:,}{f', first {counted.first}' if counted.first else ''})"
            for reason, counted in common
        ]
        return "; ".join(named)


TURN_NOTES = {
    "empty_turns": "turns of the assistant say nothing and are not learned",
    "unlearned_turns": "turns of the assistant are shown, not learned: the chat template gives them no border",
}
"""Count of turns -> what a person reads of it."""


def encode_rows(
    rows: Iterable[AnyRow],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    encode: Callable[[Renderer, AnyRow, int, TokenLedger], Found | list[Found] | None],
) -> tuple[list[Found], TokenLedger]:
    """Return the examples of the rows that are not held out, and their account.

    `encode(renderer, row, max_length, ledger)` enters its row, and returns its examples, or None where nothing is left
    of it. A row that the template refuses (wrong order of roles, say) is counted instead, with the template's words.
    """
    renderer, ledger = Renderer(tokenizer), TokenLedger()
    examples: list[Found] = []
    for row in training_rows(rows, ledger):
        try:
            encoded = encode(renderer, row, max_length, ledger)
        except TemplateError as error:
            ledger.refuse(row, error)
            continue
        row_examples = encoded if isinstance(encoded, list) else [] if encoded is None else [encoded]
        if len(row_examples) > 1:
            ledger.rows["extra_examples"] += len(row_examples) - 1
        examples += row_examples
        ledger.example_rows += [ledger.rows["read"]] * len(row_examples)
    assert ledger.balanced, ledger
    return examples, ledger


def training_rows(rows: Iterable[AnyRow], ledger: TokenLedger) -> Iterator[AnyRow]:
    """Yield the rows that are not held out, counted. The tokens of one are entered before the next one is taken."""
    for row in rows:
        if row.split == TRAIN:
            ledger.rows["read"] += 1
            before = ledger.tokens()
            yield row
            ledger.enter_set(row.source, before)
        else:
            ledger.rows["held_out"] += 1


def encode_sft(
    rows: Iterable[SftRow], tokenizer: PreTrainedTokenizerBase, max_length: int, *, last_turn: bool = False
) -> tuple[list[Encoded], TokenLedger]:
    """Return rows as {input_ids, labels} of at most `max_length` tokens; a label is the id itself or -100 (no loss).

    With `last_turn` only the last of the assistant's turns that would be learned is. A row whose assistant turns do not
    survive the cut is dropped and counted. The first token of a row has no predecessor that could predict it and is
    always masked.
    """
    return encode_rows(rows, tokenizer, max_length, partial(encode_conversation, last_turn=last_turn))


def encode_conversation(
    renderer: Renderer, row: SftRow, max_length: int, ledger: TokenLedger, *, last_turn: bool = False
) -> list[Encoded] | None:
    """Return the examples of a conversation, each with a turn that is learned."""
    cut = renderer.cut(row.messages, row.tools)
    last = last_learned(cut.examples) if last_turn else None
    conversations = [
        conversation for conversation in cut.examples if last is None or any(map(last.__eq__, conversation))
    ]
    ledger.enter_cut(replace(cut, empty=0, unlearned=0) if last_turn else cut)
    taught = [pieces for pieces in conversations if any(piece.learned for piece in pieces)] or cut.examples[:1]
    encoded = [encode_pieces(renderer, pieces, only=last) for pieces in taught]
    examples = [{name: ids[:max_length] for name, ids in example.items()} for example in encoded]
    counts = [sum(label != IGNORED for label in example["labels"]) for example in examples]
    taught_examples = [example for example, count in zip(examples, counts, strict=True) if count]
    learns = any(label != IGNORED for example in encoded for label in example["labels"])
    read, trained = sum(len(example["labels"]) for example in encoded), sum(counts)
    dropped = sum(len(whole["labels"]) for whole, count in zip(encoded, counts, strict=True) if not count)
    masked = sum(len(example["labels"]) for example in taught_examples) - trained
    ledger.enter(
        read, trained, masked, "" if taught_examples else "truncated" if learns else "no_target", dropped=dropped
    )
    return taught_examples or None


def last_learned(conversations: list[list[Piece]]) -> Piece | None:
    """Return the last of the turns that would be learned."""
    learned = (piece for pieces in conversations for piece in pieces if piece.learned)
    return max(learned, key=lambda piece: piece.message, default=None)


def encode_pieces(
    renderer: Renderer, pieces: Sequence[Piece], *, start: bool = True, only: Piece | None = None
) -> Encoded:
    """Pieces as {input_ids, labels}; the first token of a sequence has no predecessor and is never labelled.

    With `only`, no other piece is learned; a turn has the ids that it has where it is learned.
    """
    ids: list[int] = []
    labels: list[int] = []
    for number, piece in enumerate(pieces):
        piece_ids = (renderer.encode_answer if piece.learned else renderer.ids)(piece.text, start=start and number == 0)
        ids += piece_ids
        labels += piece_ids if piece.learned and only in (None, piece) else [IGNORED] * len(piece_ids)
    if start:
        labels[:1] = [IGNORED] * len(labels[:1])
    return {"input_ids": ids, "labels": labels}


def encode_preference(
    rows: Iterable[PreferenceRow], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[Encoded], TokenLedger]:
    """Return rows as {prompt_ids, chosen_ids, rejected_ids}; prompt and one answer together have at most `max_length`
    tokens.

    An answer of which a part is not learned (the result of a tool, a turn with weight 0) has `chosen_labels` or
    `rejected_labels`, too. A pair is dropped when the cut leaves one answer empty or both the same: it could teach
    nothing. The prompt counts twice in the ledger, as it is read twice, before the chosen and before the rejected
    answer.
    """
    return encode_rows(rows, tokenizer, max_length, encode_pair)


def encode_pair(renderer: Renderer, row: PreferenceRow, max_length: int, ledger: TokenLedger) -> Encoded | None:
    prompt, answers = encode_answers(renderer, row.prompt, (row.chosen, row.rejected), row.tools, ledger)
    room = max(0, max_length - len(prompt))
    chosen, rejected = fitted = [answer.cut(room) for answer in answers]
    compares = chosen.trained and rejected.trained and chosen.ids != rejected.ids
    lost = ""
    if not compares:
        lost = "same" if answers[0].ids == answers[1].ids else "truncated"
        lost = lost if all(answer.trained for answer in answers) else "no_target"
    trained, read = sum(answer.trained for answer in fitted), sum(len(answer.ids) for answer in answers)
    masked = 2 * len(prompt) + sum(len(answer.ids) for answer in fitted) - trained
    ledger.enter(2 * len(prompt) + read, trained, masked, lost)
    return None if lost else {"prompt_ids": prompt, **chosen.fields("chosen"), **rejected.fields("rejected")}


class Answer(NamedTuple):
    """An answer as ids, with a label for each: the id itself, or -100 outside of the assistant's text."""

    ids: list[int]
    labels: list[int]

    @property
    def trained(self) -> int:
        """Return tokens that are learned."""
        return sum(label != IGNORED for label in self.labels)

    def cut(self, room: int) -> Answer:
        return Answer(self.ids[:room], self.labels[:room])

    def fields(self, name: str) -> Encoded:
        """{`<name>_ids`}, and `<name>_labels` where a part of the answer is not learned."""
        labels = {} if self.labels == self.ids else {f"{name}_labels": self.labels}
        return {f"{name}_ids": self.ids, **labels}


def get_answer(example: Encoded, name: str) -> Answer:
    """Return the answer that an example has under a name: `chosen`, `rejected` or `completion`."""
    ids = example[f"{name}_ids"]
    return Answer(ids, example.get(f"{name}_labels", ids))


def encode_answers(
    renderer: Renderer, prompt: list[Message], answers: Sequence[list[Message]], tools: str | None, ledger: TokenLedger
) -> tuple[list[int], list[Answer]]:
    """Ids of a prompt, and each answer to it. Raises jinja2's `TemplateError` for a row that the template refuses."""
    cut = renderer.cut_answers(prompt, answers, tools)
    ledger.enter_cut(cut)
    encoded = [encode_pieces(renderer, pieces, start=False) for pieces in cut.examples]
    return renderer.ids(cut.prompt), [Answer(row["input_ids"], row["labels"]) for row in encoded]


def encode_labelled(
    rows: Iterable[LabelledRow], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[Encoded], TokenLedger]:
    """Return rows whose prompt and completion together have at most `max_length` tokens."""
    return encode_rows(rows, tokenizer, max_length, encode_completion)


def encode_completion(renderer: Renderer, row: LabelledRow, max_length: int, ledger: TokenLedger) -> Encoded | None:
    prompt, (completion,) = encode_answers(renderer, row.prompt, (row.completion,), row.tools, ledger)
    fitted = completion.cut(max(0, max_length - len(prompt)))
    lost = "" if fitted.trained else "truncated" if completion.trained else "no_target"
    masked = len(prompt) + len(fitted.ids) - fitted.trained
    ledger.enter(len(prompt) + len(completion.ids), fitted.trained, masked, lost)
    return None if lost else {"prompt_ids": prompt, **fitted.fields(COMPLETION), "desirable": [int(row.label)]}


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


def require_both_labels(examples: Sequence[Encoded]) -> None:
    """Raise `InvalidInput` (`E-BATCH`) when all examples of stage kto have the same label: nothing would constrain the
    policy.
    """
    desirable = sum(example["desirable"][0] for example in examples)
    if examples and desirable in (0, len(examples)):
        kind = "desirable" if desirable else "undesirable"
        raise InvalidInput(
            f"All {len(examples)} rows are {kind}; stage kto learns from the difference.",
            why="With one label only, the policy moves without bound towards or away from every answer.",
            do="Add rows with the other label, or use stage sft for rows that are all good.",
            code="E-BATCH",
        )


def require_end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the end-of-text token. Raises `InvalidInput` (`E-TOKENIZER`) for a tokenizer without: documents would run
    into one another.
    """
    if tokenizer.eos_token_id is None:
        raise InvalidInput(
            "The tokenizer has no end-of-text token.",
            why="Without one the model cannot see where a document ends.",
            do="Set eos_token in the base model's tokenizer_config.json.",
            code="E-TOKENIZER",
        )
    return int(tokenizer.eos_token_id)


def require_accepted(ledger: TokenLedger, limit: float) -> None:
    """Raise `InvalidInput` (`E-DATA-BAD-ROWS`) when the chat template refuses more than this share of the rows."""
    if ledger.refused_share <= limit:
        return
    raise InvalidInput(
        f"The chat template refuses {ledger.rows['dropped_template']} of {ledger.rows['read']} rows "
        f"({ledger.refused_share:.1%}).",
        why=f"At most {limit:.1%} may be lost. The template says: {ledger.refusal_words()}.",
        do="Correct the rows, set engine.template to a renderer that takes them (`trainyard renderers verify`), or "
        "raise max_bad_fraction of the data source.",
        code="E-DATA-BAD-ROWS",
    )
