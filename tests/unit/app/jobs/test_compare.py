"""Two trainings next to each other, from the folders of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.evals.test_evaluation_report import BASE, TUNED, job, make_scores, scores
from trainyard.app.chains.compare import Comparison, Side
from trainyard.app.context import Context
from trainyard.app.jobs.compare import compare
from trainyard.app.run_records import NodeResult, NodeState, RunRecord, RunResult, read_result
from trainyard.app.training_logs import draw_run
from trainyard.compute.events import EventWriter
from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.evals.report import build_report
from trainyard.evals.runner import write_report
from trainyard.operations.jobs import CompareInput, comparison_text, side_names
from trainyard.operations.tables import draw_curves
from trainyard.settings import Settings, settings
from trainyard.spec.axes.data import Port
from trainyard.spec.states import JobState
from trainyard.stores.artifacts import Reference
from trainyard.stores.metrics import Point

BETTER = [value - 0.5 for value in TUNED[:4]] + TUNED[4:]


def reference(folder: Path, kind: Port, sha256: str) -> Reference:
    folder.mkdir(parents=True, exist_ok=True)
    return Reference(uri=folder.as_uri(), sha256=sha256, kind=kind, rows=None, bytes=0)


def run(
    home: Settings, run_id: str, name: str, *, rate: float = 1e-3, values: list[float] = TUNED, trainers: int = 1
) -> None:
    """A run with as many trainers, the first of which is evaluated."""
    folder, sha256 = home.runs / run_id, run_id[0] * 64
    names = ["trainer", "trainer-2"][:trainers]
    chain = [{"id": trainer, "type": "trainer", "needs": [], "config": {"learning_rate": rate}} for trainer in names]
    chain.append({"id": "evaluator", "type": "evaluator", "needs": ["trainer"], "config": {"samples": 3}})
    record = RunRecord(folder)
    record.begin({"name": "chain", "nodes": chain})
    work = folder / "work"
    work.mkdir()
    record.emit("trainer", "job", folder=str(work))
    events = EventWriter(work / "events.jsonl")
    for step in (1, 2, 3):
        extra = {"eval_loss": 4.5} if step == 3 else {}
        events.emit("progress", step=step, loss=5.0 - step * rate * 100, learning_rate=rate, **extra)
    events.close()
    sample = [{"prompt": "Why?", "gold": "Because.", "baseline": "No.", "candidate": f"As {name}."}]
    line = make_scores("heldout_loss", "unseen_wording", {"baseline": BASE, "candidate": values})
    (folder / "job").mkdir()
    report = build_report(job(folder / "job", control=False), scores(line, samples=sample))
    write_report({**report, "adapter_sha256": sha256}, folder / "report")
    nodes = [
        NodeResult(
            id=trainer, type="trainer", state=NodeState.COMPLETED,
            outputs={
                Port.ADAPTER: reference(folder / trainer, Port.ADAPTER, sha256 if trainer == "trainer" else "9" * 64)
            },
            facts={"steps": 3, "loss_at_end": 5.0 - rate * 300, "tokens": {"trained": 30}},
        )
        for trainer in names
    ]  # fmt: skip
    nodes.append(
        NodeResult(
            id="evaluator", type="evaluator", state=NodeState.COMPLETED,
            outputs={Port.REPORT: reference(folder / "report", Port.REPORT, "8" * 64)},
        )
    )  # fmt: skip
    record.finish(
        RunResult(
            run_id=run_id, name=name, chain="chain", digest="d", state=JobState.COMPLETED, message="",
            nodes=tuple(nodes),
        )
    )  # fmt: skip


@pytest.fixture
def context() -> Context:
    return Context(settings())


def compare_jobs(context: Context, first: str, second: str, **fields: Any) -> Comparison:
    return compare(CompareInput(job=(first, second), **fields), context)


def test_settings_metrics_paired_benchmarks_and_answers(context: Context) -> None:
    run(context.settings, "aaaa1111", "slow")
    run(context.settings, "bbbb2222", "fast", rate=2e-3, values=BETTER)
    comparison = compare_jobs(context, "aaaa", "fast")
    assert [(setting.name, setting.values) for setting in comparison.settings] == [
        ("trainer.learning_rate", (1e-3, 2e-3))
    ]
    metrics = {metric.name: (metric.first, metric.second) for metric in comparison.metrics}
    assert metrics["loss_at_end"] == pytest.approx((4.7, 4.4))
    assert metrics["tokens trained"] == (30, 30)
    (line,) = comparison.benchmarks
    assert line.improvement == pytest.approx(0.25)  # four of eight rows lose half a nat
    assert line.low is not None
    assert line.high is not None
    assert line.low < 0.25 < line.high
    assert (line.better, line.worse, line.rows) == (4, 0, 8)
    assert [(sample.first, sample.second) for sample in comparison.samples] == [("As slow.", "As fast.")]
    assert [side.curve[-1].eval_loss for side in comparison.sides] == [4.5, 4.5]


def test_the_text_has_every_part_and_the_drawing_on_request(context: Context) -> None:
    run(context.settings, "aaaa1111", "slow")
    run(context.settings, "bbbb2222", "fast", rate=2e-3, values=BETTER)
    text = comparison_text(compare_jobs(context, "aaaa", "bbbb", plot=True))
    assert "trainer.learning_rate  0.001" in text
    assert "heldout_loss/unseen_wording (nats per answer token)" in text
    assert "4 / 0 / 8" in text
    assert "\nfast: As fast." in text
    assert "slow loss" in text
    assert "slow loss" not in comparison_text(compare_jobs(context, "aaaa", "bbbb"))


def test_reports_without_row_scores_are_compared_by_their_means(context: Context) -> None:
    """Reports of earlier versions have no scores of rows."""
    for run_id in ("aaaa1111", "bbbb2222"):
        run(context.settings, run_id, run_id)
        path = context.settings.runs / run_id / "report" / "report.json"
        path.write_text(path.read_text().replace('"scores"', '"other"'))
    (line,) = compare_jobs(context, "aaaa", "bbbb").benchmarks
    assert (line.improvement, line.rows) == (None, 0)
    assert line.first == pytest.approx(sum(TUNED) / 8)


def test_two_branches_of_one_run(context: Context) -> None:
    run(context.settings, "aaaa1111", "both", trainers=2)
    comparison = compare_jobs(context, "aaaa/trainer", "aaaa/trainer-2")
    assert [side.trainer for side in comparison.sides] == ["trainer", "trainer-2"]
    assert comparison.benchmarks == ()  # the second was not evaluated
    with pytest.raises(NotFound, match="2 trainers") as caught:
        compare_jobs(context, "aaaa", "aaaa/trainer")
    assert "aaaa/trainer, aaaa/trainer-2" in caught.value.do
    with pytest.raises(NotFound, match="no trainer 'x'"):
        compare_jobs(context, "aaaa/x", "aaaa/trainer")
    with pytest.raises(InvalidInput, match="the same training"):
        compare_jobs(context, "aaaa/trainer", "both/trainer")


def test_runs_are_found_by_one_name_only(context: Context) -> None:
    run(context.settings, "aaaa1111", "same")
    run(context.settings, "aaaa2222", "same")
    (context.settings.runs / "cccc3333").mkdir()
    RunRecord(context.settings.runs / "cccc3333").begin({"nodes": []})
    for name in ("same", "aaaa"):
        with pytest.raises(Conflict, match="means several jobs"):
            compare_jobs(context, name, "aaaa1111")
    for name in ("nobody", "cccc", "../aaaa1111"):
        with pytest.raises(NotFound, match="no ended job"):
            compare_jobs(context, name, "aaaa1111")


def test_a_trial_of_a_sweep_is_not_compared(context: Context) -> None:
    """The chain of a sweep's run has one trainer, and none of its trials."""
    run(context.settings, "aaaa1111", "tuned")
    run(context.settings, "bbbb2222", "trials")
    folder = context.settings.runs / "bbbb2222"
    result = read_result(folder)
    assert result is not None
    trials = tuple(node.model_copy(update={"id": f"trainer.{n}"}) for n, node in enumerate([result.nodes[0]] * 2))
    RunRecord(folder).finish(result.model_copy(update={"nodes": trials}))
    with pytest.raises(InvalidInput, match=r"trainer\.1 is a trial of a sweep.*trainyard sweep show trials"):
        compare_jobs(context, "aaaa1111", "bbbb2222/trainer.1")


