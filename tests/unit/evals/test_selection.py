"""A reward model chooses among answers: in a child, by the scores of its training, and said in the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoTokenizer

from tests.unit.evals.test_reward_models import trained_reward  # noqa: F401
from trainyard.compute.supervise import DesiredState
from trainyard.data.generation.candidates import Candidates
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.rows import Message, Row, SftRow, read_rows, write_rows
from trainyard.errors import Conflict
from trainyard.evals.selection import SelectionJob, choose_best
from trainyard.evals.selection_program import load_judge
from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import Produced, ProducedSet

QUESTIONS = [
    Candidates(
        f"pair{n}", f"What is a {word}?", [f"A {word} is one part.", f"No idea about the {word}.", "x " * length]
    )
    for n, (word, length) in enumerate((("chain", 2), ("node", 5), ("run", 4000)))
]


def write_candidates(folder: Path) -> Produced:
    """What a generator leaves: rows with the first answers, and the candidates."""
    part = folder / "sft"
    rows: list[Row] = [
        SftRow([Message("user", question.prompt), Message("assistant", question.answers[0])], pair=question.pair)
        for question in QUESTIONS
        for _ in range(2)
    ]
    write_rows(part / "rows.arrow", Port.SFT, rows)
    (part / "candidates.jsonl").write_bytes(b"".join(msgspec.json.encode(question) + b"\n" for question in QUESTIONS))
    (part / "accounting.json").write_text('{"asked": 6}')
    facts: dict[str, Any] = {"candidates": {"best_of": 3, "drawn": 9, "missing": 0}}
    return Produced(outputs={Port.SFT: ProducedSet(folder="sft", rows=6, facts=facts)}, facts=facts)


def compute_scores(model: Any, base: Path) -> list[list[float | None]]:
    """What the model says of each candidate, one row at a time; None for the one that is too long for it."""
    renderer = Renderer(AutoTokenizer.from_pretrained(base))
    scores: list[list[float | None]] = []
    for question in QUESTIONS:
        scores.append([])
        for answer in question.answers:
            prompt, (reply,) = renderer.answered(
                [{"role": "user", "content": question.prompt}], [[{"role": "assistant", "content": answer}]]
            )
            ids = [*renderer.ids(prompt), *renderer.encode_answer(reply)]
            fits = len(ids) <= model.config.max_position_embeddings
            with torch.no_grad():
                scores[-1].append(float(model(torch.tensor([ids])).logits[0, 0]) if fits else None)
    return scores


def test_the_answer_with_the_highest_reward_stays(
    trained_reward: tuple[Path, Any],  # noqa: F811
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    folder, model = trained_reward
    events: list[dict[str, Any]] = []
    produced = choose_best(
        write_candidates(tmp_path), tmp_path, folder / "adapter", threads=1, seed=0, on_event=events.append
    )
    expected = compute_scores(model, tiny_model)
    assert expected[2][2] is None
    best = [
        max(range(3), key=lambda at, scores=scores: -1e9 if scores[at] is None else scores[at])  # type: ignore[misc]
        for scores in expected
    ]
    rows = list(read_rows(tmp_path / "sft" / "rows.arrow", Port.SFT))
    expected_answers = [question.answers[index] for question, index in zip(QUESTIONS, best, strict=True)]
    assert [row.messages[1].content for row in rows[::2]] == expected_answers  # type: ignore[union-attr]
    candidates = produced.facts["candidates"]
    assert (candidates["questions"], candidates["changed"], candidates["unscored"]) == (
        3,
        sum(index > 0 for index in best),
        1,
    )
    highest = [row_scores[index] for row_scores, index in zip(expected, best, strict=True)]
    assert candidates["mean_reward"]["best"] == pytest.approx(sum(highest) / 3, abs=1e-4)  # type: ignore[arg-type]
    assert candidates["mean_reward"]["best"] >= candidates["mean_reward"]["first"]
    assert json.loads((tmp_path / "sft" / "accounting.json").read_text()) == {"asked": 6, "candidates": candidates}
    assert [event["step"] for event in events if event["event"] == "progress"] == [3]


def test_a_batch_scores_as_single_rows_do(trained_reward: tuple[Path, Any], tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    judge = load_judge(SelectionJob(reward_model=str(trained_reward[0] / "adapter"), candidates=""))
    for row_scores, expected in zip(judge.score(QUESTIONS), compute_scores(trained_reward[1], tiny_model), strict=True):
        assert row_scores == [pytest.approx(value, abs=1e-4) if value is not None else None for value in expected]


@pytest.mark.slow
def test_a_choice_that_is_stopped_says_so(trained_reward: tuple[Path, Any], tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(Conflict, match=r"E-STOPPED: The choice among the answers was stopped"):
        choose_best(
            write_candidates(tmp_path),
            tmp_path,
            trained_reward[0] / "adapter",
            threads=1,
            seed=0,
            desired_state=lambda: DesiredState.CANCEL,
        )
