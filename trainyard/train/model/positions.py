"""Longer contexts: the rotary positions of a base, scaled (RoPE; linear, or YaRN of arXiv 2309.00071).

transformers computes the angles. What is written here are the words of a model's config, which every server reads:
`rope_parameters`, and for YaRN the new number of positions. Configs with linear scaling keep the old number, which
transformers and vLLM multiply by the factor. Dynamic scaling is not trained with: its angles depend on the longest row
that a model has seen, which no checkpoint contains.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.training import RopeScaling

BY_FACTOR = ("linear", "dynamic")
"""Kinds whose config names the positions before scaling."""


def position_options(folder: str, rope: RopeScaling | None) -> JsonObject:
    """Return what `from_pretrained` gets so that a base has scaled positions; nothing without scaling.

    Raises `InvalidInput` (`E-MODEL-INVALID`) for a base without rotary positions of one kind, or with scaled ones.
    """
    if rope is None:
        return {}
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" not in parameters:
        raise InvalidInput(
            f"The positions of a {config.model_type} cannot be scaled.",
            why="It has none, or its layers have different ones." if parameters else "It has no rotary positions.",
            do="Remove `rope`, or use a base such as a Llama or a Qwen.",
            code="E-MODEL-INVALID",
        )
    if parameters["rope_type"] != "default":
        raise InvalidInput(
            f"The base scales its positions already ({parameters['rope_type']}).",
            why="What it was trained with would be replaced.",
            do="Remove `rope`, or use the base from before its context was extended.",
            code="E-MODEL-INVALID",
        )
    original = rope.original_length or int(config.max_position_embeddings)
    scaled = {**parameters, "rope_type": rope.type, "factor": rope.factor}
    if rope.type in BY_FACTOR:
        return {"rope_parameters": scaled, "max_position_embeddings": original}
    scaled["original_max_position_embeddings"] = original
    return {"rope_parameters": scaled, "max_position_embeddings": int(original * rope.factor)}


def find_context(config: Any) -> int | None:
    """Return tokens that a model can see at once, by its config; None where that does not say."""
    text = config.get_text_config()
    trained_length, rope = getattr(text, "max_position_embeddings", None), getattr(text, "rope_parameters", None) or {}
    if not trained_length:
        return None
    return int(trained_length * rope["factor"]) if rope.get("rope_type") in BY_FACTOR else int(trained_length)
