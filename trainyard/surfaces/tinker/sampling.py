"""Sampling: from a saved state of a model, or from a base with the adapter switched off."""

from __future__ import annotations

import secrets
from typing import Any

from trainyard.errors import InvalidInput
from trainyard.surfaces.tinker.bodies import dense_of_json, tokens_of
from trainyard.surfaces.tinker.engines import Engines
from trainyard.surfaces.tinker.futures import Answer, Future
from trainyard.surfaces.tinker.records import ModelRecord, SamplerRecord, TinkerStore
from trainyard.surfaces.tinker.replies import sample_answer
from trainyard.surfaces.tinker.requests import Sample, SamplingParams

DEFAULT_RANK = 32
DEFAULT_TOKENS = 1024
"""Most tokens of a request that does not say how many."""


class Sampler:
    """Carries out the requests of samplers."""

    def __init__(self, store: TinkerStore, engines: Engines) -> None:
        self.store, self.engines = store, engines

    def run(self, tenant: str, sampler: SamplerRecord, request: Sample, future: Future) -> Answer:
        """Sample, and score the prompt where that is requested."""
        if sampler.model_path is not None:  # a checkpoint may have been deleted, or have expired
            sampler.saved = self.store.checkpoint(tenant, sampler.model_path)[1].saved
        if not sampler.engine:
            sampler.engine = self.engines.find_or_create(tenant, base_adapter(sampler.base))
        self.engines.ensure_open(tenant, sampler.engine, future.pause)
        future.resume()
        tokens = [int(token) for token in tokens_of(request.prompt.chunks)]
        seed = request.sampling_params.seed if request.sampling_params.seed is not None else secrets.randbits(62)
        arguments = {
            "prompts": [{"tokens": tokens}], "samples": request.num_samples, "weights": sampler.saved,
            "sampling": sampling_of(request.sampling_params, seed), "likeliest": request.topk_sample_logprobs,
        }  # fmt: skip
        scores = self.score(tenant, sampler, request, tokens, seed)
        result = self.engines.call(tenant, sampler.engine, "generate", arguments)["result"]
        return sample_answer(request, result["completions"], scores)

    def score(
        self, tenant: str, sampler: SamplerRecord, request: Sample, tokens: list[int], seed: int
    ) -> dict[str, Any] | None:
        """Return the scores of the prompt; None where the request wants none."""
        targets = target_rows(request, len(tokens))
        requested = request.prompt_logprobs or request.topk_prompt_logprobs or targets or request.prompt_alt_tokens_k
        if not requested:
            return None
        last = request.prompt_logprobs_last_n
        if last is not None and (last > len(tokens) - 1 or not request.prompt_logprobs):
            raise InvalidInput(
                f"prompt_logprobs_last_n is {last}, and the prompt has {len(tokens)} tokens.",
                do="Give 1 to its length less 1, with prompt_logprobs.", code="E-PARAMETER",
            )  # fmt: skip
        questions = {
            "top_k": request.topk_prompt_logprobs, "targets": targets, "draws": request.prompt_alt_tokens_k,
            "temperature": request.sampling_params.temperature, "seed": seed,
        }  # fmt: skip
        arguments = {"rows": [{"tokens": tokens}], "questions": questions, "weights": sampler.saved}
        result: dict[str, Any] = self.engines.call(tenant, sampler.engine, "logprobs", arguments)["result"]
        return result


def target_rows(request: Sample, length: int) -> list[list[int]]:
    """Return the tokens that the request names at each position; -1 means none.

    Raises `InvalidInput` (`E-PARAMETER`) for another shape than [length - 1, K].
    """
    tensor = request.target_prompt_logprobs
    if tensor is None:
        return []
    shape = tensor.shape or []
    if tensor.dtype != "int64" or len(shape) != 2 or shape[0] != length - 1 or shape[1] < 1:
        raise InvalidInput(
            f"target_prompt_logprobs has the shape {shape}.", do=f"Give int64 of the shape [{length - 1}, K].",
            code="E-PARAMETER",
        )  # fmt: skip
    if tensor.sparse_crow_indices is None:
        return [[int(token) for token in row] for row in dense_of_json("target_tokens", tensor).tolist()]
    shifted = tensor.model_copy(update={"data": [int(token) + 1 for token in tensor.data]})  # what is not listed is -1
    return [[int(token) - 1 for token in row] for row in dense_of_json("target_tokens", shifted).tolist()]


def base_adapter(base: str) -> ModelRecord:
    """Return the shape of the session that a base is sampled in, where no model of it was created."""
    return ModelRecord(id="", base=base, rank=DEFAULT_RANK, seed=0, created=0.0, last_request=0.0)


def sampling_of(params: SamplingParams, seed: int) -> dict[str, Any]:
    """Return the settings in the words of a session. Raises `InvalidInput` (`E-PARAMETER`) for an empty stop text."""
    sampling: dict[str, Any] = {
        "max_new_tokens": params.max_tokens or DEFAULT_TOKENS, "temperature": params.temperature,
        "top_p": params.top_p, "seed": seed % 2**63, "top_k": params.top_k if params.top_k > 0 else None,
    }  # fmt: skip
    if params.stop is None:
        return sampling
    stops = [params.stop] if isinstance(params.stop, str) else list(params.stop)
    texts = [stop for stop in stops if isinstance(stop, str)]
    if not all(texts):
        raise InvalidInput("A stop text is empty.", do="Leave it out.", code="E-PARAMETER")
    if texts:
        return {**sampling, "stop_texts": texts}  # the model's own end tokens end it, too
    return {**sampling, "stop_ids": [stop for stop in stops if isinstance(stop, int)]}
