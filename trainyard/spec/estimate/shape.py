"""The sizes of a decoder that memory and time depend on."""

from __future__ import annotations

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
