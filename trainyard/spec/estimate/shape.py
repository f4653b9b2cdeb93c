"""The sizes of a decoder that memory and time depend on.

What the files of a base model say of it, as far as every training depends on it (no torch).

`plan` and `run` read them from the model's folder, a training child from the model that it is about to load: the same
facts, judged by the same rows of `compat/bases.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

from trainyard.json_types import JsonMapping
from trainyard.spec.axes.axis import Strict

SIZES = {
    **{"hidden": "hidden_size", "layers": "num_hidden_layers", "feed_forward": "intermediate_size"},
    **{"vocabulary": "vocab_size", "heads": "num_attention_heads"},
}
"""Ours -> its name in a `config.json`."""
HEAD_NORMS = frozenset(("qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2", "olmo3"))
"""Values of `model_type` whose attention normalises queries and keys."""


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
    head_norms: bool = False
    """Whether queries and keys are normalised."""

    @classmethod
    def from_config(cls, config: JsonMapping) -> ModelShape | None:
        """Return the shape in a model's `config.json`; None if it is not a decoder of the Llama family's layout."""
        sizes = {name: config.get(key) for name, key in SIZES.items()}
        if not all(isinstance(size, int) for size in sizes.values()):
            return None
        shared = config.get("num_key_value_heads") or sizes["heads"]
        head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        tied = bool(config.get("tie_word_embeddings", False))
        normed = config.get("model_type") in HEAD_NORMS
        return cls(**sizes, key_value_heads=shared, head_size=head_size, tied=tied, head_norms=normed)

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
    def embedding(self) -> int:
        """Parameters of the input embedding, and of the output layer where it is a matrix of its own."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.embedding * (1 if self.tied else 2) + self.layers * self.block + self.hidden


class ModelLayout(StrEnum):
    """Tokenizer and template of a model."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder-decoder"
    OTHER = "no language model"


ENCODERS = frozenset({
    "albert", "bert", "big_bird", "camembert", "convbert", "data2vec-text", "deberta", "deberta-v2", "distilbert",
    "electra", "ernie", "esm", "esmc", "eurobert", "flaubert", "fnet", "funnel", "gte", "ibert", "jina_embeddings_v3",
    "layoutlm", "longformer", "luke", "megatron-bert", "mobilebert", "modernbert", "modernvbert", "mpnet", "mra",
    "neomme", "nomic_bert", "nystromformer", "perceiver", "reformer", "rembert", "roberta", "roberta-prelayernorm",
    "roc_bert", "roformer", "squeezebert", "tapas", "ultrabert", "ultravbert", "xlm", "xlm-roberta", "xlm-roberta-xl",
    "xmod", "yoso",
})  # fmt: skip
"""Model types that fill in masked tokens. With `is_decoder` in their config they are decoders.

Source: the masked-language models of transformers that have no decoder (`MODEL_FOR_MASKED_LM_MAPPING_NAMES`).
"""


TABLES = frozenset({
    "biogpt", "codegen", "cpmant", "ctrl", "git", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "openai-gpt", "opt",
    "trocr",
})  # fmt: skip
"""Decoders with one row of a table for each position, learned or computed: a longer row ends in an IndexError.

Source: the causal models of transformers whose positions are an `nn.Embedding`, or a buffer of `n_positions` rows.
"""
POSITION_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len")
"""Where a config has its positions; the first one counts."""
LEAST_LENGTH = 8
"""The smallest max_length that a spec may have."""
BY_FACTOR = ("linear", "dynamic")
"""Kinds of scaling whose config names the positions before it."""


@dataclass(frozen=True)
class ContextFacts:
    """Context length of a base, as its config.json says; None: it does not say."""

    positions: int | None = None
    is_table: bool = False
    """Whether there is nothing beyond them; a rotary base continues, with angles that it has never seen."""
    window: int | None = None
    """Tokens that each token sees, where no layer of the base sees more."""

    def most_tokens(self, drawn_tokens: int) -> int | None:
        """Return the longest rows of a table of positions, less what is drawn; None where there is no limit."""
        if not self.is_table or self.positions is None or self.positions - drawn_tokens < LEAST_LENGTH:
            return None
        return self.positions - drawn_tokens

    @classmethod
    def from_config(cls, config: JsonMapping) -> ContextFacts:
        inner = config.get("text_config")
        text = inner if isinstance(inner, Mapping) else config
        positions = next((text[key] for key in POSITION_KEYS if is_count(text.get(key))), None)
        rope = text.get("rope_parameters") or text.get("rope_scaling")
        if positions is not None and isinstance(rope, Mapping):
            kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
            positions = int(positions * factor) if kind in BY_FACTOR and isinstance(factor, int | float) else positions
        return cls(positions, str(text.get("model_type", "")) in TABLES, find_window(text))


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def find_window(text: JsonMapping) -> int | None:
    """Return the sliding window of a base without a layer that sees everything."""
    window, layers = text.get("sliding_window"), text.get("layer_types")
    if not is_count(window) or text.get("use_sliding_window") is False:
        return None
    everywhere = all(kind == "sliding_attention" for kind in layers) if isinstance(layers, list) else True
    mixed = any(key in text for key in ("sliding_window_pattern", "max_window_layers"))
    return window if everywhere and not (mixed and layers is None) else None


EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
"""How configs call the number of experts."""


@dataclass(frozen=True)
class BaseFacts:
    """The type of a model, its layout, and how many tokens it and its tokenizer know; None: not known."""

    model_type: str
    layout: ModelLayout
    vocabulary: int | None = None
    """Rows of the embedding. None for a multimodal model, whose text part may have its own rows for images."""
    tokens: int | None = None
    """One more than the highest id that the tokenizer gives."""
    context: ContextFacts = ContextFacts()
    """How far it reads."""
    made_for_mlx: bool = False
    """Whether its weights are packed as MLX packs them, which transformers cannot read."""
    experts: int = 0
    """Experts of a block; 0 for a dense model."""

    @classmethod
    def from_config(cls, config: JsonMapping, tokens: int | None = None) -> BaseFacts:
        """Return the facts in a model's `config.json`."""
        model_type, rows = str(config.get("model_type", "")), config.get("vocab_size")
        whole = isinstance(rows, int) and "text_config" not in config
        layout = read_layout(model_type, config)
        context, experts = ContextFacts.from_config(config), count_experts(config)
        return cls(model_type, layout, rows if whole else None, tokens, context, is_of_mlx(config), experts)


def is_of_mlx(config: Mapping[str, object]) -> bool:
    """Return whether a config is that of weights quantized by mlx_lm: {group_size, bits}, and no method that loads
    them.
    """
    packed, settings = config.get("quantization"), config.get("quantization_config")
    has_method = isinstance(settings, Mapping) and "quant_method" in settings
    return isinstance(packed, Mapping) and {"group_size", "bits"} <= packed.keys() and not has_method


def count_experts(config: Mapping[str, object]) -> int:
    """Experts of a block, by a model's `config.json` or by that of its text part."""
    text = config.get("text_config")
    both = [config, text] if isinstance(text, Mapping) else [config]
    sizes = (part.get(name) for part in both for name in EXPERT_KEYS)
    return max((size for size in sizes if isinstance(size, int)), default=0)


def read_layout(model_type: str, config: Mapping[str, object]) -> ModelLayout:
    if config.get("is_encoder_decoder") is True:
        return ModelLayout.ENCODER_DECODER
    is_encoder = model_type in ENCODERS and config.get("is_decoder") is not True
    return ModelLayout.ENCODER if is_encoder else ModelLayout.DECODER
