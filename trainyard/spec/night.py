"""Spec of a night: streams, budgets, buckets, where things are kept. Data only, read by `trainyard/night`.

Two phases share one device and never overlap: a model is served that turns documents into a knowledge graph, then it is
stopped and small adapters are trained on what people did that day. Every time is in seconds of a monotonic clock; the
zone only decides to which date a night belongs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from trainyard.errors import InvalidInput, Reason, Refused
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.axis import Strict, omit_default
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.spec.chain import ChainSpec
from trainyard.spec.graph import check
from trainyard.spec.load.parse import build_reasons
from trainyard.spec.migrate import night_words, read_variant
from trainyard.spec.nodes import (
    DataSourceConfig,
    DataSourceNode,
    DeployerConfig,
    DeployerNode,
    Name,
    Node,
    SourceSet,
    Target,
    TrainerNode,
)
from trainyard.spec.training import Hyperparameters, TrainerConfig

Seconds = Annotated[int, Field(ge=1, le=86_400)]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]
OUTSIDE = re.compile(r"^[/\\~]|(^|[/\\])\.\.([/\\]|$)|\x00")
"""Patterns that could name something outside of the folder of documents."""


BucketMethod = Literal["sft", "dpo"]
BUCKET_PORTS: dict[str, Port] = {"sft": Port.SFT, "dpo": Port.PREFERENCE}
"""Method of a bucket -> port whose rows its tuples become."""
TRAINER, TRAINING = "trainer", "phase2.training"
DEPLOYER = "deployer"
PLACES = {TRAINER: TRAINING, DEPLOYER: "phase2"}
"""Node of a night's chain -> where its settings are in the night's config."""


class StreamSpec(Strict):
    """Documents of one kind: where they lie below the night's folder of documents, and how they are read."""

    name: Name
    globs: tuple[Pattern, ...] = Field(min_length=1, max_length=32, description="Relative; `**` crosses folders.")
    parser: Literal["auto", "markdown", "yaml", "json", "text"] = Field("auto", description="auto: by the suffix.")

    @field_validator("globs")
    @classmethod
    def stays_inside(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        for glob in globs:
            if OUTSIDE.search(glob):
                raise ValueError(f"the pattern {glob!r} leads out of the folder of documents")
        return globs


STREAMS = (
    StreamSpec(name="meetings", globs=("meetings/**/*.md",)),
    StreamSpec(name="research", globs=("research/**/*.yaml", "research/**/*.md")),
    StreamSpec(name="contacts", globs=("contacts/**/*.json",)),
)
"""The shipped example: meeting transcripts, research notes, contact records."""


class BucketSpec(Strict):
    """A corpus that people fill by working, and what becomes of it."""

    name: Name
    method: BucketMethod
    role: Name | None = Field(None, description="Role of the adapter; default: the bucket's name.")
    threshold: int = Field(50, ge=1, le=1_000_000, description="New valid tuples that make it worth a training.")

    @property
    def adapter_role(self) -> str:
        return self.role or self.name


BUCKETS = (BucketSpec(name="engineering", method="sft"), BucketSpec(name="apprenticeship", method="dpo"))


class Window(Strict):
    """Time window of a night: its date, and the time limit of each part."""

    zone: str = Field("UTC", max_length=64, description="Name of a time zone, such as Europe/Berlin.")
    starts: str = Field(
        "01:00", pattern=r"^([01]\d|2[0-3]):[0-5]\d$", description="Local time at which a night begins."
    )
    window_s: Seconds = Field(14_400, description="The whole night; wins over every other budget.")
    boot_s: Seconds = Field(
        5_400, description="Until the model server has to be ready, if its profile's `ready_s` is not shorter."
    )
    phase1_s: Seconds = 7_200
    phase2_s: Seconds = 7_200
    drain_s: Seconds = Field(
        120, description="What requests in flight have after the last admission, if the profile's is not shorter."
    )
    free_s: Seconds = Field(120, description="Until the device has to be free after the server was stopped.")

    @field_validator("zone")
    @classmethod
    def check_zone(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"there is no time zone {zone!r}") from None
        return zone

    def find_date(self, moment: float) -> str:
        """Return the date (YYYYMMDD) of the night that a moment (Unix seconds) belongs to: from one start to the next.

        A night of 23 or 25 hours is still one night.
        """
        today = datetime.fromtimestamp(moment, ZoneInfo(self.zone)).date()
        days = (today + timedelta(days=count) for count in (1, 0, -1))
        return next(day for day in days if self.find_start(day) <= moment).strftime("%Y%m%d")

    def find_start(self, day: date) -> float:
        """Return the Unix second at which the night of a date starts.

        Of a local time that occurs twice, it is the first. One that clocks skip starts an hour before the clock would
        show it, when a cron schedule of Prefect runs.
        """
        starts = datetime.combine(day, time.fromisoformat(self.starts), ZoneInfo(self.zone))
        return min(starts.timestamp(), starts.replace(fold=1).timestamp())


class Serving(Strict):
    """Model that reads the documents, and its settings."""

    profile: Name = Field("rules", description="A model profile of TRAINYARD_HOME/profiles or deployments/profiles.")
    model: str = Field("rules", min_length=1, max_length=256, description="Its name; a new one reads everything again.")
    concurrency: int = Field(8, ge=1, le=1024, description="Documents in flight.")
    thinking: bool = Field(False, description="Let a reasoning model think before its answer: 5 to 8 times slower.")
    thinking_tokens: int = Field(2_000, ge=1, le=32_768)
    seconds_per_document: float = Field(1.0, gt=0, le=3_600, description="One document alone; corrected after 20.")
    timeout_s: Seconds = 300
    max_document_bytes: int = Field(1_000_000, ge=1_000, le=100_000_000, description="Longer ones are quarantined.")


SETTLED_BY_THE_NIGHT: dict[str, tuple[object, str]] = {
    "stage": (Stage.SFT, "the stage is the bucket's `method`"),
    "adapter": ("continue", "each adapter is trained from the base"),
    "reuse": (True, "a marker is trained once"),
}
"""Settings of a trainer that a night decides itself: the default, and what it does instead."""


class Phase2(Strict):
    """Training of adapters from full buckets."""

    mode: Literal["inline", "remote"] = Field("inline", description="remote: `trainyard nightly worker` elsewhere.")
    train: bool = Field(True, description="false: only leave the markers.")
    training: TrainerConfig = Field(
        default_factory=lambda: TrainerConfig(
            method=Method.QLORA.settings(profile="nightly"),
            hyperparameters=Hyperparameters(epochs=2, max_length=512, gradient_checkpointing=True),
        ),
        description="The stage is the bucket's method: what is written there are settings of the buckets of that "
        "method. `budget_s` bounds one training, within the budget of phase 2.",
    )
    learning_rates: dict[BucketMethod, Annotated[float, Field(gt=0, le=1)]] = omit_default(
        {},
        description="Peak by the method of a bucket. A `learning_rate` of `training` is that of the SFT buckets where "
        "there are any; other buckets have their stage's default.",
    )
    gate: Literal["better", "none"] = Field("better", description="none: deploy without an evaluation.")
    targets: tuple[Target, ...] = Field(
        (), max_length=16, description="Servers that answer with what was published, besides the registry."
    )
    canary: str = Field(
        "What is this about?", min_length=1, max_length=4000, description="Asked before a target is switched."
    )
    holdout: float = Field(0.2, ge=0, lt=0.5, description="Share of a bucket that the gate looks at.")
    attempts: int = Field(3, ge=1, le=20, description="Failures after which a marker is given up.")
    lease_s: Seconds = Field(120, description="A claim without a sign of life for this long may be taken over.")
    poll_s: Seconds = 30

    @field_validator("training", mode="before")
    @classmethod
    def in_our_words(cls, value: Any) -> object:
        return night_words(value)

    @field_validator("training")
    @classmethod
    def has_no_setting_of_the_night(cls, training: TrainerConfig) -> TrainerConfig:
        kind, stage = training.stage.type, training.stage
        # Settings of a stage that buckets have ask for no stage.
        settled_stage = Stage.SFT if kind in BUCKET_PORTS and stage != kind.settings() else kind
        settings = {"stage": settled_stage, "adapter": training.adapter, "reuse": training.reuse}
        refused = {name: why for name, (usual, why) in SETTLED_BY_THE_NIGHT.items() if settings[name] != usual}
        if refused:
            names = " and ".join(f"`{name}`" for name in refused)
            context = {"why": "; ".join(refused.values()), "instead": f"Remove {names}.", "code": "R-NIGHT"}
            raise PydanticCustomError("night_setting", "In a night {why}", context)
        return training


class NightConfig(Strict):
    """A deployment of the night. `read_night` makes one from plain values."""

    tenant: Name = "default"
    documents: str = Field("examples/night", min_length=1, max_length=1024, description="Folder of the streams.")
    streams: tuple[StreamSpec, ...] = STREAMS
    buckets: tuple[BucketSpec, ...] = BUCKETS
    window: Window = Field(default_factory=Window)
    serving: Serving = Field(default_factory=Serving)
    phase2: Phase2 = Field(default_factory=Phase2)
    graph: str = Field("", max_length=1024, description="URL of a graph server; default: the store of this home.")

    @model_validator(mode="after")
    def names_are_distinct(self) -> NightConfig:
        for kind, names in (
            ("stream", [stream.name for stream in self.streams]),
            ("bucket", [bucket.name for bucket in self.buckets]),
            ("role", [bucket.adapter_role for bucket in self.buckets]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"the {kind} {twice[0]!r} is listed twice")
        return self

    @property
    def methods(self) -> tuple[BucketMethod, ...]:
        """Return what its buckets are trained by, each once."""
        return tuple(dict.fromkeys(bucket.method for bucket in self.in_order()))

    def in_order(self) -> tuple[BucketSpec, ...]:
        """Return the buckets as they are trained: SFT first, then DPO, each in the order of the config."""
        return tuple(sorted(self.buckets, key=lambda bucket: bucket.method != "sft"))


def read_night(value: Mapping[str, object] | None = None) -> NightConfig:
    """Return the config that plain values describe.

    Raises `Refused` with every reason: `R-NIGHT` for a scheduled continued pre-training, what `require_trainable`
    raises, `E-SPEC-…` for the rest.
    """
    settings = dict(value or {})
    if reasons := refuse_pretraining(settings):
        raise Refused(reasons, "A night does not pre-train.")
    try:
        config = NightConfig.model_validate(settings)
    except ValidationError as error:
        raise Refused(build_reasons(error, NightConfig), "The night's config is not valid.") from error
    return require_trainable(config)


# Its trainings, judged as those of a chain


def require_trainable(config: NightConfig) -> NightConfig:
    """Return the config, if every bucket can be trained with its settings.

    Raises `Refused` with every reason: the rows that refuse the same trainer in a chain, and `R-NIGHT`.
    """
    chains, reasons = [night_chain(config, method) for method in config.methods], []
    method, stage = config.phase2.training.method.type, config.phase2.training.stage
    general = config.phase2.training.hyperparameters.learning_rate
    if not method.facts.adapter:  # which is all that a night can publish
        makes = "may make" if method is Method.AUTO else "makes"
        because = f"A night publishes adapters, and method {method} {makes} a whole model."
        reasons.append(Reason("R-NIGHT", None, f"{TRAINING}.method", because, "Use method qlora or lora."))
    if stage.type not in config.methods and stage != stage.type.settings():
        because = f"No bucket has method {stage}, so the settings of this stage would be ignored."
        reasons.append(Reason("R-NIGHT", None, f"{TRAINING}.stage", because, "Remove `stage`, or add such a bucket."))
    for unused in (method for method in config.phase2.learning_rates if method not in config.methods):
        because = f"No bucket has method {unused}, so its learning rate would be ignored."
        where = f"phase2.learning_rates.{unused}"
        reasons.append(Reason("R-NIGHT", None, where, because, "Remove it, or add such a bucket."))
    if general is not None and (
        named := [method for method in config.methods[:1] if method in config.phase2.learning_rates]
    ):
        because = f"The buckets of method {named[0]} have a learning rate of their own, and this one no bucket."
        where = f"{TRAINING}.hyperparameters.learning_rate"
        reasons.append(Reason("R-NIGHT", None, where, because, "Remove one of the two."))
    if reasons := [*reasons, *locate_reasons(reason for chain in chains for reason in check(chain))]:
        raise Refused(reasons, "A training of this night is refused.")
    return config


def night_chain(config: NightConfig, method: BucketMethod) -> ChainSpec:
    """Return what a night trains of a bucket, as a chain: its rows, the trainer, and the targets where there are
    any.
    """
    rows = DataSourceConfig(sets={BUCKET_PORTS[method]: SourceSet(path="rows.jsonl")})
    nodes: tuple[Node, ...] = (
        DataSourceNode(type="data_source", config=rows),
        TrainerNode(type="trainer", id=TRAINER, config=night_trainer(config, method)),
    )
    if config.phase2.targets:
        targets = DeployerConfig(targets=config.phase2.targets, canary=config.phase2.canary, unevaluated=True)
        nodes = (*nodes, DeployerNode(type="deployer", id=DEPLOYER, config=targets))
    return ChainSpec(name="nightly", tenant=config.tenant, nodes=nodes)


def night_trainer(config: NightConfig, method: BucketMethod) -> TrainerConfig:
    """Return the trainer of a bucket. The settings of a stage are those of the buckets of that method."""
    training = config.phase2.training
    stage = training.stage if training.stage.type == method else Stage(method).settings()
    rate = night_rate(config, method)
    hyper = training.hyperparameters.model_copy(update={"learning_rate": rate})
    return training.model_copy(update={"stage": stage, "hyperparameters": hyper})


def night_rate(config: NightConfig, method: BucketMethod) -> float | None:
    """Return the learning rate of the buckets of a method; None for the default of its stage.

    A general one is meant for SFT, whose usual rates are a hundred times those of DPO. It is that of another method
    only where all buckets have that method.
    """
    general = config.phase2.training.hyperparameters.learning_rate
    return config.phase2.learning_rates.get(method, general if method in config.methods[:1] else None)


def locate_reasons(reasons: Iterable[Reason]) -> list[Reason]:
    """Return the reasons of the trainers and targets of a night, each once, at their place in its config.

    Two stages may differ in what to use instead: what the last one can use is printed.
    """
    at_places = (reason for reason in reasons if reason.node in PLACES)
    fields = ((reason, reason.field.removeprefix("config").removeprefix(".")) for reason in at_places)
    placed = [replace(reason, node=None, field=f"{PLACES[str(reason.node)]}.{field}") for reason, field in fields]
    return list({(reason.code, reason.field, reason.because): reason for reason in placed}.values())


def refuse_pretraining(value: JsonMapping) -> list[Reason]:
    """Return a reason for each place that asks for the cpt stage: a new base takes weeks, and a person decides about
    it.
    """
    buckets, phase2 = value.get("buckets"), value.get("phase2")
    training = phase2.get("training") if isinstance(phase2, Mapping) else None
    stage = read_variant(training, "stage")["type"] if isinstance(training, Mapping) else None
    fields = [
        f"buckets.{index}.method"
        for index, bucket in enumerate(buckets if isinstance(buckets, list | tuple) else ())
        if isinstance(bucket, Mapping) and bucket.get("method") == Stage.CPT
    ]
    fields += ["phase2.training.stage"] if stage == Stage.CPT else []
    because = "continued pre-training makes a new base model; a schedule may only make adapters."
    instead = "method: sft or dpo; start a pre-training by hand with `trainyard run`."
    return [Reason("R-NIGHT", None, field, because, instead) for field in fields]


def check_name(text: str, kind: str) -> str:
    """Return a tenant, role, bucket or run as part of a path. Raises `InvalidInput` (`E-NAME`)."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", text):
        raise InvalidInput(
            f"{text[:80]!r} is not a valid {kind}.",
            why="It becomes part of a path: 1 to 63 small letters, digits and hyphens, no dot and no slash.",
            do="Rename it, such as `engineering`.",
            code="E-NAME",
        )
    return text
