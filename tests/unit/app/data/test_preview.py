"""A data set as a training would see it."""

from __future__ import annotations

import json
from contextvars import Context as Variables
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.datastructures import QueryParams
from transformers import AutoTokenizer

from trainyard.app.context import Caller, Context
from trainyard.app.data.listing import show_columns
from trainyard.app.data.preview import DataPreview, RawRows, preview
from trainyard.data.limited.service import ReadingService
from trainyard.data.rows import ROWS_FILE, read_rows
from trainyard.data.sources import read_source
from trainyard.errors import InvalidInput, NotFound, Refused
from trainyard.operations.data import ColumnsInput, PreviewInput, preview_text, raw_text
from trainyard.settings import settings
from trainyard.spec.axes.data import Port
from trainyard.spec.estimate.timing import NOT_MEASURED
from trainyard.spec.nodes import DataSourceConfig
from trainyard.surfaces.bodies import read_query
from trainyard.surfaces.sdk.wire import build_exchange
from trainyard.train.rows.prompts import NO_LIMIT
from trainyard.train.rows.tokens import encode_sft


def chat(question: str, answer: str, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **more}


def show(
    tmp_path: Path, examples: list[dict[str, Any]], base: Path, **fields: Any
) -> tuple[DataPreview, list[RawRows]]:
    path, parts = tmp_path / "rows.jsonl", list[Any]()
    path.write_text("".join(json.dumps(row) + "\n" for row in examples))
    context = Context(settings(), on_part=parts.append)
    return preview(PreviewInput(path=path, base_model=str(base), **fields), context), parts


@pytest.fixture(autouse=True)
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


CHATS = [chat(f"question {number}", "an answer " * number, extra=1) for number in range(1, 21)]


def test_rows_are_rendered_and_counted_as_in_training(tmp_path: Path, tiny_model: Path) -> None:
    data_preview, parts = show(tmp_path, CHATS, tiny_model, rows=3)
    read = read_source(
        DataSourceConfig(path="rows.jsonl"), tmp_path / "out", settings=settings(), report=lambda fraction, text: None
    )
    rows = list(read_rows(tmp_path / "out" / read.outputs[Port.SFT].folder / ROWS_FILE, Port.SFT))
    examples, ledger = encode_sft(rows, AutoTokenizer.from_pretrained(tiny_model), NO_LIMIT)
    assert data_preview.estimated_tokens == ledger.read
    assert data_preview.lengths.longest == max(len(example["input_ids"]) for example in examples)
    assert data_preview.lengths.learned_share == pytest.approx(ledger.trained / ledger.read, abs=1e-4)
    assert [row.tokens for row in data_preview.rendered] == [len(example["input_ids"]) for example in examples[:3]]
    learned = [part.text.strip() for row in data_preview.rendered for part in row.parts if part.learned]
    assert learned[0].startswith("an answer")
    assert sum(bucket.rows for bucket in data_preview.lengths.histogram) == len(CHATS)
    assert data_preview.raw.ignored_keys == {"extra": 20}
    assert (data_preview.complete, data_preview.estimated_rows, data_preview.stage) == (True, 20, "sft")
    assert (data_preview.seconds, data_preview.basis) == (None, NOT_MEASURED)
    assert parts[0].rows[0]["messages"][0] == {"role": "user", "content": "question 1"}
    assert len(parts) == 1


