"""What a provider's file fulfils, in our words. Imports no client of a provider."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from trainyard.backends.job import TrainingJob
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig

RUN_KEY_LENGTH = 22
RUN_KEY_PREFIX = "ty-"
REQUEST_TIMEOUT_S = 60.0
ANY_KEY = "none"
"""What a client is opened with where an address is called without a key."""
SHORTEST_KEY = 6
"""Characters; a shorter text would be found in words of a message."""
SECRET_VARIABLES = ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
"""Variables of providers, next to the key, that are secret."""


class ProviderState(StrEnum):
    """State of a job at a provider."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"
    UNKNOWN = "unknown"
    """A word that this version does not know: it is reported, and the job is followed as before."""

    @property
    def over(self) -> bool:
        return self in (ProviderState.DONE, ProviderState.FAILED, ProviderState.CANCELED)


@dataclass(frozen=True)
class RemoteJob:
    """A job at a provider."""

    id: str
    state: ProviderState
    word: str
    """The provider's own word for its state."""
    message: str = ""
    model: str = ""
    """Its name for the model that came out; empty before."""
    tokens: int | None = None
    """Tokens that it bills."""
    cost_usd: float | None = None


@dataclass(frozen=True)
class RemoteEvent:
    """An event of a job at a provider."""

    id: str
    text: str
    at: str = ""
    progress: Mapping[str, float] = field(default_factory=dict)
    """step, total_steps, epoch, loss, eval_loss, learning_rate: those that it reports."""


@dataclass(frozen=True)
class EventPage:
    """Events of a job, the oldest first, and the cursor of those before them; empty where there are none."""

    events: list[RemoteEvent]
    before: str = ""


@dataclass(frozen=True)
class CloudRequest:
    """A training as it is submitted; None is left to the provider."""

    run_key: str
    """Names the training at the provider: the same in every attempt to submit it."""
    model: str
    stage: Stage
    config: TrainerConfig | None = None
    """Adapter and hyperparameters of a chain's trainer; None for a program that gives four settings alone."""
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    suffix: str = ""
    timeout_s: float | None = None

    @property
    def label(self) -> str:
        """Name of the model at the provider: the user's suffix, then the run key."""
        return f"{self.suffix}-{self.run_key}" if self.suffix else self.run_key


@dataclass(frozen=True)
class UploadedRows:
    """Files of rows at a provider, by its own names for them."""

    training: str
    validation: str | None = None


@dataclass(frozen=True)
class ProviderAddress:
    """Where a provider answers, and what opens it. The key is in no spec, log or message."""

    base_url: str = ""
    """Empty for the client's own."""
    key: str = field(default=ANY_KEY, repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def variable(self, name: str) -> str:
        return self.variables.get(name, "")

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the texts that no log or message may have."""
        texts = (self.key, *(self.variable(name) for name in SECRET_VARIABLES))
        return tuple(text for text in texts if len(text) >= SHORTEST_KEY)


class Provider(Protocol):
    """A provider as its client speaks to it. Every call raises `ProviderError`; none of them retries."""

    def upload(self, path: Path, name: str) -> str:
        """Upload a file of rows, and return the provider's name for it."""

    def create(self, request: CloudRequest, rows: UploadedRows) -> RemoteJob:
        """Create the job: one request, sent once."""

    def find(self, run_key: str) -> list[RemoteJob]:
        """Return every job of a run key, from the provider's own list."""

    def read(self, job_id: str) -> RemoteJob:
        """Return a job as it is now."""

    def read_events(self, job_id: str, cursor: str) -> EventPage:
        """Return a page of a job's events: the newest for an empty cursor, then those before it."""

    def cancel(self, job_id: str) -> None:
        """Ask for the end of a job."""

    def download(self, job: RemoteJob, folder: Path) -> None:
        """Write what a finished job made into `folder`, as the provider packs it."""


def make_run_key(work_name: str, attempt: int = 1) -> str:
    """Return the run key of a training: the same after a restart, another one after a remote job ended in vain."""
    return f"{RUN_KEY_PREFIX}{work_name[: RUN_KEY_LENGTH - len(RUN_KEY_PREFIX) - 3]}-{attempt:02d}"


def find_provider_address(job: TrainingJob) -> ProviderAddress:
    """Return the address of a job's provider, with the key and variables of this process's environment."""
    facts, server = job.config.backend.facts.provider, job.service
    assert facts is not None, "a backend of this room"
    assert server is not None, "prepare_job has located it"
    key = os.environ.get(server.api_key_env, "") if server.api_key_env else ""
    names = (*facts.variables, *facts.optional)
    return ProviderAddress(server.base_url, key or ANY_KEY, {name: os.environ.get(name, "") for name in names})


def build_request(job: TrainingJob, run_key: str) -> CloudRequest:
    """Return the training of a job as it is submitted."""
    config, service = job.config, job.config.service
    hyper = config.hyperparameters
    return CloudRequest(
        run_key=run_key,
        model=job.service.model if job.service is not None else str(config.base_model),
        stage=config.stage.type,
        config=config,
        epochs=None if hyper.epochs is None else int(hyper.epochs),
        batch_size=hyper.batch_size,
        learning_rate=hyper.learning_rate,
        suffix=(service.suffix or "") if service is not None else "",
        timeout_s=config.budget_s,
    )


def method_setting(request: CloudRequest, name: str) -> Any:
    """Return a setting of the adapter, or None where it is left to the provider."""
    return None if request.config is None else getattr(request.config.method, name, None)


def drop_missing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not left to the provider."""
    return {name: value for name, value in values.items() if value is not None}


def read_number(values: JsonMapping, *names: str) -> dict[str, float]:
    """Return the numbers among the named values."""
    return {name: float(values[name]) for name in names if isinstance(values.get(name), int | float)}
