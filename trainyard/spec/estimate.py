"""What a run will take: rows and steps, trained parameters, memory, disk and time; arithmetic only, nothing is loaded.

Every figure comes with its basis in words, because it is a bound or an assumption and not a measurement. What is not
known (the rows of a file that nobody has read, the shape of a model that is not here) stays None, with the reason.

Memory of a training step in bytes, per parameter P, trained parameter T and token (methods and constants as published
for QLoRA, arXiv 2305.14314; the activation slope agrees with LitGPT's table for a 7 B model within 1 %):

    weights      full 4P; adapter 2P + 4T on a GPU, 4P + 4T on a CPU; nf4 0.52 P of the linear layers, 2 P of the rest
    gradients    4T                         optimizer     8T for Adam, 2T in 8 bit, 4T with one state
    activations  24 d + 6 d_ff per token and layer, 1.1 times with an adapter; with checkpointing 2 d and one layer
    logits       10 V per token             dequantised   2 d d_ff       context   0.8 GiB on CUDA, 0.4 GiB on a CPU
    and 5 % for fragmentation
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.spec.axes import ADAPTER_METHODS, DATA_PORTS, Device, Method, Optimizer, Port, Stage
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.nodes import AiGeneratorConfig, DataSourceConfig, ValidatorConfig
from trainyard.spec.training import Hyperparameters, LoraSettings, Strict, TrainerConfig

GIB = 2**30
FRAGMENTATION = 1.05
CONTEXT_BYTES = {Device.CUDA: int(0.8 * GIB), Device.MPS: int(0.4 * GIB), Device.CPU: int(0.4 * GIB)}
FLOPS_PER_S = {Device.CUDA: 5e13, Device.MPS: 3e12, Device.CPU: 1e11}
"""Assumed where nothing was measured: 40 % of a 125 TFLOP/s accelerator, an integrated GPU, two CPU cores."""
STATE_BYTES = {
    Optimizer.SGD: 4,
    Optimizer.ADAMW_8BIT: 2,
    Optimizer.PAGED_ADAMW_8BIT: 2,
    Optimizer.ADAFACTOR: 0,
    Optimizer.LION: 4,
    Optimizer.MUON: 4,
    Optimizer.GALORE: 2,
    Optimizer.ADEMAMIX: 12,
}
"""Bytes of optimizer state per trained parameter; 8 where a row is missing (two fp32 moments)."""
KEPT_CHECKPOINTS = 2
FREEZE_BLOCKS = 2
NF4_BITS = 4 + 0.127
"""Bits per weight with double quantisation: 4, and 0.127 for the constants."""
PAIR_STAGES = (Stage.DPO, Stage.REWARD)


class ModelShape(Strict):
    """The sizes of a decoder that memory depends on, as a Hugging Face `config.json` gives them."""

    hidden: int
    layers: int
    feed_forward: int
    vocabulary: int
    heads: int
    key_value_heads: int
    head_size: int
    tied: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape | None:
        """The shape in a model's `config.json`; None if it is not a decoder of the Llama family's layout."""
        names = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "num_attention_heads")
        if not all(isinstance(config.get(name), int) for name in names):
            return None
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            feed_forward=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear layers of one block."""
        query, shared = self.heads * self.head_size, self.key_value_heads * self.head_size
        return {
            "q_proj": (self.hidden, query),
            "k_proj": (self.hidden, shared),
            "v_proj": (self.hidden, shared),
            "o_proj": (query, self.hidden),
            "gate_proj": (self.hidden, self.feed_forward),
            "up_proj": (self.hidden, self.feed_forward),
            "down_proj": (self.feed_forward, self.hidden),
        }

    @property
    def block(self) -> int:
        """Parameters of one block, its two norms included."""
        return sum(rows * columns for rows, columns in self.projections.values()) + 2 * self.hidden

    @property
    def linear(self) -> int:
        return self.layers * (self.block - 2 * self.hidden)

    @property
    def parameters(self) -> int:
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * self.block + self.hidden


@dataclass(frozen=True)
class Known:
    """What `plan` found out. Everything may be left empty."""

    rows: Mapping[str, Mapping[Port, int]] = field(default_factory=dict)
    """Node id -> port -> rows that its files hold, or that its finished result has."""
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    """Base model's name -> shape."""
    device: Device = Device.CPU
    flops_per_s: float | None = None
    """Measured on this machine in training."""
    tokens_per_row: int | None = None


class Memory(Strict):
    """Bytes at the peak of a training step, by what they hold."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    dequantised: int
    context: int

    @property
    def total(self) -> int:
        parts = (self.weights, self.gradients, self.optimizer, self.activations, self.logits, self.dequantised)
        return int(FRAGMENTATION * sum(parts)) + self.context


class Estimate(Strict):
    """One node's line of the plan. None where it is not known; `basis` says from what each figure comes."""

    node: str
    rows: int | None = None
    steps: int | None = None
    trainable_parameters: int | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    seconds: float | None = None
    basis: tuple[str, ...] = ()


