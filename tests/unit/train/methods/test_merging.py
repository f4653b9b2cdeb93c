"""A base with the earlier adapter written in says the same as both did, or is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.train.methods.conftest import Request, Trained, logits
from trainyard.errors import TrainyardError
from trainyard.train.methods import adapters
from trainyard.train.methods.composition import merge_base, require_written
from trainyard.train.methods.loading import load_model
from trainyard.train.methods.table import METHODS, build


@pytest.mark.parametrize("method", ["lora", "dora", "oft"])
def test_merged_says_what_base_plus_adapter_says(method: str, request_of: Request, trained: Trained) -> None:
    policy = build(request_of(method, adapter=trained(method), settings={"rank": 8}), with_reference=False)
    request = request_of("full", adapter=trained(method))
    merged, _ = merge_base(request, METHODS[request.config.method.type])
    torch.testing.assert_close(logits(merged), logits(policy.model), atol=1e-5, rtol=0)


def test_a_broken_adapter_is_not_merged(request_of: Request, trained: Trained, tmp_path: Path) -> None:
    folder = shutil.copytree(trained("lora"), tmp_path / "broken")
    weights = load_file(folder / "adapter_model.safetensors")
    name = next(name for name in weights if "lora_B" in name)
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainyardError, match="E-MERGE: The adapter contains values that are not finite"):
        merge_base(request_of("full", adapter=folder), METHODS[request_of("full").config.method.type])


def test_a_sum_that_says_something_else_is_refused(
    request_of: Request, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "TOLERANCE", 1e-12)
    with pytest.raises(TrainyardError, match=r"E-MERGE: .* a logit moved by .*At most 1e-12 is allowed"):
        merge_base(request_of("full", adapter=trained("lora")), METHODS[request_of("full").config.method.type])


def test_a_written_model_that_answers_differently_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "written")
    model = load_model(str(folder), "causal", {"dtype": torch.float32, "use_safetensors": True}).eval()
    saved_BTV = adapters.probe_logits(model)
    require_written(folder, torch.float32, saved_BTV)
    (path,) = folder.glob("*.safetensors")
    weights = load_file(path)
    name = next(name for name in weights if "mlp" in name)
    save_file({**weights, name: weights[name] * 3}, path, metadata={"format": "pt"})
    with pytest.raises(TrainyardError, match="E-MERGE: The model was written, and loaded again"):
        require_written(folder, torch.float32, saved_BTV)
