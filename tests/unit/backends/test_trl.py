"""The trl backend on a tiny real model: what is learned, counted, recorded and refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.small_jobs import Jobs, Ran, sft_rows, train_here, write_broken_model
from trainyard.backends.trl.trainer import LengthGroupedOrder, completion_loss
from trainyard.compute.child import Stopped
from trainyard.data.rows import SftRow
from trainyard.errors import InvalidInput, Refused, TrainyardError
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.rates import SCHEDULES
from trainyard.train.rows.tokens import IGNORED, encode_sft


def load_model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, use_safetensors=True, dtype=torch.float32)


def encode_rows(tiny_model: Path, max_length: int) -> list[dict[str, list[int]]]:
    rows = [row for row in sft_rows() if isinstance(row, SftRow)]
    return encode_sft(rows, AutoTokenizer.from_pretrained(tiny_model), max_length)[0]


def hand_loss(model: Any, examples: list[dict[str, list[int]]]) -> float:
    """Cross-entropy of the labelled tokens, token by token, the slow and obvious way."""
    losses = []
    for example in examples:
        with torch.no_grad():
            logits_TV = model(input_ids=torch.tensor([example["input_ids"]])).logits[0].double()
        for position, label in enumerate(example["labels"]):
            if label != IGNORED:
                losses.append(float(-torch.log_softmax(logits_TV[position - 1], dim=-1)[label]))
    return sum(losses) / len(losses)


def test_ledger_of_a_run_balances_with_its_cut_and_dropped_rows(sft_run: Ran) -> None:
    tokens, rows = sft_run.record["data"]["tokens"], sft_run.record["data"]["rows"]
    assert tokens["read"] == tokens["trained"] + tokens["masked"] + tokens["truncated"] + tokens["dropped"]
    assert min(tokens.values()) > 0
    assert rows == {"read": 30, "trained": 28, "truncated": 3, "dropped_truncated": 2}
    assert sft_run.record["tokens"] == {name: 2 * tokens[name] for name in ("trained", "masked")}  # two epochs
    assert (sft_run.record["rows"], sft_run.record["counted"]) == ({"trained": 56}, "batches")
    (event,) = sft_run.of("ledger")
    assert {name: event[name] for name in tokens} == tokens


def test_first_loss_of_a_run_is_the_hand_computed_one(sft_run: Ran, tiny_model: Path) -> None:
    examples = encode_rows(tiny_model, 40)
    lengths = [len(example["input_ids"]) for example in examples]
    first_batch = list(LengthGroupedOrder(lengths, 4, 42))[:4]
    expected = hand_loss(load_model(tiny_model), [examples[row] for row in first_batch])
    assert sft_run.record["first_loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers for it
def test_run_learns_and_its_adapter_answers_better_than_the_base(sft_run: Ran, tiny_model: Path) -> None:
    examples = encode_rows(tiny_model, 40)
    before = hand_loss(load_model(tiny_model), examples)
    after = hand_loss(PeftModel.from_pretrained(load_model(tiny_model), sft_run.folder), examples)
    assert after < before - 0.15


def test_record_and_adapter_say_what_was_done(sft_run: Ran, tiny_model: Path) -> None:
    record = sft_run.record
    assert (record["stage"], record["method"], record["backend"]) == ("sft", "lora", "trl")
    assert (record["threads"], record["device"], record["precision"]) == (1, "cpu", "fp32")
    assert record["steps"] == len(record["losses"]) == 14
    assert record["lora"]["rank"] == 32
    assert record["versions"].keys() >= {"torch", "trl", "peft"}
    config = json.loads((sft_run.folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(sft_run.folder / "tokenizer")
    assert "<|im_start|>" in tokenizer.chat_template


def test_progress_is_told_step_by_step(sft_run: Ran) -> None:
    steps = sft_run.of("progress")
    assert [event["step"] for event in steps] == list(range(1, 15))
    assert {"loss", "learning_rate", "epoch", "total_steps", "tokens", "seconds"} <= steps[0].keys()
    assert steps[-1]["epoch"] == pytest.approx(2.0)
    assert [event["step"] for event in sft_run.of("checkpoint")] == [5, 10]
    assert sft_run.of("begin")[0]["restarted_from"] is None


def test_dpo_continues_the_adapter_against_its_frozen_start(
    sft_run: Ran, jobs: Jobs, tmp_path: Path, tiny_model: Path
) -> None:
    """The reference is the SFT stage: the first loss is ln 2, and the adapter moves from there."""
    before = load_file(sft_run.folder / "adapter_model.safetensors")
    hyper = {"learning_rate": 2e-3, "epochs": 4}
    ran = train_here(jobs(Port.PREFERENCE, adapter=sft_run.folder, hyperparameters=hyper), tmp_path)
    assert ran.record["first_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert ran.record["final_loss"] < 0.6
    after = load_file(ran.folder / "adapter_model.safetensors")
    assert after.keys() == before.keys()
    assert any(not torch.equal(after[name], before[name]) for name in before)
    assert sorted(path.name for path in ran.folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer",
        "training.json",
    ]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"hyperparameters": {"precision": "bf16"}}, marks=pytest.mark.slow),
        {"hyperparameters": {"gradient_accumulation": 2}, "preference": {"label_smoothing": 0.1}},
        pytest.param({"method": "full", "hyperparameters": {"learning_rate": 1e-3}}, marks=pytest.mark.slow),
    ],
)
def test_first_dpo_loss_is_ln_2_whatever_is_trained(jobs: Jobs, tmp_path: Path, config: dict[str, Any]) -> None:
    ran = train_here(jobs(Port.PREFERENCE, **config), tmp_path)
    assert ran.record["first_loss"] == pytest.approx(math.log(2), abs=1e-4)


@pytest.mark.parametrize(("loss", "at_start"), [pytest.param("hinge", 1.0, marks=pytest.mark.slow), ("ipo", 25.0)])
def test_other_preference_losses_start_at_their_own_value(
    jobs: Jobs, tmp_path: Path, loss: str, at_start: float
) -> None:
    """hinge: 1; ipo: 1 / (2 beta) squared."""
    job = jobs(Port.PREFERENCE, preference={"loss": loss}, hyperparameters={"max_steps": 1})
    assert train_here(job, tmp_path).record["first_loss"] == pytest.approx(at_start, abs=1e-3)


def test_dora_trains_magnitudes(jobs: Jobs, tmp_path: Path) -> None:
    ran = train_here(jobs(method={"type": "dora", "profile": "classic"}), tmp_path)
    assert any("lora_magnitude_vector" in name for name in load_file(ran.folder / "adapter_model.safetensors"))
    shape = ran.record["lora"]
    assert shape.pop("coverage")["kinds"]["mlp"][0] == 0
    assert shape == {
        "profile": "classic",
        "rank": 8,
        "alpha": 16.0,
        "dropout": 0.05,
        "target_modules": ["q_proj", "v_proj"],
        "modules_to_save": [],
        "dora": True,
        "rslora": False,
    }


def test_full_training_leaves_a_model_that_loads_by_itself(jobs: Jobs, tmp_path: Path) -> None:
    ran = train_here(jobs(method="full", hyperparameters={"learning_rate": 1e-3}), tmp_path)
    assert ran.record["final_loss"] < ran.record["first_loss"]
    assert ran.record["lora"] is None
    assert (ran.folder / "model.safetensors").is_file()
    assert AutoTokenizer.from_pretrained(ran.folder).chat_template
    load_model(ran.folder)


@pytest.mark.slow
def test_account_of_a_short_run_that_was_stopped_is_that_of_its_batches(jobs: Jobs, tmp_path: Path) -> None:
    """Five steps of two rows, of 28: both engines count alike, in one go and in two."""
    hyper = {"max_steps": 5, "batch_size": 2}
    whole = train_here(jobs(hyperparameters=hyper), tmp_path / "whole").record
    with pytest.raises(Stopped):
        train_here(jobs(hyperparameters=hyper), tmp_path / "parts", stop_after=2)
    parts = train_here(jobs(hyperparameters=hyper), tmp_path / "parts").record
    assert whole["rows"] == {"trained": 10}
    assert 0 < whole["tokens"]["trained"] < whole["data"]["tokens"]["trained"] / 2
    assert {name: parts[name] for name in ("tokens", "rows")} == {name: whole[name] for name in ("tokens", "rows")}


def test_chosen_side_of_a_preference_set_trains_sft(jobs: Jobs, tmp_path: Path) -> None:
    ran = train_here(jobs(Port.PREFERENCE, stage="sft", hyperparameters={"max_steps": 2}), tmp_path)
    assert ran.record["data"]["rows"]["trained"] == 12


def test_control_trains_on_exchanged_answers(jobs: Jobs, sft_run: Ran, tmp_path: Path) -> None:
    ran = train_here(jobs(control="shuffled_answers", hyperparameters={"max_length": 512, "max_steps": 2}), tmp_path)
    assert ran.record["control"] == "shuffled_answers"
    assert ran.record["first_loss"] != sft_run.record["first_loss"]


def test_only_the_named_layers_get_an_adapter(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(
        method={"type": "lora", "layers": [1], "target_modules": "attention-only"}, hyperparameters={"max_steps": 1}
    )
    names = load_file(train_here(job, tmp_path).folder / "adapter_model.safetensors")
    assert all(".layers.1.self_attn." in name for name in names)


def test_non_finite_loss_fails_the_run(jobs: Jobs, tiny_model: Path, tmp_path: Path) -> None:
    job = jobs(base=write_broken_model(tiny_model, tmp_path / "broken"))
    with pytest.raises(TrainyardError, match=r"E-NON-FINITE: The loss of step 1 is nan\. .*learning_rate"):
        train_here(job, tmp_path / "run")
    assert not (tmp_path / "run" / "result").exists()


def test_non_finite_weights_fail_the_run(jobs: Jobs, tiny_model: Path, tmp_path: Path) -> None:
    """A trained weight that is NaN where no row of the data looks: every loss is a number, the model is broken."""
    config = LlamaConfig.from_pretrained(tiny_model, tie_word_embeddings=False)
    model = LlamaForCausalLM(config)
    unused = AutoTokenizer.from_pretrained(tiny_model).convert_tokens_to_ids("<|endoftext|>")
    with torch.no_grad():
        model.model.embed_tokens.weight[unused] = math.nan
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "model")
    job = jobs(base=tmp_path / "model", method="full", hyperparameters={"max_steps": 2})
    with pytest.raises(TrainyardError, match=r"E-NON-FINITE: The trained weights contain NaN .*embed_tokens"):
        train_here(job, tmp_path / "run")
    assert not (tmp_path / "run" / "result").exists()


def test_unknown_target_modules_are_refused(jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-TRAINABLE: The adapter does not fit the model .*all-linear"):
        train_here(jobs(method={"type": "lora", "target_modules": ["no_such_proj"]}), tmp_path)


def test_adapter_of_another_base_is_refused(jobs: Jobs, sft_run: Ran, tmp_path: Path) -> None:
    job = jobs(adapter=sft_run.folder).model_copy(update={"base_sha256": "another"})
    with pytest.raises(Refused, match=r"R-BASE-MISMATCH config\.base_model: The earlier adapter belongs to base tiny"):
        train_here(job, tmp_path)


def test_missing_rows_of_the_stage_are_told(jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: Stage dpo needs preference rows, .* was given: sft"):
        train_here(jobs(Port.SFT, stage="dpo"), tmp_path)


def test_absent_device_is_told(jobs: Jobs, tmp_path: Path) -> None:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has an Apple GPU")
    with pytest.raises(InvalidInput, match="E-DEVICE: The device 'mps' was requested"):
        train_here(jobs(device="mps"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", list(BackendName.TRL.facts.optimizers))
def test_every_optimizer_of_the_table_trains(jobs: Jobs, tmp_path: Path, optimizer: Optimizer) -> None:
    hyper = {"optimizer": optimizer, "learning_rate": 0.1 if optimizer is Optimizer.SGD else 1e-2, "max_steps": 8}
    record = train_here(jobs(hyperparameters=hyper), tmp_path).record
    assert record["final_loss"] < record["first_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", list(BackendName.TRL.facts.schedules))
def test_every_schedule_of_the_table_trains(jobs: Jobs, tmp_path: Path, schedule: Schedule) -> None:
    total, warmup = 20, 4
    job = jobs(hyperparameters={"schedule": schedule, "max_steps": total, "warmup_ratio": warmup / total})
    rates = [rate for _, _, rate in train_here(job, tmp_path).record["losses"]]
    assert rates == pytest.approx([1e-2 * SCHEDULES[schedule](step, total, warmup) for step in range(total)])
    assert max(rates) == pytest.approx(1e-2)
    assert rates[0] > 0


@pytest.mark.slow
def test_recomputed_activations_change_no_number(jobs: Jobs, sft_run: Ran, tmp_path: Path) -> None:
    job = jobs(hyperparameters={"save_steps": 5, "gradient_checkpointing": True})
    losses = [loss for _, loss, _ in train_here(job, tmp_path).record["losses"]]
    assert losses == pytest.approx([loss for _, loss, _ in sft_run.record["losses"]], abs=1e-5)


def test_gradient_of_a_step_does_not_depend_on_how_it_is_cut(tiny_model: Path) -> None:
    """Eight rows at once or one by one: the same mean over tokens, so the same gradient."""
    model = load_model(tiny_model)
    examples = encode_rows(tiny_model, 40)[20:28]

    def batch(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        pad = [longest - len(row["input_ids"]) for row in rows]
        ids = [row["input_ids"] + [0] * more for row, more in zip(rows, pad, strict=True)]
        labels = [row["labels"] + [IGNORED] * more for row, more in zip(rows, pad, strict=True)]
        seen = [[1] * (longest - more) + [0] * more for more in pad]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels), "attention_mask": torch.tensor(seen)}

    count = sum(label != IGNORED for row in examples for label in row["labels"])
    gradients = []
    for parts in ([examples], [[row] for row in examples]):
        model.zero_grad()
        for part in parts:
            completion_loss(model, batch(part), count).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)


def test_order_of_rows_is_a_function_of_seed_and_epoch() -> None:
    lengths = [7 + (11 * n) % 30 for n in range(103)]
    order = LengthGroupedOrder(lengths, 8, seed=3)
    first = list(order)
    assert sorted(first) == list(range(103))
    assert first == list(LengthGroupedOrder(lengths, 8, seed=3))
    order.set_epoch(1)
    assert list(order) != first
    widths = [
        max(lengths[row] for row in first[at : at + 8]) - min(lengths[row] for row in first[at : at + 8])
        for at in range(0, 96, 8)
    ]
    assert max(widths) <= 4
