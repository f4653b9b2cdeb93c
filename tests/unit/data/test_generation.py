"""The generator, by rule and against a server that fails in each way: every row that was asked for is accounted for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.data.generation.asking import pairs_per_request, pieces, shorten_code
from trainyard.data.generation.generate import generate
from trainyard.data.generation.rows import Books, DocumentCounts, rows_per_pair, spread_by_weight, spread_evenly
from trainyard.data.rows import DocumentRow, PreferenceRow, SftRow, read_rows, write_rows
from trainyard.data.validation import validate
from trainyard.errors import InvalidInput, TrainyardError, Unavailable
from trainyard.serve.client.client import Completer
from trainyard.spec.axes.data import Port
from trainyard.spec.estimate.verdict import describe_small_sets
from trainyard.spec.nodes import AiGeneratorConfig, HoldoutRules, ValidatorConfig
from trainyard.stores.artifacts import Reference
from trainyard.testing.scripted_server import (
    Behaviour,
    Exchange,
    ScriptedServer,
    die,
    drop,
    garbage,
    half_json,
    half_reply,
    hang,
    ok,
    status,
    wrong_types,
)

PAGE = """# {name}

{name} is the page that tells what {name} does and for whom.

## Beginning {name}

Beginning {name} means to open the box and to read its label.

## Ending {name}

