"""A step service in this process, made of the types of the Tinker SDK: in place of its `ServiceClient`.

Its model is a table of bigrams, so that a step takes no time and every number can be worked out by hand: the logits of
the next token are the row of the last one. It moves them by AdamW as the service's wire says, keeps states by path,
counts its requests, and can lose the answer of a request.

    double = StepServiceDouble(vocabulary=16)
    TinkerService(address, config, tokenizer, "job", service=double)
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import numpy as np
import torch

SdkPart: TypeAlias = Any
"""An object of the SDK, which is an optional package."""
Reply: TypeAlias = "Future[Any]"


def answered(value: SdkPart) -> Reply:
    """Return a future that is done."""
    future: Reply = Future()
    future.set_result(value)
    return future


class StepServiceDouble:
    """The part of a `ServiceClient` and of its `RestClient` that a training uses."""

    def __init__(self, vocabulary: int = 16) -> None:
        self.vocabulary = vocabulary
        self.calls: Counter[str] = Counter()
        self.states: dict[str, tuple[SdkPart, SdkPart]] = {}
        """Path -> weights and state of the optimizer."""
        self.clients: list[TrainingDouble] = []
        self.status = ""
        """The argument of the close."""

    def create_lora_training_client(self, base_model: str, **options: SdkPart) -> Reply:
        """Open an adapter that changes nothing yet; `options` are recorded."""
        client = TrainingDouble(self, f"model-{len(self.clients)}", {"base_model": base_model, **options})
        self.clients.append(client)
        return answered(client)

    def create_training_client_from_state_with_optimizer(self, path: str, **options: SdkPart) -> Reply:
        """Open an adapter from a saved state. Raises as the SDK does for one that is not there."""
        client = self.create_lora_training_client(path, **options).result()
        weights, optimizer = copy.deepcopy(self.find_state(path))
        with torch.no_grad():
            client.logits_VV.copy_(weights)
        client.optimizer.load_state_dict(optimizer)
        return answered(client)

    def find_state(self, path: str) -> tuple[SdkPart, SdkPart]:
        """Return a saved state. Raises `tinker.RequestFailedError`."""
        import tinker  # an optional package

        if path not in self.states:
            raise tinker.RequestFailedError(f"There is no {path}.", "request", "user")  # type: ignore[arg-type]
        return self.states[path]

    def create_rest_client(self) -> StepServiceDouble:
        return self

    def delete_checkpoint_from_tinker_path(self, path: str) -> Future[None]:
        self.calls["delete"] += 1
        self.states.pop(path, None)
        return answered(None)

    def close(self, status: str) -> Future[None]:
        self.status = status
        return answered(None)


class TrainingDouble:
    """The part of a `TrainingClient` that a training uses."""

    def __init__(self, service: StepServiceDouble, model_id: str, options: Mapping[str, SdkPart]) -> None:
        self.service, self.model_id, self.options = service, model_id, options
        generator = torch.Generator().manual_seed(0)
        self.logits_VV = torch.randn(service.vocabulary, service.vocabulary, generator=generator).requires_grad_()
        self.optimizer = torch.optim.AdamW([self.logits_VV])

    def forward(self, data: Sequence[SdkPart], loss_fn: str) -> Reply:
        """Score rows."""
        self.service.calls["forward"] += 1
        with torch.no_grad():
            return answered(self.score(data, loss_fn, backward=False))

    def forward_backward(self, data: Sequence[SdkPart], loss_fn: str) -> Reply:
        """Score rows and add the gradients of their loss."""
        self.service.calls["forward_backward"] += 1
        return answered(self.score(data, loss_fn, backward=True))

    def score(self, data: Sequence[SdkPart], loss_fn: str, *, backward: bool) -> SdkPart:
        """Return the reply of the SDK to rows: the loss, and the log-probability of every target."""
        import tinker  # an optional package

        assert loss_fn == "cross_entropy", loss_fn
        outputs, total = [], torch.zeros(())
        for datum in data:
            tokens = torch.tensor(datum.model_input.to_ints())
            targets = datum.loss_fn_inputs["target_tokens"].to_torch()
            weights = datum.loss_fn_inputs["weights"].to_torch()
            logprobs_T = self.logits_VV[tokens].log_softmax(-1).gather(1, targets[:, None])[:, 0]
            total = total - (weights * logprobs_T).sum()
            outputs.append({"logprobs": tinker.types.TensorData.from_torch(logprobs_T.detach())})
        if backward:
            total.backward()
        metrics = {"loss:sum": float(total.detach())}
        return tinker.types.ForwardBackwardOutput("ArrayRecord", outputs, metrics)

    def optim_step(self, params: SdkPart) -> Reply:
        """Move the weights by AdamW with the settings of the call, and clear the gradients."""
        import tinker  # an optional package

        self.service.calls["optim_step"] += 1
        group = self.optimizer.param_groups[0]
        group |= {"lr": params.learning_rate, "betas": (params.beta1, params.beta2), "eps": params.eps}
        group["weight_decay"] = params.weight_decay
        limit = params.grad_clip_norm or torch.inf
        norm = torch.nn.utils.clip_grad_norm_([self.logits_VV], limit)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return answered(tinker.types.OptimStepResponse(metrics={"grad_norm:mean": float(norm)}))

    def save_state(self, name: str, **_options: SdkPart) -> Reply:
        """Keep weights and optimizer."""
        import tinker  # an optional package

        self.service.calls["save_state"] += 1
        path = f"tinker://{self.model_id}/weights/{name}"
        self.service.states[path] = copy.deepcopy((self.logits_VV.detach(), self.optimizer.state_dict()))
        return answered(tinker.types.SaveWeightsResponse(path=path))

    def save_weights_and_get_sampling_client(self) -> Reply:
        """Return a sampler of the weights as they are now; it samples greedily under any settings."""
        self.service.calls["sampler"] += 1
        return answered(SamplingDouble(self.logits_VV.detach().clone()))


class SamplingDouble:
    """The part of a `SamplingClient` that rollouts use."""

    def __init__(self, logits_VV: torch.Tensor) -> None:
        self.logits_VV = logits_VV
        self.requests: list[tuple[list[int], int, SdkPart]] = []

    def sample(self, prompt: SdkPart, num_samples: int, sampling_params: SdkPart) -> Reply:
        """Sample from the table with the seed of the request; the end token is 0."""
        import tinker  # an optional package

        self.requests.append((prompt.to_ints(), num_samples, sampling_params))
        generator, sequences = torch.Generator().manual_seed(sampling_params.seed), []
        for number in range(num_samples):
            token, tokens, logprobs = prompt.to_ints()[-1], list[int](), list[float]()
            while len(tokens) < sampling_params.max_tokens and (not tokens or tokens[-1] != 0):
                scores_V = self.logits_VV[token].log_softmax(-1)
                token = int(torch.multinomial(scores_V.exp(), 1, generator=generator))
                tokens.append(token)
                logprobs.append(float(scores_V[token]))
            reason = "stop" if tokens[-1] == 0 else "length"
            arrays = {"tokens_np": np.array(tokens, np.int32), "logprobs_np": np.array(logprobs, np.float32)}
            sequences.append(tinker.types.SampledSequence(reason, str(number), **arrays))  # type: ignore[arg-type]
        return answered(tinker.types.SampleResponse(sequences=sequences))
