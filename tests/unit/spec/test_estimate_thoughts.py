"""What the techniques of latent reasoning add to memory, weights and time of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.test_estimate import LLAMA_3_8B, TINY
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.latent import Latent
from trainyard.spec.estimate.memory import Memory, count_trainable, estimate_memory, positions, thought_growth
from trainyard.spec.estimate.timing import operations
from trainyard.spec.training import TrainerConfig, resolve_trainer

QUIET = {"type": "quiet_star", "thought_tokens": 8, "ahead": 4, "thoughts": 2}


def sft(latent: Any = None, **engine: Any) -> TrainerConfig:
    stage = {"type": "sft", **({"latent": latent} if latent else {})}
    hyper = {"batch_size": 2, "max_length": 256}
    settings = {
        "stage": stage,
        "backend": "native",
        "hyperparameters": hyper,
        "engine": {"batching": "padded", **engine},
    }
    return resolve_trainer(TrainerConfig.model_validate(settings), "starter")


def memory(latent: Any = None, **engine: Any) -> Memory:
    return estimate_memory(LLAMA_3_8B, sft(latent, **engine), Device.CUDA)


def test_a_thought_after_each_token_is_a_column_of_the_row_and_reads_all_of_it() -> None:
    config = sft(QUIET)
    assert thought_growth(config) == 1 + 2 * (8 + 1 + 4)
    assert positions(config, Device.CUDA) == 2 * 256 * 27
    latent, plain = memory(QUIET, head="chunked"), memory(head="chunked")
    assert latent.activations == pytest.approx(27 * plain.activations)
    # The n-th of 13 passes has a mask and keys over n + 1 rows, for two thoughts; logits of 16 tokens are drawn from.
    passes = 2 * sum(n + 1 for n in range(1, 14))
    keys = 2 * 2 * LLAMA_3_8B.key_value_heads * LLAMA_3_8B.head_size
    assert latent.thoughts == LLAMA_3_8B.layers * 2 * 256 * passes * (keys + 4 * 256)
    assert latent.logits - plain.logits == 10 * LLAMA_3_8B.vocabulary * 2 * 256 * 16


def test_a_model_that_teaches_itself_computes_each_row_twice() -> None:
    latent, plain = memory({"type": "codi", "thoughts": 6}), memory()
    assert latent.activations == pytest.approx((2 + 8 / 256) * plain.activations)
    assert latent.thoughts > 0


def test_scores_of_an_indexer_grow_with_the_square_of_the_length() -> None:
    def scores(length: int) -> int:
        config = sft({"type": "dsa"})
        hyper = config.hyperparameters.model_copy(update={"max_length": length})
        return estimate_memory(LLAMA_3_8B, config.model_copy(update={"hyperparameters": hyper}), Device.CUDA).thoughts

    assert scores(512) == 4 * scores(256) == 32 * 4 * (2 * 4 + 4) * 2 * 512 * 512
    # Both kinds compute attention whose weights are all kept.
    assert memory({"type": "dsa", "granularity": "head"}).activations == memory(attention="eager").activations


def test_thoughts_and_pauses_make_rows_longer() -> None:
    plain = positions(sft(), Device.CUDA)
    assert positions(sft({"type": "pause", "count": 10}), Device.CUDA) == plain + 2 * 10
    coconut = {"type": "coconut", "max_stage": 3, "thoughts_per_step": 2}
    assert positions(sft(coconut), Device.CUDA) == plain + 2 * 8
    assert memory(coconut).thoughts > memory({**coconut, "feedback": False}).thoughts == 0
    assert memory("hidden_cot") == memory()


@pytest.mark.parametrize("latent", [latent for latent in Latent if latent is not Latent.HIDDEN_COT], ids=str)
def test_each_technique_takes_more_memory_and_time_and_has_weights_of_its_own(latent: Latent) -> None:
    plain, config = sft(), sft(str(latent))
    assert memory(str(latent), head="full").total > memory(head="full").total
    assert count_trainable(TINY, config) > count_trainable(TINY, plain)
    assert operations(TINY, config, 10, 100) > operations(TINY, plain, 10, 100)
