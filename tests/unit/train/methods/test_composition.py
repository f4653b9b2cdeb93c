"""Adapters across stages: the reference is where the policy starts, and what is saved works on the base alone."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from tests.selection import choose_by_default
from tests.unit.train.methods.conftest import IDS_BT, Request, Trained, logits, steps
from trainyard.errors import Corrupt, InvalidInput, NotFound, Refused
from trainyard.train.methods.contract import Policy
from trainyard.train.methods.loading import lineage
from trainyard.train.methods.table import METHODS, build, save

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers

COMBINATIONS = [
    *(("continue", method, method) for method in ("lora", "lora_plus", "qlora", "dora", "oft")),
    ("continue", "lora", "qlora"),
    *((how, earlier, "lora") for how in ("stack", "merge") for earlier in ("lora", "lora_plus", "qlora")),
    *((how, "lora", "qlora") for how in ("stack", "merge")),
    *(("continue", earlier, method) for earlier in ("lora", "dora", "oft") for method in ("full", "freeze")),
]
"""(what is done with the earlier adapter, its method, the method now)"""
QUICK = [
    ("continue", "lora", "lora"),
    ("continue", "qlora", "qlora"),
    ("stack", "lora", "lora"),
    ("merge", "lora", "lora"),
    ("continue", "lora", "full"),
]


def row_logprobs(model: Any) -> torch.Tensor:
    """Sum of the log-probabilities of each row's tokens: (B,)."""
    logprobs_BTV = model(input_ids=IDS_BT).logits.float()[:, :-1].log_softmax(-1)
    return logprobs_BTV.gather(-1, IDS_BT[:, 1:, None])[..., 0].sum(-1)


def sigmoid_loss(policy: Policy) -> torch.Tensor:
    """DPO's sigmoid loss with row 0 chosen and row 1 rejected, in training mode, as at a first step."""
    assert policy.reference is not None
    with policy.reference() as reference:
        before_B = row_logprobs(reference)
    ratio_B = row_logprobs(policy.model) - before_B
    return -torch.nn.functional.logsigmoid(0.1 * (ratio_B[0] - ratio_B[1]))


@pytest.mark.parametrize(("how", "earlier", "method"), choose_by_default(QUICK, COMBINATIONS))
def test_first_preference_loss_is_ln_2(
    how: str, earlier: str, method: str, request_of: Request, trained: Trained
) -> None:
    lora = {} if method in ("full", "freeze") else {"rank": 8}
    request = request_of(method, how=how, adapter=trained(earlier), settings=lora)
    policy = build(request, with_reference=True)
    bare = logits(METHODS[request.config.method.type].load(request, request.base))
    assert (logits(policy.model) - bare).abs().max() > 1e-2  # the earlier adapter is there
    assert policy.facts["earlier"] == ("merge" if method in ("full", "freeze") else how)
    first = sigmoid_loss(policy)
    assert first.item() == pytest.approx(math.log(2), abs=1e-6)
    first.backward()
    assert any(value.grad is not None and value.grad.abs().sum() > 0 for value in policy.model.parameters())


@pytest.mark.parametrize("how", ["continue", "stack", "merge"])
def test_reference_stays_while_the_policy_moves(how: str, request_of: Request, trained: Trained) -> None:
    request = request_of("lora", how=how, adapter=trained("lora"), settings={"rank": 8, "dropout": 0.1})
    policy = build(request, with_reference=True)
    assert policy.reference is not None
    names = {name for name, value in policy.model.named_parameters() if value.requires_grad}
    assert names
    assert all(".default." in name for name in names)
    start = logits(policy.model)
    steps(policy, request)
    with policy.reference() as reference:
        assert torch.equal(reference(input_ids=IDS_BT).logits, start)
    assert {name for name, value in policy.model.named_parameters() if value.requires_grad} == names
    assert (logits(policy.model) - start).abs().max() > 1e-3