def estimate(chain: ResolvedChain, known: Known | None = None) -> tuple[Estimate, ...]:
    """One estimate for each node, in the order in which they run."""
    known = known or Known()
    rows: dict[str, dict[Port, int]] = {}
    found = []
    for node_id in chain.order:
        node = chain.node(node_id)
        rows[node_id], basis = rows_of(node, rows, known)
        if isinstance(node.config, TrainerConfig):
            found.append(estimate_training(node, node.config, rows, known))
        else:
            counted = sum(rows[node_id].values()) if rows[node_id] else None
            found.append(Estimate(node=node_id, rows=counted, basis=(basis,) if basis else ()))
    return tuple(found)


# Rows


def rows_of(node: ResolvedNode, earlier: Mapping[str, Mapping[Port, int]], known: Known) -> tuple[dict[Port, int], str]:
    """Rows that a node gives on each port, at most, and how that is known."""
    if node.id in known.rows:
        return dict(known.rows[node.id]), "rows: counted"
    if isinstance(node.config, DataSourceConfig):
        return {}, "rows: not known before the files are read"
    if isinstance(node.config, AiGeneratorConfig):
        return {node.produces[0]: node.config.count}, f"rows: at most the count of {node.config.count:,}"
    if isinstance(node.config, ValidatorConfig):
        kept = {port: trained_rows(node.config, port, n) for port, n in arriving(node, earlier).items()}
        return kept, "rows: what arrives without what is held out; filters drop more" if kept else ""
    return {}, ""


def arriving(node: ResolvedNode, earlier: Mapping[str, Mapping[Port, int]]) -> dict[Port, int]:
    """Rows on each data port of a node, as far as they are known."""
    found = {}
    for port in Port:
        for source in node.inputs.get(port, ()) if port in DATA_PORTS else ():
            count = earlier.get(source.node_id, {}).get(source.port)
            if count is not None:
                found[port] = count
                break
    return found


def trained_rows(config: ValidatorConfig, port: Port, rows: int) -> int:
    """Rows that stay for training when whole documents are set aside (the wording that is kept back is not counted)."""
    return rows - math.ceil(rows * config.holdout.documents) if port is not Port.DOCUMENTS else rows


def steps_of(hyper: Hyperparameters, rows: int) -> int:
    """Optimizer steps: micro-batches are rounded up, and so is the last accumulation of an epoch."""
    if hyper.max_steps is not None:
        return hyper.max_steps
    per_epoch = math.ceil(math.ceil(rows / hyper.batch_size) / hyper.gradient_accumulation)
    return max(1, math.ceil((hyper.epochs or 3.0) * max(1, per_epoch)))


# Training


def estimate_training(
    node: ResolvedNode, config: TrainerConfig, rows: Mapping[str, Mapping[Port, int]], known: Known
) -> Estimate:
    hyper = config.hyperparameters
    counts = arriving(node, rows)
    count = next(iter(counts.values()), None)
    steps = hyper.max_steps if count is None else steps_of(hyper, count)
    basis = [steps_basis(hyper, count)]
    shape = known.shapes.get(config.base_model or "")
    if shape is None:
        basis.append(f"memory, disk and time: the shape of {config.base_model!r} is not known here")
        return Estimate(node=node.id, rows=count, steps=steps, basis=tuple(basis))
    device = known.device if config.device is Device.AUTO else config.device
    trained = trainable(shape, config)
    memory = memory_of(shape, config, device)
    seconds, how = time_of(shape, config, steps, known, device)
    return Estimate(
        node=node.id,
        rows=count,
        steps=steps,
        trainable_parameters=trained,
        memory_bytes=memory.total,
        disk_bytes=disk_of(trained, hyper),
        seconds=seconds,
        basis=(*basis, memory_basis(memory, hyper, device), disk_basis(trained), how),
    )


def trainable(shape: ModelShape, config: TrainerConfig) -> int:
    """Parameters that move."""
    if config.method is Method.FULL:
        return shape.parameters
    if config.method is Method.FREEZE:
        return min(FREEZE_BLOCKS, shape.layers) * shape.block
    lora = config.lora
    targets = targeted(shape, lora)
    layers = shape.layers if lora.layers is None else sum(index < shape.layers for index in lora.layers)
    rank = lora.rank or 0
    per_layer = sum(rank * (rows + columns) for rows, columns in targets.values())
    if config.method is Method.DORA:
        per_layer += sum(columns for _, columns in targets.values())
    return layers * per_layer


