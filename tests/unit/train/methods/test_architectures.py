"""On every architecture an adapter is trained, continued, stacked and merged, and each result loaded again answers as
in memory; a mixture's experts have an adapter, its routers and what reads pictures have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from tests.selection import choose_by_default
from tests.unit.train.methods.architectures import ARCHITECTURES, MIXTURES, build_base
from tests.unit.train.methods.conftest import IDS_BT, Request, logits, steps
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.spec.compat.adapters import SHARING_TYPES
from trainyard.train.methods.contract import Policy, PolicyRequest
from trainyard.train.methods.loading import load_base
from trainyard.train.methods.table import build, save, verify_saved
from trainyard.train.model.head import require_known_logits

pytestmark = pytest.mark.filterwarnings("ignore")  # of models without their kernels
QUICK = ["gpt2", "gpt_oss"]
WAYS = ("continue", "stack", "merge")
RANK = 4


def train_policy(request: PolicyRequest) -> Policy:
    """A policy after two steps, every adapted layer of which has learned."""
    policy = build(request, with_reference=False)
    steps(policy, request)
    still = [
        name
        for name, value in policy.model.named_parameters()
        if value.requires_grad and "lora_B" in name and not value.any()
    ]
    assert still == []
    return policy


def save_and_compare(policy: Policy, request: PolicyRequest, folder: Path) -> float:
    """Write an adapter, and return the largest difference of a logit on a base that is loaded again."""
    save(policy, request, folder)
    verify_saved(policy, request, folder)
    fresh = PeftModel.from_pretrained(load_base(request, request.base), str(folder))
    return float((logits(fresh) - logits(policy.model)).abs().max())


@pytest.mark.parametrize("model_type", choose_by_default(QUICK, list(ARCHITECTURES)))
def test_adapters_of_an_architecture_answer_alike_when_loaded_again(
    model_type: str, request_of: Request, tmp_path: Path
) -> None:
    base, first = build_base(model_type, tmp_path / "base"), tmp_path / "first"
    request = request_of("lora", base=base, settings={"rank": RANK})
    require_known_logits(load_base(request, request.base))
    policy = train_policy(request)
    assert save_and_compare(policy, request, first) < 1e-4
    for how in WAYS:
        request = request_of("lora", base=base, adapter=first, how=how, settings={"rank": RANK})
        if how == "merge" and model_type in SHARING_TYPES:
            with pytest.raises(TrainyardError, match=r"E-MERGE: .* share their weights"):
                build(request, with_reference=False)
        else:
            assert save_and_compare(train_policy(request), request, tmp_path / how) < 1e-4, how


@pytest.mark.parametrize("model_type", choose_by_default(["gpt_oss", "deepseek_v3"], list(MIXTURES)))
def test_experts_have_an_adapter_and_routers_none(model_type: str, request_of: Request, tmp_path: Path) -> None:
    base = build_base(model_type, tmp_path / "base")
    coverage = build(request_of("lora", base=base), with_reference=False).facts["coverage"]
    shares = {kind: line[0] / line[1] for kind, line in coverage["kinds"].items()}
    assert shares.pop("router") == shares.pop("embeddings") == 0
    if model_type == "dbrx":  # its experts are parts of one flat matrix
        assert shares.pop("experts") == 0
    assert set(shares.values()) == {1.0}
    assert "of the weights have an adapter: attention 100 %" in coverage["note"]


def test_named_layers_of_experts_are_found_in_their_stacked_matrices(request_of: Request, tmp_path: Path) -> None:
    base = build_base("olmoe", tmp_path / "base")
    policy = build(request_of("lora", base=base, settings={"profile": "nightly"}), with_reference=False)
    assert {"gate_up_proj", "down_proj"} <= set(policy.facts["target_modules"])
    request = request_of("lora", base=base, settings={"target_modules": ("q_proj", "gate_proj")})
    with pytest.raises(InvalidInput, match=r"E-TRAINABLE: The experts have gate_proj and up_proj in one matrix"):
        build(request, with_reference=False)
    block = build(request_of("lora", base=base, settings={"layers": (1,)}), with_reference=False)
    names = {name for name, value in block.model.named_parameters() if value.requires_grad}
    assert any("experts" in name for name in names)
    assert all(".layers.1." in name for name in names)


@pytest.mark.parametrize(
    ("method", "settings"),
    [("dora", {}), ("lora", {"init": "pissa"}), ("lora", {"dropout": 0.1}), ("qlora", {"init": "loftq"})],
)
def test_what_stacked_matrices_cannot_have_is_refused(
    method: str, settings: dict[str, Any], request_of: Request, tmp_path: Path
) -> None:
    base = build_base("olmoe", tmp_path / "base")
    with pytest.raises(InvalidInput, match="E-TRAINABLE: An adapter on the stacked matrices of experts cannot have"):
        build(request_of(method, base=base, settings=settings), with_reference=False)
    attention = {**settings, "rank": RANK, "target_modules": "attention-only"}
    assert build(request_of(method, base=base, settings=attention), with_reference=False)


@pytest.mark.parametrize("how", ["stack", "merge"])
def test_two_adapters_on_other_experts_are_not_summed(how: str, request_of: Request, tmp_path: Path) -> None:
    base = build_base("olmoe", tmp_path / "base")
    first = request_of("lora", base=base, settings={"rank": RANK, "layers": (0,)})
    save(build(first, with_reference=False), first, tmp_path / "first")
    with pytest.raises(InvalidInput, match="E-ADAPTER-MISMATCH: The earlier adapter is on other matrices of experts"):
        build(request_of("lora", base=base, adapter=tmp_path / "first", how=how), with_reference=False)


@pytest.mark.parametrize(("how", "settings"), [("continue", {}), ("merge", {}), ("continue", {"init": "pissa"})])
def test_files_that_answer_otherwise_are_found(
    how: str, settings: dict[str, Any], request_of: Request, tmp_path: Path
) -> None:
    base = build_base("llama", tmp_path / "base")
    request = request_of("lora", base=base, settings={"rank": RANK})
    assert save_and_compare(train_policy(request), request, tmp_path / "first") < 1e-4
    earlier = tmp_path / "first" if how == "merge" else None
    request = request_of("lora", base=base, adapter=earlier, how=how, settings={"rank": RANK, **settings})
    policy = train_policy(request)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    random = torch.random.get_rng_state()
    save(policy, request, tmp_path / "out")
    verify_saved(policy, request, tmp_path / "out")
    assert torch.equal(random, torch.random.get_rng_state())
    after = policy.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    path = tmp_path / "out" / "adapter_model.safetensors"
    save_file({name: 3 * value for name, value in load_file(path).items()}, path, metadata={"format": "pt"})
    with pytest.raises(TrainyardError, match=r"E-ADAPTER-INVALID: .* loaded again it answers differently"):
        verify_saved(policy, request, tmp_path / "out")
    assert policy.model(input_ids=IDS_BT).logits.requires_grad  # it can be trained on
