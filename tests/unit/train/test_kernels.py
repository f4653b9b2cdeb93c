"""Liger's kernels: refused where they cannot run, never imported there, and applied to the families that it knows."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from trainyard.errors import Unavailable
from trainyard.spec.training import EngineSettings
from trainyard.train.precision import fuse_blocks, require_liger


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_liger_is_refused_without_a_gpu_and_is_not_imported(device: str) -> None:
    with pytest.raises(Unavailable, match=rf"E-PACKAGE-MISSING: Liger's .* a CUDA device, not a {device}.*kernels"):
        fuse_blocks(SimpleNamespace(config=SimpleNamespace(model_type="llama")), device)
    assert not [name for name in sys.modules if name.startswith(("liger_kernel", "triton"))]


def test_liger_without_its_package_is_refused_with_the_line_that_installs_it() -> None:
    with pytest.raises(Unavailable, match=r"is not installed\.") as refused:
        require_liger("cuda")
    assert refused.value.do == "Run `pip install 'liger-kernel==0.8.5'`."


def test_torch_s_own_kernels_are_in_no_spec_that_does_not_name_others() -> None:
    assert "kernels" not in EngineSettings().model_dump()
    assert EngineSettings(kernels="liger").model_dump()["kernels"] == "liger"
