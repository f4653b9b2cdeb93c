"""Training and sampling by the Tinker SDK's own calls, of any version from 0.19 on, against a server.

    TINKER_BASE_URL=… TINKER_API_KEY=… python tinker_program.py BASE

It runs in an environment with the package `tinker` alone, so it imports nothing of Trainyard, and prints one JSON
object at its end.
"""

from __future__ import annotations

import json
import math
import sys
import urllib.request
import warnings
from importlib.metadata import version
from typing import Any

warnings.filterwarnings("ignore")

import tinker  # noqa: E402  after the filter
from tinker import types  # noqa: E402

ROWS = [[10 + row + step for step in range(12 + row)] for row in range(3)]
"""Rows of different lengths."""
RL_LOSSES: dict[str, dict[str, float]] = {
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
    "cispo": {},
    "dro": {"beta": 0.1},
}


def result(value: Any) -> Any:
    """Return what a future has come to; early versions return some values at once."""
    return value.result() if hasattr(value, "result") else value


def datum(tokens: list[int], **inputs: list[float]) -> Any:
    chosen = inputs or {"weights": [1.0] * (len(tokens) - 1)}
    fields = {"target_tokens": tokens[1:], **chosen}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=fields)


DATA = [datum(row) for row in ROWS]


def step(client: Any, rate: float = 1e-3) -> float:
    forward = client.forward_backward(DATA, "cross_entropy")
    optimized = client.optim_step(types.AdamParams(learning_rate=rate))
    loss = float(result(forward).metrics["loss:sum"])
    result(optimized)
    return loss


def score_losses(client: Any) -> dict[str, list[float]]:
    """Return, for each loss, the loss of the service and that of its definition."""
    outputs = result(client.forward(DATA, "cross_entropy")).loss_fn_outputs
    logprobs = [list(output["logprobs"].data) for output in outputs]
    old = [[value - 0.3 * math.sin(at) for at, value in enumerate(row)] for row in logprobs]
    advantages = [[math.cos(at) for at in range(len(row))] for row in logprobs]
    data = [datum(row, logprobs=q, advantages=gain) for row, q, gain in zip(ROWS, old, advantages, strict=True)]
    scores = {}
    for name, config in RL_LOSSES.items():
        reply = result(client.forward_backward(data, name, config) if config else client.forward_backward(data, name))
        tokens = [token for rows in zip(logprobs, old, advantages, strict=True) for token in zip(*rows, strict=True)]
        expected = -math.fsum(objective(name, token, config) for token in tokens)
        scores[name] = [float(reply.metrics["loss:sum"]), expected]
    result(client.optim_step(types.AdamParams(learning_rate=0.0)))
    return scores


def objective(name: str, token: tuple[float, ...], config: dict[str, float]) -> float:
    """Return what one token (log p, log q, advantage) adds to the objective of a loss, by its definition."""
    p, q, gain = token
    ratio, beta = math.exp(p - q), config.get("beta", 0.05)
    clipped = min(max(ratio, config.get("clip_low_threshold", 0.8)), config.get("clip_high_threshold", 1.2))
    return {
        "importance_sampling": ratio * gain,
        "ppo": min(ratio * gain, clipped * gain),
        "cispo": clipped * gain * p,
        "dro": gain * p - beta / 2 * (p - q) ** 2,
    }[name]


def refusal(call: Any) -> str:
    """Return the text of the error that a call raises."""
    try:
        result(call())
    except Exception as error:
        return str(error)
    raise AssertionError("it was accepted")


def sample(service: Any, client: Any) -> dict[str, Any]:
    """Sample from saved weights, and score a prompt."""
    path = result(client.save_weights_for_sampler("sampler-1")).path
    sampler = result(service.create_sampling_client(model_path=path))
    prompt = types.ModelInput.from_ints(ROWS[0])
    params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=5, top_k=5)
    first, again = (result(sampler.sample(prompt, 2, params, include_prompt_logprobs=True)) for _ in range(2))
    scored = result(sampler.compute_logprobs(prompt))
    forward = result(client.forward([datum(ROWS[0])], "cross_entropy")).loss_fn_outputs[0]["logprobs"].data
    return {
        "path": path,
        "lengths": [len(sequence.tokens) for sequence in first.sequences],
        "repeats": [a.tokens == b.tokens for a, b in zip(first.sequences, again.sequences, strict=True)],
        "logprobs": [len(sequence.logprobs) for sequence in first.sequences],
        "prompt_difference": max(abs(a - b) for a, b in zip(scored[1:], list(forward), strict=True)),
    }


def export(rest: Any, client: Any, path: str) -> list[str]:
    """Return the names of the files of an export, or of its archive."""
    if hasattr(client, "save_weights_external"):
        external = result(client.save_weights_external("final")).path
        urls = result(rest.get_external_weights_urls(external)).urls
    else:
        urls = {"archive": result(rest.get_checkpoint_archive_url_from_tinker_path(path)).url}
    return sorted(name for name, url in urls.items() if urllib.request.urlopen(url).read())


def main(base: str) -> None:
    service = tinker.ServiceClient()

    def create(seed: int) -> Any:
        return result(service.create_lora_training_client(base_model=base, rank=8, seed=seed))

    alone, first, second = create(11), create(11), create(12)
    losses = [step(alone) for _ in range(4)]
    pairs = [(step(first), step(second)) for _ in range(4)]
    state = result(first.save_state("state-1")).path
    onward = [step(first) for _ in range(2)]
    resumed = result(service.create_training_client_from_state_with_optimizer(state))
    rest = service.create_rest_client()
    samples = sample(service, first)
    report = {
        "version": version("tinker"),
        "losses": losses,
        "interleaved": [pair[0] for pair in pairs],
        "other": [pair[1] for pair in pairs],
        "onward": onward,
        "resumed": [step(resumed) for _ in range(2)],
        "scores": score_losses(second),
        "samples": samples,
        "runs": len(result(rest.list_training_runs()).training_runs),
        "checkpoints": [row.checkpoint_id for row in result(rest.list_checkpoints(first.model_id)).checkpoints],
        "files": export(rest, first, state),
        "refused": {
            "vocabulary": refusal(lambda: second.forward_backward([datum([5, 999_999])], "cross_entropy")),
            "not a number": refusal(
                lambda: second.forward_backward([datum(ROWS[0], weights=[math.nan] * 11)], "cross_entropy")
            ),
            "loss": refusal(lambda: second.forward_backward(DATA, "stable_reinforce")),
            "base": refusal(lambda: service.create_lora_training_client(base_model="no/such", rank=8)),
        },
    }
    result(rest.delete_checkpoint_from_tinker_path(samples["path"]))
    sampler = refusal(
        lambda: result(service.create_sampling_client(model_path=samples["path"])).sample(
            types.ModelInput.from_ints(ROWS[0]), 1, types.SamplingParams(max_tokens=2)
        )
    )
    report["refused"]["deleted"] = sampler
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
