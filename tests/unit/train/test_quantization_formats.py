"""Each quantization format alone: train three steps through it, save, load, continue; or what refuses it.

nf4, fp4, int8 and gguf are of packages that the product has. The others are installed into an environment of their own,
on top of the product's: `make test-backends` runs these. It is made in `.trainyard/envs/formats`, or in the folder that
FORMAT_ENVS names, and kept for the next run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.conftest import REPOSITORY
from tests.small_jobs import Jobs, train_here, write_data
from tools import format_program
from trainyard.errors import InvalidInput, Unavailable
from trainyard.serve.conversion.between import Layout
from trainyard.serve.conversion.between import convert as convert_adapter
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.quantization import Quantization
from trainyard.train.model.precision import choose_fp8
from trainyard.train.quantization import CPU, load_config

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers
ENVIRONMENTS = Path(os.environ.get("FORMAT_ENVS", REPOSITORY / ".trainyard" / "envs" / "formats"))
SAME_LOSS = 2e-6
"""Of a step after loading: the rows of a step are summed in another order."""
MOST_ERROR = 0.3
"""Of the logits of a tiny random model in 4 bits, as a part of them."""
HERE = (Quantization.NF4, Quantization.FP4, Quantization.INT8)
INSTALLED = (Quantization.HQQ_INT4, Quantization.TORCHAO_INT8, Quantization.GPTQ, Quantization.AWQ)
Report = dict[str, Any]


def require_registry(text: str) -> None:
    """Skip where pip could not look for a package; any other failure of an installation is one of the test."""
    lines = [line for line in text.splitlines() if "Connection" in line or "No matching distribution" in line]
    if lines:
        pytest.skip(f"the package registry cannot be reached: {lines[-1].strip()[:200]}")


@pytest.fixture(scope="module")
def environment() -> Callable[[Quantization], Path]:
    """The interpreter of an environment with a format's package, by the line that a refusal tells a user to run."""

    def make(format: Quantization) -> Path:
        install = format.facts.package.install
        venv = ENVIRONMENTS / f"{format.facts.package.name}-{hashlib.sha256(install.encode()).hexdigest()[:8]}"
        python, done = venv / "bin" / "python", venv / "installed"
        if not done.is_file():
            shutil.rmtree(venv, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            (site_packages,) = venv.glob("lib/python*/site-packages")
            (site_packages / "product.pth").write_text(sysconfig.get_path("purelib") + "\n")
            # What is in the product's environment counts as installed there; an own version of it has precedence.
            line = [str(python), "-m", "pip", "install", "--no-input", *install.replace("'", "").split()]
            ran = subprocess.run(line, capture_output=True, text=True, check=False)
            require_registry(ran.stderr)
            assert ran.returncode == 0, ran.stderr[-2000:]
            done.touch()
        return python

    return make


def run_in(python: Path, format: Quantization, base: Path, folder: Path) -> Report:
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    argv = [str(python), "-m", "tools.format_program", format.value, str(base), str(folder)]
    # Elsewhere than in the repository: gptqmodel writes a folder `logs` where it runs.
    ran = subprocess.run(argv, cwd=folder.parent, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    report: Report = json.loads(ran.stdout.strip().splitlines()[-1])
    return report


def require_trained(format: Quantization, report: Report) -> None:
    assert len(report["losses"]) == format_program.STEPS
    assert report["losses"][-1] < report["losses"][0]
    assert report["reloaded_loss"] == pytest.approx(report["next_loss"], abs=SAME_LOSS)
    assert report["moved"] > 1e-3
    assert 0 < report["error"] < MOST_ERROR
    assert report["quantization"] == format.value
    assert set(report["versions"]) >= {"torch", "transformers", "peft", *format.facts.package.modules}
    assert {"adapter_config.json", "adapter_model.safetensors", "training.json"} <= set(report["result"])


@pytest.mark.parametrize("format", HERE)
def test_a_format_of_the_product_trains_is_saved_and_continues(
    format: Quantization, tiny_model: Path, tmp_path: Path
) -> None:
    require_trained(format, format_program.run(format, tiny_model, tmp_path))


@pytest.mark.backends
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("format", INSTALLED)
def test_an_installed_format_trains_is_saved_and_continues(
    format: Quantization, environment: Callable[[Quantization], Path], tiny_model: Path, tmp_path: Path
) -> None:
    require_trained(format, run_in(environment(format), format, tiny_model, tmp_path))


@pytest.mark.backends
@pytest.mark.timeout(1200)
def test_emulated_float8_trains_is_saved_in_full_precision_and_loads(
    environment: Callable[[Quantization], Path], tiny_model: Path, tmp_path: Path
) -> None:
    report = run_in(environment(Quantization.FP8), Quantization.FP8, tiny_model, tmp_path)
    assert report["losses"][-1] < report["losses"][0]
    assert report["reloaded_loss"] == pytest.approx(report["next_loss"], abs=SAME_LOSS)
    assert (report["layers"], report["dtypes"]) == (14, ["torch.float32"])


def test_float8_is_refused_on_a_cpu_and_as_the_format_of_a_base() -> None:
    """Its products are those of a GPU; emulated ones are slower than fp32, so a training does not take them."""
    with pytest.raises(Unavailable, match=r"E-PACKAGE-MISSING: fp8 training was .* a cpu does not multiply fp8"):
        choose_fp8("torchao", Device.CPU)
    with pytest.raises(InvalidInput, match="E-QUANTIZATION: A base cannot be in fp8"):
        load_config(Quantization.FP8, CPU)


def test_gguf_is_refused_for_training_and_holds_a_trained_adapter(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-QUANTIZATION: A base cannot be in gguf"):
        load_config(Quantization.GGUF, CPU)
    jobs = Jobs(tiny_model, write_data(tmp_path / "data"), tmp_path / "locks")
    hyper = {"max_steps": format_program.STEPS}
    trained = train_here(jobs(backend="native", method="lora", hyperparameters=hyper), tmp_path / "job").folder
    convert_adapter(trained, tmp_path / "adapter.gguf", Layout.GGUF, tiny_model)
    convert_adapter(tmp_path / "adapter.gguf", tmp_path / "again", Layout.PEFT, tiny_model)
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (trained, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)


def test_every_format_has_its_test() -> None:
    assert {*HERE, *INSTALLED, Quantization.FP8, Quantization.GGUF} == set(Quantization)
