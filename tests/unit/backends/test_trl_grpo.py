"""Stage grpo on the trl backend: what it learns from rewards, what it leaves, and how it goes on after a stop."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.selection import choose_by_default
from tests.small_jobs import Jobs, Ran, conversation, train_as_child, train_here
from trainyard.backends.job import TrainingJob
from trainyard.backends.trl.rollouts import GroupedOrder
from trainyard.compute.child import EVENTS_FILE, Stopped
from trainyard.compute.events import read_events
from trainyard.data.rows import Message, Row, SftRow, write_rows
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.spec.axes.data import Port
from trainyard.stores.metrics import read_curve
from trainyard.train.rows.prompts import encode_prompts

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks for it
YES = {"type": "contains", "text": "yes"}
NO = {"type": "contains", "text": "no"}
CONSTANT = {"type": "length", "max_tokens": 1000}
GROUP, BATCH, PROMPTS = 4, 16, 4
WEIGHTS = "adapter_model.safetensors"


def make_questions() -> list[Row]:
    """Sixteen questions, each answered once with yes and once with no."""
    return [conversation(f"Is node {n} up?", answer) for n in range(16) for answer in ("yes", "no")]


def reading(jobs: Jobs, folder: Path, rows: Sequence[Row], base: Path | None = None) -> Jobs:
    """The same jobs with other rows, and perhaps another base."""
    write_rows(folder / "rows" / "rows.arrow", Port.SFT, list(rows))
    return Jobs(base or jobs.model, {Port.SFT: folder / "rows"}, jobs.locks)


@pytest.fixture(scope="module")
def undecided(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Jobs on a model that answers each question with yes or no, as often with one as with the other."""
    folder = tmp_path_factory.mktemp("undecided")
    hyper = {"max_steps": 40, "batch_size": 16, "learning_rate": 5e-3}
    ran = train_here(reading(jobs, folder, make_questions())(method="full", hyperparameters=hyper), folder / "run")
    return reading(jobs, folder, make_questions(), ran.folder)


def grpo(
    jobs: Jobs, *rewards: dict[str, Any], hyper: dict[str, Any] | None = None, adapter: Path | None = None, **rest: Any
) -> TrainingJob:
    """Sixteen completions a step in groups of four. `rest`: settings of the rollouts and of the trainer."""
    hyperparameters = {
        "batch_size": BATCH,
        "max_steps": 4,
        "learning_rate": 2e-3,
        "schedule": "constant",
        **(hyper or {}),
    }
    trainer = {name: rest.pop(name) for name in ("method", "launch", "lora") if name in rest}
    grpo_settings = {"num_generations": GROUP, "max_completion_length": 6, "rewards": rewards or (YES,), **rest}
    return jobs(stage={"type": "grpo", **grpo_settings}, hyperparameters=hyperparameters, adapter=adapter, **trainer)


def read_metric(ran: Ran, name: str) -> list[float]:
    return [event[name] for event in ran.of("progress")]


