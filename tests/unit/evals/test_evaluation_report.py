"""The report: its figures, its page, its picture, and that hostile texts stay texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nodes.summaries import summary
from trainyard.evals.curves import loss_curves, points
from trainyard.evals.job import EvaluationJob, Participant
from trainyard.evals.report import build_report, cell, headline, markdown, number, training_table
from trainyard.spec.estimate.verdict import describe_small_sets
from trainyard.spec.nodes import EvaluatorConfig
from trainyard.stores.artifacts import NodeOutput

TRAINING = {
    "stage": "sft",
    "method": "lora",
    "backend": "trl",
    "base_model": "tiny",
    "tokens": {"trained": 300, "masked": 690},
    "rows": {"trained": 80},
    "steps": 20,
    "loss_at_start": 5.25,
    "loss_at_end": 3.5,
    "losses": [[1, 5.25, 1e-3], [10, 4.0, 1e-3], [20, 3.5, 0.0]],
    "seconds": 12.5,
}


def make_scores(name: str, chosen_set: str, values: dict[str, list[float]], **fields: Any) -> dict[str, Any]:
    rows = [f"row:{index}" for index in range(len(values["candidate"]))]
    margins = {"margin": 0.0, "relative_margin": 0.0}
    base = {"name": name, "set": chosen_set, "gold": "synthetic (extractive)", "skipped": 0, **margins}
    return {**base, "ids": rows, "clusters": rows, "values": values, **fields}


def job(tmp_path: Path, *, control: bool = True) -> EvaluationJob:
    for name in ("candidate", "control"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "training.json").write_text(json.dumps(TRAINING))
    return EvaluationJob(
        base_model="tiny",
        base_path="tiny",
        candidate=Participant(name="candidate", path=str(tmp_path / "candidate"), kind="adapter"),
        candidate_sha256="ab" * 32,
        control=Participant(name="control", path=str(tmp_path / "control"), kind="adapter") if control else None,
        config=EvaluatorConfig(resamples=500),
    )


def scores(*benchmarks: dict[str, Any], samples: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {"benchmarks": list(benchmarks), "samples": samples or [], "facts": {"device": "cpu", "threads": 1}}


BASE = [5.0, 5.2, 4.8, 5.1, 5.3, 4.9, 5.0, 5.2]
TUNED = [4.0, 4.3, 3.7, 4.2, 4.2, 4.0, 5.1, 5.2]
SHUFFLED = [4.1, 4.2, 3.9, 4.1, 4.3, 3.9, 5.2, 5.1]


def report(tmp_path: Path, times: int = 1, control: list[float] = SHUFFLED, **fields: Any) -> dict[str, Any]:
    values = {"baseline": BASE * times, "candidate": TUNED * times, "control": control * times}
    return build_report(job(tmp_path), scores(make_scores("heldout_loss", "unseen_wording", values, **fields)))


def thinking(tmp_path: Path, control: str | None, **latent: Any) -> list[str]:
    """The notes on a candidate with a latent technique that is as good as its control."""
    evaluation_job = job(tmp_path, control=control is not None)
    stage = {"stage_settings": {"latent": {"type": "coconut", "feedback": True, **latent}}}
    for name, record in (("candidate", stage), ("control", {"control": control})):
        (tmp_path / name / "training.json").write_text(json.dumps({**TRAINING, **record}))
    values = {"baseline": BASE, "candidate": TUNED, **({"control": TUNED} if control else {})}
    return list(build_report(evaluation_job, scores(make_scores("heldout_loss", "unseen_wording", values)))["notes"])


def test_thoughts_without_a_control_of_the_same_curriculum_say_so(tmp_path: Path) -> None:
    for control in (None, "shuffled_answers"):
        assert "`control: pauses`" in thinking(tmp_path, control)[-1]
    assert not any("coconut" in note for note in thinking(tmp_path, None, type="pause"))
    assert not any("coconut" in note for note in thinking(tmp_path, None, feedback=False))


def test_thoughts_like_their_control_may_be_the_curriculum(tmp_path: Path) -> None:
    (note,) = [note for note in thinking(tmp_path, "pauses") if "control" in note]
    assert "same curriculum and pauses in place of thoughts" in note
    (note,) = [note for note in thinking(tmp_path, "shuffled_answers") if "control" in note]
    assert "`control: pauses`" in note


def test_means_improvement_and_flips_by_hand(tmp_path: Path) -> None:
    (line,) = report(tmp_path)["benchmarks"]
    assert line["baseline"] == pytest.approx(5.0625)
    assert line["candidate"] == pytest.approx(4.3375)
    assert line["improvement"]["mean"] == pytest.approx(0.725)
    assert line["vs_control"]["mean"] == pytest.approx(4.35 - 4.3375)
    assert line["flips"] == {"better": 6, "worse": 1, "equal": 1}
    assert line["improvement"]["low"] < 0.725 < line["improvement"]["high"]


@pytest.mark.parametrize(("margin", "relative", "counts"), [(0.0, 0.1, 0.50625), (0.6, 0.1, 0.6), (0.3, 0.0, 0.3)])
def test_the_larger_of_both_margins_counts(tmp_path: Path, margin: float, relative: float, counts: float) -> None:
    (line,) = report(tmp_path, margin=margin, relative_margin=relative)["benchmarks"]
    assert line["margin"] == pytest.approx(counts)


def test_the_verdict_and_the_adapter_stand_in_the_report(tmp_path: Path) -> None:
    report_body = report(tmp_path, times=4, control=BASE)
    assert report_body["gate"]["better"]
    assert report_body["adapter_sha256"] == "ab" * 32
    assert report_body["primary"] == "heldout_loss/unseen_wording"
    facts = headline(report_body)
    assert facts["better"]
    assert set(facts["benchmarks"]) == {"heldout_loss/unseen_wording"}
    json.dumps(report_body, allow_nan=False)


def test_a_candidate_like_its_control_synthetic_gold_and_skipped_rows_are_noted(tmp_path: Path) -> None:
    report_body = report(tmp_path, skipped=3)
    notes = " ".join(report_body["notes"])
    assert "unseen_wording are synthetic: made by a program or a model" in notes
    assert "3 rows were left out" in notes
    assert "over the control, which was trained on shuffled answers" in " ".join(report_body["gate"]["reasons"])


@pytest.mark.parametrize(("required", "better"), [(None, True), (4.4, True), (4.3, False)])
def test_a_required_mean_decides_in_the_direction_of_its_metric(
    tmp_path: Path, required: float | None, better: bool
) -> None:
    gate = report(tmp_path, times=4, control=BASE, required=required)["gate"]
    assert gate["better"] is better
    assert better or gate["reasons"] == [
        "heldout_loss/unseen_wording: 4.338 nats per answer token; at most 4.3 is required."
    ]


def test_the_page_says_the_verdict_first_and_shows_the_ledger(tmp_path: Path) -> None:
    page = markdown(report(tmp_path))
    assert page.startswith(
        "# Evaluation report\n\n**Not enough rows to say.** The candidate is not deployed unless the deployer has "
        "`few_rows: allow`.\n\n- 8 rows to evaluate on are not enough to say; at least 30 are needed.\n"
    )
    assert "| unseen_wording | synthetic (extractive) |" in page
    assert "| tokens trained | 300 | 300 |" in page
    assert "| rows trained | 80 | 80 |" in page
    assert "| loss_at_start | 5.25 | 5.25 |" in page
    assert "![Training loss](curves.svg)" in page
    assert "| heldout_loss/unseen_wording (nats per answer token) | 8 | 5.0625 | 4.3375 | +0.7250 [" in page


def test_better_on_few_rows_says_so_and_on_many_does_not(tmp_path: Path) -> None:
    evaluation_job = job(tmp_path, control=False)
    facts = {**TRAINING, "data": {"tokens": {}, "rows": {"read": 20, "trained": 14}}}
    (tmp_path / "candidate" / "training.json").write_text(json.dumps(facts))
    report_body = build_report(
        evaluation_job, scores(make_scores("heldout_loss", "unseen_wording", {"baseline": BASE, "candidate": TUNED}))
    )
    assert report_body["gate"]["cautions"] == headline(report_body)["cautions"] == describe_small_sets(14, 8)
    assert (report_body["gate"]["better"], report_body["gate"]["better_on_few"]) == (False, True)
    assert report_body["gate"]["few_rows"] == [
        "14 rows to train on are not enough to say; at least 30 are needed.",
        "8 rows to evaluate on are not enough to say; at least 30 are needed.",
    ]
    text = summary("evaluator", NodeOutput(key="k", outputs={}, facts=headline(report_body)))
    assert text.startswith("not enough rows to say on heldout_loss/unseen_wording (5.062 to 4.338): 14 rows")
    lower = evaluation_job.model_copy(update={"config": EvaluatorConfig(resamples=500, least_rows=8)})
    facts["data"]["rows"]["trained"] = 40
    (tmp_path / "candidate" / "training.json").write_text(json.dumps(facts))
    report_body = build_report(
        lower, scores(make_scores("heldout_loss", "unseen_wording", {"baseline": BASE, "candidate": TUNED}))
    )
    assert report_body["gate"]["better"]
    assert markdown(report_body).startswith("# Evaluation report\n\n**Better, on few rows.** The candidate may replace")
    many = {"baseline": BASE * 5, "candidate": TUNED * 5}
    (tmp_path / "candidate" / "training.json").write_text(json.dumps(TRAINING))
    report_body = build_report(evaluation_job, scores(make_scores("heldout_loss", "unseen_wording", many)))
    assert report_body["gate"]["cautions"] == []
    assert markdown(report_body).startswith("# Evaluation report\n\n**Better.**")


def test_not_better_lists_every_reason(tmp_path: Path) -> None:
    loss = make_scores("heldout_loss", "unseen_wording", {"baseline": TUNED * 4, "candidate": BASE * 4})
    right = make_scores("exact_match", "unseen_wording", {"baseline": [1.0] * 32, "candidate": [0.5] * 32})
    report_body = build_report(job(tmp_path, control=False), scores(loss, right))
    assert len(report_body["gate"]["reasons"]) == 2
    assert "**Not better**, for 2 reasons. The candidate is not deployed." in markdown(report_body)
    assert report_body["benchmarks"][0]["vs_control"] is None
    assert "control" not in markdown(report_body)


def test_hostile_samples_stay_in_their_cell() -> None:
    assert cell("a | b\n# c <script> ![x](y) `z`") == r"a \| b # c &lt;script> \!\[x](y) \`z\`"
    assert cell("") == "(nothing)"
    assert len(cell("x" * 1000)) == 301


def test_numbers_read_well() -> None:
    assert [number(value) for value in (1234567, 5.25, None, "sft")] == ["1,234,567", "5.25", "", "sft"]


def test_curves_are_well_formed_and_say_in_words_what_they_show() -> None:
    text = loss_curves({"candidate": TRAINING, "<control>": TRAINING})
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.findtext(f"{space}title") == "Training loss by step"
    assert "candidate: from 5.250 to 3.500 in 20 steps" in str(root.findtext(f"{space}desc"))
    assert len(root.findall(f"{space}polyline")) == 2
    assert "prefers-color-scheme:dark" in text


def test_curves_without_losses_say_so_and_one_flat_point_is_drawn() -> None:
    assert "no losses were recorded" in loss_curves({"candidate": {}})
    assert "<polyline" in loss_curves({"candidate": {"losses": [[0, 2.0, 0.1]]}})


def test_long_curves_are_thinned_and_keep_their_last_point() -> None:
    many = [[step, float(step), 0.0] for step in range(10_001)] + [[10_001, float("nan"), 0.0], [10_002, None, 0.0]]
    thinned = points(many)
    assert len(thinned) <= 402
    assert thinned[-1] == (10_000.0, 10_000.0)


def test_a_verdict_in_one_line_names_what_decided_it() -> None:
    def summarize_line(**facts: Any) -> str:
        metric = {"baseline": 5.46, "candidate": 4.854}
        all_facts = {"primary": "loss/heldout", "benchmarks": {"loss/heldout": metric}, **facts}
        return summary("evaluator", NodeOutput(key="k", outputs={}, facts=all_facts))

    assert summarize_line(better=True) == "better than the baseline on loss/heldout (5.460 to 4.854)"
    assert summarize_line(better=True, cautions=["Only 20 rows."]).endswith(
        " (5.460 to 4.854), on few rows: Only 20 rows"
    )
    decided = summarize_line(better=False, reasons=["f1/heldout: improvement -0.1.", "loss/heldout: worse."])
    assert decided == ("not better than the baseline on loss/heldout (5.460 to 4.854): f1/heldout, loss/heldout failed")


def test_what_the_rollouts_of_a_training_reported_is_in_the_table_and_in_its_line() -> None:
    ends = {"at_start": {"reward": 0.25, "kl": 0.0}, "at_end": {"reward": 0.75, "kl": 1.5, "ended": 1.0}}
    facts = {"stage": "ppo", "steps": 8, "rollouts": {"count": 4, **ends}}
    page = training_table({"candidate": facts, "control": {"stage": "sft"}})
    assert "| reward at the start | 0.25 |  |" in page
    assert "| nats a token from the start | 1.5 |  |" in page
    assert "share of groups with one reward" not in page
    node = NodeOutput(key="k", outputs={}, facts={**facts, "loss_at_start": None, "loss_at_end": None})
    assert "reward 0.250 to 0.750, 1.500 nats a token from its start" in summary("trainer", node)
    generator_facts = {"asked": 4, "candidates": {"best_of": 3, "mean_reward": {"first": 0.5, "best": 1.25}}}
    assert "the best of 3 answers, mean reward 0.500 to 1.250" in summary(
        "ai_generator", NodeOutput(key="k", outputs={}, facts=generator_facts)
    )


def test_a_candidate_has_to_be_better_than_base_and_live(tmp_path: Path) -> None:
    values = {"baseline": BASE * 4, "candidate": TUNED * 4, "live": SHUFFLED * 4}
    live = Participant(name="live adapter acme/desk/v1", path="/srv/adapters/acme/desk/v1", kind="adapter")
    evaluation_job = job(tmp_path, control=False).model_copy(update={"live": live})
    report_body = build_report(evaluation_job, scores(make_scores("heldout_loss", "unseen_wording", values)))
    assert not report_body["gate"]["better"]
    (reason,) = report_body["gate"]["reasons"]
    assert "over acme/desk/v1, which is live and stays" in reason
    assert (report_body["live"], report_body["benchmarks"][0]["live"]) == ("acme/desk/v1", pytest.approx(4.35))
    assert "| live | better than live by |" in markdown(report_body)
    values["live"] = BASE * 4
    report_body = build_report(evaluation_job, scores(make_scores("heldout_loss", "unseen_wording", values)))
    assert report_body["gate"]["better"]
    assert headline(report_body)["live"] == "acme/desk/v1"
