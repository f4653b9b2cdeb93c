"""The stages kto and reward on the trl backend: what they learn, leave and refuse, next to the native engine."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.selection import choose_by_default
from tests.small_jobs import MAX_LENGTH, Jobs, Ran, make_labelled_rows, preference_rows, train_as_child, train_here
from trainyard.backends.trl.backend import BACKEND
from trainyard.backends.trl.data import ENCODERS
from trainyard.backends.trl.stages import STAGES, Neighbours
from trainyard.backends.trl.trainer import ShuffledOrder
from trainyard.compute.child import Stopped
from trainyard.data.rows import LabelledRow, Message, PreferenceRow, Row, write_rows
from trainyard.errors import InvalidInput
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.train.rows.tokens import encode_preference

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks for it
PORTS = {"kto": Port.LABELLED, "reward": Port.PREFERENCE}
SAME_CURVE = 1e-5
"""Two engines add the same float32 numbers in another order, over twelve steps at a high rate."""


def reading(jobs: Jobs, folder: Path, port: Port, rows: list[Row]) -> Jobs:
    """The same jobs with other rows at one port."""
    write_rows(folder / "rows" / "rows.arrow", port, rows)
    return Jobs(jobs.model, {**jobs.data, port: folder / "rows"}, jobs.locks)


def losses(ran: Ran) -> list[float]:
    return [loss for _, loss, _ in ran.record["losses"]]


@pytest.fixture(scope="module")
def kto_run(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return train_here(jobs(Port.LABELLED, stage="kto"), tmp_path_factory.mktemp("kto"))


@pytest.fixture(scope="module")
def reward_run(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """As a chain runs it: in a supervised child."""
    return train_as_child(jobs(Port.PREFERENCE, stage="reward"), tmp_path_factory.mktemp("reward"))


def reward_model(base: Path) -> Any:
    """The base with a score; its first weights are drawn, and every user of an adapter puts its own in their place."""
    return AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)


def gaps(model: Any, base: Path) -> list[float]:
    """By how much a reward model likes each chosen answer better than the rejected one."""
    rows = [row for row in preference_rows() if isinstance(row, PreferenceRow)]
    examples, _ = encode_preference(rows, AutoTokenizer.from_pretrained(base), MAX_LENGTH)
    with torch.no_grad():
        chosen, rejected = (
            [float(model(input_ids=torch.tensor([row["prompt_ids"] + row[side]])).logits[0, 0]) for row in examples]
            for side in ("chosen_ids", "rejected_ids")
        )
    return [better - worse for better, worse in zip(chosen, rejected, strict=True)]


def test_every_stage_of_the_table_has_its_trainer_and_its_rows() -> None:
    stages = set(BackendName.TRL.facts.stages)
    assert stages == STAGES.keys() == ENCODERS.keys()


def test_kto_begins_at_its_reference_and_learns_the_verdicts(kto_run: Ran) -> None:
    """A policy that is its reference loses 1/2 on every row, whatever its verdict."""
    assert kto_run.record["first_loss"] == pytest.approx(0.5, abs=1e-5)
    assert statistics.mean(losses(kto_run)[6:]) < 0.45
    assert kto_run.record["stage_settings"]["desirable_weight"] == 1.0
    steps = kto_run.of("progress")
    assert [event["step"] for event in steps] == list(range(1, 13))
    assert all(event["kl"] >= 0 for event in steps)


def test_kto_leaves_an_adapter_that_prefers_the_good_answers(kto_run: Ran, tiny_model: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    rows = [row for row in preference_rows() if isinstance(row, PreferenceRow)]
    examples, _ = encode_preference(rows, AutoTokenizer.from_pretrained(tiny_model), MAX_LENGTH)
    before = [log_ratio(base, row) for row in examples]
    trained = PeftModel.from_pretrained(base, kto_run.folder)
    after = [log_ratio(trained, row) for row in examples]
    assert all(late > early + 1 for early, late in zip(before, after, strict=True))


def log_ratio(model: Any, row: dict[str, list[int]]) -> float:
    """Log-probability of the chosen answer over that of the rejected one."""
    logprobs = []
    for side in ("chosen_ids", "rejected_ids"):
        ids = torch.tensor([row["prompt_ids"] + row[side]])
        with torch.no_grad():
            logprobs_TV = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        own_T = logprobs_TV.gather(1, ids[0, 1:, None])[:, 0]
        logprobs.append(float(own_T[len(row["prompt_ids"]) - 1 :].sum()))
    return logprobs[0] - logprobs[1]


def test_reward_leaves_an_adapter_with_a_score_that_tells_the_pairs_apart(reward_run: Ran, tiny_model: Path) -> None:
    assert reward_run.record["final_loss"] < 0.1
    steps = reward_run.of("progress")
    assert steps[-1]["reward_accuracy"] == 1.0
    assert steps[-1]["reward_margin"] > 2
    config = json.loads((reward_run.folder / "adapter_config.json").read_text())
    assert (config["task_type"], config["base_model_name_or_path"]) == ("SEQ_CLS", str(tiny_model))
    model = PeftModel.from_pretrained(reward_model(tiny_model), reward_run.folder).eval()
    assert min(gaps(model, tiny_model)) > 1


def test_reward_of_whole_weights_leaves_a_model_that_scores_by_itself(
    jobs: Jobs, tmp_path: Path, tiny_model: Path
) -> None:
    config: dict[str, Any] = {"stage": "reward", "method": "full", "hyperparameters": {"learning_rate": 1e-3}}
    ran = train_here(jobs(Port.PREFERENCE, **config), tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(ran.folder, dtype=torch.float32).eval()
    assert (model.config.num_labels, model.config.pad_token_id is not None) == (1, True)
    assert min(gaps(model, tiny_model)) > 0
    assert AutoTokenizer.from_pretrained(ran.folder).chat_template


@pytest.mark.slow
def test_kto_of_whole_weights_has_a_reference_that_stays(jobs: Jobs, tmp_path: Path) -> None:
    config: dict[str, Any] = {"stage": "kto", "method": "full", "hyperparameters": {"learning_rate": 1e-3}}
    ran = train_here(jobs(Port.LABELLED, **config), tmp_path)
    assert ran.record["first_loss"] == pytest.approx(0.5, abs=1e-5)
    assert statistics.mean(losses(ran)[6:]) < 0.4
    assert (ran.folder / "model.safetensors").is_file()


@pytest.mark.parametrize("stage", choose_by_default(["reward"], PORTS))
def test_stage_continues_the_adapter_of_an_earlier_one(stage: str, jobs: Jobs, sft_run: Ran, tmp_path: Path) -> None:
    """KTO's reference is the earlier stage; a reward model gets its score beside the earlier adapter's matrices."""
    ran = train_here(jobs(PORTS[stage], stage=stage, adapter=sft_run.folder), tmp_path)
    before, after = (load_file(training.folder / "adapter_model.safetensors") for training in (sft_run, ran))
    assert after.keys() - before.keys() == ({"base_model.model.score.weight"} if stage == "reward" else set())
    assert before.keys() <= after.keys()
    assert any(not torch.equal(after[name], before[name]) for name in before)
    assert [entry["stage"] for entry in ran.record["lineage"]] == [None, "sft"]
    if stage == "kto":
        assert ran.record["first_loss"] == pytest.approx(0.5, abs=1e-5)


def as_natively(jobs: Jobs, folder: Path, port: Port, **config: Any) -> tuple[Ran, Ran]:
    """The same job on trl and on the native engine."""
    native = train_here(jobs(port, backend="native", **config), folder / "native")
    return train_here(jobs(port, backend="trl", **config), folder / "trl"), native


@pytest.mark.parametrize("stage", choose_by_default(["kto"], PORTS))
@pytest.mark.parametrize("method", choose_by_default(["lora"], ["lora", "full"]))
def test_curve_and_result_are_those_of_the_native_engine(stage: str, method: str, jobs: Jobs, tmp_path: Path) -> None:
    """Stage kto draws the same batches in both; the pairs of a reward do not see each other, and here one batch holds
    all of them."""
    rate = 1e-3 if method == "full" else 5e-3
    hyper = {"batch_size": 4 if stage == "kto" else 12, "max_steps": 12, "learning_rate": rate}
    ran, native = as_natively(jobs, tmp_path, PORTS[stage], stage=stage, method=method, hyperparameters=hyper)
    assert losses(ran) == pytest.approx(losses(native), abs=SAME_CURVE)
    assert statistics.mean(losses(ran)[6:]) < losses(ran)[0] - 0.05
    assert sorted(path.name for path in ran.folder.iterdir()) == sorted(path.name for path in native.folder.iterdir())
    for name in (
        "stage",
        "method",
        "tokens",
        "rows",
        "counted",
        "data",
        "stage_settings",
        "steps",
        "base_sha256",
        "lineage",
        "renderer",
    ):
        assert ran.record[name] == native.record[name], name
    weights = "adapter_model.safetensors" if method == "lora" else "model.safetensors"
    trl_weights, native_weights = (load_file(training.folder / weights) for training in (ran, native))
    assert trl_weights.keys() == native_weights.keys()
    for name, value in native_weights.items():
        torch.testing.assert_close(trl_weights[name], value, atol=2e-4, rtol=0, msg=name)


@pytest.mark.parametrize("stage", choose_by_default(["kto"], PORTS))
def test_accumulation_and_recomputed_activations_change_no_number(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    """Of a reward; KTO's KL belongs to the micro-batch, so there only the recomputation can be compared."""
    rows = 4 if stage == "kto" else 2
    hyper = {"max_steps": 4, "batch_size": rows, "gradient_accumulation": 1 if stage == "kto" else 6}
    whole = {"max_steps": 4, "batch_size": 4 if stage == "kto" else 12}
    plain = train_here(jobs(PORTS[stage], stage=stage, hyperparameters=whole), tmp_path / "plain")
    cut = jobs(PORTS[stage], stage=stage, hyperparameters={**hyper, "gradient_checkpointing": True})
    assert losses(train_here(cut, tmp_path / "cut")) == pytest.approx(losses(plain), abs=SAME_CURVE)


