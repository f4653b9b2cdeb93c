"""Costs of the stages that sample completions (grpo, distill): their tokens, and the cache that they are drawn with.

    length      max_length of the prompt + max_completion_length
    rows        of n prompts a pass: num_generations × num_iterations to each, without the prompts that would not fill
                a step
    cache       keys and values of all completions of a step on a device, drawn at once:
                2 e · blocks · key-value heads · head size · length · batch_size · gradient_accumulation;
                the native engine draws at most 64 together, or those of one micro-batch where it has more
    vllm        a server has weights of its own in half precision, and sleeps while the policy learns; its share of the
                device (`rollouts.memory`) has to have room for both, and may be larger

The cache is gone before the backward pass begins, so only what of it is more than activations and logits counts. TRL
computes the logits of a step in chunks; they are estimated as if it did not.
"""

from __future__ import annotations

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.stages import DrawnSettings, GrpoSettings, PpoSettings
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import TrainerConfig

DRAWN_AT_ONCE = 64
"""Completions that the native engine draws together at least, where a rollout has so many."""


def completion_length(config: TrainerConfig) -> int:
    """Return most tokens of a completion; 0 where none is drawn."""
    return config.stage.drawn_tokens


def rows_seen(config: TrainerConfig, rows: int) -> int:
    """Return rows of a pass that go through the model, out of those that arrive; again in each step that learns from
    them.
    """
    rollouts, hyper = config.stage, config.hyperparameters
    if not isinstance(rollouts, GrpoSettings | PpoSettings):
        return rows
    minibatches = rollouts.minibatches if isinstance(rollouts, PpoSettings) else 1
    rows_per_step = hyper.batch_size * hyper.gradient_accumulation * config.launch.processes * minibatches
    prompts = max(1, rows_per_step // rollouts.num_generations)
    return rows // prompts * prompts * rollouts.num_generations * rollouts.num_iterations


def count_concurrent_completions(config: TrainerConfig) -> int:
    """Completions that are drawn together, on one device."""
    hyper, native = config.hyperparameters, config.backend is BackendName.NATIVE
    step = hyper.batch_size * hyper.gradient_accumulation
    if not isinstance(config.stage, DrawnSettings):
        return hyper.batch_size if native else step
    minibatches = config.stage.minibatches if isinstance(config.stage, PpoSettings) else 1
    return min(step * minibatches, max(hyper.batch_size, DRAWN_AT_ONCE)) if native else step


def cache_bytes(shape: ModelShape, config: TrainerConfig, device: Device) -> int:
    """Return the keys and values of the completions that are drawn together, on one device; of a server its weights
    too.
    """
    if not completion_length(config):
        return 0
    hyper, served = config.hyperparameters, serves_policy(config)
    number = 2 if served or (device.facts.is_gpu and config.method.facts.adapter) else 4
    positions = count_concurrent_completions(config) * (hyper.max_length + completion_length(config))
    cache = 2 * number * shape.layers * shape.key_value_heads * shape.head_size * positions
    return cache + (number * shape.parameters if served else 0)


def serves_policy(config: TrainerConfig) -> bool:
    """Return whether a vLLM server draws the completions."""
    return isinstance(config.stage, DrawnSettings) and config.stage.rollouts.engine == "vllm"