Ending {name} means to close the box and to put it away.
"""


def documents_in(folder: Path, texts: Sequence[str], *, kind: str = "markdown") -> Path:
    rows = [DocumentRow(f"doc{n}", f"docs/{n}.md", kind, f"Page {n}", text) for n, text in enumerate(texts)]
    write_rows(folder / "rows.arrow", Port.DOCUMENTS, rows)
    return folder


def three_pages(folder: Path) -> Path:
    return documents_in(folder / "documents", [PAGE.format(name=name) for name in ("Alpha", "Beta", "Gamma")])


def read_port_rows(folder: Path, port: Port = Port.SFT) -> list[Any]:
    return list(read_rows(folder / port.value / "rows.arrow", port))


def accounting(folder: Path, port: Port = Port.SFT) -> dict[str, Any]:
    """The accounting, after a check that documents, totals, rows and quarantine agree."""
    value = json.loads((folder / port.value / "accounting.json").read_text())
    quarantine = read_quarantine(folder, port)
    assert value["asked"] == value["kept"] + sum(value["rejected"].values())
    assert value["kept"] == len(read_port_rows(folder, port)) == sum(entry["kept"] for entry in value["documents"])
    for entry in value["documents"]:
        assert entry["asked"] == entry["kept"] + sum(entry["rejected"].values())
    for reason, rows in value["rejected"].items():
        assert rows == sum(entry["rejected"].get(reason, 0) for entry in value["documents"])
        assert rows == sum(line["rows"] for line in quarantine if line["reason"] == reason)
    return value


def read_quarantine(folder: Path, port: Port = Port.SFT) -> list[dict[str, Any]]:
    lines = (folder / port.value / "quarantine.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def silent(fraction: float, text: str) -> None:
    assert 0 <= fraction <= 1
    assert text


def generate_by_rule(tmp_path: Path, documents: Path, **config: Any) -> dict[str, Any]:
    produced = generate(AiGeneratorConfig(**config), documents, tmp_path / "out", complete=None, report=silent)
    [port] = produced.outputs
    return accounting(tmp_path / "out", port)


# By rule


def test_the_extractive_engine_gives_exactly_the_rows_asked_for(tmp_path: Path) -> None:
    produced = generate(AiGeneratorConfig(count=18), three_pages(tmp_path), tmp_path, complete=None, report=silent)
    part = produced.outputs[Port.SFT]
    assert (part.folder, part.rows) == ("sft", 18)
    counts = {"pairs": 6, "unseen_wording": 0, "asked": 18, "kept": 18, "rejected": {}, "documents": 3, "surplus": 0}
    assert part.facts.items() >= ({"engine": "extractive", "model": None, "template": "qa"} | counts).items()
    assert [entry["kept"] for entry in accounting(tmp_path)["documents"]] == [6, 6, 6]


def section(page: int) -> str:
    return f"## How to {{0}} boxes of kind {page}\n\nTo {{0}} a box of kind {page} takes {page}{{1:02}} minutes.\n\n"


@pytest.mark.parametrize(("count", "pages"), [(60, 30), (60, 12), (40, 3)])
def test_count_is_what_is_left_to_train_on(tmp_path: Path, count: int, pages: int) -> None:
    """Rows of held-out documents, unseen and spare wordings come on top, as the validator behind it will take them."""
    words = [f"{letter}{letter}" for letter in "abcdefghijklmnopqrst"]
    texts = [
        f"# Page {page}\n\n" + "".join(map(section(page).format, words, range(len(words)))) for page in range(pages)
    ]
    config = AiGeneratorConfig(count=count, holdout=HoldoutRules())
    produced = generate(config, documents_in(tmp_path / "documents", texts), tmp_path, complete=None, report=silent)
    part = produced.outputs[Port.SFT]
    assert part.rows is not None
    assert part.facts["wanted"] == count < part.rows
    source = Reference(uri=f"file://{tmp_path / 'sft'}", sha256="", kind=Port.SFT, rows=part.rows)
    rules = ValidatorConfig(near_duplicates=None, decontaminate=0)
    facts = (
        validate(rules, source, tmp_path / "checked", tokens=lambda items: [1] * len(items), report=silent)
        .outputs[Port.SFT]
        .facts
    )
    assert count <= facts["kept"] <= count + 12
    assert facts["heldout"]["unseen_documents"] >= (20 if pages > 3 else 10)
    assert facts["cautions"] == describe_small_sets(facts["kept"], max(facts["heldout"].values()))


NOT_BY_DOCUMENT = HoldoutRules(documents=0)


def test_the_last_wording_of_each_pair_is_kept_for_the_validator_that_asks_for_it(tmp_path: Path) -> None:
    config = AiGeneratorConfig(count=12, holdout=NOT_BY_DOCUMENT)
    generate(config, three_pages(tmp_path), tmp_path, complete=None, report=silent)
    rows: list[SftRow] = read_port_rows(tmp_path)
    by_pair: dict[str, list[SftRow]] = {}
    for row in rows:
        by_pair.setdefault(row.pair, []).append(row)
    assert len(by_pair) == 6
    for wordings in by_pair.values():
        assert [row.split for row in wordings] == ["train", "train", "unseen_wording"]
        assert len({row.messages[0].content for row in wordings}) == 3
        assert len({row.messages[1].content for row in wordings}) == 1
        assert [message.role for message in wordings[0].messages] == ["user", "assistant"]
    assert {row.source for row in rows} == {"docs/0.md", "docs/1.md", "docs/2.md"}


@pytest.mark.parametrize("holdout", [None, HoldoutRules(documents=0, wording=False)])
def test_without_a_holdout_of_wordings_every_row_is_trained(tmp_path: Path, holdout: HoldoutRules | None) -> None:
    """A trainer takes the rows of `train` alone: a mark that nobody reads loses a third of the rows."""
    config = AiGeneratorConfig(count=18, holdout=holdout)
    generate(config, three_pages(tmp_path), tmp_path, complete=None, report=silent)
    rows: list[SftRow] = read_port_rows(tmp_path)
    assert [row.split for row in rows] == ["train"] * 18
    assert len({row.messages[0].content for row in rows}) == 18


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    documents = three_pages(tmp_path)
    for name in ("one", "two"):
        generate(AiGeneratorConfig(count=20), documents, tmp_path / name, complete=None, report=silent)
    for file in ("rows.arrow", "accounting.json", "quarantine.jsonl"):
        assert (tmp_path / "one/sft" / file).read_bytes() == (tmp_path / "two/sft" / file).read_bytes()


def test_a_count_that_is_no_multiple_gives_the_last_pair_fewer_wordings(tmp_path: Path) -> None:
    assert generate_by_rule(tmp_path, three_pages(tmp_path), count=8)["kept"] == 8
    pairs = [row.pair for row in read_port_rows(tmp_path / "out")]
    assert [pairs.count(pair) for pair in dict.fromkeys(pairs)] == [3, 3, 2]


def test_a_document_that_has_too_little_says_so(tmp_path: Path) -> None:
    result = generate_by_rule(tmp_path, three_pages(tmp_path), count=100)
    assert (result["asked"], result["kept"], result["rejected"]) == (100, 27, {"no_more_pairs": 73})
    assert read_quarantine(tmp_path / "out")[0]["detail"] == "its text gives 3 pairs by rule"


def test_long_documents_give_what_short_ones_lack(tmp_path: Path) -> None:
    long = "# Long\n" + "".join(
        f"## Part {n}\nPart {n} has a text with some words about its pump.\n" for n in range(20)
    )
    documents = documents_in(tmp_path / "documents", [PAGE.format(name="Alpha"), "nothing", long])
    result = generate_by_rule(tmp_path, documents, count=30, wordings=2)
    assert [entry["kept"] for entry in result["documents"]] == [6, 0, 24]
    parts = [row.messages[0].content for row in read_port_rows(tmp_path / "out") if row.source == "docs/2.md"]
    assert any("Part 19" in part or "Part 18" in part for part in parts)


def test_a_question_asked_by_two_documents_is_taken_once(tmp_path: Path) -> None:
    documents = documents_in(tmp_path / "documents", [PAGE.format(name="Alpha")] * 2)
    assert generate_by_rule(tmp_path, documents, count=9)["kept"] == 9
    assert len({row.messages[0].content for row in read_port_rows(tmp_path / "out")}) == 9


def test_preference_pairs_reject_another_answer_of_the_same_document(tmp_path: Path) -> None:
    documents = documents_in(
        tmp_path / "documents", [PAGE.format(name="Alpha"), "# One\n\n## Two\nRefunds are paid within 14 days."]
    )
    result = generate_by_rule(tmp_path, documents, count=4, template="preference")
    assert (result["kept"], result["rejected"]) == (3, {"no_other_answer": 1})
    rows: list[PreferenceRow] = read_port_rows(tmp_path / "out", Port.PREFERENCE)
    assert all(row.chosen[0].content != row.rejected[0].content for row in rows)
    assert {row.rejected[0].content for row in rows} == {row.chosen[0].content for row in rows}


@pytest.mark.parametrize("template", ["instruction", "code"])
def test_the_other_templates_have_one_row_a_pair(tmp_path: Path, template: str) -> None:
    code = '"""Tools for wood and for metal."""\ndef cut(size):\n    """Cut a board to size."""\n    check(size)\n'
    code += "    return size\n"
    documents = documents_in(tmp_path / "documents", [code], kind="code")
    result = generate_by_rule(tmp_path, documents, count=1, template=template)
    assert (result["kept"], read_port_rows(tmp_path / "out")[0].split) == (1, "train")


def test_documents_without_any_pair_are_an_error_with_the_reason(tmp_path: Path) -> None:
    documents = documents_in(tmp_path / "documents", ["", "word"])
    with pytest.raises(
        TrainyardError, match=r"E-DATA-EMPTY: .*found no pair for template 'qa' in 2 documents\. Why: It re"
    ):
        generate_by_rule(tmp_path, documents)


def test_no_documents_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"E-DATA-NOT-FOUND: The generator was given no documents\. Do: Point the data"
    ):
        generate_by_rule(tmp_path, documents_in(tmp_path / "documents", []))


def test_a_prompt_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-PROMPT: config\.prompt was given, but no model"):
        generate_by_rule(tmp_path, three_pages(tmp_path), prompt="{{ document.text }}")


# By a model


def ask(
    tmp_path: Path,
    script: Sequence[Behaviour] = (),
    *,
    then: Behaviour | None = None,
    documents: Path | None = None,
    **config: Any,
) -> tuple[dict[str, Any], ScriptedServer]:
    """Run a generator against a scripted server; its accounting and the server."""
    options = {"model": "m", "count": 24, "concurrency": 2, "retries": 0, "timeout_s": 60, "max_tokens": 400} | config
    settings = AiGeneratorConfig(**options)
    with ScriptedServer(script, then or ok()) as server:
        complete = Completer(settings, server.url, "m")
        document_folder = documents or three_pages(tmp_path)
        produced = generate(settings, document_folder, tmp_path / "out", complete=complete, report=silent)
    [port] = produced.outputs
    result = accounting(tmp_path / "out", port)
    assert produced.facts["usage"]["attempts"] >= len(server.requests)
    return result | {"usage": produced.facts["usage"]}, server


def test_a_server_that_answers_gives_every_row(tmp_path: Path) -> None:
    result, server = ask(tmp_path)
    assert (result["asked"], result["kept"], result["rejected"], result["engine"]) == (24, 24, {}, "openai")
    assert result["usage"]["requests"] == len(server.requests) == 5
    assert result["usage"]["completion_tokens"] > 0
    assert [entry["asked"] for entry in result["documents"]] == [9, 6, 9]
    assert [row.split for row in read_port_rows(tmp_path / "out")] == ["train"] * 24


def test_a_server_s_last_wordings_are_kept_for_the_validator_that_asks_for_them(tmp_path: Path) -> None:
    ask(tmp_path, count=16, holdout=NOT_BY_DOCUMENT)
    assert [row.split for row in read_port_rows(tmp_path / "out")] == ["train", "train", "unseen_wording"] * 8


def test_requests_share_prefix_and_schema_and_differ_in_seed(tmp_path: Path) -> None:
    _, server = ask(tmp_path, seed=5)
    forms = {json.dumps(request["response_format"]) for request in server.requests}
    assert sorted(form.count('"maxItems": 2') for form in forms) == [0, 1]
    assert len({request["messages"][0]["content"] for request in server.requests}) == 1
    assert sorted(request["seed"] for request in server.requests) == [5, 6, 7, 8, 9]
    assert {request["temperature"] for request in server.requests} == {0.7}


@pytest.mark.parametrize(
    ("template", "port", "first"),
    [
        ("instruction", Port.SFT, ["text 0.0", "text 0.1"]),
        ("code", Port.SFT, ["text 0.0", "text 0.1"]),
        ("preference", Port.PREFERENCE, ["text 0.0", "text 0.1", "text 0.2"]),
    ],
)
def test_each_template_makes_its_rows(tmp_path: Path, template: str, port: Port, first: list[str]) -> None:
    result, _ = ask(tmp_path, template=template, count=3, max_tokens=100)
    assert result["kept"] == 3
    row = read_port_rows(tmp_path / "out", port)[0]
    turns = row.messages if port is Port.SFT else [*row.prompt, *row.chosen, *row.rejected]
    assert [turn.content for turn in turns] == first


def test_an_own_prompt_is_used(tmp_path: Path) -> None:
    _, server = ask(tmp_path, prompt="Ask {{ pairs }} things about {{ document.title }}.", count=9)
    assert {request["messages"][1]["content"] for request in server.requests} >= {"Ask 1 things about Page 0."}


def test_a_bad_prompt_stops_before_the_server_is_asked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-PROMPT"):
        ask(tmp_path, prompt="{{ document.text }}{{ nothing }}")


def test_replies_in_a_fence_or_as_a_bare_list_are_read(tmp_path: Path) -> None:
    items = [{"instruction": "Do one thing.", "response": "Done."}]
    fenced = ok("```json\n" + json.dumps({"pairs": items}) + "\n```")
    listed = ok(json.dumps([{"instruction": "Do another.", "response": "Done."}]))
    result, _ = ask(tmp_path, [fenced, listed], count=2, template="instruction", concurrency=1, max_tokens=100)
    assert result["kept"] == 2


def pairs_text(*pairs: Any) -> str:
    return json.dumps({"pairs": list(pairs)})


QUESTION = {"questions": ["What is it?", "Which thing is it?"], "answer": "A box."}
FAULTS = [
    ("Here you are: a pair!", "invalid_json", "unexpected character"),
    ('{"pairs": [{"questions": ["Wh', "invalid_json", "unexpected end"),
    ('{"pairs": "none"}', "wrong_form", 'the reply is not of the form {"pairs": […]}'),
    ("17", "wrong_form", "the reply is not of the form"),
    (pairs_text({"questions": ["One?"], "answer": "A."}), "wrong_form", "is too short"),
    (pairs_text(QUESTION | {"answer": 3}), "wrong_form", "3 is not of type 'string'"),
    (pairs_text(QUESTION | {"more": 3}), "wrong_form", "Additional properties"),
    (pairs_text(17), "wrong_form", "17 is not of type 'object'"),
    (pairs_text(QUESTION | {"answer": " \n"}), "empty_text", "only white space"),
    (
        pairs_text(QUESTION | {"questions": ["Same?", " same? "]}),
        "same_wording",
        "two wordings of the question are the same",
    ),
    (pairs_text(), "missing", "1 pairs were requested, 0 came back"),
]


@pytest.mark.parametrize(
    ("text", "reason", "detail"), FAULTS, ids=[f"{n}-{fault[1]}" for n, fault in enumerate(FAULTS)]
)
def test_a_reply_that_cannot_be_used_is_counted_with_its_reason(
    tmp_path: Path, text: str, reason: str, detail: str
) -> None:
    options = {"count": 4, "wordings": 2, "concurrency": 1, "max_tokens": 100}
    result, _ = ask(tmp_path, [ok(text)], documents=documents_in(tmp_path / "d", ["One text."]), **options)
    assert (result["kept"], result["rejected"]) == (2, {reason: 2})
    [line] = read_quarantine(tmp_path / "out")
    assert (line["line"], line["source"], line["rows"]) == (1, "docs/0.md", 2)
    assert detail in line["detail"]


def test_a_question_that_was_asked_before_is_a_duplicate(tmp_path: Path) -> None:
    options = {"count": 6, "wordings": 2, "concurrency": 1, "max_tokens": 100}
    again = ok(pairs_text(QUESTION | {"questions": ["what IS it?", "New?"]}))
    result, _ = ask(tmp_path, [ok(pairs_text(QUESTION)), again], **options)
    assert (result["kept"], result["rejected"]) == (4, {"duplicate": 2})


def test_equal_replies_of_a_preference_are_rejected(tmp_path: Path) -> None:
    same = ok(pairs_text({"prompt": "Why?", "chosen": "So.", "rejected": "So. "}))
    result, _ = ask(tmp_path, [same], count=2, template="preference", max_tokens=100, concurrency=1)
    assert (result["kept"], result["rejected"]) == (1, {"same_reply": 1})


def test_more_pairs_than_asked_for_are_surplus_and_fewer_are_missing(tmp_path: Path) -> None:
    many = [{"instruction": f"Do {n}.", "response": "Done."} for n in range(5)]
    documents = documents_in(tmp_path / "d", ["One text."])
    options = {"template": "instruction", "count": 6, "max_tokens": 400, "concurrency": 1, "documents": documents}
    result, _ = ask(tmp_path, [ok(pairs_text(*many)), ok(pairs_text({"instruction": "x", "response": "y"}))], **options)
    assert (result["kept"], result["surplus"], result["rejected"]) == (4, 2, {"missing": 2})


PASSING = [
    (status(503), "server_refused"),
    (status(400), "server_refused"),
    (hang(), "server_timeout"),
    (drop(), "server_unreachable"),
    (half_reply(), "server_response"),
    (half_json(), "server_response"),
    (garbage(), "server_response"),
    (wrong_types(), "server_response"),
]


@pytest.mark.parametrize(("behaviour", "reason"), PASSING, ids=[f"{n}-{kind}" for n, (_, kind) in enumerate(PASSING)])
def test_a_request_that_fails_costs_its_rows_and_no_others(tmp_path: Path, behaviour: Behaviour, reason: str) -> None:
    timeout_s = 3 if reason == "server_timeout" else 60
    result, _ = ask(tmp_path, [ok(), behaviour], concurrency=1, timeout_s=timeout_s)
    assert result["rejected"] == {reason: 3}
    assert result["kept"] == 21
    [line] = read_quarantine(tmp_path / "out")
    assert line["detail"].startswith(f"E-{reason.upper().replace('_', '-')}: The model server at http://127.0.0.1:")


LASTING = [
    (
        status(503, "overloaded"),
        r"E-SERVER-REFUSED: The model server failed for 24 of 24 rows \(not_asked 3, server_refused 21\)",
    ),
    (status(401, "bad key"), r"E-SERVER-REFUSED: .* Why: .* refused with status 401 .*bad key.* Do: Name an endpoint"),
    (
        hang(),
        r"E-SERVER-TIMEOUT: The model server failed for 24 of 24 rows .*; 0 were kept\. Why: .*did not answer in time",
    ),
    (drop(), r"E-SERVER-UNREACHABLE: .*could not be reached"),
    (die(), r"E-SERVER-UNREACHABLE: The model server failed for 24 of 24 rows"),
    (half_reply(), r"E-SERVER-RESPONSE: .*cannot be used \(1 attempt\).*At least half of the rows have to be answered"),
    (garbage(), r"E-SERVER-RESPONSE: .*the body is not JSON"),
]


@pytest.mark.parametrize(("behaviour", "message"), LASTING, ids=[str(n) for n in range(len(LASTING))])
def test_a_server_that_never_answers_fails_the_node_with_counts(
    tmp_path: Path, behaviour: Behaviour, message: str
) -> None:
    with pytest.raises(Unavailable, match=message):
        ask(tmp_path, then=behaviour, timeout_s=0.1 if "TIMEOUT" in message else 60, concurrency=1)


def test_a_server_that_dies_late_leaves_what_it_answered(tmp_path: Path) -> None:
    result, _ = ask(tmp_path, [*[ok()] * 7, die()], count=60, max_tokens=400, concurrency=1)
    assert result["asked"] == 60
    assert result["kept"] >= 30
    assert set(result["rejected"]) <= {"server_unreachable", "not_asked"}
    assert result["rejected"]["server_unreachable"] >= 3


def test_a_server_that_dies_early_fails_the_node_with_counts(tmp_path: Path) -> None:
    with pytest.raises(
        Unavailable,
        match=r"E-SERVER-UNREACHABLE: .*failed for \d+ of 60 rows \(not_asked \d+, server_unreach.* 12 were kept",
    ):
        ask(tmp_path, [ok(), ok(), die()], count=60, concurrency=1)


def test_a_dead_server_is_given_up_after_a_few_failures(tmp_path: Path) -> None:
    with ScriptedServer(then=status(500)) as server:
        config = AiGeneratorConfig(model="m", count=3000, concurrency=3, retries=0)
        documents = three_pages(tmp_path)
        with pytest.raises(Unavailable, match=r"not_asked 2,[89]\d\d"):
            generate(config, documents, tmp_path, complete=Completer(config, server.url, "m"), report=silent)
    assert 6 <= len(server.requests) <= 9


def test_replies_without_one_usable_pair_fail_the_node(tmp_path: Path) -> None:
    message = r"E-DATA-EMPTY: None of the 24 rows that were requested could be kept \(invalid_json 24\)\. Why: The"
    with pytest.raises(TrainyardError, match=message):
        ask(tmp_path, then=ok("no JSON today"))


def test_transient_failures_are_retried_and_cost_nothing(tmp_path: Path) -> None:
    result, _ = ask(tmp_path, [status(503), drop(), half_json()], retries=3, concurrency=3, count=9)
    assert (result["kept"], result["rejected"]) == (9, {})
    assert result["usage"]["attempts"] == result["usage"]["requests"] + 3


def test_replies_are_accepted_in_order_whatever_order_they_come_in(tmp_path: Path) -> None:
    def late_first(exchange: Exchange) -> str:
        name = exchange.body["messages"][1]["content"].split("\n")[0]
        pair = {"instruction": f"{name} seed {exchange.body['seed']}", "response": "Done."}
        return pairs_text(pair)

    async def answer_jumbled(exchange: Exchange) -> None:
        await asyncio.sleep(0.03 * (3 - exchange.number % 4))
        await ok(late_first)(exchange)

    options = {"template": "instruction", "count": 12, "max_tokens": 100}
    texts = []
    for concurrency in (1, 6):
        ask(
            tmp_path / str(concurrency),
            then=answer_jumbled,
            concurrency=concurrency,
            documents=three_pages(tmp_path),
            **options,
        )
        texts.append([row.messages[0].content for row in read_port_rows(tmp_path / str(concurrency) / "out")])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 12


def test_long_documents_are_asked_about_piece_by_piece(tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {n} " + "has words " * 20 for n in range(20))
    documents = documents_in(tmp_path / "d", [text])
    _, server = ask(tmp_path, template="instruction", count=40, max_chars=1000, max_tokens=1000, documents=documents)
    prompts = [request["messages"][1]["content"] for request in server.requests]
    assert all(len(prompt) < 1200 for prompt in prompts)
    for n in range(20):
        assert any(f"Paragraph {n} " in prompt for prompt in prompts)


def test_any_callable_will_do_as_complete(tmp_path: Path) -> None:
    async def complete(messages: list[dict[str, str]], schema: dict[str, Any] | None, seed: int) -> str:
        assert schema is not None
        return pairs_text({"instruction": f"Do {seed}.", "response": "Done."})

    config = AiGeneratorConfig(model="m", engine="local", template="instruction", count=5, max_tokens=100)
    produced = generate(config, three_pages(tmp_path), tmp_path, complete=complete, report=silent)
    assert (produced.facts["kept"], produced.facts["usage"], produced.facts["engine"]) == (5, {}, "local")


def test_a_fault_of_the_caller_is_not_taken_for_a_server_error(tmp_path: Path) -> None:
    async def complete(messages: list[dict[str, str]], schema: dict[str, Any] | None, seed: int) -> str:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        generate(AiGeneratorConfig(model="m"), three_pages(tmp_path), tmp_path, complete=complete, report=silent)


# Arithmetic


@given(st.integers(0, 500), st.lists(st.integers(0, 10_000), max_size=30))
def test_shares_by_weight_add_up_and_follow_the_weights(count: int, weights: list[int]) -> None:
    shares = spread_by_weight(count, weights)
    assert len(shares) == len(weights)
    if sum(weights):
        assert sum(shares) == count
        assert all(
            abs(share - count * weight / sum(weights)) < 1 for share, weight in zip(shares, weights, strict=True)
        )
    else:
        assert sum(shares) == 0


@given(st.integers(0, 500), st.lists(st.integers(0, 60), max_size=30))
def test_even_shares_stay_within_capacity_and_are_level(count: int, capacities: list[int]) -> None:
    shares = spread_evenly(count, capacities)
    assert sum(shares) == min(count, sum(capacities))
    assert all(0 <= share <= capacity for share, capacity in zip(shares, capacities, strict=True))
    free = [share for share, capacity in zip(shares, capacities, strict=True) if share < capacity]
    assert not free or max(shares) - min(free) <= 1


@given(st.integers(1, 300), st.integers(1, 8), st.lists(st.integers(1, 100), min_size=1, max_size=10))
def test_rows_of_pairs_add_up_to_the_count(count: int, wordings: int, weights: list[int]) -> None:
    rows = rows_per_pair(count, spread_by_weight(-(-count // wordings), weights), wordings)
    assert sum(sum(document) for document in rows) == count
    assert all(1 <= pair <= wordings for document in rows for pair in document)


@settings(deadline=None)
@given(st.text(alphabet="ab \n", max_size=300), st.integers(5, 50))
def test_pieces_hold_all_words_and_fit(text: str, most: int) -> None:
    pieces_found = pieces(text, most)
    assert all(0 < len(piece) <= most for piece in pieces_found)
    assert "".join("".join(pieces_found).split()) == "".join(text.split())


def test_requests_are_as_large_as_their_reply_may_be() -> None:
    assert pairs_per_request(AiGeneratorConfig(max_tokens=16)) == 1
    assert pairs_per_request(AiGeneratorConfig(max_tokens=1024)) == 5
    assert pairs_per_request(AiGeneratorConfig(max_tokens=100_000)) == 8


def test_a_reason_is_the_code_in_one_word() -> None:
    assert shorten_code(Unavailable("x", code="E-SERVER-TIMEOUT")) == "server_timeout"


def test_many_rows_are_written_in_batches(tmp_path: Path) -> None:
    with Books(tmp_path / "sft", Port.SFT) as books:
        account = books.ask("d", "s", 25_000)
        for _ in range(25):
            books.keep(account, [SftRow(messages=[]) for _ in range(1000)])
    books.write_accounting({})
    assert len(list(read_rows(tmp_path / "sft/rows.arrow", Port.SFT))) == 25_000


def test_books_that_do_not_balance_are_not_written(tmp_path: Path) -> None:
    with Books(tmp_path / "sft", Port.SFT) as books:
        books.ask("d", "s", 2)
        with pytest.raises(AssertionError):
            books.write_accounting({})
    assert (
        msgspec.json.encode(DocumentCounts("d", "s", 2))
        == b'{"doc_id":"d","source":"s","asked":2,"kept":0,"rejected":{}}'
    )
