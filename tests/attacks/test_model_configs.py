"""Model folders whose config takes orders: kernels to download, code in parts, sizes that no machine has."""

from __future__ import annotations

import ast
import json
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.errors import Corrupt, InvalidInput, LimitExceeded
from trainyard.stores.models import check_model_folder
from trainyard.train.methods.loading import require_memory

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
SIZES: dict[str, dict[str, Any]] = {
    "width": {"hidden_size": 10**9},
    "depth": {"num_hidden_layers": 10**9},
    "vocabulary": {"vocab_size": 10**12},
    "heads": {"num_attention_heads": 10**9},
    "both": {"hidden_size": 2048, "intermediate_size": 20_000, "num_hidden_layers": 9999},
    "positions": {"max_position_embeddings": 10**15},
    "negative": {"num_hidden_layers": -1},
    "text": {"hidden_size": "64"},
    "truth": {"hidden_size": True},
    "fraction": {"vocab_size": 1e9},
    "list": {"intermediate_size": [128, 10**9]},
    "part": {"text_config": {"hidden_size": 10**9}},
}
KERNELS: list[dict[str, Any]] = [
    {"attn_implementation": "kernels-community/evil"},
    {"_attn_implementation": "kernels-community/evil"},
    {"attn_implementation": "flash_attention_3"},
    {"attn_implementation": "paged|sdpa"},
    {"attn_implementation": {"text_config": "org/kernel@main"}},
    {"attn_implementation": ["sdpa"]},
    {"text_config": {"attn_implementation": "kernels-community/evil"}},
    {"_experts_implementation": "org/kernel"},
]


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def rewrite(model: Path, name: str, **fields: Any) -> None:
    path = model / name
    config = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**config, **fields}))


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_the_weights_do_not_have_are_refused(model: Path, name: str) -> None:
    rewrite(model, "config.json", **SIZES[name])
    started = time.process_time()
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: The sizes in model/config\.json do not fit the weights"):
        check_model_folder(model)
    assert time.process_time() - started < 1


def test_the_real_sizes_pass(model: Path) -> None:
    rewrite(model, "config.json", head_dim=None, attn_implementation=None, _attn_implementation="sdpa")
    assert check_model_folder(model) > 50_000


@pytest.mark.parametrize("fields", KERNELS)
def test_a_kernel_from_elsewhere_is_refused(model: Path, fields: dict[str, Any]) -> None:
    rewrite(model, "config.json", **fields)
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: model/config\.json asks for"):
        check_model_folder(model)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_code_in_a_part_of_a_config_is_refused(model: Path, name: str) -> None:
    rewrite(model, name, parts=[{"text_config": {"auto_map": {"AutoModel": "evil--model.Evil"}}}])
    with pytest.raises(InvalidInput, match="E-MODEL-UNSAFE"):
        check_model_folder(model)


def test_a_config_that_is_nested_deeply_is_refused(model: Path) -> None:
    nested: dict[str, Any] = {}
    for _ in range(90):
        nested = {"a": nested}
    rewrite(model, "config.json", part=nested)
    with pytest.raises(InvalidInput, match="E-MODEL-INVALID"):
        check_model_folder(model)


@pytest.mark.faults
@pytest.mark.parametrize("fields", [{"hidden_size": 10**9}, {"attn_implementation": "kernels-community/evil"}])
def test_the_model_server_ends_with_a_code_before_it_takes_memory(model: Path, fields: dict[str, Any]) -> None:
    rewrite(model, "config.json", **fields)
    command = [sys.executable, "-m", "trainyard.serve.server", "--model", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 5
    assert any(line.startswith("E-MODEL-") for line in done.stderr.splitlines()), (
        done.stderr
    )  # libraries may warn first
    assert "Traceback" not in done.stderr


MODEL_CLASSES = ("AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoModel", "kind", "KINDS[head]")
ELSEWHERE = {"trainyard/workers/trainyard_worker/unsloth_engine.py"}
"""unsloth chooses its own kernels in its own environment; the folder was checked before."""


def find_loads(path: Path) -> list[tuple[str, int, bool]]:
    """(class, line, whether the attention is passed) of every call in a file that builds a transformers model."""
    loads = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr in ("from_pretrained", "from_config") and owner.split(".")[-1] in MODEL_CLASSES:
                passed = any(keyword.arg == "attn_implementation" for keyword in node.keywords)
                loads.append((owner, node.lineno, passed))
    return loads


def test_every_model_of_the_product_is_loaded_with_an_attention_that_we_name() -> None:
    calls = {
        f"{path.relative_to(REPOSITORY)}:{line}": passed
        for path in sorted((REPOSITORY / "trainyard").rglob("*.py"))
        if str(path.relative_to(REPOSITORY)) not in ELSEWHERE
        for _, line, passed in find_loads(path)
    }
    assert len(calls) >= 5
    assert [location for location, passed in calls.items() if not passed] == []


def test_a_model_that_does_not_fit_is_refused_before_memory_is_taken(model: Path) -> None:
    """A sparse file of 64 TiB, whose header is in order, takes no disk and would take all the memory."""
    tensors = {"model.embed_tokens.weight": {"dtype": "F32", "shape": [2**44], "data_offsets": [0, 2**46]}}
    header = json.dumps(tensors).encode()
    with (model / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + 2**40)
    with pytest.raises(Corrupt, match="E-MODEL-INVALID"):
        check_model_folder(model)
    tensors["model.embed_tokens.weight"] |= {"shape": [2**38], "data_offsets": [0, 2**40]}
    header = json.dumps(tensors).encode()
    with (model / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + 2**40)
    with pytest.raises(LimitExceeded, match=r"E-MEMORY-FIT: The model in model needs 1024\.0 GiB"):
        require_memory(model, torch.float32)
