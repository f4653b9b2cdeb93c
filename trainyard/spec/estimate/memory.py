"""Bytes at the peak of a training step, by their content.

P parameters, T trained parameters, d hidden, f feed-forward, q and k the widths of queries and keys, V vocabulary; e
bytes of a half-precision number: 2 on a GPU, 4 on a CPU, where everything frozen stays in float32. Sources: QLoRA
(arXiv 2305.14314) for the states and the constants of nf4. The activations on CUDA are what torch saves for the
backward pass of a block in bf16 autocast, counted tensor by tensor (tests/unit/train/model/test_saved_activations.py).

    weights      full and freeze 4 P; adapters e P + 4 T; qlora by the bits of its format, e P for what is not linear
    gradients    4 T             optimizer   8 T for Adam, 2 T in 8 bit, 4 T with one state
    activations  CUDA: 26 d + 8 f + 4 q + 4 k per token and block, and a bf16 copy of the weights
                       with an adapter 8 d + 6 f + 4 q + 4 k, and a copy (2 bytes) of each adapted layer's input
                       where queries and keys are normalised 6 q + 6 k more, with an adapter 4 q + 4 k
                 CPU:  40 d + 16 f, with an adapter 34 d + 16 f, and the gradients of one block
                 with checkpointing one state for each block, and two blocks whole (on a CPU three)
                 LoRA dropout: e + 1 for each input of an adapted layer
    logits       CUDA 10 V, CPU 12 V per position; a chunked head has at most 2^25 of them
    dequantised  one matrix, e d f
    rollouts     of drawn completions: what their cache takes more than activations and logits (rollouts.py)
    teacher      of distill: e P of the teacher, and its logits once more in float32; its layers keep nothing
    critic       of ppo: the critic's weights, gradients and states; of a stage with a reward model its weights
    thoughts     of latent reasoning, besides activations and logits of the further positions: the keys and values that
                 passes over a cache copy, and what a layer keeps for each pair of tokens (masks, scores)
    gathered     of weights that processes divide among them: the largest group that is whole at once
    outer        of islands (DiLoCo): the outer weights and their momentum in float32, 8 T, which the processes of an
                 island divide; with int8 also what was not sent; and what an exchange takes more than activations and
                 logits: its pseudo-gradient and copies of it. torchft keeps its outer weights in the host's memory
    fragments    CUDA: 5 % of all that; CPU: what the C library's heap keeps and does not return
    context      CUDA 0.8 GiB; CPU 0.45 GiB: torch, transformers, PEFT and bitsandbytes, imported and used once

ZeRO (arXiv 1910.02054, section 3) divides one after the other by the N processes: 1 the optimizer's states, 2 the
gradients too, 3 the weights too; fsdp is as 3, and fsdp_hybrid divides by the `shard_size` processes of a copy. Where
the weights are divided, the largest group of them is whole while it computes: a block, or embedding and output layer.
ddp divides nothing, and activations are each process's own.

The numbers for a CPU are a fit to the resident memory of real runs, fp32, glibc (tests/unit/spec/test_estimate.py has
the table).

What the stages add that draw completions (grpo, distill): their tokens, and the cache that they are drawn with.

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

Bytes that a model takes while it answers one request at a time.

    weights       parameters x width of the dtype
    cache         keys and values of one conversation: 2 x layers x key-value heads x head size x width for each token
    temporaries   of one block while the prompt is read: 8 d + 3 f numbers for each token (d hidden, f feed-forward)

A conversation counts as `TOKENS` tokens, or the context of a model that has a shorter one. The prompt log probabilities
of `echo` are not in it: they take what the request asks for, and its own limits apply.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import (
    AdapterSettings,
    FreezeSettings,
    Method,
    OftSettings,
    adapter_settings,
    find_trained_rank,
)
from trainyard.spec.axes.stages import DrawnSettings, GrpoSettings, PpoSettings
from trainyard.spec.axes.strategies import DilocoEngine, Strategy
from trainyard.spec.estimate.shape import ContextFacts, ModelShape
from trainyard.spec.training import LaunchSettings, TrainerConfig

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


GIB = 2**30
TRL_BYTES = int(0.1 * GIB)
"""What TRL's own imports add to the context (measured: 0.52 against 0.42 GiB)."""
LOGITS_PER_CHUNK = 1 << 25
"""Most logits of a chunked head at once."""
CHUNKED_ABOVE = 1 << 26
"""Logits of a micro-batch above which the native engine chunks its head automatically."""
CUDA_FRAGMENTS = 0.05
CPU_FRAGMENTS = {True: 1.0, False: 0.25}
"""With an adapter or without -> fragments over activations. An adapter's many temporaries leave holes in the heap."""
CPU_LOGIT_FRAGMENTS = 0.15


