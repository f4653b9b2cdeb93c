"""One evaluation of a real, trained adapter in a real child process, and what happens when it cannot finish."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.unit.evals.train_small import train_small
from trainyard.compute.supervise import DesiredState
from trainyard.data.rows import Message, PreferenceRow, Row, SftRow, write_rows
from trainyard.errors import Conflict, InvalidInput, TrainyardError
from trainyard.evals.job import EvaluationJob, HeldOutSet, Participant, baseline, job_from_inputs, live_participant
from trainyard.evals.runner import evaluate
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import EvaluatorConfig
from trainyard.stores.artifacts import Reference

pytestmark = pytest.mark.integration

ANSWERS = ("A chain is a list of nodes.", "The trainer counts every token.", "A node reads documents.")
TASKS = Path(__file__).parents[3] / "examples" / "tasks"


def talk(index: int) -> list[Message]:
    return [Message("user", f"What about number {index}?"), Message("assistant", ANSWERS[index % 3])]


@pytest.fixture(scope="session")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `candidate`, `control` and `broken` adapters for the tiny model, and held-out rows."""
    folder = tmp_path_factory.mktemp("trained")
    rows: list[Row] = [SftRow(talk(index), doc_id=f"d{index // 2}", source=f"f:{index}") for index in range(12)]
    write_rows(folder / "rows.arrow", Port.SFT, rows)
    write_rows(folder / "heldout" / "unseen_wording.arrow", Port.SFT, rows)
    pairs: list[Row] = [
        PreferenceRow(talk(index)[:1], talk(index)[1:], [Message("assistant", "zzz qqq")], source=f"p:{index}")
        for index in range(8)
    ]
    write_rows(folder / "pairs.arrow", Port.PREFERENCE, pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        train_small(tiny_model, folder)
    return folder


def job(trained: Path, base: Path, adapter: str = "candidate", **fields: Any) -> EvaluationJob:
    held = HeldOutSet(
        name="unseen_wording",
        port=Port.SFT,
        path=str(trained / "heldout" / "unseen_wording.arrow"),
        gold="synthetic (extractive)",
    )
    defaults = {
        "base_model": "tiny",
        "base_path": str(base),
        "candidate": Participant(name="candidate", path=str(trained / adapter), kind="adapter"),
        "candidate_sha256": "ab" * 32,
        "heldout": (held,),
        "config": EvaluatorConfig(resamples=200, samples=1, least_rows=0),
    }
    return EvaluationJob(**{**defaults, **fields})


@pytest.mark.slow
def test_a_trained_adapter_is_better_than_its_base_and_its_control(
    trained: Path, tiny_model: Path, tmp_path: Path
) -> None:
    pairs = HeldOutSet(name="unseen_documents", port=Port.PREFERENCE, path=str(trained / "pairs.arrow"))
    config = EvaluatorConfig.model_validate(
        {
            "benchmarks": [
                {"name": "heldout_loss", "set": "unseen_wording"},
                {"name": "token_accuracy", "set": "unseen_wording"},
                {"name": "exact_match", "set": "unseen_wording"},
                {"name": "pairwise_reward_accuracy", "set": "unseen_documents"},
                {"name": "multiple_choice", "path": str(TASKS / "multiple_choice.jsonl"), "margin": 1.0},
                {"name": "f1", "path": str(TASKS / "questions.jsonl"), "margin": 1.0},
                {"name": "forgetting", "margin": 20.0, "max_rows": 10},
            ],
            "resamples": 200,
            "least_rows": 8,
        }
    )
    wording = job(trained, tiny_model).heldout[0]
    control = Participant(name="control", path=str(trained / "control"), kind="adapter")
    events: list[dict[str, Any]] = []
    live = Participant(name="live adapter acme/bot/v1", path=str(trained / "control"), kind="adapter")
    evaluation_job = job(trained, tiny_model, heldout=(wording, pairs), config=config, control=control, live=live)
    produced = evaluate(evaluation_job, tmp_path, on_event=events.append)

    report = json.loads((tmp_path / "report" / "report.json").read_text())
    lines = {line["name"]: line for line in report["benchmarks"]}
    assert report["gate"] == {**report["gate"], "better": True, "primary": "heldout_loss/unseen_wording"}
    assert lines["heldout_loss"]["control"] == pytest.approx(lines["heldout_loss"]["baseline"], abs=1e-4)
    assert lines["heldout_loss"]["vs_control"]["low"] > 0
    assert lines["heldout_loss"]["vs_live"] == lines["heldout_loss"]["vs_control"]  # the same adapter
    assert lines["token_accuracy"]["candidate"] > 0.2 > lines["token_accuracy"]["baseline"]
    assert lines["pairwise_reward_accuracy"]["baseline"] == 0.5
    assert lines["pairwise_reward_accuracy"]["candidate"] == 1.0
    assert report["samples"][0]["prompt"] == "What about number 0?"
    assert [sample["set"] for sample in report["samples"]] == ["unseen_wording", "unseen_documents", "multiple_choice"]
    assert produced.outputs[Port.REPORT].folder == "report"
    assert produced.facts["better"] is True
    assert [event["step"] for event in events if event["event"] == "progress"] == list(range(1, 8))
    assert "**Better, on few rows.**" in (tmp_path / "report" / "report.md").read_text()
    assert (tmp_path / "report" / "curves.svg").read_text().startswith("<svg")

    # Parity: the same loss as transformers computes from the labels that training uses.
    expected = json.loads((trained / "expected.json").read_text())
    scored = json.loads((tmp_path / "child" / "scores.json").read_text())["benchmarks"][0]["values"]
    assert scored["baseline"] == pytest.approx(expected["baseline"], abs=1e-4)
    assert scored["candidate"] == pytest.approx(expected["candidate"], abs=1e-4)


@pytest.mark.slow
def test_weights_that_are_nan_fail_the_evaluation(trained: Path, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match=r"E-NON-FINITE: The candidate gives nan on heldout_loss/unseen_wor"):
        evaluate(job(trained, tiny_model, "broken"), tmp_path)
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
def test_an_evaluation_that_is_cancelled_says_so(trained: Path, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match=r"E-STOPPED: The evaluation was stopped \(cancel\)"):
        evaluate(job(trained, tiny_model), tmp_path, desired_state=lambda: DesiredState.CANCEL)


def test_a_wrong_job_is_refused_before_a_child_is_started(trained: Path, tiny_model: Path, tmp_path: Path) -> None:
    config = EvaluatorConfig(primary="f1/unseen_wording")
    with pytest.raises(InvalidInput, match=r"E-BENCHMARK: The primary metric 'f1/unseen_wording'"):
        evaluate(job(trained, tiny_model, config=config), tmp_path)
    twice = EvaluatorConfig.model_validate({"benchmarks": [{"name": "f1"}, {"name": "f1", "margin": 1}]})
    with pytest.raises(InvalidInput, match=r"E-BENCHMARK: The benchmark 'f1/unseen_wording' is listed twice"):
        evaluate(job(trained, tiny_model, config=twice), tmp_path)
    assert not (tmp_path / "child").exists()


@pytest.mark.slow
def test_an_adapter_of_another_base_is_refused(trained: Path, tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    code = "import sys, pathlib, trainyard.testing.tiny as t; t.build_tiny_model(pathlib.Path(sys.argv[1]), hidden=32)"
    subprocess.run([sys.executable, "-c", code, str(other)], check=True, capture_output=True)
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID: The candidate's adapter does not fit the base model"):
        evaluate(job(trained, other), tmp_path / "run")


@pytest.mark.slow
def test_rows_that_do_not_fit_are_counted_and_none_left_is_an_error(
    trained: Path, tiny_model: Path, tmp_path: Path
) -> None:
    long = SftRow([Message("user", "word " * 3000), Message("assistant", "yes")], source="f:long")
    write_rows(tmp_path / "one.arrow", Port.SFT, [long])
    held = HeldOutSet(name="unseen_wording", port=Port.SFT, path=str(tmp_path / "one.arrow"))
    with pytest.raises(TrainyardError, match=r"E-DATA-EMPTY: No row of heldout_loss/unseen_wording could be scored"):
        evaluate(job(trained, tiny_model, heldout=(held,)), tmp_path / "none")


@pytest.mark.slow
def test_a_whole_model_can_be_the_candidate(trained: Path, tiny_model: Path, tmp_path: Path) -> None:
    same = Participant(name="candidate", path=str(tiny_model), kind="model")
    produced = evaluate(job(trained, tiny_model, candidate=same), tmp_path)
    assert produced.facts["better"] is False
    improvement = produced.facts["benchmarks"]["heldout_loss/unseen_wording"]["improvement"]
    assert improvement["mean"] == pytest.approx(0.0, abs=1e-6)


def reference(path: Path, kind: Port, **facts: Any) -> Reference:
    return Reference(uri=f"file://{path}", sha256="cd" * 32, kind=kind, facts=facts)


def test_the_job_follows_from_the_inputs(trained: Path, tiny_model: Path, tmp_path: Path) -> None:
    inputs = {
        Port.SFT: [reference(trained, Port.SFT, engine="extractive")],
        Port.ADAPTER: [reference(trained / "control", Port.ADAPTER), reference(trained / "candidate", Port.ADAPTER)],
    }
    evaluation_job = job_from_inputs(EvaluatorConfig(baseline="live"), inputs, threads=2)
    assert evaluation_job.candidate.path == str(trained / "candidate")
    assert evaluation_job.control is not None
    assert evaluation_job.control.path == str(trained / "control")
    assert evaluation_job.base_path == str(tiny_model)
    assert evaluation_job.baseline.name == "base (no adapter is live yet)"
    assert [(held.name, held.gold) for held in evaluation_job.heldout] == [("unseen_wording", "synthetic (extractive)")]
    live = job_from_inputs(EvaluatorConfig(baseline="live"), inputs, threads=2, live=Path("/a/acme/bot/v3"))
    assert (live.baseline.name, live.baseline.path) == ("live adapter acme/bot/v3", "/a/acme/bot/v3")


@pytest.mark.parametrize(
    ("files", "kind", "name"),
    [
        ({"training.json": {"base_sha256": "ab"}}, "adapter", "live adapter acme/bot/v3"),
        ({"training.json": {}}, "adapter", "live adapter acme/bot/v3"),
        (
            {"training.json": {"base_sha256": "ef"}},
            "base",
            "base (the live adapter acme/bot/v3 belongs to another base)",
        ),
        ({"training.json": {"base_sha256": "ef"}, "config.json": {}}, "model", "live model acme/bot/v3"),
    ],
)
def test_a_live_adapter_of_another_base_is_no_baseline(
    files: dict[str, Any], kind: str, name: str, tmp_path: Path
) -> None:
    """On this base its weights mean nothing, and whatever was trained would seem better."""
    live = tmp_path / "acme" / "bot" / "v3"
    live.mkdir(parents=True)
    for file, content in files.items():
        (live / file).write_text(json.dumps(content))
    participant = baseline(EvaluatorConfig(baseline="live"), live, "ab")
    assert (participant.kind, participant.name) == (kind, name)
    assert participant.path == (None if kind == "base" else str(live))


def test_what_is_live_is_compared_next_to_the_base_unless_it_is_the_candidate(tmp_path: Path) -> None:
    live = tmp_path / "acme" / "bot" / "v3"
    live.mkdir(parents=True)
    (live / "training.json").write_text(json.dumps({"base_sha256": "ab"}))
    both = EvaluatorConfig(baseline="both")
    participant, note = live_participant(both, live, "ab", is_candidate=False)
    assert (participant and participant.name, note) == ("live adapter acme/bot/v3", "")
    assert live_participant(both, live, "ab", is_candidate=True)[1] == "The candidate is acme/bot/v3, which is live."
    assert live_participant(both, live, "cd", is_candidate=False)[1] == (
        "The base alone is compared: the live adapter acme/bot/v3 belongs to another base."
    )
    assert "Nothing is live" in live_participant(both, None, "ab", is_candidate=False)[1]
    assert live_participant(EvaluatorConfig(), live, "ab", is_candidate=False) == (None, "")
    assert baseline(both, live, "ab").name == "base"


@pytest.mark.parametrize(
    ("facts", "gold"),
    [
        ({"gold": "file (alpaca)", "heldout": {"unseen_wording": 12}}, "file (alpaca)"),
        ({"engine": "extractive"}, "synthetic (extractive)"),
        ({"format": "openai"}, "file (openai)"),
        ({}, "file (rows)"),
    ],
)
def test_the_gold_is_what_the_rows_maker_says(trained: Path, facts: dict[str, Any], gold: str) -> None:
    inputs = {
        Port.SFT: [reference(trained, Port.SFT, **facts)],
        Port.ADAPTER: [reference(trained / "candidate", Port.ADAPTER)],
    }
    assert [held.gold for held in job_from_inputs(EvaluatorConfig(), inputs, threads=1).heldout] == [gold]


def test_training_rows_are_never_taken_for_held_out_ones(trained: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.arrow", Port.SFT, [SftRow(talk(1), source="f:1")])
    inputs = {Port.SFT: [reference(tmp_path, Port.SFT)], Port.ADAPTER: [reference(trained / "candidate", Port.ADAPTER)]}
    assert job_from_inputs(EvaluatorConfig(), inputs, threads=1).heldout == ()


def test_only_controls_are_no_candidate(trained: Path) -> None:
    inputs = {Port.ADAPTER: [reference(trained / "control", Port.ADAPTER)]}
    with pytest.raises(InvalidInput, match=r"E-BENCHMARK: .*Only controls reached it"):
        job_from_inputs(EvaluatorConfig(), inputs, threads=1)
