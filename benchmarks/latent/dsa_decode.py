"""How long does one more token take after a long row: sparse attention next to dense SDPA, on the same cache?

    python -m benchmarks.latent dsa_decode            # one thread of a CPU, float32, CPU milliseconds
    python -m benchmarks.gpu dsa_decode               # a card, bf16

One layer with the sizes of Qwen3-0.6B (16 heads, 8 of keys, 128 dimensions) has a cache of random keys, values and
index keys; the indexer has the default 4 heads of 32 dimensions and keeps 2,048 tokens. Both ways append to a cache of
the same kind, which does not copy itself. Timed are the attention alone (dense: the faster of two ways to
call SDPA, grouped heads as transformers calls it and the heads of a key as queries; sparse: scoring, selection, gather
and SDPA), and the whole layer as a model computes it, its projections and its MLP included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainyard.spec.axes.latent import GRANULARITY_SETTINGS, LATENT_SETTINGS, Granularity, Latent
from trainyard.train.latent.dsa.attention import Attention, Queries, Selection, answer_in_blocks
from trainyard.train.latent.dsa.indexer import attend_once
from trainyard.train.latent.dsa.layers import RoomyIndexedLayer
from trainyard.train.latent.dsa.technique import SparseAttention
from trainyard.train.model.sampling import PLAIN, Reading

LENGTHS = (4096, 8192, 16384, 32768)
TOP_K, TOKENS, MILLISECONDS = 2048, 9, 1000.0
SIZES: dict[str, int] = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128,
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """Where and how large it is measured."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    rows: int = 1
    top_k: int = TOP_K
    tokens: int = TOKENS
    """Tokens of each way, one after another in turn; their median counts."""
    wait: Callable[[], None] = lambda: None
    """Until the device has done everything."""
    clock: Callable[[], float] = time.thread_time
    """Seconds: of this thread on a CPU, so that other programs count little; of the wall on a card."""


@dataclass(frozen=True)
class Decoded:
    """Milliseconds of one token for all rows, by the clock of the setting."""

    length: int
    rows: int
    dense_attention: float
    sparse_attention: float
    dense_layer: float
    sparse_layer: float
    difference: float
    """Largest difference of an output to that of the same selection as a mask."""

    @property
    def attention_ratio(self) -> float:
        return self.dense_attention / self.sparse_attention

    @property
    def layer_ratio(self) -> float:
        return self.dense_layer / self.sparse_layer


def build(setting: Setting, length: int) -> Any:
    """One layer with random weights and few words."""
    torch.manual_seed(0)
    config = Qwen3Config(
        **SIZES, vocab_size=512, num_hidden_layers=1, max_position_embeddings=2 * length, attn_implementation="sdpa"
    )
    return Qwen3ForCausalLM(config).eval().to(setting.device, setting.dtype)


def filled_cache(setting: Setting, length: int, index_dim: int) -> DynamicCache:
    """A cache of random keys, values and index keys."""
    torch.manual_seed(1)
    layer, heads, size = RoomyIndexedLayer(), SIZES["num_key_value_heads"], SIZES["head_dim"]
    shape, options = (setting.rows, heads, length, size), {"device": setting.device, "dtype": setting.dtype}
    layer.update(torch.randn(shape, **options), torch.randn(shape, **options))
    layer.update_indexer(torch.randn(setting.rows, length, index_dim, device=setting.device))
    cache = DynamicCache()
    cache.layers.append(layer)
    return cache


def sparse(model: Any, setting: Setting) -> SparseAttention:
    choice = GRANULARITY_SETTINGS[Granularity.TOKEN](type=Granularity.TOKEN, top_k=setting.top_k)
    attention = SparseAttention(model, LATENT_SETTINGS[Latent.DSA](type=Latent.DSA, granularity=choice))
    return attention.to(setting.device)


