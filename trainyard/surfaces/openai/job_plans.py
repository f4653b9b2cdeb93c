"""From the body of a fine-tuning job to the parameters of a job, and which name its model gets.

`auto` is what Trainyard chooses for the stage, the method and the base; the answer says the number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from trainyard.json_types import JsonObject
from trainyard.settings import Settings
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.spec.job import JobSpec, chain_of_job
from trainyard.spec.nodes import TrainerNode
from trainyard.spec.training import TrainerConfig, default_learning_rate, resolve_trainer
from trainyard.stores.openai_records import FileRecord
from trainyard.surfaces.openai.errors import WireError, missing_parameter
from trainyard.surfaces.openai.fields import JOBS, refuse_fields
from trainyard.surfaces.openai.graders import read_grader
from trainyard.surfaces.openai.job_bodies import AUTO, CreateJobBody, MethodBody, ReinforcementHyperparameters

STAGES = {"supervised": Stage.SFT, "dpo": Stage.DPO, "reinforcement": Stage.GRPO}
MODEL_NAME = re.compile(r"ft:(?P<base>.+):(?P<tenant>[a-z0-9-]+):(?P<suffix>[^:]*):(?P<id>[0-9a-f]{12})")
CHECKPOINT = re.compile(r"(?P<model>ft:.+):ckpt-step-(?P<step>\d+)")
SLUG_LENGTH = 48
LARGEST_RATE = 1.0
MOST_VALIDATION_ROWS = 100_000
EPOCHS_TO_EVALUATE = 3
"""Least epochs of a job whose validation loss is measured after each of them alone."""


@dataclass(frozen=True)
class PlannedJob:
    """A job of the wire as Trainyard starts it."""

    parameters: JsonObject
    request: JsonObject
    """The body as it is shown, with `auto` replaced by the values that were chosen."""
    answer: str | None = None
    """The field of an example that a grader compares with."""


def method_of(body: CreateJobBody) -> MethodBody:
    """Return the method of a job: the one that is named, else supervised. Raises `WireError` 400."""
    if body.method is None:
        return MethodBody(type="supervised")
    method = body.method
    for name in ("supervised", "dpo", "reinforcement"):
        if name != method.type and getattr(method, name) is not None:
            text = f"'method.{name}' was given, but 'method.type' is '{method.type}'."
            raise WireError(400, text, param=f"method.{name}", code="invalid_value")
    if body.hyperparameters is not None and getattr(method, method.type) is not None:
        text = "'hyperparameters' is deprecated and cannot be given next to 'method'."
        raise WireError(400, text, param="hyperparameters", code="invalid_value")
    if method.type == "reinforcement" and method.reinforcement is None:
        raise missing_parameter("method.reinforcement")
    return method


@dataclass(frozen=True)
class JobFiles:
    """The files of a job."""

    training: FileRecord
    validation: FileRecord | None = None


def plan_job(body: CreateJobBody, files: JobFiles, name: str, settings: Settings) -> PlannedJob:
    """Return the job of a body. Raises `WireError` 400 for what has no effect here."""
    refuse_unsupported(body)
    method = method_of(body)
    settings_of_method = getattr(method, method.type)
    hyper = settings_of_method.hyperparameters if settings_of_method is not None else body.hyperparameters
    fields = hyper.model_dump() if hyper is not None else {}
    stage = stage_of(method, fields, evaluated=files.validation is not None)
    dataset: JsonObject = {"path": files.training.path, "format": "openai"}
    answer = None
    if method.type == "reinforcement":
        assert method.reinforcement is not None
        graded = read_grader(method.reinforcement.grader)
        stage["rewards"], answer = list(graded.rewards), graded.answer
        dataset["format"] = "prompts"
        dataset |= {"columns": {"messages": "messages", "answer": answer}} if answer is not None else {}
    parameters = {
        "name": name, "tenant": settings.tenant, "base_model": body.model, "dataset": dataset, "stage": stage,
        "hyperparameters": hyperparameters_of(body, method, fields),
    }  # fmt: skip
    request = body.model_dump(mode="json", exclude_none=True) | {"method": method.model_dump(exclude_none=True)}
    resolved = resolve(parameters, settings)
    request["method"][method.type] = shown_method(method, fields, resolved)
    request["seed"] = resolved.hyperparameters.seed
    if files.validation is not None:
        dataset["heldout"] = {**dataset, "path": files.validation.path}
        parameters["eval"] = evaluation_of(resolved, fields.get("eval_interval", AUTO))
    return PlannedJob(parameters, request, answer)


def evaluation_of(resolved: TrainerConfig, interval: int | Literal["auto"] = AUTO) -> JsonObject:
    """Return how often a validation file is evaluated: every `interval` steps, by default after each epoch, of few
    epochs as often as is cheap.
    """
    every: JsonObject = {"steps": "epoch"} if (resolved.hyperparameters.epochs or 0) >= EPOCHS_TO_EVALUATE else {}
    if interval != AUTO:
        every = {"steps": interval}
    return {"set": "heldout", "max_rows": MOST_VALIDATION_ROWS, "keep_best": 0, **every}


def refuse_unsupported(body: CreateJobBody) -> None:
    """Raise `WireError` 400 for a field that nothing here would read."""
    if body.integrations:  # an empty list asks for nothing
        refuse_fields(JOBS, {"integrations": body.integrations})


def stage_of(method: MethodBody, fields: JsonObject, *, evaluated: bool) -> JsonObject:
    """Return the stage of a method. Raises `WireError` 400 for a setting of reinforcement without an effect."""
    stage: JsonObject = {"type": STAGES[method.type].value}
    if fields.get("beta", AUTO) != AUTO:
        stage["beta"] = float(fields["beta"])
    if method.reinforcement is not None:
        for name in ("compute_multiplier", "eval_interval", "eval_samples", "reasoning_effort"):
            if name == "eval_interval" and evaluated:
                continue
            if fields[name] != ReinforcementHyperparameters.model_fields[name].default:
                path = f"method.reinforcement.hyperparameters.{name}"
                raise WireError(400, f"'{path}' has no effect here.", param=path, code="unsupported_parameter")
        if method.reinforcement.response_format is not None:
            path = "method.reinforcement.response_format"
            raise WireError(400, f"'{path}' has no effect here.", param=path, code="unsupported_parameter")
    return stage


def hyperparameters_of(body: CreateJobBody, method: MethodBody, fields: JsonObject) -> JsonObject:
    """Return the hyperparameters that a body sets. Raises `WireError` 400 for a learning rate above 1."""
    hyper: JsonObject = {}
    if fields.get("n_epochs", AUTO) != AUTO:
        hyper["epochs"] = fields["n_epochs"]
    if fields.get("batch_size", AUTO) != AUTO:
        hyper["batch_size"] = fields["batch_size"]
    if (multiplier := fields.get("learning_rate_multiplier", AUTO)) != AUTO:
        rate = default_learning_rate(STAGES[method.type], Method.LORA, body.model) * multiplier
        if not 0 < rate <= LARGEST_RATE:
            path = f"method.{method.type}.hyperparameters.learning_rate_multiplier"
            raise WireError(400, f"Invalid value for '{path}': the learning rate would be {rate:g}.", param=path)
        hyper["learning_rate"] = rate
    if body.seed is not None:
        hyper["seed"] = body.seed
    return hyper


def resolve(parameters: JsonObject, settings: Settings) -> TrainerConfig:
    """Return the trainer of a job with every default written out. Raises `WireError` 400."""
    try:
        chain = chain_of_job(JobSpec.model_validate(parameters))
    except ValueError as error:
        raise WireError(400, f"The job is not valid: {' '.join(str(error).split())[:500]}") from error
    trainer = next(node for node in chain.nodes if isinstance(node, TrainerNode))
    return resolve_trainer(trainer.config, settings.default_base_model)


def shown_method(method: MethodBody, fields: JsonObject, resolved: TrainerConfig) -> JsonObject:
    """Return the settings of a method with numbers in place of `auto`, as far as they have one."""
    hyper = dict(fields) or {"n_epochs": AUTO, "batch_size": AUTO, "learning_rate_multiplier": AUTO}
    epochs = resolved.hyperparameters.epochs
    numbers: JsonObject = {
        "n_epochs": int(epochs) if epochs is not None else AUTO,
        "batch_size": resolved.hyperparameters.batch_size,
        "learning_rate_multiplier": 1.0,
        "beta": getattr(resolved.stage, "beta", AUTO),
    }
    numbered = {name: numbers.get(name, value) if value == AUTO else value for name, value in hyper.items()}
    grader = {"grader": method.reinforcement.grader} if method.reinforcement is not None else {}
    return {"hyperparameters": numbered, **grader}


def slug_of(text: str) -> str:
    """Return a text as part of the name of a job."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:SLUG_LENGTH].strip("-")


def model_name(body: CreateJobBody, tenant: str, job_id: str) -> str:
    """Return the name of the fine-tuned model, as OpenAI forms it: base, owner, suffix and id."""
    suffix = re.sub(r"[^A-Za-z0-9_.-]+", "-", body.suffix or "")
    return f"ft:{body.model}:{tenant}:{suffix}:{job_id.partition('-')[2]}"
