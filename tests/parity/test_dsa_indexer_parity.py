"""Our lightning indexer against transformers' `DeepseekV32Indexer`, which can select but not train."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deepseek_v32.configuration_deepseek_v32 import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer, DeepseekV32RotaryEmbedding

from trainyard.train.latent.dsa.indexer import IndexerShape, LightningIndexer, select_tokens


def small_config(*, heads: int, dim: int, rotary: int, k: int) -> DeepseekV32Config:
    return DeepseekV32Config(
        hidden_size=24, q_lora_rank=24, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=1,
        qk_rope_head_dim=rotary, qk_nope_head_dim=8, v_head_dim=8, kv_lora_rank=16,
        index_n_heads=heads, index_head_dim=dim, index_topk=k, max_position_embeddings=128,
    )  # fmt: skip


@pytest.mark.parametrize(("heads", "dim", "rotary", "k"), [(8, 16, 8, 4), (6, 32, 16, 9), (5, 8, 8, 1), (8, 16, 8, 64)])
def test_the_selected_tokens_are_those_of_transformers(heads: int, dim: int, rotary: int, k: int) -> None:
    torch.manual_seed(heads)
    config = small_config(heads=heads, dim=dim, rotary=rotary, k=k)
    reference = DeepseekV32Indexer(config, 0).eval()
    base = float(config.rope_parameters["rope_theta"])
    indexer = LightningIndexer(24, IndexerShape(heads, dim, rotary, base))
    indexer.load_state_dict(reference.state_dict())

    hidden, positions = torch.randn(3, 21, 24), torch.arange(21).expand(3, -1)
    visible = torch.ones(3, 21, 21, dtype=torch.bool).tril()
    visible[1, :, :6] = False  # padding on the left
    rotation = DeepseekV32RotaryEmbedding(config)(hidden, positions)
    expected = reference(hidden, hidden, rotation, visible, positions).long()
    scores = indexer(hidden, positions, indexer.keys(hidden, positions))
    selected = select_tokens(scores, visible, k)
    mask = torch.zeros_like(visible).scatter(-1, expected, True) & visible
    tied = (scores == 0).sum(-1) > 1  # ReLU makes equal scores, of which torch.topk returns any
    assert (~tied).float().mean() > 0.1
    assert torch.equal(selected[~tied], mask[~tied])
    assert torch.equal(selected.sum(-1), mask.sum(-1))
    total = scores.masked_fill(~selected, 0.0).sum(-1)
    assert torch.allclose(total, scores.masked_fill(~mask, 0.0).sum(-1), atol=1e-6)


def test_their_indexer_gets_no_gradient_and_ours_does() -> None:
    config = small_config(heads=2, dim=16, rotary=8, k=4)
    reference = DeepseekV32Indexer(config, 0)
    hidden, positions = torch.randn(1, 5, 24, requires_grad=True), torch.arange(5)[None]
    rotation = DeepseekV32RotaryEmbedding(config)(hidden, positions)
    top_indices = reference(hidden, hidden, rotation, torch.ones(1, 5, 5, dtype=torch.bool).tril(), positions)
    assert not top_indices.requires_grad
    indexer = LightningIndexer(24, IndexerShape(2, 16, 8))
    assert indexer(hidden, positions, indexer.keys(hidden, positions)).requires_grad
