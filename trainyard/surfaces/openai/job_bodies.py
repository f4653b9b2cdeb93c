"""The body of `POST /fine_tuning/jobs`, as OpenAI has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr, StringConstraints

from trainyard.surfaces.openai.calls import WireBody

AUTO: Literal["auto"] = "auto"
Auto = Literal["auto"]
Whole = Annotated[StrictInt, Field(ge=1)]
Positive = Annotated[StrictInt | StrictFloat, Field(gt=0)]
MOST_METADATA = 16
LARGEST_SEED = 2**31 - 1
MetadataKey = Annotated[str, StringConstraints(max_length=64, strict=True)]
MetadataValue = Annotated[str, StringConstraints(max_length=512, strict=True)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MOST_METADATA)]


class SupervisedHyperparameters(WireBody):
    """Of supervised, and of the deprecated top-level field."""

    batch_size: Auto | Annotated[Whole, Field(le=256)] = AUTO
    learning_rate_multiplier: Auto | Positive = AUTO
    n_epochs: Auto | Annotated[Whole, Field(le=50)] = AUTO


class DpoHyperparameters(SupervisedHyperparameters):
    beta: Auto | Annotated[StrictInt | StrictFloat, Field(gt=0, le=2)] = AUTO


class ReinforcementHyperparameters(SupervisedHyperparameters):
    compute_multiplier: Auto | Positive = AUTO
    eval_interval: Auto | Whole = AUTO
    eval_samples: Auto | Whole = AUTO
    reasoning_effort: Literal["default", "low", "medium", "high"] = "default"


class SupervisedMethod(WireBody):
    hyperparameters: SupervisedHyperparameters = SupervisedHyperparameters()


class DpoMethod(WireBody):
    hyperparameters: DpoHyperparameters = DpoHyperparameters()


class ReinforcementMethod(WireBody):
    grader: dict[str, Any]
    hyperparameters: ReinforcementHyperparameters = ReinforcementHyperparameters()
    response_format: dict[str, Any] | None = None


class MethodBody(WireBody):
    """How it is trained: the settings of the type that is named."""

    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: SupervisedMethod | None = None
    dpo: DpoMethod | None = None
    reinforcement: ReinforcementMethod | None = None


class WandbIntegration(WireBody):
    project: StrictStr
    name: StrictStr | None = None
    entity: StrictStr | None = None
    tags: tuple[StrictStr, ...] = ()


class Integration(WireBody):
    type: StrictStr
    wandb: WandbIntegration | None = None


class CreateJobBody(WireBody):
    model: Annotated[StrictStr, Field(min_length=1, max_length=512)]
    training_file: StrictStr
    validation_file: StrictStr | None = None
    hyperparameters: SupervisedHyperparameters | None = None
    method: MethodBody | None = None
    suffix: Annotated[StrictStr, Field(min_length=1, max_length=64)] | None = None
    seed: Annotated[StrictInt, Field(ge=0, le=LARGEST_SEED)] | None = None
    integrations: list[Integration] | None = None
    metadata: Metadata | None = None


class JobsQuery(WireBody):
    after: str | None = None
    limit: int = Field(20, ge=1, le=100)


class EventsQuery(WireBody):
    after: str | None = None
    limit: int = Field(20, ge=1, le=1000)


class CheckpointsQuery(WireBody):
    after: str | None = None
    limit: int = Field(10, ge=1, le=1000)
