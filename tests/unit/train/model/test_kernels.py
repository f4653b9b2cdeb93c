"""Liger's kernels: refused where they cannot run, never imported there, and applied to the families that it knows."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from trainyard.errors import Unavailable
from trainyard.spec.training import EngineSettings
from trainyard.train.model.precision import compile_blocks, fuse_blocks, require_liger


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_liger_is_refused_without_a_gpu_and_is_not_imported(device: str) -> None:
    with pytest.raises(Unavailable, match=rf"E-PACKAGE-MISSING: Liger's .* a CUDA device, not a {device}.*kernels"):
        fuse_blocks(SimpleNamespace(config=SimpleNamespace(model_type="llama")), device)
    assert not [name for name in sys.modules if name.startswith(("liger_kernel", "triton"))]


def test_liger_without_its_package_is_refused_with_the_line_that_installs_it() -> None:
    with pytest.raises(Unavailable, match=r"is not installed\.") as refused:
        require_liger("cuda")
    assert refused.value.do == "Run `pip install 'liger-kernel==0.8.5'`."


def test_a_cpu_compiles_nothing(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with pytest.raises(Unavailable, match=r"E-PACKAGE-MISSING: engine\.compile was requested.* a cpu it does not pay"):
        compile_blocks(model, "cpu")
    assert not any(module._compiled_call_impl for module in model.modules())


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.:DeprecationWarning")  # of torch's own compiler
def test_each_block_is_compiled_and_keeps_the_names_of_its_weights(tiny_model: Path) -> None:
    """As on a GPU: nothing is compiled before the first batch, so this needs none."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    before = list(model.state_dict())
    assert compile_blocks(model, "cuda") == 2
    assert [name for name, module in model.named_modules() if module._compiled_call_impl] == [
        "model.layers.0", "model.layers.1",
    ]  # fmt: skip
    assert list(model.state_dict()) == before
    with pytest.raises(Unavailable, match="The model has no blocks of transformers"):
        compile_blocks(torch.nn.Linear(2, 2), "cuda")


def test_torch_s_own_kernels_are_in_no_spec_that_does_not_name_others() -> None:
    assert not {"kernels", "compile"} & EngineSettings().model_dump().keys()
    assert EngineSettings(kernels="liger").model_dump()["kernels"] == "liger"