def test_the_curves_of_a_run_are_one_picture(context: Context) -> None:
    run(context.settings, "aaaa1111", "one")
    picture = draw_run(context.settings.runs / "aaaa1111")
    assert "trainer: from 4.900 to 4.700 in 3 steps" in picture
    assert "trainer eval: from 4.500" in picture
    assert draw_run(context.settings.runs / "nothing") == ""


def test_a_curve_without_finite_losses_is_said(context: Context) -> None:
    assert "no finite losses" in draw_curves({"trainer": [Point(step=1, loss=float("nan"))]})


@pytest.mark.parametrize(
    ("sides", "names"),
    [
        ([("a" * 8, "desk-1f2e3d4c", "trainer"), ("b" * 8, "shop-2f2e3d4c-2", "trainer")], ["desk", "shop"]),
        ([("a" * 8, "desk-1f2e3d4c", "trainer"), ("b" * 8, "desk-2f2e3d4c", "trainer")],
         ["desk-1f2e3d4c", "desk-2f2e3d4c"]),
        ([("a" * 8, "desk-1f2e3d4c", "trainer"), ("a" * 8, "desk-1f2e3d4c", "trainer-2")],
         ["desk/trainer", "desk/trainer-2"]),
        ([("a" * 8, "desk", "trainer"), ("b" * 8, "desk", "trainer")], ["aaaaaaaa/trainer", "bbbbbbbb/trainer"]),
    ],
)  # fmt: skip
def test_trainings_have_the_shortest_names_that_differ(sides: list[tuple[str, str, str]], names: list[str]) -> None:
    paired_sides = [
        Side(run=run_id, name=name, trainer=trainer, state="completed", adapter_sha256="", curve=())
        for run_id, name, trainer in sides
    ]
    assert side_names(paired_sides) == names