@pytest.mark.slow
@pytest.mark.parametrize("stage", choose_by_default(["kto"], PORTS))
def test_half_precision_begins_at_the_same_loss(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    """`auto` measures both number formats on this stage's own model before it chooses one."""
    first = {
        precision: train_here(
            jobs(PORTS[stage], stage=stage, hyperparameters={"max_steps": 1, "precision": precision}),
            tmp_path / precision,
        ).record["first_loss"]
        for precision in ("fp32", "bf16", "auto")
    }
    assert first["bf16"] == pytest.approx(first["fp32"], abs=0.02)
    assert first["auto"] in (first["fp32"], first["bf16"])


@pytest.mark.parametrize("stage", choose_by_default(["kto"], ["dpo", "kto", "reward"]))
def test_stage_trains_through_a_quantised_base(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    """And is saved, stopped and resumed to the same curve."""
    method = {"type": "qlora", "dropout": 0.0}
    job = jobs(PORTS.get(stage, Port.PREFERENCE), stage=stage, method=method, hyperparameters={"max_steps": 4})
    whole = train_here(job, tmp_path / "whole")
    with pytest.raises(Stopped):
        train_here(job, tmp_path / "cut", stop_after=2)
    cut = train_here(job, tmp_path / "cut")
    assert losses(cut) == losses(whole)
    assert losses(whole)[-1] < losses(whole)[0]
    saved, again = (load_file(ran.folder / "adapter_model.safetensors") for ran in (whole, cut))
    assert all(torch.equal(saved[name], again[name]) for name in saved)
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    assert whole.record["quantization"] == "nf4"


def test_neighbours_of_a_batch_are_paired_as_natively(tiny_model: Path) -> None:
    rows = [{"prompt_ids": [n], "completion_ids": [n, n + 10], "label": n % 2 == 0} for n in range(1, 4)]
    batch = Neighbours(pad_token_id=0, max_length=3)(rows)
    assert batch["KL_input_ids"].tolist() == [[1, 3, 13], [2, 1, 11], [3, 2, 12]]
    assert batch["label"].tolist() == [False, True, False]


def test_adapter_on_the_output_layer_is_refused_where_trl_would_not_train_it(jobs: Jobs, tmp_path: Path) -> None:
    """The refusal sends such a job to the native engine, which trains it."""
    config: dict[str, Any] = {
        "method": {"type": "lora", "target_modules": ["q_proj", "lm_head"]},
        "hyperparameters": {"max_steps": 4},
    }
    ran = train_here(jobs(Port.PREFERENCE, backend="native", **config), tmp_path / "native")
    assert losses(ran)[-1] < losses(ran)[0] - 0.1
    with pytest.raises(ValueError, match="the adapter would never be trained"):
        train_here(jobs(Port.PREFERENCE, backend="trl", **config), tmp_path / "trl")


def test_row_that_would_be_alone_in_its_batch_is_left_out_and_another_in_each_pass(jobs: Jobs, tmp_path: Path) -> None:
    row_jobs = reading(jobs, tmp_path, Port.LABELLED, make_labelled_rows()[:5])
    ran = train_here(row_jobs(Port.LABELLED, stage="kto", hyperparameters={"batch_size": 2}), tmp_path / "run")
    assert ran.record["steps"] == 4
    (warning,) = ran.of("warning")
    assert warning["text"] == (
        "Stage kto compares the rows of a batch. 5 rows in batches of 2 leave one over: each pass leaves out another."
    )
    order, missing = ShuffledOrder(5, seed=3, left_out=1), set()
    for epoch in range(12):
        order.set_epoch(epoch)
        assert len(list(order)) == len(order) == 4
        missing |= set(range(5)) - set(order)
    assert len(missing) > 2


def test_batch_of_one_is_refused_by_stage_kto(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(Port.LABELLED, stage="kto", hyperparameters={"batch_size": 1})
    with pytest.raises(InvalidInput, match=r"E-BATCH: Stage kto compares the rows .* batch_size of at least 2"):
        train_here(job, tmp_path)


@pytest.mark.parametrize(("label", "kind"), [(True, "desirable"), (False, "undesirable")])
def test_rows_of_one_verdict_are_refused(label: bool, kind: str, jobs: Jobs, tmp_path: Path) -> None:
    rows: list[Row] = [row for row in make_labelled_rows() if isinstance(row, LabelledRow) and row.label is label]
    job = reading(jobs, tmp_path, Port.LABELLED, rows)(Port.LABELLED, stage="kto")
    with pytest.raises(InvalidInput, match=f"E-BATCH: All 12 rows are {kind}; .*rows with the other label"):
        train_here(job, tmp_path / "run")


def make_equal_pair(question: str) -> PreferenceRow:
    """A pair whose answers are the same."""
    answer = [Message("assistant", "It reads.")]
    return PreferenceRow([Message("user", question)], answer, answer)


def test_one_sided_pairs_are_counted_and_teach_nothing(jobs: Jobs, tmp_path: Path) -> None:
    rows = [*preference_rows(), make_equal_pair("What is node 3?"), make_equal_pair("What is node 4?")]
    job = reading(jobs, tmp_path, Port.PREFERENCE, rows)(
        Port.PREFERENCE, stage="reward", hyperparameters={"max_steps": 1}
    )
    record = train_here(job, tmp_path / "run").record
    assert record["data"]["rows"] == {"read": 14, "trained": 12, "truncated": 0, "dropped_same": 2}
    assert record["data"]["tokens"]["dropped"] > 0


def test_only_one_sided_pairs_are_refused(jobs: Jobs, tmp_path: Path) -> None:
    job = reading(jobs, tmp_path, Port.PREFERENCE, [make_equal_pair("What?")])(Port.PREFERENCE, stage="reward")
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: .* none of 1 rows has a token to learn.* 1 dropped_same"):
        train_here(job, tmp_path / "run")


@pytest.mark.parametrize(("stage", "kind"), [("kto", "labelled"), ("reward", "preference")])
def test_missing_rows_are_told(stage: str, kind: str, jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(PORTS[stage], stage=stage).model_copy(update={"data": {Port.SFT: str(jobs.data[Port.SFT])}})
    with pytest.raises(InvalidInput, match=f"E-DATA-EMPTY: Stage {stage} needs {kind} rows, .* was given: sft"):
        train_here(job, tmp_path)


def test_stage_that_trl_lacks_is_refused_before_the_start(jobs: Jobs) -> None:
    (reason,) = BACKEND.reasons(jobs(Port.TEXT, stage="cpt"))
    assert (reason.code, reason.field) == ("R-BACKEND-SETTING", "config.stage")


@pytest.mark.slow
@pytest.mark.parametrize("stage", PORTS)
def test_stage_trains_in_two_processes_as_in_one(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    """Of a reward the gradient of two halves is that of the whole; KTO's pairs belong to a process's own batch."""
    hyper = {"max_steps": 4, "learning_rate": 1e-3}
    alone, shared = (
        train_as_child(
            jobs(
                PORTS[stage],
                stage=stage,
                hyperparameters={**hyper, "batch_size": 4 // processes},
                launch={"strategy": strategy, "processes": processes},
            ),
            tmp_path / strategy,
        )
        for strategy, processes in (("single", 1), ("ddp", 2))
    )
    if stage == "reward":
        assert losses(shared) == pytest.approx(losses(alone), abs=1e-4)
    else:
        assert shared.record["first_loss"] == pytest.approx(0.5, abs=1e-5)
        assert losses(shared)[-1] < 0.5
    assert load_file(shared.folder / "adapter_model.safetensors").keys() == (
        load_file(alone.folder / "adapter_model.safetensors").keys()
    )
