"""Fireworks' serverless training sessions, by `fireworks.training.sdk` (fireworks-ai 1.2.30).

Its wire is Tinker's of SDK 0.23 in JSON, below `/training/v1/serverless`; samples come from its completions, and
weights by way of a model: the sampler's checkpoint is promoted, downloaded, and the model deleted. A step's number
makes a repeated request the same request, so that the SDK may repeat it.

A saved state has no verb for its deletion, and a cross-entropy step may answer without log-probabilities, which a
forward pass then gives.
"""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path, PurePosixPath
from typing import Any

import fireworks
import httpx
from fireworks.training import sdk
from fireworks.training.sdk.fireworks_client import FireworksClient

from .step_service import (
    CORRUPT,
    DENIED,
    REFUSED,
    UNAVAILABLE,
    Memory,
    ServiceError,
    first_line,
    read_environment,
)

ADDRESS, SERVERLESS = "https://api.fireworks.ai", "/training/v1/serverless"
LOSS = "cross_entropy"
NORM_METRICS = ("grad_norm:mean", "grad_norm", "grad_norm:last")
READY_S, POLL_S = 1800.0, 2.0
FILE_TIMEOUT_S = 300.0
SESSION = "session"
Rows = list[dict[str, list[int]]]


class FireworksSteps:
    """One adapter in a session of Fireworks."""

    def __init__(self, memory: Memory) -> None:
        address, self.key = read_environment()
        self.address = (address or ADDRESS).rstrip("/").removesuffix(SERVERLESS)
        self.memory = memory
        self.options: dict[str, Any] = {}
        self.model, self.job, self.saves = "", "", 0
        self.service: Any = None
        self.client: Any = None
        self.base: Any = None
        self.sampler: Any = None

    def open(self, model: str, job: str, adapter: dict[str, Any], path: str | None) -> None:
        """Open an adapter, new or from a saved state; the wire has no place for dropout."""
        self.model, self.job = model, job
        self.options = {
            "rank": adapter["rank"], "alpha": adapter["alpha"], "seed": adapter["seed"],
            "train_attn": adapter["attention"], "train_mlp": adapter["mlp"], "train_unembed": False,
        }  # fmt: skip
        self.close_earlier()
        self.service = sdk.FiretitanServiceClient(
            base_url=self.address + SERVERLESS, api_key=self.key, user_metadata={"trainyard_job": job}
        )
        self.memory.write(SESSION, id=self.service.training_session_id)
        self.client = self.service.create_lora_training_client(model, **self.options)
        if path is not None:
            self.load(path)

    def close_earlier(self) -> None:
        """Delete the session of an earlier process, which uses a place of the account's quota."""
        session = self.memory.values.get(SESSION, {}).get("id")
        if session:
            with FireworksClient(api_key=self.key, base_url=self.address) as control:
                control.delete_training_session(f"accounts/{control.account_id}/trainingSessions/{session}")
            self.memory.write(SESSION)

    # Steps

    def datum(self, row: dict[str, list[int]], weights: list[float]) -> Any:
        targets = sdk.TensorData(data=row["targets"], dtype="int64", shape=[len(weights)])
        weighted = sdk.TensorData(data=weights, dtype="float32", shape=[len(weights)])
        return sdk.Datum(
            model_input=sdk.ModelInput.from_ints(row["tokens"]),
            loss_fn_inputs={"target_tokens": targets, "weights": weighted},
        )

    def forward(self, rows: Rows) -> list[list[float]]:
        return self.score(self.client, rows)

    def score(self, client: Any, rows: Rows) -> list[list[float]]:
        output = client.forward([self.datum(row, [1.0] * len(row["targets"])) for row in rows], LOSS).result()
        logprobs = read_logprobs(output)
        if logprobs is None:
            raise ServiceError(CORRUPT, "A forward pass comes without log-probabilities.")
        return logprobs

    def backward(self, rows: Rows, weights: list[list[float]], score: bool) -> list[list[float]]:
        data = [self.datum(row, row_weights) for row, row_weights in zip(rows, weights, strict=True)]
        output = self.client.forward_backward(data, LOSS).result()
        if not score:
            return []
        return read_logprobs(output) or self.forward(rows)

    def step(self, **settings: float) -> float | None:
        self.sampler = None
        metrics = self.client.optim_step(sdk.AdamParams(**settings)).result().metrics or {}
        return next((float(metrics[name]) for name in NORM_METRICS if name in metrics), None)

    # Samples and scores

    def generate(self, prompts: list[list[int]], sampling: dict[str, Any]) -> list[dict[str, Any]]:
        """Sample each prompt by a request with a seed of its own: equal seeds give equal texts."""
        if self.sampler is None:
            saved = self.client.save_weights_for_sampler_ext(self.next_name("sampler"))
            self.sampler = self.service.create_sampling_client(model_path=saved.path)
        seed = sampling.pop("seed")
        requests = [
            self.sampler.sample(
                sdk.ModelInput.from_ints(prompt), 1, sdk.SamplingParams(seed=(seed + number) % 2**31, **sampling)
            )
            for number, prompt in enumerate(prompts)
        ]
        sequences = [sequence for request in requests for sequence in request.result().sequences]
        return [
            {
                "tokens": [int(token) for token in sequence.tokens],
                "logprobs": [float(value) for value in sequence.logprobs or ()],
                "ended": sequence.stop_reason == "stop",
            }
            for sequence in sequences
        ]

    def base_logprobs(self, rows: Rows) -> list[list[float]]:
        if self.base is None:
            self.base = self.service.create_base_training_client(self.model)
        return self.score(self.base, rows)

    # States

    def next_name(self, name: str) -> str:
        """Return a name that this session has not used: the service overwrites nothing."""
        self.saves += 1
        return f"{name}-{self.saves}"

    def save(self, name: str) -> str:
        return str(self.client.save_state(self.next_name(name)).result().path)

    def load(self, path: str) -> None:
        self.sampler = None
        self.client.load_state_with_optimizer(path).result()

    def remove(self, path: str) -> None:
        """Keep a state: the service has no verb for its deletion."""

    def export(self, name: str, folder: str) -> None:
        """Promote the weights to a model, fetch its files, and delete the model."""
        saved = self.client.save_weights_for_sampler_ext(self.next_name(name))
        with FireworksClient(api_key=self.key, base_url=self.address) as control:
            rows = control.list_training_session_checkpoints(self.service.training_session_name)
            last = PurePosixPath(saved.path).name
            names = [row["name"] for row in rows if PurePosixPath(row["name"]).name in (last, saved.snapshot_name)]
            if not names:
                raise ServiceError(CORRUPT, f"The session lists no checkpoint {last}.")
            account = control.account_id
            model = f"trainyard-{self.job[:24]}-{self.service.training_session_id[-12:]}-{self.saves}"
            control.promote_session_checkpoint(names[0], model, self.model)
        with fireworks.Fireworks(api_key=self.key, base_url=self.address, account_id=account) as api:
            fetch_model(api, model, Path(folder))

    def close(self, status: str) -> None:
        """Delete the session: states outlive it."""
        del status
        if self.service is not None:
            self.service.delete_training_session()
            self.memory.write(SESSION)
            self.service.close()
            self.service = None


