"""What a base model's config says: which layouts are decoders, and which rows of an embedding are known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.chains import chain, node, source
from trainyard.spec.compat.context import RunFacts
from trainyard.spec.compat.table import run_reasons
from trainyard.spec.estimate.shape import BaseFacts, ModelLayout
from trainyard.spec.graph import resolve


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        ({"model_type": "llama"}, ModelLayout.DECODER),
        ({"model_type": "mamba"}, ModelLayout.DECODER),
        ({"model_type": "bert"}, ModelLayout.ENCODER),
        ({"model_type": "bert", "is_decoder": True}, ModelLayout.DECODER),
        ({"model_type": "modernbert", "is_decoder": False}, ModelLayout.ENCODER),
        ({"model_type": "t5", "is_encoder_decoder": True, "is_decoder": False}, ModelLayout.ENCODER_DECODER),
        ({"model_type": "bart", "is_encoder_decoder": False, "is_decoder": True}, ModelLayout.DECODER),
    ],
)
def test_layouts(config: dict[str, Any], layout: ModelLayout) -> None:
    assert BaseFacts.from_config(config).layout is layout


def list_refusals(base: BaseFacts | None, **config: Any) -> list[str]:
    resolved_chain = resolve(chain(source(), node("trainer", base_model="org/base", **config)))
    return [reason.row for reason in run_reasons(resolved_chain, RunFacts(base=lambda name: base))]


def test_a_base_is_judged_for_every_backend_but_an_own_script() -> None:
    bert = BaseFacts("bert", ModelLayout.ENCODER)
    for config in ({}, {"backend": "trl"}, {"backend": "axolotl"}, {"stage": "dpo"}, {"backend": "script"}):
        assert list_refusals(bert, **config) == ["base-layout"]
    assert list_refusals(bert, backend="script", launch={"script": "mine"}) == []
    assert list_refusals(BaseFacts("llama", ModelLayout.DECODER, 32_000, 32_000)) == []
    assert list_refusals(None) == []


@pytest.mark.parametrize(
    ("config", "tokens", "expected"),
    [
        ({"vocab_size": 100}, 101, ["base-vocabulary"]),
        ({"vocab_size": 100}, 100, []),
        ({"vocab_size": 128}, 100, []),
        ({"vocab_size": 100}, None, []),
        ({"vocab_size": 100, "text_config": {"vocab_size": 100}}, 101, []),  # its text part has rows for images too
    ],
)
def test_a_tokenizer_with_more_ids_than_the_model_has_rows(
    config: dict[str, Any], tokens: int | None, expected: list[str]
) -> None:
    assert list_refusals(BaseFacts.from_config({"model_type": "llama", **config}, tokens)) == expected
