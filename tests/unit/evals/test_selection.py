"""A reward model chooses among answers: in a child, by the scores of its training, and said in the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoTokenizer

from tests.unit.evals.test_reward_models import made  # noqa: F401
from trainyard.compute.supervise import DesiredState
from trainyard.data.generation.candidates import Candidates
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.rows import Message, Row, SftRow, read_rows, write_rows
from trainyard.errors import Conflict
from trainyard.evals.selection.choosing import SelectionJob, choose_best
from trainyard.evals.selection.program import load_judge
from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import Produced, ProducedSet

QUESTIONS = [
    Candidates(
        f"pair{n}", f"What is a {word}?", [f"A {word} is one part.", f"No idea about the {word}.", "x " * length]
    )
    for n, (word, length) in enumerate((("chain", 2), ("node", 5), ("run", 4000)))
]


def given(folder: Path) -> Produced:
    """What a generator leaves: rows with the first answers, and the candidates."""
    part = folder / "sft"
    rows: list[Row] = [
        SftRow([Message("user", one.prompt), Message("assistant", one.answers[0])], pair=one.pair)
        for one in QUESTIONS
        for _ in range(2)
    ]
    write_rows(part / "rows.arrow", Port.SFT, rows)
    (part / "candidates.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in QUESTIONS))
    (part / "accounting.json").write_text('{"asked": 6}')
    facts: dict[str, Any] = {"candidates": {"best_of": 3, "drawn": 9, "missing": 0}}
    return Produced(outputs={Port.SFT: ProducedSet(folder="sft", rows=6, facts=facts)}, facts=facts)


def scores_of(model: Any, base: Path) -> list[list[float | None]]:
    """What the model says of each candidate, one row at a time; None for the one that is too long for it."""
    renderer = Renderer(AutoTokenizer.from_pretrained(base))
    found: list[list[float | None]] = []
    for one in QUESTIONS:
        found.append([])
        for answer in one.answers:
            asked, (said,) = renderer.answered(
                [{"role": "user", "content": one.prompt}], [[{"role": "assistant", "content": answer}]]
            )
            ids = [*renderer.ids(asked), *renderer.learned_ids(said)]
            fits = len(ids) <= model.config.max_position_embeddings
            with torch.no_grad():
                found[-1].append(float(model(torch.tensor([ids])).logits[0, 0]) if fits else None)
    return found


def test_the_answer_with_the_highest_reward_stays(made: tuple[Path, Any], tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    folder, model = made
    events: list[dict[str, Any]] = []
    produced = choose_best(given(tmp_path), tmp_path, folder / "adapter", threads=1, seed=0, on_event=events.append)
    expected = scores_of(model, tiny_model)
    assert expected[2][2] is None
    best = [max(range(3), key=lambda at, own=own: -1e9 if own[at] is None else own[at]) for own in expected]  # type: ignore[misc]
    rows = list(read_rows(tmp_path / "sft" / "rows.arrow", Port.SFT))
    wanted = [one.answers[place] for one, place in zip(QUESTIONS, best, strict=True)]
    assert [row.messages[1].content for row in rows[::2]] == wanted  # type: ignore[union-attr]
    chosen = produced.facts["candidates"]
    assert (chosen["questions"], chosen["changed"], chosen["unscored"]) == (3, sum(place > 0 for place in best), 1)
    highest = [own[place] for own, place in zip(expected, best, strict=True)]
    assert chosen["mean_reward"]["best"] == pytest.approx(sum(highest) / 3, abs=1e-4)  # type: ignore[arg-type]
    assert chosen["mean_reward"]["best"] >= chosen["mean_reward"]["first"]
    assert json.loads((tmp_path / "sft" / "accounting.json").read_text()) == {"asked": 6, "candidates": chosen}
    assert [one["step"] for one in events if one["event"] == "progress"] == [3]


def test_a_batch_scores_as_single_rows_do(made: tuple[Path, Any], tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    judge = load_judge(SelectionJob(reward_model=str(made[0] / "adapter"), candidates=""))
    for own, expected in zip(judge.score(QUESTIONS), scores_of(made[1], tiny_model), strict=True):
        assert own == [pytest.approx(value, abs=1e-4) if value is not None else None for value in expected]


@pytest.mark.slow
def test_a_choice_that_is_stopped_says_so(made: tuple[Path, Any], tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(Conflict, match=r"E-STOPPED: The choice among the answers was stopped"):
        choose_best(
            given(tmp_path), tmp_path, made[0] / "adapter", threads=1, seed=0, desired_state=lambda: DesiredState.CANCEL
        )
