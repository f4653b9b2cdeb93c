"""From a body of a fine-tuning job to the parameters of a job: methods, hyperparameters, graders, training files."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from trainyard.operations.table import OPERATIONS
from trainyard.settings import settings
from trainyard.spec.job import JobSpec, chain_of_job
from trainyard.stores.openai_records import FileRecord
from trainyard.surfaces.openai.calls import run_operation
from trainyard.surfaces.openai.errors import WireError
from trainyard.surfaces.openai.graders import read_grader
from trainyard.surfaces.openai.job_bodies import CreateJobBody
from trainyard.surfaces.openai.job_plans import MODEL_NAME, JobFiles, model_name, plan_job
from trainyard.surfaces.openai.training_files import find_fault

FILE = FileRecord(
    id="file-0123456789ab0123456789ab", created=1.0, filename="a.jsonl", purpose="fine-tune", bytes=1, sha256="",
    name="a.jsonl", path="uploads/a.jsonl",
)  # fmt: skip
EXACT = {"type": "string_check", "name": "e", "input": "{{sample.output_text}}", "operation": "eq",
         "reference": "{{ item.answer }}"}  # fmt: skip
SHORT = {**EXACT, "name": "s", "operation": "ilike", "reference": "yes"}


def plan(**fields: Any) -> Any:
    body = CreateJobBody.model_validate({"model": "starter", "training_file": FILE.id, **fields})
    held_out = FILE.model_copy(update={"path": "uploads/b.jsonl"}) if body.validation_file else None
    return plan_job(body, JobFiles(FILE, held_out), "job-0", settings())


def test_auto_becomes_the_numbers_that_are_used() -> None:
    planned = plan(method={"type": "supervised", "supervised": {"hyperparameters": {"batch_size": "auto"}}})
    assert "batch_size" not in planned.parameters["hyperparameters"]
    hyper = planned.request["method"]["supervised"]["hyperparameters"]
    assert hyper == {"n_epochs": 10, "batch_size": 4, "learning_rate_multiplier": 1.0}
    assert planned.request["seed"] == 42


def test_hyperparameters_reach_the_job() -> None:
    hyper = {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 0.5, "beta": 0.2}
    planned = plan(method={"type": "dpo", "dpo": {"hyperparameters": hyper}}, seed=7)
    job = JobSpec.model_validate(planned.parameters)
    assert job.stage.model_dump()["beta"] == 0.2
    assert (job.hyperparameters.epochs, job.hyperparameters.batch_size, job.hyperparameters.seed) == (2, 8, 7)
    whole = plan(method={"type": "dpo", "dpo": {"hyperparameters": {"learning_rate_multiplier": 1}}})
    rate = whole.parameters["hyperparameters"]["learning_rate"]
    assert job.hyperparameters.learning_rate == pytest.approx(rate / 2)
    old = plan(hyperparameters={"n_epochs": 5})
    assert old.parameters["hyperparameters"]["epochs"] == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, "integrations"),
        ({"validation_file": "file-1", "method": {"type": "reinforcement", "reinforcement": {
            "grader": EXACT, "hyperparameters": {"eval_samples": 3}}}},
         "method.reinforcement.hyperparameters.eval_samples"),
        ({"method": {"type": "dpo", "supervised": {}}}, "method.supervised"),
        ({"method": {"type": "reinforcement"}}, "method.reinforcement"),
        ({"method": {"type": "supervised", "supervised": {}}, "hyperparameters": {}}, "hyperparameters"),
        ({"hyperparameters": {"learning_rate_multiplier": 1e9}},
         "method.supervised.hyperparameters.learning_rate_multiplier"),
        ({"method": {"type": "reinforcement", "reinforcement": {
            "grader": EXACT, "hyperparameters": {"eval_interval": 3}}}},
         "method.reinforcement.hyperparameters.eval_interval"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(WireError) as caught:
        plan(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_validation_file_is_evaluated_and_not_trained() -> None:
    planned = plan(validation_file="file-1")
    chain = chain_of_job(JobSpec.model_validate(planned.parameters))
    source, trainer = (node.config for node in chain.nodes)
    assert source.heldout.path == "uploads/b.jsonl"
    assert (trainer.eval.set, trainer.eval.keep_best, trainer.eval.steps) == ("heldout", 0, "epoch")
    assert "steps" not in plan(validation_file="file-1", hyperparameters={"n_epochs": 2}).parameters["eval"]
    assert planned.request["validation_file"] == "file-1"


@pytest.mark.parametrize(("interval", "steps"), [({}, "epoch"), ({"eval_interval": 3}, 3)])
def test_the_rewards_of_a_validation_file_are_evaluated(interval: dict[str, int], steps: object) -> None:
    hyper = {"n_epochs": 3, **interval}
    grader = {"type": "reinforcement", "reinforcement": {"grader": EXACT, "hyperparameters": hyper}}
    planned = plan(validation_file="file-1", method=grader)
    chain = chain_of_job(JobSpec.model_validate(planned.parameters))
    source, trainer = (node.config for node in chain.nodes)
    assert (source.heldout.format, source.heldout.columns) == (source.format, source.columns)
    assert (trainer.eval.set, trainer.eval.metric, trainer.eval.steps) == ("heldout", "reward", steps)


def test_similar_texts_are_rewarded() -> None:
    grader = {"type": "text_similarity", "name": "t", "input": "{{sample.output_text}}", "evaluation_metric": "rouge_l"}
    graded = read_grader({**grader, "reference": "{{item.answer}}"})
    assert graded.rewards == ({"type": "text_similarity", "metric": "rouge_l", "weight": 1.0},)
    assert graded.answer == "answer"
    assert read_grader({**grader, "reference": "a plan"}).rewards[0]["text"] == "a plan"


def test_graders_become_rewards() -> None:
    graded = read_grader({"type": "multi", "name": "m", "graders": {"right": EXACT, "short": SHORT},
                          "calculate_output": "0.8 * right - short / 5"})  # fmt: skip
    assert graded.answer == "answer"
    assert graded.rewards == (
        {"type": "exact_match", "weight": 0.8},
        {"type": "contains", "ignore_case": True, "text": "yes", "weight": -0.2},
    )
    grader = {"type": "reinforcement", "reinforcement": {"grader": EXACT}}
    job = JobSpec.model_validate(plan(method=grader).parameters)
    assert job.stage.type.value == "grpo"
    assert job.dataset.columns == {"messages": "messages", "answer": "answer"}
    lines = b'{"messages": [{"role": "user", "content": "a"}], "other": "b"}\n' * 10
    fault = find_fault(io.BytesIO(lines), "reinforcement", "training_file", "answer")
    assert fault is not None
    assert "Example 1 is missing the key 'answer'" in fault.message


@pytest.mark.parametrize(
    "grader",
    [
        {"type": "python", "name": "p", "source": "def grade(s, i): return 1"},
        {"type": "score_model", "name": "p"},
        {"type": ["string_check"]},
        {"type": "text_similarity", "name": "t", "input": "{{sample.output_text}}", "reference": "x",
         "evaluation_metric": "cosine"},
        {**EXACT, "operation": "ne"},
        {**EXACT, "input": "{{item.answer}}"},
        {**EXACT, "reference": "{{item.a.b}}"},
        {**EXACT, "strict": True},
        {"type": "multi", "name": "m", "graders": {"a": EXACT}, "calculate_output": "max(a, 1)"},
        {"type": "multi", "name": "m", "graders": {"a": EXACT}, "calculate_output": "b"},
        {"type": "multi", "name": "m", "graders": {}, "calculate_output": "a"},
        {"type": "multi", "name": "m", "graders": {"a": EXACT, "b": {**EXACT, "reference": "{{item.other}}"}},
         "calculate_output": "a + b"},
    ],
)  # fmt: skip
def test_other_graders_are_refused(grader: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        read_grader(grader)
    assert caught.value.status == 400
    assert str(caught.value.param).startswith("method.reinforcement.grader")


def row(*turns: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns], **more}


GOOD = row(("user", "1?"), ("assistant", "1."))
PAIR = {"input": {"messages": [{"role": "user", "content": "x"}]}, "preferred_output": [GOOD["messages"][1]],
        "non_preferred_output": [GOOD["messages"][1]]}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "example", "reason"),
    [
        ("supervised", {"prompt": "a", "completion": "b"}, "is in the completions format"),
        ("supervised", {"text": "a"}, "is missing the key 'messages'"),
        ("supervised", row(("user", "a")), "must have at least one message from the assistant"),
        ("supervised", row(("judge", "a")), "message 1 has the invalid role 'judge'"),
        ("supervised", row(("user", "a"), ("assistant", None)), "message 2 is missing the key 'content'"),
        ("supervised", row(("user", 3)), "message 1 has a 'content' that is neither"),
        ("supervised", row(("tool", "a")), "message 1 is missing the key 'tool_call_id'"),
        ("supervised", {"messages": []}, "must have a non-empty list of messages"),
        ("supervised", {**GOOD, "colour": 1}, "has the unexpected key 'colour'"),
        ("supervised", {"messages": [{"role": "user", "content": "a", "weight": 1}]}, "has a 'weight'"),
        ("dpo", GOOD, "is missing the key 'input'"),
        ("dpo", {**PAIR, "preferred_output": [{"role": "user", "content": "x"}]}, "must be from the assistant"),
        ("reinforcement", GOOD, "must end with a message from the user"),
    ],
)
def test_a_fault_names_the_example_and_the_reason(method: str, example: dict[str, Any], reason: str) -> None:
    good = {"supervised": GOOD, "dpo": PAIR, "reinforcement": row(("user", "a"), answer="b")}[method]
    lines = [json.dumps(entry).encode() + b"\n" for entry in (*[good] * 10, example)]
    assert find_fault(io.BytesIO(b"".join(lines[:10])), method, "training_file") is None
    fault = find_fault(io.BytesIO(b"".join(lines)), method, "training_file")
    assert fault is not None
    assert (fault.code, fault.param) == ("invalid_file_format", "training_file")
    assert reason in fault.message.partition("Example 11 ")[2]


def test_too_few_examples_are_counted() -> None:
    fault = find_fault(io.BytesIO(json.dumps(GOOD).encode()), "supervised", "training_file")
    assert fault is not None
    assert fault.code == "invalid_n_examples"
    assert fault.message == "Training file has 1 example(s), but must have at least 10 examples"


def test_a_model_is_named_as_openai_names_it() -> None:
    body = CreateJobBody(model="starter", training_file=FILE.id, suffix="My bot: 2")
    name = model_name(body, "acme", "ftjob-0123456789ab")
    assert name == "ft:starter:acme:My-bot-2:0123456789ab"
    match = MODEL_NAME.fullmatch(name)
    assert match is not None
    assert match["id"] == "0123456789ab"


def test_operations_that_are_named_exist() -> None:
    named = {"data upload", "data list", "data delete", "jobs create", "jobs list", "jobs show", "jobs cancel",
             "jobs pause", "jobs resume", "jobs metrics", "jobs checkpoints", "models", "adapters list",
             "adapters delete-version", "adapters ask"}  # fmt: skip
    assert named <= set(OPERATIONS)
    assert callable(run_operation)
