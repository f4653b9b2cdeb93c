"""Packages that an optimizer or a quantization format needs besides the core ones, so that a plan can name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Package(NamedTuple):
    """Required modules, and the package that brings them."""

    modules: tuple[str, ...]
    """The package itself first, then what it needs and does not bring."""
    install: str
    """The text between the quotes of `pip install '…'`: the versions that ran with this product's torch."""

    @property
    def name(self) -> str:
        return self.modules[0]

    def missing(self, is_here: Callable[[str], bool]) -> list[str]:
        return [name for name in self.modules if not is_here(name)]


TORCH, TRANSFORMERS = Package(("torch",), "torch"), Package(("transformers",), "transformers")
BITSANDBYTES = Package(("bitsandbytes",), "bitsandbytes>=0.50")
TORCHAO = Package(("torchao",), "torchao==0.18.0")
GCS = Package(("google.cloud.storage",), "trainyard[gcs]")
"""The client of `gs://` addresses."""
BUCKETS: Mapping[str, Package] = {
    "gs": GCS, "s3": Package(("s3fs",), "trainyard[s3]"), "az": Package(("adlfs",), "trainyard[azure]"),
}  # fmt: skip
"""Scheme of an address of data in a bucket -> its client."""
SCHEDULE_FREE = Package(("schedulefree",), "schedulefree==1.4.1")
GALORE = Package(("pytorch_optimizer",), "pytorch_optimizer==4.1.0")
TORCHFT = Package(("torchft",), "torchft==0.2.0")
HQQ = Package(("hqq", "termcolor", "einops"), "hqq==0.2.8.post1")
LIGER = Package(("liger_kernel",), "liger-kernel==0.8.5")
GGUF = Package(("gguf",), "gguf==0.19.0")
GPTQMODEL = Package(("gptqmodel", "optimum"), "gptqmodel==7.6.0' 'optimum==2.3.0")