@pytest.fixture(scope="module")
def learned(undecided: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return train_here(grpo(undecided, NO, hyper={"max_steps": 30}), tmp_path_factory.mktemp("grpo"))


def answers(model: Any, base: Path) -> list[str]:
    """What a model most probably says to each question."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = [row for row in make_questions() if isinstance(row, SftRow)]
    examples, _ = encode_prompts(rows[::2], tokenizer, 64)
    texts = []
    for example in examples:
        ids = torch.tensor([example["input_ids"]])
        generated = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False
        )
        texts.append(tokenizer.decode(generated[0, ids.shape[1] :], skip_special_tokens=True).strip())
    return texts


def test_reward_rises_and_the_adapter_says_what_was_rewarded(learned: Ran, undecided: Jobs) -> None:
    rewards = read_metric(learned, "reward")
    assert statistics.mean(rewards[-15:]) > statistics.mean(rewards[:5]) + 0.15
    assert read_metric(learned, "reward_contains") == rewards
    base = AutoModelForCausalLM.from_pretrained(undecided.model, dtype=torch.float32)
    before = sum("no" in answer for answer in answers(base, undecided.model))
    adapted = PeftModel.from_pretrained(base, learned.folder).eval()
    after = sum("no" in answer for answer in answers(adapted, undecided.model))
    assert before < 8
    assert after > 13


def test_record_and_files_are_those_of_every_adapter(learned: Ran, sft_run: Ran) -> None:
    assert learned.record.keys() - sft_run.record.keys() == {"shared_prompt", "shared_prompt_why"}
    assert sft_run.record.keys() <= learned.record.keys()
    assert learned.record["stage"] == "grpo"
    assert learned.record["stage_settings"]["num_generations"] == GROUP
    assert sorted(path.name for path in learned.folder.iterdir()) == sorted(
        path.name for path in sft_run.folder.iterdir()
    )
    assert load_file(learned.folder / WEIGHTS).keys() == load_file(sft_run.folder / WEIGHTS).keys()


def test_rewards_are_in_the_curve_of_the_job(undecided: Jobs, tmp_path: Path) -> None:
    ran = train_here(grpo(undecided), tmp_path)
    points = read_curve(read_events(tmp_path / EVENTS_FILE))
    assert [point.reward for point in points] == read_metric(ran, "reward")


def test_ledger_balances_with_what_was_drawn(learned: Ran) -> None:
    """Every prompt counts once for each of its completions; 30 steps have 16 completions each."""
    tokens = learned.record["tokens"]
    assert tokens["trained"] == pytest.approx(sum(read_metric(learned, "completion_tokens")) * BATCH, abs=0.5)
    assert read_metric(learned, "tokens")[-1] == tokens["trained"] + tokens["masked"]
    (at_start,) = learned.of("ledger")
    assert (at_start["trained"], at_start["read"]) == (0, at_start["masked"])
    assert learned.record["data"]["rows"] == {"read": 32, "trained": 32}
    assert learned.record["rows"] == {"trained": 30 * BATCH}


@pytest.mark.slow
def test_constant_reward_teaches_nothing(undecided: Jobs, tmp_path: Path) -> None:
    """All advantages of a group are zero, and so is every gradient: the training says so and leaves no adapter."""
    with pytest.raises(TrainyardError, match="E-UNCHANGED: The training has ended and moved no weight"):
        train_here(grpo(undecided, CONSTANT), tmp_path)
    assert not list(tmp_path.rglob(WEIGHTS))


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", choose_by_default([2], [2, 7]))
def test_stopped_and_resumed_is_uninterrupted(stop_after: int, undecided: Jobs, tmp_path: Path) -> None:
    """Bit by bit, within a pass over the prompts and at the border of two: a pass has eight steps."""
    hyper = {"max_steps": 11, "batch_size": BATCH // 2, "gradient_accumulation": 2}
    job = grpo(undecided, hyper=hyper, method={"type": "lora", "dropout": 0.1})
    whole = train_here(job, tmp_path / "whole")
    with pytest.raises(Stopped):
        train_here(job, tmp_path / "parts", stop_after=stop_after)
    torch.manual_seed(stop_after)  # what else was drawn in between does not matter
    parts = train_here(job, tmp_path / "parts")
    assert parts.of("begin")[-1]["restarted_from"] == {"step": stop_after + 1}
    assert parts.record["losses"] == whole.record["losses"]
    assert parts.record["tokens"] == whole.record["tokens"]
    parts_weights, whole_weights = (load_file(ran.folder / WEIGHTS) for ran in (parts, whole))
    assert all(torch.equal(parts_weights[name], value) for name, value in whole_weights.items())


@pytest.mark.slow
def test_epsilon_bounds_what_a_second_step_learns_from_the_same_completions(undecided: Jobs, tmp_path: Path) -> None:
    """The first step is made by the policy that drew, where nothing is clipped; the second is not."""
    hyper = {"max_steps": 2, "warmup_ratio": 0, "learning_rate": 1e-2}
    runs = [
        train_here(grpo(undecided, hyper=hyper, num_iterations=2, epsilon=epsilon), tmp_path / str(epsilon))
        for epsilon in (0.01, 0.9)
    ]
    (narrow_1, narrow_2), (wide_1, wide_2) = (read_metric(ran, "grad_norm") for ran in runs)
    assert narrow_1 == wide_1 > 0
    assert narrow_2 != wide_2
    narrow, wide = (load_file(ran.folder / WEIGHTS) for ran in runs)
    assert any(not torch.equal(narrow[name], value) for name, value in wide.items())


@pytest.mark.slow
def test_iterations_draw_once_and_stop_only_between_two_drawings(undecided: Jobs, tmp_path: Path) -> None:
    """Two steps learn from one drawing. What was drawn is counted once, however often it was learned from."""
    hyper = {"max_steps": 11, "save_steps": 5}
    job = grpo(undecided, hyper=hyper, num_iterations=2, method={"type": "lora", "dropout": 0.1})
    whole = train_here(job, tmp_path / "whole")
    assert [event["step"] for event in whole.of("checkpoint")] == [6]
    with pytest.raises(Stopped):
        train_here(job, tmp_path / "parts", stop_after=2)
    torch.manual_seed(3)
    parts = train_here(job, tmp_path / "parts")
    assert parts.of("begin")[-1]["restarted_from"] == {"step": 4}
    assert parts.record["losses"] == whole.record["losses"]
    assert parts.record["tokens"] == whole.record["tokens"]
    token_counts = [event["completion_tokens"] for event in whole.of("progress") if "completion_tokens" in event]
    assert len(token_counts) == 6
    assert whole.record["tokens"]["trained"] == pytest.approx(sum(token_counts) * BATCH, abs=0.5)
    parts_weights, whole_weights = (load_file(ran.folder / WEIGHTS) for ran in (parts, whole))
    assert all(torch.equal(parts_weights[name], value) for name, value in whole_weights.items())


@pytest.mark.slow
def test_cut_into_micro_batches_changes_no_number(undecided: Jobs, tmp_path: Path) -> None:
    """Completions are drawn for a step, however it is cut; each of their tokens counts the same."""
    whole = train_here(grpo(undecided), tmp_path / "whole")
    cut = train_here(grpo(undecided, hyper={"batch_size": 2, "gradient_accumulation": 8}), tmp_path / "cut")
    assert read_metric(cut, "reward") == read_metric(whole, "reward")
    cut_weights, whole_weights = (load_file(ran.folder / WEIGHTS) for ran in (cut, whole))
    for name, value in whole_weights.items():
        torch.testing.assert_close(cut_weights[name], value, atol=2e-4, rtol=0, msg=name)


@pytest.mark.parametrize("loss", choose_by_default(["grpo"], ["grpo", "dr_grpo", "dapo", "bnpo"]))
def test_every_loss_moves_the_adapter(loss: str, undecided: Jobs, tmp_path: Path) -> None:
    """At the first step the policy is the one that has drawn, so the loss of grpo is the mean advantage: zero."""
    ran = train_here(grpo(undecided, loss=loss, hyper={"max_steps": 2, "warmup_ratio": 0}), tmp_path)
    if loss == "grpo":
        assert ran.record["first_loss"] == pytest.approx(0, abs=1e-6)
    assert all(norm > 0 for norm in read_metric(ran, "grad_norm"))
    assert any(value.any() for name, value in load_file(ran.folder / WEIGHTS).items() if "lora_B" in name)


@pytest.mark.parametrize("method", choose_by_default(["lora"], ["lora", "dora", "full"]))
def test_distance_from_the_model_as_it_was_begins_at_zero(method: str, undecided: Jobs, tmp_path: Path) -> None:
    ran = train_here(grpo(undecided, method=method, beta=0.1, hyper={"warmup_ratio": 0}), tmp_path)
    distances = read_metric(ran, "kl")
    assert distances[0] == pytest.approx(0, abs=1e-5)
    assert distances[-1] > 1e-3
    if method == "full":
        assert (ran.folder / "model.safetensors").is_file()


def test_stage_continues_an_adapter_against_its_start(learned: Ran, undecided: Jobs, tmp_path: Path) -> None:
    ran = train_here(grpo(undecided, NO, beta=0.1, adapter=learned.folder), tmp_path)
    assert statistics.mean(read_metric(ran, "reward")) > 0.7
    assert read_metric(ran, "kl")[0] == pytest.approx(0, abs=1e-5)
    before, after = (load_file(training.folder / WEIGHTS) for training in (learned, ran))
    assert before.keys() == after.keys()
    assert any(not torch.equal(after[name], value) for name, value in before.items())
    assert [entry["stage"] for entry in ran.record["lineage"]] == [None, "sft", "grpo"]


def test_rewards_are_added_by_their_weights_and_told_by_name(undecided: Jobs, tmp_path: Path) -> None:
    rewards = ({**YES, "weight": 2.0}, {"type": "contains", "weight": -1.0}, {"type": "regex", "pattern": "^no$"})
    ran = train_here(grpo(undecided, *rewards, hyper={"max_steps": 2}), tmp_path)
    for event in ran.of("progress"):
        parts = [event[f"reward_{name}"] for name in ("contains", "contains_2", "regex")]
        assert event["reward"] == pytest.approx(2 * parts[0] - parts[1] + parts[2])
    assert len(set(read_metric(ran, "reward_contains_2")) | {0.0}) > 1


@pytest.mark.parametrize("precision", choose_by_default(["bf16"], ["bf16", "auto"]))
@pytest.mark.slow
def test_half_precision_draws_and_learns(precision: str, undecided: Jobs, tmp_path: Path) -> None:
    hyper = {"precision": precision, "gradient_checkpointing": True}
    ran = train_here(grpo(undecided, hyper=hyper), tmp_path)
    assert any(reward > 0 for reward in read_metric(ran, "reward"))
    assert any(norm > 0 for norm in read_metric(ran, "grad_norm"))


def test_order_is_grouped_and_leaves_out_others_in_each_pass() -> None:
    order, missing = GroupedOrder(7, seed=3, prompts=3, group=2, times=2), set()
    for epoch in range(12):
        order.set_epoch(epoch)
        rows = list(order)
        assert len(rows) == len(order) == 24
        for at in (0, 12):
            first, again = rows[at : at + 6], rows[at + 6 : at + 12]
            assert first == again
            assert first[::2] == first[1::2]
        assert max(Counter(rows).values()) == 4
        missing |= set(range(7)) - set(rows)
    assert len(missing) > 2
    order.set_epoch(1)
    epochs = list(islice(order.sample_epochs(), 4))
    assert epochs[2:] == [list(order)[at : at + 6 : 2] for at in (0, 12)]


@pytest.mark.slow
def test_prompts_that_fill_no_step_wait_for_another_pass(undecided: Jobs, tmp_path: Path) -> None:
    row_jobs = reading(undecided, tmp_path, make_questions()[:6])
    ran = train_here(grpo(row_jobs, hyper={"max_steps": None, "epochs": 3}), tmp_path / "run")
    assert ran.record["steps"] == 3
    (warning,) = ran.of("warning")
    assert warning["text"] == (
        "Each step of stage grpo answers 4 prompts. 6 rows leave 2 over: each pass leaves out others."
    )


def test_prompt_is_what_stands_before_the_last_answer(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    turns = [("system", "Be short."), ("user", "up?"), ("assistant", "yes"), ("user", "sure?"), ("assistant", "no")]
    long = conversation("a very long question about nodes " * 20, "lost")
    alone = SftRow([Message("user", "up?")])
    held = SftRow([Message("user", "up?"), Message("assistant", "no")], split="unseen_documents")
    rows = [SftRow([Message(role, text) for role, text in turns]), long, alone, held]
    (example,), ledger = encode_prompts(rows, tokenizer, 60)
    messages = [{"role": role, "content": text} for role, text in turns[:-1]]
    assert example["answer"] == "no"
    assert example["input_ids"] == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert dict(ledger.rows) == {
        "read": 3, "held_out": 1, "trained": 1, "dropped_truncated": 1, "dropped_no_target": 1,
    }  # fmt: skip
    assert ledger.balanced


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (make_questions()[:3], r"E-BATCH: A step answers 4 prompts, and the data set has 3\. .*num_generations"),
        (
            [conversation("a long question " * 40, "lost")],
            r"E-DATA-EMPTY: None of 1 rows has a prompt .* 1 dropped_tru",
        ),
        ([SftRow([Message("user", "up?")])], r"E-DATA-EMPTY: None of 1 rows .* 1 dropped_no_target.* Raise max_length"),
        (
            [SftRow([Message("user", "a"), Message("assistant", "b")], split="unseen_documents")],
            "E-DATA-EMPTY: .* held out",
        ),
    ],
)
def test_rows_that_make_no_step_are_refused(rows: list[Row], message: str, jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        train_here(grpo(reading(jobs, tmp_path, rows)), tmp_path / "run")


def test_job_without_rewards_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-REWARD: Stage grpo learns from rewards, .* Name them"):
        train_here(jobs(stage="grpo"), tmp_path)


def test_broken_groups_are_refused(jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-BATCH: A step has 6 completions, .*a multiple of 4\. .*a multiple of"):
        train_here(grpo(jobs, hyper={"batch_size": 3, "gradient_accumulation": 2}), tmp_path)


def test_missing_rows_are_told(jobs: Jobs, tmp_path: Path) -> None:
    job = grpo(jobs).model_copy(update={"data": {Port.PREFERENCE: str(jobs.data[Port.PREFERENCE])}})
    with pytest.raises(
        InvalidInput, match=r"E-DATA-EMPTY: Stage grpo needs sft or prompts rows, .* was given: preference"
    ):
        train_here(job, tmp_path)


@pytest.mark.slow
def test_stage_trains_in_two_processes(undecided: Jobs, tmp_path: Path) -> None:
    """Each draws completions of its own; the groups are put together before they are compared."""
    launch = {"strategy": "ddp", "processes": 2}
    ran = train_as_child(grpo(undecided, hyper={"max_steps": 20, "batch_size": BATCH // 2}, launch=launch), tmp_path)
    rewards = read_metric(ran, "reward")
    assert statistics.mean(rewards[-5:]) > statistics.mean(rewards[:3])
    tokens = ran.record["tokens"]
    assert tokens["trained"] == pytest.approx(sum(read_metric(ran, "completion_tokens")) * BATCH, abs=0.5)
    assert tokens["masked"] > 0