def test_one_process_reads_the_set(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows, and the others while the tokenizer is imported."""
    started: list[ReadingService] = []
    start = ReadingService.start

    def note_start(service: ReadingService) -> None:
        started.append(service)
        start(service)

    monkeypatch.setattr(ReadingService, "start", note_start)
    data_preview, _ = Variables().run(show, tmp_path, CHATS, tiny_model)  # without the service of all tests
    assert (data_preview.looked_at, len(started)) == (len(CHATS), 1)


def test_what_would_be_cut_and_dropped_is_said(tmp_path: Path, tiny_model: Path) -> None:
    rows = [*CHATS, CHATS[0], {"messages": "none"}]
    data_preview, _ = show(tmp_path, rows, tiny_model, max_length=30)
    assert data_preview.lengths.truncated > 5
    assert data_preview.lengths.duplicates == 1
    assert sum(data_preview.dropped.values()) == 1
    ((bad,),) = [data_preview.unreadable]
    assert (bad.source, bad.reason) == ("rows.jsonl:22", next(iter(data_preview.dropped)))
    assert bad.text == json.dumps({"messages": "none"})
    text = preview_text(data_preview)
    assert bad.text in text
    assert "truncated at max_length" in text
    assert "duplicates" in text
    unlearned, _ = show(tmp_path, [chat("long question " * 30, "yes"), *CHATS[:2]], tiny_model, max_length=30)
    assert unlearned.dropped == {"nothing to learn within 30 tokens": 1}


def test_a_tenant_sees_its_own_folder_and_no_other(tmp_path: Path, home: Path, tiny_model: Path) -> None:
    for tenant in ("blue", "red"):
        (home / "tenants" / tenant).mkdir(parents=True)
        (home / "tenants" / tenant / f"{tenant}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHATS[:5]))
    context = Context(settings(), caller=Caller("a", tenant="blue", remote=True))

    def ask(path: str | Path) -> DataPreview:
        return preview(PreviewInput(path=path, base_model=str(tiny_model), limit=5), context)

    blue_preview = ask("blue.jsonl")
    assert (blue_preview.looked_at, blue_preview.estimated_rows) == (5, 5)
    for path in ("red.jsonl", "../red/red.jsonl", home / "tenants" / "red" / "red.jsonl", "home/tenants/red/red.jsonl"):
        with pytest.raises((Refused, NotFound), match=r"R-PATH-ROOT|There is no file or folder"):
            ask(path)


@pytest.mark.slow
def test_what_is_hidden_and_how_a_file_was_read_is_said(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "old.csv").write_bytes("question,answer,page\nWo?,Gr\u00fc\u00dfe,3\n".encode("cp1252"))
    context = Context(settings())
    result = preview(PreviewInput(path=tmp_path / "old.csv", base_model=str(tiny_model)), context)
    assert result.raw.notes == ("read as windows-1252, as it is not UTF-8",)
    assert "read as windows-1252" in raw_text(result.raw)
    assert "ignored key page" in preview_text(result)
    call = {"type": "function", "function": {"name": "weigh", "arguments": "{}"}}
    turns = [{"role": "user", "content": "Weigh it."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    data_preview, _ = show(tmp_path, [{"messages": [*turns, *CHATS[0]["messages"]]}], tiny_model)
    assert data_preview.hidden["tool_calls"] == data_preview.hidden["empty_turns"] == 1
    assert "tool_calls not shown by the chat template" in preview_text(data_preview)


def test_a_row_is_shown_with_its_own_characters_and_all_that_was_read(tmp_path: Path, tiny_model: Path) -> None:
    turns = [
        {"role": "user", "content": "What is <|im_end|>?"},
        {"role": "assistant", "content": "Shown.", "weight": 0, "reasoning_content": "hm"},
        {"role": "user", "content": "And <|im_start|>?"},
        {"role": "assistant", "content": "A token: <|im_start|>."},
    ]
    data_preview, _ = show(tmp_path, [{"messages": turns}], tiny_model)
    (row,) = data_preview.rendered
    text = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)
    assert "".join(part.text for part in row.parts) == text.rstrip()
    assert data_preview.raw.rows[0]["messages"] == turns


def test_both_sides_of_a_pair_are_shown(tmp_path: Path, tiny_model: Path) -> None:
    rows = [{"prompt": "Why?", "chosen": "Because it is so.", "rejected": "No."} for _ in range(3)]
    data_preview, _ = show(tmp_path, rows, tiny_model, rows=1)
    assert [row.side for row in data_preview.rendered] == ["chosen"]
    data_preview, _ = show(tmp_path, rows, tiny_model, rows=2)
    assert [row.side for row in data_preview.rendered] == ["chosen", "rejected"]
    assert "rejected" in preview_text(data_preview)
    assert data_preview.stage == "dpo"


@pytest.mark.parametrize(
    ("row", "port", "stage"),
    [
        ({"prompt": "Why?", "completion": "So.", "label": True}, Port.LABELLED, "kto"),
        ({"text": "Plain words."}, Port.TEXT, "cpt"),
    ],
)
@pytest.mark.slow
def test_other_ports(tmp_path: Path, tiny_model: Path, row: dict[str, Any], port: Port, stage: str) -> None:
    data_preview, _ = show(tmp_path, [row] * 3, tiny_model)
    assert (data_preview.raw.port, data_preview.stage) == (port, stage)
    assert data_preview.lengths.learned_share > 0


@pytest.mark.slow
def test_documents_have_no_estimate_of_a_training(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "page.md").write_text("# Title\n\nSome text that is long enough to be read.\n")
    preview_input = PreviewInput(path=tmp_path / "page.md", base_model=str(tiny_model), max_length=8)
    data_preview = preview(preview_input, Context(settings()))
    assert (data_preview.raw.port, data_preview.stage, data_preview.seconds, data_preview.lengths.learned_share) == (
        Port.DOCUMENTS,
        None,
        None,
        0.0,
    )
    assert (data_preview.dropped, data_preview.lengths.truncated) == ({}, 0)
    assert "nothing would be dropped" in preview_text(data_preview)
    assert preview_text(data_preview).endswith(
        "an ai_generator makes rows of documents; stage cpt learns their whole text"
    )
    assert "Title" in raw_text(data_preview.raw)


@pytest.mark.slow
def test_of_a_long_file_the_beginning_is_read(tmp_path: Path, tiny_model: Path) -> None:
    data_preview, _ = show(tmp_path, CHATS * 10, tiny_model, limit=50, rows=1)
    assert not data_preview.complete
    assert data_preview.estimated_rows == pytest.approx(200, rel=0.01)
    assert data_preview.estimated_tokens == pytest.approx(200 * data_preview.lengths.mean, rel=0.02)
    assert "the first 50 rows" in preview_text(data_preview)


def test_what_cannot_be_previewed(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        preview(PreviewInput(path=Path("nowhere.jsonl"), base_model=str(tiny_model)), Context(settings()))
    with pytest.raises(Refused, match="R-PATH-ROOT"):
        preview(PreviewInput(path=Path("/etc/passwd"), base_model=str(tiny_model)), Context(settings()))
    (tmp_path / "rows.jsonl").write_text(json.dumps(CHATS[0]) + "\n")
    with pytest.raises(NotFound):
        preview(PreviewInput(path=Path("rows.jsonl"), base_model="no-such-model/here"), Context(settings()))


def test_generate_shows_pairs_kinds_and_what_a_model_would_cost(tmp_path: Path, tiny_model: Path) -> None:
    page = Path(__file__).parents[3] / "resources" / "corpora" / "support-desk.md"
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / "page.md").write_text(page.read_text())
    (tmp_path / "desk" / "empty.md").write_text("# Nothing\n")
    preview_input = PreviewInput(path=tmp_path / "desk", base_model=str(tiny_model), generate=True, count=60, rows=4)
    result = preview(preview_input, Context(settings()))
    generation = result.generation
    assert generation is not None
    assert generation.found_pairs == sum(generation.kinds.values()) >= 10
    assert generation.wanted_pairs > generation.found_pairs
    assert generation.trained_rows == result.estimated_rows < 60
    assert generation.documents_without_pairs == ("empty.md",)
    assert len(generation.examples) == 4
    assert all(example.answer.split(".")[0] in page.read_text() for example in generation.examples)
    assert generation.last_resort_share == 0
    assert 0.5 < generation.coverage <= 1
    assert generation.model_cost.calls >= 1
    text = preview_text(result)
    assert f"{generation.found_pairs} pairs by rule in 2 documents" in text
    assert "with a model instead" in text


def test_generate_needs_documents(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(InvalidInput, match="not documents"):
        show(tmp_path, CHATS, tiny_model, generate=True)


def test_rows_that_a_run_would_refuse_are_said_to_be_refused(tmp_path: Path, tiny_model: Path) -> None:
    """The preview is of the rows that can be read; whether a run takes them is said next to it."""
    path = tmp_path / "mixed.jsonl"
    lines = [json.dumps(row) for row in CHATS[:16]] + ["{broken"] * 4
    path.write_text("\n".join(lines) + "\n")
    data_preview = preview(PreviewInput(path=path, base_model=str(tiny_model)), Context(settings()))
    assert "4 of 20 rows are bad (20.0%), and at most 5.0% may be" in data_preview.refusal
    assert "E-DATA-BAD-ROWS" in preview_text(data_preview)
    path.write_text("\n".join(lines[:16]) + "\n")
    assert preview(PreviewInput(path=path, base_model=str(tiny_model)), Context(settings())).refusal == ""


def test_a_set_without_a_good_row_is_not_called_allowed(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"messages": [{"role": "user", "content": "a?"}]}\n' * 20)
    try:
        text = preview(PreviewInput(path=Path("bad.jsonl"), base_model=str(tiny_model)), Context(settings())).refusal
    except InvalidInput as error:
        text = str(error)
    assert "20 of 20 rows" in text
    assert "At most 100.0% may be" not in text


ROW = {"frage": "What does it cost?", "antwort": "Three euros.", "datum": "today"}


def test_columns_under_other_names_are_listed_and_mapped(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "rows.jsonl").write_text((json.dumps(ROW) + "\n") * 3)
    listing = show_columns(ColumnsInput(path="rows.jsonl"), Context(settings()))
    assert [(column.name, column.example) for column in listing.columns] == list(ROW.items())
    assert {"prompt", "completion", "chosen", "text"} <= set(listing.fields)
    query = "path=rows.jsonl&columns[prompt]=frage&columns[completion]=antwort"
    request = read_query(PreviewInput, QueryParams(f"{query}&base_model={quote(str(tiny_model))}"), {})
    assert request.columns == {"prompt": "frage", "completion": "antwort"}
    data_preview = preview(request, Context(settings()))
    assert data_preview.raw.rows[0]["messages"][1]["content"] == "Three euros."
    assert data_preview.raw.ignored_keys == {"datum": 3}
    sent = build_exchange("data preview", request)
    assert {"columns[prompt]": "frage", "columns[completion]": "antwort"}.items() <= dict(sent.params).items()


@pytest.mark.parametrize("columns", [{"promt": "frage"}, {"prompt": "frage", "completion": "frage"}])
def test_columns_that_are_not_valid_are_named(columns: dict[str, str], tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    request = PreviewInput(path="rows.jsonl", columns=columns, base_model=str(tiny_model))
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: columns is not valid"):
        preview(request, Context(settings()))


def test_documents_have_no_columns(tmp_path: Path) -> None:
    (tmp_path / "guide.md").write_text("# Guide\n\nIt costs three euros.\n")
    assert show_columns(ColumnsInput(path="guide.md"), Context(settings())).columns == ()
    with pytest.raises(Refused, match="R-PATH-ROOT"):
        show_columns(ColumnsInput(path="/etc/passwd"), Context(settings()))
