"""What the files of a base model say of it, as far as every training depends on it (no torch).

`plan` and `run` read them from the model's folder, a training child from the model that it is about to load: the same
facts, judged by the same rows of `compat/bases.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ModelLayout(StrEnum):
    """How a model reads and writes text."""

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
    experts: int = 0
    """Experts of a block; 0 for a dense model."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tokens: int | None = None) -> BaseFacts:
        """The facts in a model's `config.json`."""
        model_type, rows = str(config.get("model_type", "")), config.get("vocab_size")
        whole = isinstance(rows, int) and "text_config" not in config
        return cls(model_type, layout_of(model_type, config), rows if whole else None, tokens, count_experts(config))


def count_experts(config: Mapping[str, Any]) -> int:
    """Experts of a block, by a model's `config.json` or by that of its text part."""
    text = config.get("text_config")
    both = [config, text] if isinstance(text, Mapping) else [config]
    sizes = (part.get(name) for part in both for name in EXPERT_KEYS)
    return max((size for size in sizes if isinstance(size, int)), default=0)


def layout_of(model_type: str, config: Mapping[str, Any]) -> ModelLayout:
    if config.get("is_encoder_decoder") is True:
        return ModelLayout.ENCODER_DECODER
    is_encoder = model_type in ENCODERS and config.get("is_decoder") is not True
    return ModelLayout.ENCODER if is_encoder else ModelLayout.DECODER