def targeted(shape: ModelShape, lora: LoraSettings) -> dict[str, tuple[int, int]]:
    """The linear layers of a block that the adapter reaches."""
    if lora.target_modules == "attention-only":
        names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    elif isinstance(lora.target_modules, tuple):
        names = lora.target_modules
    else:
        names = tuple(shape.projections)
    return {name: size for name, size in shape.projections.items() if name in names}


def memory_of(shape: ModelShape, config: TrainerConfig, device: Device) -> Memory:
    """Bytes at the peak of one training step of full length."""
    hyper, trained = config.hyperparameters, trainable(shape, config)
    sequences = hyper.batch_size * (2 if config.stage in PAIR_STAGES else 1)
    tokens = sequences * hyper.max_length
    reference = config.stage is Stage.DPO and config.method not in ADAPTER_METHODS
    half = 2 if device is Device.CUDA else 4
    weights = base_bytes(shape, config, half) + (half * shape.parameters if reference else 0)
    return Memory(
        weights=weights + (4 * trained if config.method in ADAPTER_METHODS else 0),
        gradients=4 * trained,
        optimizer=STATE_BYTES.get(hyper.optimizer, 8) * trained,
        activations=activation_bytes(shape, config, tokens, half),
        logits=0 if config.stage is Stage.REWARD else 10 * shape.vocabulary * tokens,
        dequantised=2 * shape.hidden * shape.feed_forward if config.method is Method.QLORA else 0,
        context=CONTEXT_BYTES.get(device, CONTEXT_BYTES[Device.CPU]),
    )


def base_bytes(shape: ModelShape, config: TrainerConfig, half: int) -> int:
    """Bytes of the model's own weights: float32 where they move, half precision or four bits where they are frozen."""
    if config.method is Method.QLORA:
        return int(shape.linear * NF4_BITS / 8) + 2 * (shape.parameters - shape.linear)
    return (half if config.method in ADAPTER_METHODS else 4) * shape.parameters


def activation_bytes(shape: ModelShape, config: TrainerConfig, tokens: int, half: int) -> int:
    """What the backward pass keeps, for half precision; twice that in float32."""
    per_layer = (24 * shape.hidden + 6 * shape.feed_forward) * (1.1 if config.method in ADAPTER_METHODS else 1.0)
    if config.hyperparameters.gradient_checkpointing:
        kept = 2 * shape.hidden * shape.layers + per_layer
    else:
        kept = per_layer * shape.layers
    return int(kept * tokens * half / 2)


def disk_of(trained: int, hyper: Hyperparameters) -> int:
    """The result, and the checkpoints beside it with their optimizer state."""
    return 4 * trained + KEPT_CHECKPOINTS * (4 + STATE_BYTES.get(hyper.optimizer, 8)) * trained


def time_of(
    shape: ModelShape, config: TrainerConfig, steps: int | None, known: Known, device: Device
) -> tuple[float | None, str]:
    """Seconds of the training loop: 6 operations per parameter and token, 4 where the base is frozen."""
    if steps is None:
        return None, "time: not known without the rows"
    hyper = config.hyperparameters
    per_row = min(known.tokens_per_row or hyper.max_length, hyper.max_length)
    sequences = hyper.batch_size * hyper.gradient_accumulation * (2 if config.stage in PAIR_STAGES else 1)
    per_parameter = 4 if config.method in ADAPTER_METHODS else 6
    per_parameter += 2 if hyper.gradient_checkpointing else 0
    per_parameter += 2 if config.stage is Stage.DPO else 0  # the reference's forward pass
    speed = known.flops_per_s or FLOPS_PER_S.get(device, FLOPS_PER_S[Device.CPU])
    origin = "measured here" if known.flops_per_s else f"assumed for {device}, not measured"
    length = f"{per_row:,} tokens a row" + ("" if known.tokens_per_row else " (the longest allowed)")
    seconds = steps * sequences * per_row * per_parameter * shape.parameters / speed
    return seconds, f"time: {steps:,} steps × {length} × {per_parameter} operations, {speed:.1e}/s {origin}"


# Basis


def steps_basis(hyper: Hyperparameters, rows: int | None) -> str:
    if hyper.max_steps is not None:
        return f"steps: max_steps {hyper.max_steps:,}"
    if rows is None:
        return "steps: not known without the rows"
    effective = hyper.batch_size * hyper.gradient_accumulation
    return f"steps: at most {rows:,} rows, {effective} a step, {hyper.epochs or 3.0:g} epochs"


def memory_basis(memory: Memory, hyper: Hyperparameters, device: Device) -> str:
    parts = {name: value for name, value in memory.model_dump().items() if value}
    told = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items())
    return f"memory on {device} in GiB for rows of {hyper.max_length:,} tokens: {told}, and 5 % for fragmentation"


def disk_basis(trained: int) -> str:
    return f"disk: {trained:,} parameters in float32, and {KEPT_CHECKPOINTS} checkpoints with optimizer state"
