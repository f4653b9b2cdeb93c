"""A step service by the Tinker SDK: the paid one, another Trainyard, or whatever speaks that wire.

The frozen base is a second adapter that is never trained: its second factor is zero, so it computes the base, in
the same session and without a second copy of the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx
import torch

from trainyard.backends.remote_steps.addresses import ServiceAddress
from trainyard.backends.remote_steps.service import ServiceRow, StepSettings
from trainyard.errors import Conflict, Corrupt, Denied, InvalidInput, TrainyardError, Unavailable
from trainyard.spec.axes.methods import LowRankSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Generated, Sampling, StopReason

SdkPart: TypeAlias = Any
"""An object of the SDK, which is an optional package."""
LOSS = "cross_entropy"
STATE_TTL_S = 30 * 86_400
"""Seconds that a service keeps a state from which no run continued: checkpoints there cost money."""
RESULT_TTL_S = 86_400
"""The same of weights that are fetched at once."""
DOWNLOAD_TIMEOUT_S = 300.0
RESULT_FILES = ("adapter_config.json", "adapter_model.safetensors")
NORM_METRICS = ("grad_norm:mean", "grad_norm")


class TinkerService:
    """One adapter at a service, as `service.StepService`."""

    def __init__(
        self,
        address: ServiceAddress,
        config: TrainerConfig,
        tokenizer: SdkPart,
        job: str,
        *,
        service: SdkPart = None,
    ) -> None:
        """Connect for a job. `service` takes the place of the SDK's own client, as a double of it does."""
        import tinker  # an optional package, for these backends alone

        self.sdk: SdkPart = tinker
        self.address, self.config, self.tokenizer = address, config, tokenizer
        self.metadata = {"trainyard_job": job}
        with service_errors(tinker, address.base_url):
            self.service: SdkPart = service or tinker.ServiceClient(
                user_metadata=self.metadata, base_url=address.base_url or None, api_key=address.key
            )
        self._client: SdkPart = None
        self._sampler: SdkPart = None

    def open(self) -> None:
        """Open a new adapter, drawn by the seed of the training."""
        self._client = self._create()

    def _create(self) -> SdkPart:
        method = self.config.method
        assert isinstance(method, LowRankSettings), method
        attention, mlp = trained_layers(method.target_modules)
        return self._wait(
            lambda: self.service.create_lora_training_client(
                self.address.model, rank=method.rank, seed=self.config.hyperparameters.seed, train_mlp=mlp,
                train_attn=attention, train_unembed=False, user_metadata=self.metadata,
            )
        )  # fmt: skip

    @cached_property
    def _base_client(self) -> SdkPart:
        """An adapter that is never trained."""
        return self._create()

    def _wait(self, send: Callable[[], SdkPart]) -> SdkPart:
        """Return what a request comes to, or raise its error in our words."""
        with service_errors(self.sdk, self.address.base_url):
            return send().result()

    # Steps

    def _datum(self, row: ServiceRow, weights: torch.Tensor | None) -> SdkPart:
        targets = torch.tensor(row.targets, dtype=torch.int64)
        weighted = weights if weights is not None else torch.zeros(len(row.targets))
        return self.sdk.types.Datum(
            model_input=self.sdk.types.ModelInput.from_ints(row.tokens),
            loss_fn_inputs={"target_tokens": targets.numpy(), "weights": weighted.float().numpy()},
        )

    def forward(self, rows: Sequence[ServiceRow]) -> list[torch.Tensor]:
        return self._score(self._client, rows)

    def _score(self, client: SdkPart, rows: Sequence[ServiceRow]) -> list[torch.Tensor]:
        data = [self._datum(row, None) for row in rows]
        return read_logprobs(self._wait(lambda: client.forward(data, LOSS)), rows)

    def backward(
        self, rows: Sequence[ServiceRow], weights: Sequence[torch.Tensor], *, score: bool = True
    ) -> list[torch.Tensor]:
        del score  # they come with the answer
        data = [self._datum(row, row_weights) for row, row_weights in zip(rows, weights, strict=True)]
        return read_logprobs(self._wait(lambda: self._client.forward_backward(data, LOSS)), rows)

    def step(self, settings: StepSettings) -> float | None:
        params = self.sdk.types.AdamParams(
            learning_rate=settings.learning_rate, beta1=settings.betas[0], beta2=settings.betas[1], eps=settings.eps,
            weight_decay=settings.weight_decay, grad_clip_norm=settings.max_grad_norm,
        )  # fmt: skip
        self._sampler = None
        metrics: Mapping[str, float] = self._wait(lambda: self._client.optim_step(params)).metrics or {}
        return next((float(metrics[name]) for name in NORM_METRICS if name in metrics), None)

    def zero_grad(self) -> None:
        raise Conflict(
            "The service cannot clear gradients without a step.", why="Its wire has no verb for it.",
            do="Continue from the last saved state.", code="E-STEP",
        )  # fmt: skip

    # Samples and scores

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        """Sample neighbours with the same prompt together, each group with a seed of its own."""
        if self._sampler is None:
            self._sampler = self._wait(self._client.save_weights_and_get_sampling_client)
        groups = [(list(prompt), len(list(same))) for prompt, same in groupby(prompts, key=tuple)]
        with service_errors(self.sdk, self.address.base_url):
            requests = [
                self._sampler.sample(
                    self.sdk.types.ModelInput.from_ints(prompt), count, self._sampling(sampling, number)
                )
                for number, (prompt, count) in enumerate(groups)
            ]
            sequences = [sequence for request in requests for sequence in request.result().sequences]
        return [self._completion(sequence, sampling) for sequence in sequences]

    def _sampling(self, sampling: Sampling, number: int) -> SdkPart:
        ids = None if sampling.stop_ids is None else list(sampling.stop_ids)
        stops = list(sampling.stop_texts) or ids
        return self.sdk.types.SamplingParams(
            max_tokens=sampling.max_new_tokens, seed=(sampling.seed + number) % 2**31, stop=stops,
            temperature=sampling.temperature, top_k=sampling.top_k or -1, top_p=sampling.top_p,
        )  # fmt: skip

    def _completion(self, sequence: SdkPart, sampling: Sampling) -> Generated:
        ids = [int(token) for token in sequence.tokens]
        logprobs = [float(value) for value in sequence.logprobs or ()]
        reason = StopReason.END if sequence.stop_reason == "stop" else StopReason.LENGTH
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
        return Generated(ids, text, logprobs if sampling.temperature else [0.0] * len(ids), logprobs, reason)

    def logprobs(self, rows: Sequence[Sequence[int]], *, base: bool = False) -> list[list[float | None]]:
        shifted = [ServiceRow(list(row[:-1]), list(row[1:])) for row in rows]
        scores = self._score(self._base_client if base else self._client, shifted)
        return [[None, *row_scores.tolist()] for row_scores in scores]

    # States

    def save(self, name: str) -> str:
        answer = self._wait(
            lambda: self._client.save_state(name, ttl_seconds=STATE_TTL_S, overwrite=True, user_metadata=self.metadata)
        )
        return str(answer.path)

    def load(self, path: str) -> None:
        self._sampler = None
        self._client = self._wait(
            lambda: self.service.create_training_client_from_state_with_optimizer(path, user_metadata=self.metadata)
        )

    def remove(self, path: str) -> None:
        rest = self.service.create_rest_client()
        try:
            rest.delete_checkpoint_from_tinker_path(path).result()
        except self.sdk.NotFoundError:
            return  # expired, or deleted by an earlier attempt

    def export(self, name: str, folder: Path) -> None:
        """Fetch the adapter file by file. Raises `Corrupt` (`E-ADAPTER-INVALID`) where one is missing."""
        saved = self._wait(lambda: self._client.save_weights_external(name, ttl_seconds=RESULT_TTL_S))
        rest = self.service.create_rest_client()
        urls: Mapping[str, str] = self._wait(lambda: rest.get_external_weights_urls(saved.path)).urls
        missing = [file for file in RESULT_FILES if file not in urls]
        if missing:
            raise Corrupt(
                f"The service gives the weights without {missing[0]}.", why=f"It has {', '.join(sorted(urls))[:200]}.",
                do="Look at the checkpoint in the service's console.", code="E-ADAPTER-INVALID",
            )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        with httpx.Client(timeout=DOWNLOAD_TIMEOUT_S) as http:
            for file in RESULT_FILES:
                self._download(http, urls[file], folder / PurePosixPath(file).name)
        self.remove(saved.path)

    def _download(self, http: httpx.Client, url: str, target: Path) -> None:
        require_own_host(url, self.address)
        try:
            with http.stream("GET", url) as response, target.open("wb") as file:
                response.raise_for_status()
                for part in response.iter_bytes():
                    file.write(part)
        except httpx.HTTPError as error:
            raise Unavailable(
                f"The weights cannot be fetched: {type(error).__name__}.", why=f"The file is {target.name}.",
                do="Start the run again: it continues from the last state.", code="E-SERVER-UNREACHABLE",
            ) from error  # fmt: skip

    def close(self, status: str) -> None:
        with service_errors(self.sdk, self.address.base_url):
            self.service.close(status).result()