def read_logprobs(output: Any) -> list[list[float]] | None:
    """Return the log-probabilities of an answer, row by row; None where it has none."""
    outputs = output.loss_fn_outputs
    if not outputs or any("logprobs" not in record for record in outputs):
        return None
    return [[float(value) for value in record["logprobs"].tolist()] for record in outputs]


def fetch_model(api: Any, model: str, folder: Path) -> None:
    """Download the files of a model into `folder`, and delete it."""
    until = time.monotonic() + READY_S
    while (state := api.models.get(model).state) != "READY":
        if time.monotonic() > until:
            raise ServiceError(UNAVAILABLE, f"The model {model} is still {state}.")
        time.sleep(POLL_S)
    urls = api.models.get_download_endpoint(model).filename_to_signed_urls or {}
    folder.mkdir(parents=True, exist_ok=True)
    for file, url in urls.items():
        with (
            urllib.request.urlopen(url, timeout=FILE_TIMEOUT_S) as source,
            (folder / PurePosixPath(file).name).open("wb") as target,
        ):
            while part := source.read(1 << 20):
                target.write(part)
    api.models.delete(model)


def classify(error: Exception) -> ServiceError:
    """Return the kind of an error of the SDK."""
    cause: BaseException | None = error
    while cause is not None:
        status = getattr(cause, "status_code", None) or getattr(getattr(cause, "response", None), "status_code", None)
        if status in (401, 403):
            return ServiceError(DENIED, first_line(error))
        if status in (400, 404, 409, 422):
            return ServiceError(REFUSED, first_line(error))
        cause = cause.__cause__ or cause.__context__
    refused = isinstance(error, sdk.RequestFailedError | ValueError | NotImplementedError)
    expected = isinstance(
        error, sdk.TrainingError | httpx.HTTPError | OSError | RuntimeError | fireworks.FireworksError
    )
    if not refused and not expected:
        raise error
    return ServiceError(REFUSED if refused else UNAVAILABLE, first_line(error))


SERVICE = FireworksSteps
