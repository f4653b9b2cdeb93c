"""NEFTune: how large the noise is, when there is none, and that it is transformers' where rows have no padding."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers.integrations.neftune import neftune_post_forward_hook

from tests.unit.train.losses.stage_rows import make_model
from tests.unit.train.session.engines import copy_weights, make_batch, make_config, make_session, train_step
from trainyard.spec.axes.stages import Stage
from trainyard.train.contracts import Encoded
from trainyard.train.model.head import label_logprobs
from trainyard.train.model.sequence_attention import KERNEL, set_kernel
from trainyard.train.rows.batching import pack, pad
from trainyard.train.session.noise import EmbeddingNoise
from trainyard.train.session.session import Session

ALPHA, WIDTH = 5.0, 32


def noisy(folder: Path, alpha: float | None = ALPHA) -> Session:
    return make_session(folder, make_config(Stage.SFT.settings(neftune_alpha=alpha)), dropout=0.0)


def measure_noise(**inputs: torch.Tensor) -> torch.Tensor:
    """The noise on the embeddings of a training pass: (B, T, D)."""
    model = make_model("causal")
    EmbeddingNoise(model, ALPHA)
    seen: list[torch.Tensor] = []
    model.get_input_embeddings().register_forward_hook(lambda _module, _args, output: seen.append(output))
    model.train()(**inputs, use_cache=False)
    return (seen[0] - model.get_input_embeddings().weight[inputs["input_ids"]]).detach()


def test_padding_counts_for_nothing() -> None:
    ids_BT, mask_BT = torch.full((2, 16), 7), torch.ones(2, 16, dtype=torch.long)
    mask_BT[1, 4:] = 0
    long_TD, short_TD = measure_noise(input_ids=ids_BT, attention_mask=mask_BT).abs()
    for noise_TD, length in ((long_TD, 16), (short_TD, 4)):
        most = ALPHA / math.sqrt(length * WIDTH)
        assert 0.9 * most < float(noise_TD.max()) <= most * 1.0001


def test_a_packed_row_has_the_noise_of_its_own_length() -> None:
    positions_BT = torch.tensor([[*range(4), *range(16)]])
    noise_TD = measure_noise(input_ids=torch.full((1, 20), 7), position_ids=positions_BT)[0].abs()
    assert float(noise_TD[:4].max()) > ALPHA / math.sqrt(16 * WIDTH) * 1.5
    assert float(noise_TD[4:].max()) <= ALPHA / math.sqrt(16 * WIDTH) * 1.0001


@pytest.mark.parametrize("packed", [True, False])
def test_rows_without_a_mask_have_the_noise_that_they_have_with_one(packed: bool) -> None:
    rows: list[Encoded] = [{"input_ids": [7] * length, "labels": [7] * length} for length in (4, 16, 2)]
    batch = (pack if packed else pad)(rows, 0)
    real_BT = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    seen: list[torch.Tensor] = []
    for kernel in ("sdpa", KERNEL):
        model = make_model("causal").train()
        EmbeddingNoise(model, ALPHA)
        model.get_input_embeddings().register_forward_hook(lambda _module, _args, output: seen.append(output.detach()))
        set_kernel(model, kernel)
        torch.manual_seed(3)
        label_logprobs(model, batch)
    assert torch.equal(seen[0][real_BT], seen[1][real_BT])


def test_it_is_the_noise_of_transformers_where_rows_have_no_padding() -> None:
    ids_BT = torch.full((2, 16), 7)
    torch.manual_seed(3)
    mine_BTD = measure_noise(input_ids=ids_BT)
    model = make_model("causal").train()
    layer = model.get_input_embeddings()
    layer.neftune_noise_alpha = ALPHA
    torch.manual_seed(0)
    make_model("causal")  # draws what building a model draws
    plain_BTD = layer(ids_BT)
    theirs_BTD = neftune_post_forward_hook(layer, (ids_BT,), plain_BTD.clone()) - plain_BTD
    torch.testing.assert_close(mine_BTD, theirs_BTD.detach(), atol=1e-6, rtol=1e-5)


def test_training_has_noise_and_evaluation_none(tmp_path: Path) -> None:
    session, plain, batch = noisy(tmp_path / "a"), noisy(tmp_path / "b", None), make_batch()
    assert float(session.forward(batch).loss) != float(plain.forward(batch).loss)
    assert session.evaluate(batch).sums == plain.evaluate(batch).sums


def test_a_restored_session_draws_the_same_noise(tmp_path: Path) -> None:
    first, batches = noisy(tmp_path / "a"), [make_batch()]
    train_step(first, batches)
    first.save("here")
    expected = train_step(first, batches)
    again = noisy(tmp_path / "a")
    again.load("here")
    assert train_step(again, batches) == expected
    assert all(
        torch.equal(weight, other) for weight, other in zip(copy_weights(first), copy_weights(again), strict=True)
    )


def test_without_it_no_random_number_is_drawn(tmp_path: Path) -> None:
    session = noisy(tmp_path, None)
    before = session.generators.states.torch
    session.forward(make_batch())
    assert torch.equal(before, session.generators.states.torch)


@pytest.mark.parametrize("alpha", [0, -1])
def test_an_alpha_is_above_zero(alpha: float) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Stage.SFT.settings(neftune_alpha=alpha)
