"""The output layer: the log-probabilities that the model itself gives, computed only where there is a label."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.unit.train.losses.stage_rows import make_model
from trainyard.errors import Unavailable
from trainyard.train.contracts import IGNORED, Head
from trainyard.train.model.head import (
    LabelLogprobs,
    Output,
    label_logprobs,
    require_head,
    require_known_logits,
    token_logprobs,
)

WORDS = 64
HERE = (Head.FULL, Head.CHUNKED)
"""Heads that run on any machine."""
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "phi3": {},
    "gpt2": {"n_positions": 64},
    "olmo2": {},
    "gemma2": {"final_logit_softcapping": 2.0},
    "gemma3_text": {"final_logit_softcapping": 2.0},
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 0.25},
    "falcon_h1": {
        "lm_head_multiplier": 0.5,
        "mamba_d_ssm": 32,
        "mamba_n_heads": 2,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
    },
}


def model_of_family(family: str) -> Any:
    sizes = {
        "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**sizes, **FAMILIES[family])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # far from a flat distribution, where a cap or a scale would not show
                parameter.normal_(0, 0.3)
    return model


def batch_of_words() -> dict[str, torch.Tensor]:
    """Three rows of different lengths with labels here and there, one of them on the first position."""
    ids_BT = torch.randint(3, WORDS, (3, 12), generator=torch.Generator().manual_seed(0))
    mask_BT = (torch.arange(12) < torch.tensor([[12], [9], [5]])).long()
    labels_BT = torch.where((mask_BT == 1) & (ids_BT % 3 > 0), ids_BT, IGNORED)
    labels_BT[:, 0] = ids_BT[:, 0]
    return {"input_ids": ids_BT, "attention_mask": mask_BT, "labels": labels_BT}


def compute_logprobs(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The log-probability of every label, from the logits that the model itself returns."""
    logits_BTV = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
    target_BT = batch["labels"][:, 1:]
    found_BT = logits_BTV[:, :-1].float().log_softmax(-1).gather(2, target_BT.clamp(min=0)[..., None])[..., 0]
    return found_BT[target_BT != IGNORED]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", HERE)
def test_logprobs_are_the_models_own(family: str, head: Head) -> None:
    model, batch = model_of_family(family), batch_of_words()
    require_known_logits(model)
    logprobs_N = label_logprobs(model, batch, head).logprobs_N
    torch.testing.assert_close(logprobs_N, compute_logprobs(model, batch), atol=1e-5, rtol=1e-5)
    assert logprobs_N.dtype is torch.float32


def test_a_model_that_does_something_else_to_its_logits_is_refused() -> None:
    class Doubling(LlamaForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            reply = super().forward(*args, **kwargs)
            reply.logits = 2 * reply.logits
            return reply

    plain = make_model("causal").train()
    require_known_logits(plain)
    assert plain.training
    doubling = Doubling(plain.config)
    with pytest.raises(
        Unavailable, match="E-STEP: Doubling changes its logits in a way that the native engine"
    ) as error:
        require_known_logits(doubling)
    assert "backend: trl" in error.value.do


def test_a_broken_model_is_left_to_the_loss_to_be_told() -> None:
    model = make_model("causal")
    with torch.no_grad():
        model.lm_head.weight[3, 3] = torch.nan
    require_known_logits(model)


def test_chunks_give_the_same_numbers_and_gradients_and_are_computed_again() -> None:
    layer, hidden_ND, target_N = torch.nn.Linear(16, WORDS), torch.randn(8, 16), torch.randint(0, WORDS, (8,))
    rows: list[int] = []
    layer.register_forward_hook(lambda _module, inputs, _output: rows.append(len(inputs[0])))
    gradients = []
    for head in HERE:
        layer.zero_grad()
        states_ND = hidden_ND.clone().requires_grad_()
        logprobs_N = token_logprobs(states_ND, target_N, Output(layer), head, chunk_logits=3 * WORDS)
        logprobs_N.sum().backward()
        gradients.append([logprobs_N.detach(), states_ND.grad, layer.weight.grad.clone(), layer.bias.grad.clone()])
    assert rows[:4] == [8, 3, 3, 2]
    assert sorted(rows[4:]) == [2, 3, 3]
    for actual, other in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, other, atol=1e-6, rtol=1e-5)


def test_only_labelled_positions_go_through_the_output_layer() -> None:
    model, batch = make_model("causal"), batch_of_words()
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _module, inputs, _output: rows.append(inputs[0].shape[0]))
    logprobs = label_logprobs(model, batch)
    assert rows == [int((batch["labels"][:, 1:] != IGNORED).sum())] == [len(logprobs.logprobs_N)]


def test_the_label_of_the_first_position_takes_no_part() -> None:
    model, batch = make_model("causal"), batch_of_words()
    without = {**batch, "labels": batch["labels"].clone()}
    without["labels"][:, 0] = IGNORED
    assert torch.equal(label_logprobs(model, batch).logprobs_N, label_logprobs(model, without).logprobs_N)


@pytest.mark.parametrize("head", HERE)
def test_a_batch_without_labels_gives_nothing_and_a_gradient_of_zero(head: Head) -> None:
    model, batch = make_model("causal"), batch_of_words()
    batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    logprobs = label_logprobs(model, batch, head)
    assert logprobs.logprobs_N.shape == (0,)
    logprobs.logprobs_N.sum().backward()
    assert model.lm_head.weight.grad is None or not model.lm_head.weight.grad.any()


def test_rows_are_summed_and_counted() -> None:
    logprobs = LabelLogprobs(torch.tensor([-1.0, -2.0, -4.0]), torch.tensor([0, 2, 2]))
    assert logprobs.sums(3).tolist() == [-1.0, 0.0, -6.0]
    assert logprobs.counts(3).tolist() == [1.0, 0.0, 2.0]


@pytest.mark.parametrize("extra", [{}, {"target_modules": ["q_proj", "lm_head"]}, {"modules_to_save": ["lm_head"]}])
@pytest.mark.parametrize("head", HERE)
def test_an_adapter_is_part_of_it_wherever_it_sits(extra: dict[str, Any], head: Head) -> None:
    batch = batch_of_words()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT asks transformers for a property by its old name
        model = get_peft_model(
            make_model("causal"), LoraConfig(**{"target_modules": ["q_proj"], "init_lora_weights": False, **extra})
        ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name:
                parameter.mul_(1.5)
    require_known_logits(model)
    logprobs_N = label_logprobs(model, batch, head).logprobs_N
    torch.testing.assert_close(logprobs_N, compute_logprobs(model, batch), atol=1e-5, rtol=1e-5)
    logprobs_N.sum().backward()
    assert all(value.grad is not None for value in model.parameters() if value.requires_grad)


def test_liger_is_refused_where_it_cannot_run() -> None:
    for head in HERE:
        require_head(head, "cpu")
    with pytest.raises(Unavailable, match=r"E-PACKAGE-MISSING: .* a CUDA device, not a cpu.*head: auto and kernels"):
        require_head(Head.LIGER, "cpu")
