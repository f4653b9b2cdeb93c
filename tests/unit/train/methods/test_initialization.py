"""Adapters that begin elsewhere than at zero: they train from the base's outputs, and what is saved fits the base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file

from tests.unit.train.methods.conftest import Request, logits, steps
from trainyard.errors import InvalidInput
from trainyard.spec.axes.methods import Method, find_rank
from trainyard.train.methods.contract import Policy, PolicyRequest
from trainyard.train.methods.loading import load_base
from trainyard.train.methods.table import build, save

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
RANK = 4
PISSA = [("lora", "pissa"), ("lora", "pissa_niter_4"), ("lora_plus", "pissa")]


def begin_training(request_of: Request, method: str, init: str, **settings: object) -> tuple[PolicyRequest, Policy]:
    request = request_of(method, settings={"rank": RANK, "init": init, **settings})
    return request, build(request, with_reference=False)


def exact_base(request: PolicyRequest) -> object:
    """The base as its files have it, which is what serves an adapter."""
    return load_base(request, request.base)


@pytest.mark.parametrize(("method", "init"), PISSA)
@pytest.mark.parametrize("rslora", [False, True])
def test_pissa_starts_as_the_base_and_its_saved_adapter_serves_on_it(
    method: str, init: str, rslora: bool, request_of: Request, tmp_path: Path
) -> None:
    request, policy = begin_training(request_of, method, init, rslora=rslora)
    base = exact_base(request)
    torch.testing.assert_close(logits(policy.model), logits(base), atol=2e-5, rtol=0)
    factors = {name: value.clone() for name, value in policy.model.named_parameters() if "lora_B" in name}
    assert all(value.abs().max() > 0 for value in factors.values())  # plain LoRA begins at zero
    steps(policy, request)
    trained = logits(policy.model)
    assert (trained - logits(base)).abs().max() > 1e-3
    save(policy, request, tmp_path)
    config = LoraConfig.from_pretrained(tmp_path)
    assert (config.r, config.lora_alpha, config.use_rslora) == (2 * RANK, 2 * RANK, False)
    assert config.init_lora_weights is True
    assert policy.facts["saved_rank"] == find_rank(request.config.method) == 2 * RANK
    served = PeftModel.from_pretrained(exact_base(request), tmp_path)
    torch.testing.assert_close(logits(served), trained, atol=1e-4, rtol=0)


def test_an_untrained_adapter_is_saved_as_one_that_changes_nothing(request_of: Request, tmp_path: Path) -> None:
    request, policy = begin_training(request_of, "lora", "pissa")
    save(policy, request, tmp_path)
    served = PeftModel.from_pretrained(exact_base(request), tmp_path)
    torch.testing.assert_close(logits(served), logits(exact_base(request)), atol=1e-5, rtol=0)


def test_a_resumed_training_begins_with_the_same_bits(request_of: Request) -> None:
    (_, first), (_, other) = (begin_training(request_of, "lora", "pissa_niter_4") for _ in range(2))
    assert first.initial is not None
    assert other.initial is not None
    assert all(torch.equal(value, other.initial[name]) for name, value in first.initial.items())
    weights = dict(other.model.named_parameters())
    assert all(torch.equal(value, weights[name]) for name, value in first.model.named_parameters())


def test_loftq_makes_up_for_the_rounding_of_the_base(request_of: Request, tmp_path: Path) -> None:
    request, policy = begin_training(request_of, "qlora", "loftq", rank=16)
    _, plain = begin_training(request_of, "qlora", "default", rank=16)
    exact = logits(load_base(request_of("lora"), request.base))
    assert (logits(policy.model) - exact).abs().mean() < 0.75 * (logits(plain.model) - exact).abs().mean()
    quantised = {name: value for name, value in plain.model.named_parameters() if "lora_" not in name}
    assert all(torch.equal(value, dict(policy.model.named_parameters())[name]) for name, value in quantised.items())
    save(policy, request, tmp_path)  # untrained: on the exact base it has nothing to make up for
    served = PeftModel.from_pretrained(load_base(request_of("lora"), request.base), tmp_path)
    torch.testing.assert_close(logits(served), exact, atol=1e-5, rtol=0)


def test_a_trained_loftq_adapter_keeps_what_it_learned(request_of: Request, tmp_path: Path) -> None:
    request, policy = begin_training(request_of, "qlora", "loftq")
    start = logits(policy.model)
    steps(policy, request)
    learned = logits(policy.model) - start
    save(policy, request, tmp_path)
    base = load_base(request_of("lora"), request.base)
    exact = logits(base)
    change = logits(PeftModel.from_pretrained(base, tmp_path)) - exact
    assert torch.nn.functional.cosine_similarity(change.flatten(), learned.flatten(), dim=0) > 0.98


@pytest.mark.parametrize(("method", "init"), [("lora", "pissa"), ("qlora", "loftq")])
def test_a_rank_that_a_layer_does_not_have_is_refused(method: str, init: str, request_of: Request) -> None:
    request = request_of(method, settings={"rank": 256, "init": init})
    with pytest.raises(InvalidInput, match=r"E-TRAINABLE: The rank is 256, .* singular values"):
        build(request, with_reference=False)


def test_the_default_is_not_written_and_leaves_no_trace(request_of: Request, tmp_path: Path) -> None:
    request, policy = begin_training(request_of, "lora", "default")
    assert policy.initial is None
    assert "init" not in request.config.method.model_dump(mode="json")
    save(policy, request, tmp_path)
    assert next(iter(load_file(tmp_path / "adapter_model.safetensors").values())).shape[0] == RANK


@pytest.mark.parametrize("word", ["gaussian", "pissa_niter_0", "pissa_niter_", "PISSA"])
def test_another_word_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="init"):
        Method.LORA.settings(init=word)