class Memory(Strict):
    """Bytes at the peak of a training step, by their content."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    dequantised: int
    gathered: int = 0
    rollouts: int = 0
    teacher: int = 0
    critic: int = 0
    thoughts: int = 0
    outer: int = 0
    fragments: int
    context: int

    @property
    def total(self) -> int:
        return sum(self.model_dump().values())

    def in_words(self) -> str:
        """`weights 12.55, gradients 0.15, …`, in GiB, without what takes nothing."""
        return ", ".join(f"{name} {value / GIB:.2f}" for name, value in self.model_dump().items() if value)


def estimate_memory(
    shape: ModelShape, config: TrainerConfig, device: Device, teacher: ModelShape | None = None
) -> Memory:
    """Return the bytes at the peak of one training step of full length, on each device of a distributed training.

    `teacher` is the shape of the frozen model that the stage loads too.
    """
    hyper, trained = config.hyperparameters, count_trainable(shape, config)
    adapter, on_cuda = config.method.facts.adapter, device.facts.is_gpu
    half = 2 if on_cuda else 4
    tokens = positions(config, device)
    weights = base_bytes(shape, config, half) + (4 * trained if adapter else 0)
    if not adapter and config.stage.needs_reference:
        weights += half * shape.parameters
    activations, dropped = activation_bytes(shape, config, tokens, device), dropout_bytes(shape, config, tokens, device)
    logits = logit_bytes(shape, config, tokens, device)
    whole = {
        "weights": weights,
        "gradients": 4 * trained,
        "optimizer": hyper.optimizer.facts.state_bytes * trained,
        "activations": activations + dropped,
        "logits": logits,
        "dequantised": half * shape.hidden * shape.feed_forward if config.method.facts.quantised else 0,
        "gathered": estimate_gathered_bytes(shape, config.launch, half if adapter else 4),
    }
    divided = divide_memory(whole, config.launch)
    if on_cuda:
        fragments = CUDA_FRAGMENTS * sum(divided.values())
    else:
        fragments = CPU_FRAGMENTS[adapter] * activations + CPU_LOGIT_FRAGMENTS * logits
    divided["rollouts"] = max(0, cache_bytes(shape, config, device) - divided["activations"] - divided["logits"])
    divided["teacher"] = teacher_bytes(teacher, half, tokens) if teacher is not None else 0
    divided["critic"] = critic_bytes(shape, config, half, trained)
    divided["thoughts"] = thought_bytes(shape, config, half, tokens)
    divided["outer"] = outer_bytes(config.launch, trained, device, divided["activations"] + divided["logits"])
    imports = TRL_BYTES if config.backend is BackendName.TRL and not on_cuda else 0
    context = int(device.facts.context_gib * GIB) + imports
    return Memory(**divided, fragments=int(fragments), context=context)


def critic_bytes(shape: ModelShape, config: TrainerConfig, half: int, trained: int) -> int:
    """Return the models next to a policy that draws completions, of its own shape: a critic that is trained as the
    policy is,
    and a reward model."""
    scorer = half * shape.parameters if config.stage.reads_scores else 0
    if not (isinstance(config.stage, PpoSettings) and config.stage.has_critic):
        return scorer
    states = (4 + config.hyperparameters.optimizer.facts.state_bytes) * trained
    weights = half * shape.parameters + 4 * trained if config.method.facts.adapter else 4 * shape.parameters
    return scorer + weights + states


# What moves


def count_trainable(shape: ModelShape, config: TrainerConfig) -> int:
    """Parameters that move, those of a latent technique included."""
    technique = config.stage.technique
    extra = technique.count_own(shape.hidden, shape.layers, shape.heads) if technique is not None else 0
    return extra + count_method(shape, config)


def count_method(shape: ModelShape, config: TrainerConfig) -> int:
    """Parameters of the model and its adapter that move."""
    if config.method.type is Method.FULL:
        return shape.parameters
    if isinstance(config.method, FreezeSettings):
        blocks = min(config.method.blocks, shape.layers)
        if config.method.interval is not None:
            return shape.parameters - (shape.layers - blocks) * shape.block
        return blocks * shape.block + shape.hidden + (shape.embedding if config.method.head else 0)
    adapter = adapter_settings(config.method)
    layers = shape.layers if adapter.layers is None else sum(index < shape.layers for index in adapter.layers)
    whole = sum(shape.embedding for name in adapter.modules_to_save if name in ("embed_tokens", "lm_head"))
    return layers * sum(adapter_size(*size, adapter) for size in select_layers(shape, adapter).values()) + whole


def adapter_size(inputs: int, outputs: int, adapter: AdapterSettings) -> int:
    """Parameters that an adapter adds to one linear layer."""
    if isinstance(adapter, OftSettings):
        # one skew-symmetric matrix for each block of inputs
        return inputs * (adapter.block_size - 1) // 2
    size = find_trained_rank(adapter) * (inputs + outputs)
    return size + outputs if adapter.type is Method.DORA else size


def select_layers(shape: ModelShape, adapter: AdapterSettings) -> dict[str, tuple[int, int]]:
    """Return the linear layers of a block that the adapter reaches."""
    named = {"attention-only": ("q_proj", "k_proj", "v_proj", "o_proj"), "all-linear": tuple(shape.projections)}
    targets = adapter.target_modules or "all-linear"
    names = targets if isinstance(targets, tuple) else named[targets]
    return {name: size for name, size in shape.projections.items() if name in names}


# What it takes


def base_bytes(shape: ModelShape, config: TrainerConfig, half: int) -> int:
    """Return bytes of the model's own weights: float32 where they move, half precision or a format's bits where
    frozen.
    """
    if config.base_format:
        return int(shape.linear * config.base_format.facts.bits / 8) + half * (shape.parameters - shape.linear)
    return (half if config.method.facts.adapter else 4) * shape.parameters


def positions(config: TrainerConfig, device: Device) -> int:
    """Return the most positions of one micro-batch, padding included."""
    hyper, engine = config.hyperparameters, config.engine
    sequences = config.stage.facts.sequences_with_graph
    padded = hyper.batch_size * (hyper.max_length + completion_length(config)) * sequences
    by_rows = engine.batching == "padded" or config.stage.facts.compares_rows or completion_length(config) > 0
    if config.backend is not BackendName.NATIVE or by_rows:
        return round(padded * estimate_growth(config) * thought_growth(config))
    budget = engine.token_budget or max(hyper.max_length, hyper.batch_size * hyper.max_length // 2)
    whole_step = padded * hyper.gradient_accumulation
    return round(min(whole_step, max(budget, hyper.max_length * sequences)) * thought_growth(config))


def thought_growth(config: TrainerConfig) -> float:
    """Return how many positions go through the layers for each token of a row of full length, thoughts included."""
    technique = config.stage.technique
    if technique is None:
        return 1.0
    cost = technique.cost
    return 1 + cost.columns + cost.added / config.hyperparameters.max_length


def estimate_growth(config: TrainerConfig) -> float:
    """Return how much longer a row with a graph gets where it takes in the mismatched answer of stage kto.

    By no more than 1.36 where that pays (`auto`): from there on it would save less than a tenth of the operations.
    """
    if config.backend is not BackendName.NATIVE or not config.stage.facts.compares_rows:
        return 1.0
    return {False: 1.0, "auto": 1.36, True: 2.0}[config.stage.asks_shared]


def activation_bytes(shape: ModelShape, config: TrainerConfig, tokens: int, device: Device) -> int:
    """Return the bytes that the backward pass keeps of its blocks, without those of dropout."""
    on_cuda, blocks = device.facts.is_gpu, count_reached_blocks(shape, config)
    block = block_bytes(shape, config, on_cuda)
    if config.hyperparameters.gradient_checkpointing:
        state, whole = 2 if on_cuda and config.method.facts.adapter else 4, 2 if on_cuda else 3
        return int((state * shape.hidden * blocks + whole * block) * tokens)  # recomputed, and their gradients
    if not on_cuda:
        return int(block * (blocks + 1) * tokens)  # the gradients of one block
    return int(block * blocks * tokens) + half_copies(shape, config)


def half_copies(shape: ModelShape, config: TrainerConfig) -> int:
    """Return bytes of the copies in bf16 that autocast makes of matrices in float32, until the backward pass has read
    them.
    """
    if config.method.facts.adapter:
        return 0
    blocks = count_reached_blocks(shape, config) * (shape.block - 2 * shape.hidden)
    return 2 * (blocks + shape.embedding)


def block_bytes(shape: ModelShape, config: TrainerConfig, on_cuda: bool) -> float:
    """Return what one block keeps for each token."""
    d, f, method = shape.hidden, shape.feed_forward, config.method
    heads = (shape.heads + shape.key_value_heads) * shape.head_size
    if not on_cuda:
        saved = (34 if method.facts.adapter else 40) * d + 16.0 * f
    elif isinstance(method, AdapterSettings):
        inputs = sum(size[0] for size in select_layers(shape, method).values())
        saved = 8 * d + 6 * f + (8 if shape.head_norms else 4) * heads + 2 * inputs
    else:
        saved = 26 * d + 8 * f + (10 if shape.head_norms else 4) * heads
    technique = config.stage.technique
    if config.engine.attention == "eager" or (technique is not None and technique.facts.measures_layers):
        saved += shape.heads * config.hyperparameters.max_length * (6 if on_cuda else 4)
    return saved


def count_reached_blocks(shape: ModelShape, config: TrainerConfig) -> int:
    """Blocks that the backward pass goes through: frozen ones before the first that moves keep nothing."""
    if isinstance(config.method, FreezeSettings) and config.method.interval is None:
        return min(config.method.blocks, shape.layers)
    return shape.layers


def dropout_bytes(shape: ModelShape, config: TrainerConfig, tokens: int, device: Device) -> int:
    """Return the dropped input of every adapted layer in the format of the activations, and a mask of a byte a
    number.
    """
    if not isinstance(config.method, AdapterSettings) or not config.method.dropout:
        return 0
    inputs = sum(size[0] for size in select_layers(shape, config.method).values())
    blocks = 1 if config.hyperparameters.gradient_checkpointing else shape.layers
    return blocks * inputs * ((2 if device.facts.is_gpu else 4) + 1) * tokens


def logit_bytes(shape: ModelShape, config: TrainerConfig, tokens: int, device: Device) -> int:
    """Return the bytes of the output layer: its logits, the same in float32, and their gradient."""
    if config.stage.facts.head == "reward":
        return 0
    sampled, head = count_sampled_positions(config, tokens), config.engine.head
    logits, whole = shape.vocabulary * (tokens - sampled), shape.vocabulary * sampled
    chunked = head in ("chunked", "liger") or (head == "auto" and logits > CHUNKED_ABOVE)
    chunked = chunked and not config.stage.facts.compares_logits
    if config.backend is BackendName.NATIVE and chunked:
        logits = min(logits, LOGITS_PER_CHUNK)
    return (10 if device.facts.is_gpu else 12) * (logits + whole)


def count_sampled_positions(config: TrainerConfig, tokens: int) -> int:
    """Return those of the positions of which a token of a thought is drawn, so that no chunked head computes them."""
    technique = config.stage.technique
    return round(tokens * technique.cost.sampled / thought_growth(config)) if technique is not None else 0


def thought_bytes(shape: ModelShape, config: TrainerConfig, width: int, tokens: int) -> int:
    """Return what the passes of a latent technique copy and compare; `width` is the bytes of a number of the
    activations.
    """
    technique = config.stage.technique
    if technique is None:
        return 0
    cost, positions = technique.cost, tokens / thought_growth(config)
    copied = 2 * width * shape.key_value_heads * shape.head_size * cost.copied
    compared = 4 * config.hyperparameters.max_length * cost.pairs
    return round(shape.layers * positions * (copied + compared))


def teacher_bytes(teacher: ModelShape, half: int, tokens: int) -> int:
    """Return bytes of a frozen teacher, with its logits as it computes them and in float32."""
    return half * teacher.parameters + (half + 4) * teacher.vocabulary * tokens


# What each process has


def divide_memory(parts: dict[str, int], launch: LaunchSettings) -> dict[str, int]:
    """Return the parts of the memory of one process: whole ones, and its share of the others (rounded up)."""
    shared, sharers = launch.strategy.facts.divided, launch.island_size
    if launch.strategy is Strategy.FSDP_HYBRID:  # of one copy
        sharers = max(1, launch.parts)
    return {part: -(-size // sharers) if part in shared else size for part, size in parts.items()}


def outer_bytes(launch: LaunchSettings, trained: int, device: Device, freed: int) -> int:
    """Return what the islands of DiLoCo keep in a process, and what an exchange takes more than the `freed` bytes of
    activations and logits."""
    diloco = launch.diloco
    if diloco is None:
        return 0
    momentum = bool(diloco.outer_momentum)
    if diloco.type is DilocoEngine.TORCHFT:
        kept = momentum + (not device.facts.is_gpu)  # and the outer weights, where the host's memory is the device's
        return 4 * kept * trained + max(0, 8 * trained - freed)
    is_sharded = "weights" in launch.strategy.facts.divided
    part = -(-trained // (launch.parts if is_sharded else launch.island_size))
    residuals = 1 + 1 / diloco.num_islands if diloco.pseudo_gradient_dtype == "int8" else 0.0
    exchanged = 12 * part  # the change, those of other islands, and their mean
    flat = 0 if is_sharded else 8 * trained  # the weights in one row, and filled up
    return round(4 * (1 + momentum + residuals) * part) + max(0, max(exchanged, flat) - freed)


def estimate_gathered_bytes(shape: ModelShape, launch: LaunchSettings, width: int) -> int:
    """Return bytes of the largest group of weights that a process puts together to compute; `width` is that of a
    number.
    """
    if "weights" not in launch.strategy.facts.divided:
        return 0
    return width * max(shape.block, shape.parameters - shape.layers * shape.block)


TOKENS = 4096
"""Most tokens that the embedded server generates for one request by default."""


def answering_bytes(config: Mapping[str, object], parameters: int, width: int) -> int:
    """Return the bytes of a base with this `config.json`; of an unknown layout only the weights are counted."""
    text = config.get("text_config")
    settings = text if isinstance(text, Mapping) else config
    shape, context = ModelShape.from_config(settings), ContextFacts.from_config(settings).positions
    weights = parameters * width
    if shape is None:
        return weights
    tokens = min(TOKENS, context or TOKENS)
    cache = 2 * shape.layers * shape.key_value_heads * shape.head_size
    temporaries = 8 * shape.hidden + 3 * shape.feed_forward
    return weights + (cache + temporaries) * width * tokens
