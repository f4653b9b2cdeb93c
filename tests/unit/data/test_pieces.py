"""Work in pieces leaves the bytes that one process leaves, whatever the number of pieces."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import ipc
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from validating import qa

from trainyard.callbacks import ignore
from trainyard.data.generation.generate import find_in_documents, generate
from trainyard.data.pieces import documents, rows
from trainyard.data.pieces.contract import open_piece, run_piece, split_evenly
from trainyard.data.pieces.table import KINDS, InOrder
from trainyard.data.quality.lengths import TOKENIZER_FILE
from trainyard.data.rows import (
    ROWS_FILE,
    SCHEMAS,
    DocumentRow,
    LabelledRow,
    Message,
    PreferenceRow,
    PromptRow,
    Row,
    SftRow,
    TextRow,
    to_batch,
)
from trainyard.data.validation import load_token_counter, validate
from trainyard.errors import Corrupt, InvalidInput, NotFound, TrainyardError
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import AiGeneratorConfig, ValidatorConfig
from trainyard.stores.artifacts import Produced, Reference

WORDS = [*"a chain is list of nodes that run one after another".split(), *(f"word{n}" for n in range(200))]  # noqa: SIM905
SECRETS = ("", "", "", " Write to jo@example.com.", " The key is sk_live_4eC39HqLyjWDarjtT1zdp7dc.", "\nyes\nyes\nyes")


def write_batches(folder: Path, port: Port, rows_: Sequence[Row], size: int) -> Reference:
    """Write rows in Arrow batches of a few rows each, as a large set has many of them."""
    folder.mkdir(parents=True)
    with ipc.new_file(folder / ROWS_FILE, SCHEMAS[port]) as writer:
        for start in range(0, len(rows_), size):
            writer.write_batch(to_batch(list(rows_[start : start + size]), port))
    return Reference(uri=folder.as_uri(), sha256="", kind=port, rows=len(rows_))


def make_rows(port: Port, count: int, seed: int) -> list[Row]:
    """Rows by chance: some repeat others, some nearly, some are empty, long, wrong or contain a secret."""
    chance = random.Random(seed)
    made: list[Row] = []
    for index in range(count):
        text = " ".join(chance.choices(WORDS, k=chance.choice((0, 3, 8, 40)))) + chance.choice(SECRETS)
        asked = " ".join(chance.choices(WORDS[:6], k=3)) + "?"
        document, split = f"d{chance.randrange(12)}", chance.choice(("train", "train", "unseen_wording"))
        turns, answer = [Message("user", asked)], [Message(chance.choice(("assistant",) * 9 + ("bot",)), text)]
        origin = (document, f"rows.jsonl:{index + 1}", split)
        match port:
            case Port.SFT:
                made.append(SftRow([*turns, *answer], *origin, chance.choice(("", f"p{chance.randrange(9)}"))))
            case Port.PREFERENCE:
                made.append(
                    PreferenceRow(turns, answer, [Message("assistant", " ".join(chance.choices(WORDS, k=5)))], *origin)
                )
            case Port.LABELLED:
                made.append(LabelledRow(turns, answer, chance.random() < 0.5, *origin))
            case Port.PROMPTS:
                made.append(PromptRow(turns, text, *origin))
            case _:
                made.append(TextRow(text, *origin))
        if chance.random() < 0.2:
            made.append(made[chance.randrange(len(made))])
    return made


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of whole words, which is read in no time."""
    words = {word: number for number, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    return folder


class Rules:
    """A validator over one set, in one process and in pieces."""

    def __init__(self, folder: Path, source: Reference, documents_: Path | None = None, **config: Any) -> None:
        self.folder, self.source, self.documents = folder, source, documents_
        self.model = write_tokenizer(folder / "model")
        self.config = ValidatorConfig(**config)

    def run(self, pieces: int | None) -> tuple[Produced | str, dict[str, bytes]]:
        """Return the result, or the words of the error, and the files that were left."""
        out = self.folder / f"out-{pieces}"
        sift = None if pieces is None else rows.sift_in_pieces(InOrder(pieces), self.model)
        tokens = load_token_counter(self.model)
        try:
            produced = validate(
                self.config, self.source, out, tokens=tokens, documents=self.documents, report=ignore, sift=sift
            )
        except TrainyardError as error:
            return str(error), {}
        return produced, read_files(out)


@pytest.mark.parametrize("port", [Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.PROMPTS, Port.TEXT])
def test_pieces_leave_the_same_bytes(tmp_path: Path, port: Port) -> None:
    source = write_batches(tmp_path / "in", port, make_rows(port, 150, seed=7), 9)
    holdout = {"documents": 0.2, "min_rows": 5, "wording": True}
    rules = Rules(
        tmp_path, source, min_tokens=4, max_tokens=120, too_long="truncate", near_duplicates=0.7, decontaminate=4,
        holdout=holdout, sensitive={"email": "mask", "api_key": "quarantine"}, quality={"min_answer_chars": 2},
    )  # fmt: skip
    alone = rules.run(None)
    assert alone[1]
    assert [rules.run(pieces) == alone for pieces in (2, 7)] == [True] * 2
    assert not list(tmp_path.rglob(".pieces"))


def test_grounding_and_exact_duplicates_cross_pieces(tmp_path: Path) -> None:
    known = [DocumentRow(f"d{n}", f"{n}.md", "markdown", "", " ".join(WORDS[: 30 * n])) for n in range(9)]
    write_batches(tmp_path / "documents", Port.DOCUMENTS, known, 4)
    source = write_batches(tmp_path / "in", Port.SFT, make_rows(Port.SFT, 200, seed=3), 7)
    schema = {"properties": {"doc_id": {"not": {"const": "d3"}}}}
    rules = Rules(tmp_path, source, tmp_path / "documents", grounding=0.8, near_duplicates=None, row_schema=schema)
    alone = rules.run(None)
    produced = alone[0]
    assert isinstance(produced, Produced)
    assert {"exact_duplicate", "no_document", "ungrounded", "row_schema"} <= set(produced.facts["dropped"])
    assert rules.run(2) == rules.run(5) == alone


def test_a_large_quarantine_ends_its_texts_at_the_same_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("quality.blocks", "pieces.rows"):
        monkeypatch.setattr(f"trainyard.data.{module}.ROWS_WITH_TEXT", 17)
    source = write_batches(tmp_path / "in", Port.SFT, make_rows(Port.SFT, 150, seed=5), 6)
    rules = Rules(tmp_path, source, min_tokens=12)
    alone = rules.run(None)
    assert alone[1]["sft/quarantine.jsonl"].count(b'"row"') == 17
    assert rules.run(3) == rules.run(6) == alone


@pytest.mark.parametrize("too_long", ["raise", "drop"])
def test_pieces_fail_with_the_same_words(tmp_path: Path, too_long: str) -> None:
    """The first row that is too long is named, also where a later piece ends sooner; and so is why none is left."""
    source = write_batches(
        tmp_path / "in", Port.SFT, [qa(answer=" ".join(WORDS), source=f"r:{n}") for n in range(20)], 3
    )
    rules = Rules(tmp_path, source, max_tokens=8, too_long=too_long)
    message, _ = rules.run(None)
    assert isinstance(message, str)
    assert rules.run(4)[0] == message


@pytest.mark.slow
def test_rows_that_break_the_schema_count_over_all_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("quality.row_schemas", "pieces.rows"):
        monkeypatch.setattr(f"trainyard.data.{module}.MOST_BREACHES", 2)
    texts = [TextRow(f"{n}" if n % 10 else "a" * 40 + "!") for n in range(20)]
    source = write_batches(tmp_path / "in", Port.TEXT, texts, 10)
    rules = Rules(tmp_path, source, row_schema={"properties": {"text": {"pattern": "^(a+)+$|^[0-9]+$"}}})
    message, _ = rules.run(None)
    assert "row_schema used more than 2 s of processor time for each of 2 rows" in str(message)
    assert rules.run(2)[0] == message


def test_documents_in_pieces_give_the_same_rows(tmp_path: Path) -> None:
    texts = [f"# Part {n}\n\nA chain of kind {n} is a list of nodes.\n\n- **Node {n}**: does the work of step {n}.\n"
             for n in range(12)]  # fmt: skip
    several = [DocumentRow(f"{n:016x}", f"{n % 9}.md", "markdown", "", texts[n % 9]) for n in range(12)]
    write_batches(tmp_path / "documents", Port.DOCUMENTS, several, 5)
    config = AiGeneratorConfig(count=20, wordings=2)

    def run(name: str, pieces: int | None) -> dict[str, bytes]:
        out = tmp_path / name
        out.mkdir()
        find = find_in_documents if pieces is None else documents.find_in_pieces(InOrder(pieces), out)
        generate(config, tmp_path / "documents", out, complete=None, report=ignore, find=find)
        return read_files(out)

    alone = run("alone", None)
    assert alone["sft/rows.arrow"]
    assert run("two", 2) == run("many", 50) == run("one", 1) == alone


def test_a_piece_needs_the_shared_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"does not see .*/nowhere.* Do: Mount TRAINYARD_HOME"):
        run_piece(KINDS["rows"], {}, tmp_path / "nowhere")


