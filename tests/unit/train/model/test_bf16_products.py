"""On a CPU without bf16 instructions nothing multiplies bf16, whatever the weights are stored in.

Such a product is a scalar loop on one thread: one of them in a step makes the step ten times as long. The capability is
switched off by oneDNN's own variable; every product that torch dispatches is looked at.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from tests.small_jobs import Jobs, train_here
from trainyard.evals.model import load_network
from trainyard.serve.inference import Generation, ModelRunner
from trainyard.spec.axes.data import Port

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "scaled_dot_product", "einsum", "mv")


class Products(TorchDispatchMode):
    """The products of this thread, by the dtype of their first tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.rpartition("::")[2].lstrip("_")
        if name.startswith(PRODUCTS):
            tensors = [value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()]
            self.dtypes |= {tensor.dtype for tensor in tensors}
        return func(*args, **(kwargs or {}))


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[Products]:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    with Products() as seen:
        yield seen


@pytest.fixture
def halved(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model with its weights stored in bf16, as the starter and most models of the Hub are."""
    folder = tmp_path / "halved"
    shutil.copytree(tiny_model, folder)
    weights = {name: value.to(torch.bfloat16) for name, value in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"float32"', '"bfloat16"'))
    assert "bfloat16" in (folder / "config.json").read_text()
    return folder


def test_the_recorder_sees_bf16(products: Products) -> None:
    torch.ones(2, 2, dtype=torch.bfloat16) @ torch.ones(2, 2, dtype=torch.bfloat16)
    assert products.dtypes == {torch.bfloat16}


@pytest.mark.parametrize(
    "config",
    [
        {"method": "full", "hyperparameters": {"optimizer": "muon"}},
        {"method": "lora"},
        {"method": "qlora", "quantization": "nf4"},
        {"method": "qlora", "quantization": "int8"},
    ],
    ids=["muon", "lora", "nf4", "int8"],
)
@pytest.mark.filterwarnings("ignore")
def test_training(jobs: Jobs, halved: Path, tmp_path: Path, products: Products, config: dict[str, Any]) -> None:
    hyper = {"max_steps": 2, "precision": "auto", **config.get("hyperparameters", {})}
    job = jobs(Port.SFT, base=halved, **{**config, "backend": "native", "hyperparameters": hyper})
    ran = train_here(job, tmp_path / "run")
    assert products.dtypes == {torch.float32}
    assert (ran.record["precision"], ran.record["precision_why"]) == ("fp32", "this cpu has no native bf16")
    if hyper.get("optimizer") == "muon":
        assert ran.record["newton_schulz"] == "fp32"


def test_evaluation_and_serving(halved: Path, products: Products) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = load_network(str(halved), "cpu")
        network(input_ids=torch.tensor([[1, 2, 3]]))
        engine = ModelRunner(halved)
        steps = list(engine.generate(Generation(prompt=[5, 6, 7], max_tokens=3)))
    assert steps
    assert products.dtypes == {torch.float32}
