"""What the plan counts for the backward pass of a block on a GPU: the tensors that torch saves in bf16 autocast.

They are counted on a CPU, where autocast saves the same ones; attention saves queries, keys, values, output and a
number for each head on both.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from trainyard.spec.estimate.memory import block_bytes, half_copies
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import TrainerConfig, resolve_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers
TOKENS = 96
SMALL = 0.01
"""Share of a block for what does not grow with its widths: a number for each head, the adapter's own states."""


def make_model(family: str, layers: int, method: str, target: str) -> Any:
    config = AutoConfig.for_model(
        family, hidden_size=256, intermediate_size=640, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
        vocab_size=64, num_hidden_layers=layers, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    if method == "full":
        return model.train()
    names = ["q_proj", "k_proj", "v_proj", "o_proj"] if target == "attention-only" else target
    model = get_peft_model(model.to(torch.bfloat16), LoraConfig(r=1, lora_dropout=0.0, target_modules=names))
    for weight in model.parameters():
        weight.data = weight.data.float() if weight.requires_grad else weight.data
    return model.train()


def count_saved(model: Any) -> tuple[int, int]:
    """Bytes that a forward pass saves: of states, and of copies of the model's matrices."""
    weight_storages = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    shapes = {
        shape for weight in model.parameters() for shape in (weight.shape, weight.shape[::-1]) if weight.ndim == 2
    }
    states, copies, alive = dict[int, int](), dict[int, int](), list[torch.Tensor]()

    def note(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in weight_storages:
            alive.append(value)
            (copies if value.shape in shapes else states)[storage.data_ptr()] = storage.nbytes()
        return value

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda value: value)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        base.model(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), use_cache=False)
    return sum(states.values()), sum(copies.values())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    ("method", "target"), [("full", "all-linear"), ("lora", "all-linear"), ("lora", "attention-only")]
)
def test_a_block_keeps_what_torch_saves(family: str, method: str, target: str) -> None:
    (states, copies), (two, more) = (count_saved(make_model(family, layers, method, target)) for layers in (1, 2))
    method_settings = {"type": "lora", "rank": 1, "target_modules": target} if method == "lora" else method
    config = resolve_trainer(TrainerConfig.model_validate({"method": method_settings}), "base")
    shape = ModelShape.from_config(make_model(family, 1, "full", target).config.to_dict())
    assert shape is not None
    assert shape.head_norms is (family == "qwen3")
    assert block_bytes(shape, config, on_cuda=True) == pytest.approx((two - states) / TOKENS, rel=SMALL)
    if method == "full":
        deeper = shape.model_copy(update={"layers": shape.layers + 1})
        assert half_copies(deeper, config) - half_copies(shape, config) == more - copies