def test_a_piece_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    left = run_piece(lambda piece, shared, folder: None, {}, tmp_path)
    assert open_piece(tmp_path, left).is_dir()
    with pytest.raises(Corrupt, match="are not those that its worker left"):
        open_piece(tmp_path, {**left, "files": {"work.arrow": 3}})


def test_pieces_are_about_equal() -> None:
    assert split_evenly([1, 1, 1, 1], 2) == [(0, 2), (2, 4)]
    assert split_evenly([9, 1, 1, 1], 2) == [(0, 1), (1, 4)]
    assert split_evenly([1, 1], 5) == [(0, 1), (1, 2)]
    assert split_evenly([], 5) == []
    assert split_evenly([0, 0, 0], 2) in ([(0, 1), (1, 3)], [(0, 1), (1, 2), (2, 3)])


def test_an_empty_set_has_no_pieces(tmp_path: Path) -> None:
    source = write_batches(tmp_path / "in", Port.SFT, [], 3)
    model = write_tokenizer(tmp_path / "model")
    with pytest.raises(InvalidInput, match="has no rows"):
        validate(
            ValidatorConfig(), source, tmp_path / "out", tokens=load_token_counter(model), report=ignore,
            sift=rows.sift_in_pieces(InOrder(4), model),
        )  # fmt: skip