@pytest.mark.parametrize(
    "settings", [{}, {"target_modules": ("q_proj",), "layers": (1,)}, {"rslora": True, "modules_to_save": ("norm",)}]
)
@pytest.mark.parametrize("how", choose_by_default(["stack"], ["continue", "stack", "merge"]))
def test_what_is_saved_works_on_the_base_alone(
    how: str, settings: dict[str, Any], request_of: Request, trained: Trained, tmp_path: Path
) -> None:
    request = request_of("lora", how=how, adapter=trained("lora"), settings={"rank": 16, **settings})
    policy = build(request, with_reference=how == "continue")
    steps(policy, request)
    save(policy, request, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["r"] == policy.facts["saved_rank"] == (8 if how == "continue" else 24)
    assert config["base_model_name_or_path"] == request.base
    loaded = PeftModel.from_pretrained(
        METHODS[request.config.method.type].load(request, request.base), str(tmp_path / "out")
    )
    torch.testing.assert_close(logits(loaded), logits(policy.model), atol=2e-5, rtol=0)


def test_a_sum_is_stacked_on_again(request_of: Request, trained: Trained, tmp_path: Path) -> None:
    """sft -> dpo -> dpo, each on top: the third is a sum of three."""
    adapter = trained("lora")
    for at in range(2):
        request = request_of("lora", how="stack", adapter=adapter, settings={"rank": 8})
        policy = build(request, with_reference=False)
        steps(policy, request)
        adapter = tmp_path / str(at)
        save(policy, request, adapter)
    assert policy.facts["saved_rank"] == 24
    loaded = PeftModel.from_pretrained(METHODS[request.config.method.type].load(request, request.base), str(adapter))
    torch.testing.assert_close(logits(loaded), logits(policy.model), atol=2e-5, rtol=0)


def test_a_frozen_earlier_adapter_drops_nothing_out(request_of: Request, tmp_path: Path) -> None:
    request = request_of("lora", settings={"profile": "classic"})
    first = build(request, with_reference=False)
    steps(first, request)
    save(first, request, tmp_path / "first")
    policy = build(request_of("lora", how="stack", adapter=tmp_path / "first"), with_reference=True)
    assert sigmoid_loss(policy).item() == pytest.approx(math.log(2), abs=1e-6)
    policy = build(request_of("lora", adapter=tmp_path / "first"), with_reference=True)
    assert policy.facts["dropout"] == 0.05
    assert sigmoid_loss(policy).item() != pytest.approx(math.log(2), abs=1e-6)  # the trained one drops out


def test_a_continued_adapter_keeps_its_shape_and_says_so(request_of: Request, trained: Trained) -> None:
    policy = build(request_of("lora", adapter=trained("lora"), settings={"rank": 16}), with_reference=False)
    assert policy.facts["rank"] == 8
    assert policy.warnings == [
        "The earlier adapter has r 8, and keeps it; the settings say 16.",
        "The earlier adapter has lora_alpha 16.0, and keeps it; the settings say 32.0.",
    ]


def test_reward_continues_an_adapter_that_has_no_score(request_of: Request, trained: Trained) -> None:
    for how in ("continue", "stack", "merge"):
        request = request_of(
            "lora", head="reward", stage="reward", how=how, adapter=trained("lora"), settings={"rank": 8}
        )
        policy = build(request, with_reference=False)
        trainable = [name for name, value in policy.model.named_parameters() if value.requires_grad]
        assert [name for name in trainable if "score" in name]
        assert all(".default." in name for name in trainable)
        assert logits(policy.model).shape == (2, 1)


def test_lineage_of_a_chain(request_of: Request, tiny_model: Path, tmp_path: Path) -> None:
    """cpt (full) -> sft (lora) -> dpo (lora): the last one lists the base and both trainers, oldest first."""

    def run(name: str, request: Any, stage: str, parents: list[str]) -> Policy:
        policy = build(request, with_reference=False)
        steps(policy, request)
        save(policy, request, tmp_path / name)
        record = {
            "stage": stage,
            "method": request.config.method.type.value,
            "base_sha256": request.base_sha256,
            "parents": parents,
            "lineage": policy.lineage,
        }
        (tmp_path / name / "training.json").write_text(json.dumps(record))
        return policy

    def with_base(request: Any, sha256: str) -> Any:
        return type(request)(**{**vars(request), "base_sha256": sha256})

    run("cpt", with_base(request_of("full", stage="cpt"), "a" * 64), "cpt", [])
    shutil.copy(tiny_model / "tokenizer.json", tmp_path / "cpt")
    sft = request_of("lora", stage="sft", base=tmp_path / "cpt")
    run("sft", with_base(sft, "b" * 64), "sft", ["model-digest"])
    dpo = request_of("lora", stage="dpo", base=tmp_path / "cpt", adapter=tmp_path / "sft")
    policy = run("dpo", with_base(dpo, "b" * 64), "dpo", ["adapter-digest"])
    weights = hashlib.sha256((tmp_path / "sft" / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert policy.lineage == [
        {"stage": None, "method": None, "sha256": "a" * 64, "parents": []},
        {"stage": "cpt", "method": "full", "sha256": "b" * 64, "parents": []},
        {"stage": "sft", "method": "lora", "sha256": weights, "parents": ["model-digest"]},
    ]
    follower = with_base(request_of("lora", base=tmp_path / "cpt", adapter=tmp_path / "dpo"), "b" * 64)
    assert [entry["stage"] for entry in lineage(follower)] == [None, "cpt", "sft", "dpo"]


# Bad input


def test_an_adapter_of_another_base_is_refused(request_of: Request, trained: Trained, tmp_path: Path) -> None:
    folder = shutil.copytree(trained("lora"), tmp_path / "other")
    (folder / "training.json").write_text(json.dumps({"base_sha256": "a" * 64}))
    for method in ("lora", "full"):
        request = request_of(method, adapter=folder)
        with pytest.raises(Refused, match=r"R-BASE-MISMATCH config.base_model: .* base aaaaaaaaaaaa, .* bbbbbbbbbbbb"):
            build(type(request)(**{**vars(request), "base_sha256": "b" * 64}), with_reference=False)


def test_an_empty_folder_is_no_adapter(request_of: Request, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="E-ADAPTER-NOT-FOUND: There is no adapter in"):
        build(request_of("lora", adapter=tmp_path), with_reference=False)


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_an_adapter_with_other_weights_is_corrupt(
    change: str, request_of: Request, trained: Trained, tmp_path: Path
) -> None:
    folder = shutil.copytree(trained("lora"), tmp_path / "altered")
    weights = load_file(folder / "adapter_model.safetensors")
    if change == "missing":
        weights.pop(sorted(weights)[0])
    elif change == "shape":
        weights[sorted(weights)[0]] = torch.zeros(3, 3)
    else:
        weights["base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"] = torch.zeros(8, 64)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Corrupt, match=r"E-ADAPTER-INVALID: .*layers\.[07]\..*1 in all"):
        build(request_of("lora", adapter=folder), with_reference=False)


@pytest.mark.parametrize(("earlier", "method"), [("lora", "dora"), ("dora", "lora"), ("oft", "lora"), ("lora", "oft")])
def test_another_kind_cannot_continue(earlier: str, method: str, request_of: Request, trained: Trained) -> None:
    with pytest.raises(InvalidInput, match=f"E-ADAPTER-MISMATCH: .* of kind {earlier}, .* of kind {method}"):
        build(request_of(method, adapter=trained(earlier)), with_reference=False)


@pytest.mark.parametrize("how", ["stack", "merge"])
@pytest.mark.parametrize(("earlier", "method"), [("dora", "lora"), ("lora", "dora"), ("oft", "oft")])
def test_what_is_no_sum_is_refused(how: str, earlier: str, method: str, request_of: Request, trained: Trained) -> None:
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-MISMATCH: An adapter of kind (dora|oft) and another one"):
        build(request_of(method, how=how, adapter=trained(earlier)), with_reference=False)


def test_a_whole_module_in_both_is_refused(request_of: Request, tmp_path: Path) -> None:
    request = request_of("lora", settings={"modules_to_save": ("norm",)})
    save(build(request, with_reference=False), request, tmp_path / "first")
    again = request_of("lora", how="stack", adapter=tmp_path / "first", settings={"modules_to_save": ("norm",)})
    with pytest.raises(InvalidInput, match="E-ADAPTER-MISMATCH: Both adapters contain the whole module 'norm'"):
        build(again, with_reference=False)