def timed(setting: Setting, ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median milliseconds of each way; the ways take turns, and the first turn is not counted."""
    durations: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(setting.tokens + 1):
        for name in ways if turn % 2 else reversed(ways):
            setting.wait()
            started = setting.clock()
            ways[name]()
            setting.wait()
            durations[name].append(MILLISECONDS * (setting.clock() - started))
    return {name: statistics.median(values[1:]) for name, values in durations.items()}


@torch.inference_mode()
def decode(setting: Setting, length: int) -> Decoded:
    """Measure one length."""
    layers, attention = decode_layers(setting, length), decode_attention(setting, length)
    return Decoded(
        length, setting.rows, attention["dense"], attention["sparse"], layers["dense"], layers["sparse"],
        attention["difference"],
    )  # fmt: skip


def decode_layers(setting: Setting, length: int) -> dict[str, float]:
    """The whole layer: two models with the same weights, each with a cache of its own."""
    dense, sparse_model = build(setting, length), build(setting, length)
    attention = sparse(sparse_model, setting)
    attention.attach(sparse_model)
    token_B = torch.full((setting.rows,), 7, device=setting.device)
    readers = {"dense": (PLAIN, dense), "sparse": (attention, sparse_model)}
    readings = {
        name: Reading(filled_cache(setting, length, attention.choosers[0].shape.head_dim), full_mask(setting, length))
        for name in readers
    }

    def step(name: str) -> None:
        reader, model = readers[name]
        readings[name], _ = reader.step(model, readings[name], token_B)

    return timed(setting, {name: lambda name=name: step(name) for name in readers})  # type: ignore[misc]


def full_mask(setting: Setting, length: int) -> torch.Tensor:
    return torch.ones(setting.rows, length, dtype=torch.long, device=setting.device)


def decode_attention(setting: Setting, length: int) -> dict[str, float]:
    """Attention alone, after projections and the append."""
    model = build(setting, length)
    module, attention = model.model.layers[0].self_attn, sparse(model, setting)
    (layer,) = filled_cache(setting, length, attention.choosers[0].shape.head_dim).layers
    tensor_options = {"device": setting.device, "dtype": setting.dtype}
    query = torch.randn(setting.rows, SIZES["num_attention_heads"], 1, SIZES["head_dim"], **tensor_options)
    hidden = torch.randn(setting.rows, 1, SIZES["hidden_size"], **tensor_options)
    mask = torch.zeros(setting.rows, 1, 1, length, **tensor_options)
    queries = Queries(hidden, torch.full((setting.rows, 1), length - 1, device=setting.device), layer.indexer_keys)
    options = {"scaling": SIZES["head_dim"] ** -0.5, "dropout": 0.0}
    call = Attention(module, query, layer.keys, layer.values, mask, options)
    shared = Selection(setting.top_k, fused=True)

    def select() -> torch.Tensor:
        return answer_in_blocks(call, attention.choosers[0], shared, queries)

    durations = timed(setting, {
        "as transformers": lambda: sdpa_attention_forward(module, query, layer.keys, layer.values, None, **options),
        "heads as queries": lambda: attend_once(module, query, layer.keys, layer.values, None, **options),
        "sparse": select,
    })  # fmt: skip
    durations["dense"] = min(durations["as transformers"], durations["heads as queries"])
    gathered, shared.gathers = select(), False
    return {**durations, "difference": float((gathered - select()).abs().max())}


def measure(seed: int, *, share: float = 1.0) -> dict[str, Any]:
    """A line for each length, with a share of the tokens."""
    setting = Setting(tokens=max(1, round(TOKENS * share)))
    result: dict[str, Any] = {"task": "dsa_decode", "seed": seed, "top_k": setting.top_k}
    for length in LENGTHS:
        decoding = decode(setting, length)
        result[str(length)] = {
            **{name: round(getattr(decoding, name), 2) for name in (
                "dense_attention", "sparse_attention", "attention_ratio", "dense_layer", "sparse_layer", "layer_ratio"
            )},
            "difference": decoding.difference,
        }  # fmt: skip
    return result
