"""Best-of-n in the generator: how many answers are drawn, what is missing, and how the best ones become the rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.test_generation import accounting, documents_in, read_port_rows, silent, three_pages
from trainyard.data.generation.candidates import keep_best, read_candidates, select_best
from trainyard.data.generation.generate import generate
from trainyard.serve.client.client import Completer
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.stores.artifacts import Produced
from trainyard.testing.scripted_server import Behaviour, Exchange, ScriptedServer, ok, status


def ask(
    tmp_path: Path, script: Sequence[Behaviour] = (), *, documents: Path | None = None, **config: Any
) -> tuple[Produced, ScriptedServer]:
    fields: dict[str, Any] = {"model": "m", "count": 12, "retries": 0, "max_tokens": 400, "best_of": 3, **config}
    settings = AiGeneratorConfig(**fields)
    with ScriptedServer(script, ok()) as server:
        complete = Completer(settings, server.url, "m")
        produced = generate(settings, documents or three_pages(tmp_path), tmp_path, complete=complete, report=silent)
    return produced, server


def read_stored_candidates(tmp_path: Path) -> list[Any]:
    return list(read_candidates(tmp_path / "sft" / "candidates.jsonl"))


def schemas(server: ScriptedServer) -> list[str]:
    """The property that each request asked for."""
    properties = [request["response_format"]["json_schema"]["schema"]["properties"] for request in server.requests]
    return [next(iter(properties)) for properties in properties]


@pytest.mark.parametrize("template", ["qa", "instruction", "code"])
def test_each_question_is_answered_n_times(template: str, tmp_path: Path) -> None:
    produced, server = ask(tmp_path, template=template)
    pairs = {row.pair for row in read_port_rows(tmp_path)}
    candidates = read_stored_candidates(tmp_path)
    assert {candidate.pair for candidate in candidates} == pairs
    assert {len(candidate.answers) for candidate in candidates} == {3}
    assert produced.facts["candidates"] == {"best_of": 3, "drawn": 3 * len(pairs), "missing": 0}
    assert schemas(server).count("answers") == 2 * schemas(server).count("pairs")
    seeds = [request["seed"] for request in server.requests]
    assert len(set(seeds)) == len(seeds)
    accounting(tmp_path)


def test_the_first_answer_is_not_shown_to_who_answers_again(tmp_path: Path) -> None:
    _, server = ask(tmp_path, documents=documents_in(tmp_path / "d", ["A page about boxes."]), count=3, concurrency=1)
    (row, *_) = read_port_rows(tmp_path)
    _, *again = server.requests
    assert len(again) == 2
    for request in again:
        prompt = request["messages"][-1]["content"]
        assert "A page about boxes." in prompt
        assert f"1. {row.messages[0].content}" in prompt
        assert row.messages[1].content not in prompt


@pytest.mark.parametrize(
    "bad", [ok("no JSON"), ok('{"answers": [7]}'), ok('{"answers": []}'), ok('["a"]'), status(400)]
)
def test_an_answer_that_is_not_there_costs_no_row(bad: Behaviour, tmp_path: Path) -> None:
    documents = documents_in(tmp_path / "d", ["One text."])
    produced, _ = ask(tmp_path, [ok(), bad], documents=documents, count=3, concurrency=1)
    assert produced.facts["kept"] == 3
    assert produced.facts["candidates"] == {"best_of": 3, "drawn": 2, "missing": 1}
    assert [len(candidate.answers) for candidate in read_stored_candidates(tmp_path)] == [2]


def test_answers_of_another_number_than_the_questions_are_nobodys(tmp_path: Path) -> None:
    def short(exchange: Exchange) -> str:
        properties = exchange.body["response_format"]["json_schema"]["schema"]["properties"]
        questions = [[f"Why {number}, {wording}?" for wording in "abc"] for number in range(2)]
        pairs = [{"questions": wordings, "answer": f"So {number}."} for number, wordings in enumerate(questions)]
        return json.dumps({"answers": ["Because."]} if "answers" in properties else {"pairs": pairs})

    documents = documents_in(tmp_path / "d", ["One text."])
    produced, _ = ask(tmp_path, [ok(short)] * 3, documents=documents, count=6, concurrency=1)
    assert [candidate.answers for candidate in read_stored_candidates(tmp_path)] == [["So 0."], ["So 1."]]
    assert produced.facts["candidates"] == {"best_of": 3, "drawn": 2, "missing": 4}


def test_further_answers_that_fail_end_no_line(tmp_path: Path) -> None:
    documents = documents_in(tmp_path / "d", ["One text.", "Another text."])
    script = [ok(), *[status(500)] * 7, ok(), *[status(500)] * 7]
    produced, server = ask(tmp_path, script, documents=documents, count=6, concurrency=1, best_of=8)
    assert len(server.requests) == 16
    assert produced.facts["kept"] == 6
    assert produced.facts["candidates"] == {"best_of": 8, "drawn": 2, "missing": 14}


def test_equal_answers_are_scored_once(tmp_path: Path) -> None:
    def same(exchange: Exchange) -> str:
        properties = exchange.body["response_format"]["json_schema"]["schema"]["properties"]
        questions = [f"Why {exchange.number}, {wording}?" for wording in "abc"]
        pairs = [{"questions": questions, "answer": "So."}]
        return json.dumps({"answers": ["So."]} if "answers" in properties else {"pairs": pairs})

    documents = documents_in(tmp_path / "d", ["One text."])
    produced, _ = ask(tmp_path, [ok(same)] * 3, documents=documents, count=3, concurrency=1)
    assert [candidate.answers for candidate in read_stored_candidates(tmp_path)] == [["So."]]
    assert produced.facts["candidates"]["drawn"] == 3


def test_one_answer_leaves_no_trace(tmp_path: Path) -> None:
    produced, server = ask(tmp_path, best_of=1)
    assert "candidates" not in produced.facts
    assert not (tmp_path / "sft" / "candidates.jsonl").exists()
    assert "best_of" not in AiGeneratorConfig().model_dump()
    assert set(schemas(server)) == {"pairs"}


def test_the_best_answer_takes_the_place_of_the_first_in_every_wording(tmp_path: Path) -> None:
    ask(tmp_path, count=12)
    candidates, before = read_stored_candidates(tmp_path), read_port_rows(tmp_path)
    scores = itertools.cycle([[0.0, 2.0, 1.0], [5.0, None, 1.0], [None, None, None]])
    facts = keep_best(tmp_path / "sft", Port.SFT, itertools.islice(scores, len(candidates)))
    after = read_port_rows(tmp_path)
    assert len(candidates) == 4
    assert [(row.pair, row.split, row.messages[0]) for row in after] == [
        (row.pair, row.split, row.messages[0]) for row in before
    ]
    best_answers = {
        candidate.pair: candidate.answers[best_index]
        for candidate, best_index in zip(candidates, (1, 0, 0, 1), strict=True)
    }
    assert all(row.messages[1].content == best_answers[row.pair] for row in after)
    assert facts == {
        "questions": 4, "changed": 2, "unscored": 4, "mean_reward": {"first": pytest.approx(5 / 3), "best": 3.0},
    }  # fmt: skip
    assert not list((tmp_path / "sft").glob("*.new"))


def test_of_equal_scores_the_first_answer_stays() -> None:
    assert [select_best(scores) for scores in ([1.0, 1.0], [None, 0.0], [None], [0.0, 3.0, 3.0])] == [0, 1, 0, 1]
