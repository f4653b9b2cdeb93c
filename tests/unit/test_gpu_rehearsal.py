"""The GPU tests run, here on a CPU with tiny shapes, and import only what a bare CUDA machine has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.fast import OWN, find_file, read_imports

FOLDERS = ("tests/gpu", "benchmarks/gpu")
BARE = {
    *("torch", "transformers", "peft", "accelerate", "pyarrow", "numpy", "safetensors", "tokenizers", "pytest"),
    *("psutil", "yaml", "jinja2", "httpx", "regex", "xxhash", "huggingface_hub", "rich", "packaging"),
}
"""What is installed on a CUDA machine without network that trainings are measured on."""
WHEELS = {
    *("pydantic", "pydantic_core", "pydantic_settings", "msgspec", "orjson", "rfc8785", "tenacity"),
    *("jsonschema", "referencing", "rensa", "google_crc32c"),
}
"""What `make gpu-wheels` takes along and every test needs; others are asked for by the tests that need them."""
WORKERS = "contract"
"""How a worker in another interpreter imports what is next to it."""
LIMIT_S = 540


def rehearse(*arguments: str, device: str = "cpu") -> str:
    """The output of the GPU tests in a process of its own; fails with it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TRAINYARD_GPU_TESTS_DEVICE": device}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def list_imported_packages(folder: str) -> dict[str, str]:
    """Package outside the repository -> the file whose import at module level brings it."""
    waiting = sorted((REPOSITORY / folder).glob("*.py"))
    seen, packages = set(waiting), dict[str, str]()
    while waiting:
        path = waiting.pop()
        for name in read_imports(path):
            top = name.partition(".")[0]
            if top not in (*OWN, "benchmarks", WORKERS):
                packages.setdefault(top, path.relative_to(REPOSITORY).as_posix())
                continue
            file = find_file(name)
            if file and file not in seen:
                seen.add(file)
                waiting.append(file)
    return {name: path for name, path in packages.items() if name not in sys.stdlib_module_names}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_bare_cuda_machine_has_what_is_imported(folder: str) -> None:
    packages = list_imported_packages(folder)
    assert {"torch", "transformers", "pydantic"} <= packages.keys()
    assert {name: path for name, path in packages.items() if name not in BARE | WHEELS} == {}


@pytest.mark.slow
def test_all_gpu_tests_run_on_a_cpu() -> None:
    output = rehearse()
    assert " passed" in output
    assert "no CUDA device" not in output


@pytest.mark.slow
def test_without_a_card_every_gpu_test_is_skipped_and_says_why() -> None:
    output = rehearse(device="")
    assert " passed" not in output
    assert "TRAINYARD_GPU_TESTS_DEVICE=cpu rehearses" in output
