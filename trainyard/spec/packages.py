"""Packages beside the core ones that an optimizer or a number format needs, so that a plan can say what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization


class Package(NamedTuple):
    """What has to be importable, and what brings it."""

    modules: tuple[str, ...]
    """The package itself first, then what it needs and does not bring."""
    install: str
    """What stands between the quotes of `pip install '…'`: the versions that ran with this product's torch."""

    def missing(self, is_here: Callable[[str], bool]) -> list[str]:
        return [name for name in self.modules if not is_here(name)]


TORCH, TRANSFORMERS = Package(("torch",), "torch"), Package(("transformers",), "transformers")
BITSANDBYTES = Package(("bitsandbytes",), "bitsandbytes>=0.50")
TORCHAO = Package(("torchao",), "torchao==0.18.0")
GCS = Package(("google.cloud.storage",), "trainyard[gcs]")
"""The client of `gs://` addresses."""
GPTQMODEL = Package(("gptqmodel", "optimum"), "gptqmodel==7.6.0' 'optimum==2.3.0")

OPTIMIZER_PACKAGES: dict[Optimizer, Package] = {
    Optimizer.ADAMW: TORCH,
    Optimizer.SGD: TORCH,
    Optimizer.ADAMW_8BIT: BITSANDBYTES,
    Optimizer.PAGED_ADAMW_8BIT: BITSANDBYTES,
    Optimizer.ADAFACTOR: TRANSFORMERS,
    Optimizer.LION: BITSANDBYTES,
    Optimizer.MUON: TORCH,
    Optimizer.SCHEDULE_FREE_ADAMW: Package(("schedulefree",), "schedulefree==1.4.1"),
    Optimizer.GALORE: Package(("pytorch_optimizer",), "pytorch_optimizer==4.1.0"),
    Optimizer.ADEMAMIX: BITSANDBYTES,
}
FORMAT_PACKAGES: dict[Quantization, Package] = {
    Quantization.NF4: BITSANDBYTES,
    Quantization.FP4: BITSANDBYTES,
    Quantization.INT8: BITSANDBYTES,
    Quantization.HQQ_INT4: Package(("hqq", "termcolor", "einops"), "hqq==0.2.8.post1"),
    Quantization.TORCHAO_INT8: TORCHAO,
    Quantization.GPTQ: GPTQMODEL,
    Quantization.AWQ: GPTQMODEL,
    Quantization.FP8: TORCHAO,
    Quantization.GGUF: Package(("gguf",), "gguf==0.19.0"),
}