def trained_layers(targets: object) -> tuple[bool, bool]:
    """Return whether the attention and the MLP layers get an adapter."""
    return targets in ("all-linear", "attention-only"), targets != "attention-only"


def read_logprobs(output: SdkPart, rows: Sequence[ServiceRow]) -> list[torch.Tensor]:
    """Return the log-probabilities of a reply. Raises `Corrupt` (`E-SERVER-RESPONSE`) for other positions."""
    logprobs = [torch.tensor(record["logprobs"].tolist(), dtype=torch.float32) for record in output.loss_fn_outputs]
    if [len(values_T) for values_T in logprobs] != [len(row.targets) for row in rows]:
        raise Corrupt(
            "The service answers with another number of log-probabilities than it was sent targets.",
            do="Use a service that speaks the wire of Tinker SDK 0.38.", code="E-SERVER-RESPONSE",
        )  # fmt: skip
    return logprobs


def require_own_host(url: str, address: ServiceAddress) -> None:
    """Raise `Corrupt` (`E-SERVER-RESPONSE`) for a link that leads elsewhere: only an operator's service may send to a
    store."""
    link, service = urlsplit(url), urlsplit(address.base_url)
    same = (link.scheme, link.netloc) == (service.scheme, service.netloc)
    if not same and not (address.is_operators and link.scheme == "https"):
        raise Corrupt(
            f"The service at {service.netloc} links to {link.netloc}.",
            do="Use an endpoint of trainyard.toml for a service with a store of its own.", code="E-SERVER-RESPONSE",
        )  # fmt: skip


@contextmanager
def service_errors(sdk: SdkPart, where: str) -> Iterator[None]:
    """Raise the errors of the SDK in our words; its keys are never part of a message."""
    try:
        yield
    except (sdk.AuthenticationError, sdk.PermissionDeniedError) as error:
        raise Denied(
            f"The service at {where or 'its own address'} does not accept the key.", why=first_line(error),
            do="Set the key that the operator has for it.", code="E-API-KEY",
        ) from error  # fmt: skip
    except (sdk.RequestFailedError, sdk.BadRequestError, sdk.UnprocessableEntityError) as error:
        raise InvalidInput(
            "The service refuses a request.", why=first_line(error), do="Correct what it names, and start again.",
            code="E-REQUEST-REFUSED",
        ) from error  # fmt: skip
    except sdk.TinkerError as error:
        raise unreachable(where, first_line(error)) from error
    except httpx.HTTPError as error:
        raise unreachable(where, type(error).__name__) from error


def unreachable(where: str, why: str) -> TrainyardError:
    return Unavailable(
        f"The service at {where or 'its own address'} cannot be used.", why=why,
        do="Start the run again when it answers: it continues from the last state.", code="E-SERVER-UNREACHABLE",
    )  # fmt: skip


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400]
