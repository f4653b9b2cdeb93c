"""Merging says the same as base plus adapter, or leaves nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.unit.train.methods.conftest import Request, Trained, logits
from trainyard.errors import Conflict, InvalidInput, Refused, TrainyardError
from trainyard.train.methods.merging import merge
from trainyard.train.methods.qlora import load_quantised
from trainyard.train.methods.table import METHODS, build


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("method", ["lora", "qlora", "dora", "lora_plus", "oft"])
def test_merged_says_what_base_plus_adapter_says(
    method: str, request_of: Request, trained: Trained, tiny_model: Path, tmp_path: Path
) -> None:
    facts = merge(str(tiny_model), [trained(method)], tmp_path / "merged")
    assert 0 < facts["divergence"] < 1e-5
    assert facts["saved_divergence"] == facts["divergence"]
    assert facts["dtype"] == "float32"
    kind = "lora" if method == "qlora" else method  # its adapter is an ordinary one
    policy = build(request_of(kind, adapter=trained(method), settings={"rank": 8}), with_reference=False)
    merged = load(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), logits(policy.model), atol=1e-5, rtol=0)
    base = METHODS[request_of("full").config.method.type].load(request_of("full"), str(tiny_model))
    assert (logits(merged) - logits(base)).abs().max() > 1e-2
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template
    assert not list(tmp_path.glob(".*"))


def test_bfloat16_is_rounded_once_and_reported(trained: Trained, tiny_model: Path, tmp_path: Path) -> None:
    facts = merge(str(tiny_model), [trained("lora")], tmp_path / "merged", dtype=torch.bfloat16)
    assert facts["divergence"] < 1e-5 < facts["saved_divergence"] < 0.1
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"


def test_adapters_are_merged_in_order(request_of: Request, trained: Trained, tiny_model: Path, tmp_path: Path) -> None:
    both = merge(str(tiny_model), [trained("lora"), trained("dora")], tmp_path / "both")
    assert both["divergence"] < 1e-5
    merge(str(tiny_model), [trained("lora")], tmp_path / "first")
    merge(str(tmp_path / "first"), [trained("dora")], tmp_path / "second")
    assert torch.equal(logits(load(tmp_path / "both")), logits(load(tmp_path / "second")))


def test_a_quantised_base_is_refused(request_of: Request, trained: Trained, tmp_path: Path) -> None:
    request = request_of("qlora")
    load_quantised(request, request.base).save_pretrained(tmp_path / "four-bit")
    with pytest.raises(InvalidInput, match=r"E-MERGE: The base .* is quantised.* full-precision weights"):
        merge(str(tmp_path / "four-bit"), [trained("lora")], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_broken_adapter_is_not_merged(trained: Trained, tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained("lora"), tmp_path / "broken")
    weights = load_file(folder / "adapter_model.safetensors")
    name = next(name for name in weights if "lora_B" in name)
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainyardError, match="E-MERGE: The adapter contains values that are not finite"):
        merge(str(tiny_model), [folder], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_tolerance_is_the_callers(trained: Trained, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match=r"E-MERGE: .* a logit moved by .*At most 1e-12 is allowed"):
        merge(str(tiny_model), [trained("lora")], tmp_path / "merged", tolerance=1e-12)


def test_nothing_is_overwritten(trained: Trained, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "merged").mkdir()
    with pytest.raises(Conflict, match="E-FILE-EXISTS"):
        merge(str(tiny_model), [trained("lora")], tmp_path / "merged")


def test_adapters_of_two_bases_are_refused(trained: Trained, tiny_model: Path, tmp_path: Path) -> None:
    folders = [shutil.copytree(trained("lora"), tmp_path / name) for name in ("one", "two")]
    for folder, digest in zip(folders, ("a" * 64, "b" * 64), strict=True):
        (folder / "training.json").write_text(json.dumps({"base_sha256": digest}))
    with pytest.raises(Refused, match="R-BASE-MISMATCH"):
        merge(str(tiny_model), folders, tmp_path / "merged")
