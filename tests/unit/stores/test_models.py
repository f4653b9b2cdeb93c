"""What a model's name means, and which folders are never loaded."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import Corrupt, InvalidInput, NotFound, TrainyardError
from trainyard.settings import Settings, load_settings
from trainyard.stores.models import (
    SHIPPED_STARTER,
    chat_template,
    chat_template_sha256,
    check_adapter_folder,
    check_model_folder,
    model_sha256,
    read_safetensors_header,
    resolve_model,
)


@pytest.fixture
def configured(home: Path) -> Settings:
    return load_settings()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smallest folder that passes: a config, a tokenizer and one tensor."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer.json").write_text("{}")
    write_safetensors(path / "model.safetensors", {"w": tensor(0, 8)}, 8)
    return path


def tensor(start: int, end: int, shape: list[Any] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - start) // 4] if shape is None else shape, "data_offsets": [start, end]}


def write_safetensors(path: Path, header: Any, data_bytes: int) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data_bytes))


def test_a_real_model_is_resolved_with_digest_and_parameters(tiny_model: Path, configured: Settings) -> None:
    source = resolve_model(str(tiny_model), configured)
    assert source.path == tiny_model.resolve()
    assert source.location == str(tiny_model.resolve())
    assert source.parameters is not None
    assert 50_000 < source.parameters < 500_000
    assert source.sha256 == model_sha256(tiny_model)


def test_the_starter_is_the_shipped_one_until_it_is_built_here(configured: Settings, tiny_model: Path) -> None:
    assert resolve_model("starter", configured).path == SHIPPED_STARTER
    root = configured.models / "starter"
    root.mkdir(parents=True)
    (root / "current").write_text("abc\n")
    assert resolve_model("starter", configured).path == SHIPPED_STARTER
    shutil.copytree(tiny_model, root / "abc")
    assert resolve_model("starter", configured).path == root / "abc"


def test_a_hub_name_is_passed_on(configured: Settings) -> None:
    source = resolve_model("no-such-org/no-such-model", configured)
    assert (source.path, source.location) == (None, "no-such-org/no-such-model")


def test_a_hub_name_in_the_cache_is_a_folder_and_is_checked(folder: Path, configured: Settings, tmp_path: Path) -> None:
    cached = tmp_path / "hub" / "models--org--tiny"
    shutil.copytree(folder, cached / "snapshots" / "rev1")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("rev1")
    # The Hub library reads its cache's place once, when it is imported: hence a process of its own.
    program = (
        "import sys; from trainyard.settings import load_settings; from trainyard.stores.models import resolve_model\n"
        "print(resolve_model('org/tiny', load_settings()).path)"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub")}
    completed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(completed.stdout.strip()) == cached / "snapshots" / "rev1"
    (cached / "snapshots" / "rev1" / "custom_generate").mkdir()
    refused = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert "E-MODEL-UNSAFE" in refused.stderr


@pytest.mark.parametrize(
    "name", ["", "nope", "../../nonexistent", "/nonexistent/model", "a/b/c", "a/..", "org/mo del", "a\0b"]
)
def test_an_unknown_name_says_what_is_allowed(name: str, configured: Settings) -> None:
    with pytest.raises(NotFound, match=r"E-MODEL-NOT-FOUND: .*neither `starter`, nor a folder"):
        resolve_model(name, configured)


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "model.pt", "weights.PKL", "consolidated.00.pth", "m.ckpt"])
def test_pickled_weights_are_refused(folder: Path, pickle: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / pickle).write_bytes(b"\x80\x04.")
    with pytest.raises(InvalidInput, match=rf"E-MODEL-UNSAFE: model has pickled weights \({pickle}\) and no safete"):
        check_model_folder(folder)


def test_a_pickle_beside_safetensors_is_never_read(folder: Path) -> None:
    (folder / "training_args.bin").write_bytes(b"\x80\x04.")
    assert check_model_folder(folder) == 2


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_remote_code_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text('{"model_type": "llama", "auto_map": {"AutoModel": "evil.Model"}}')
    with pytest.raises(InvalidInput, match=f"E-MODEL-UNSAFE: .*{name} has `auto_map`.*no setting allows it"):
        check_model_folder(folder)


def test_custom_generation_code_is_refused(folder: Path) -> None:
    (folder / "custom_generate").mkdir()
    with pytest.raises(InvalidInput, match=r"E-MODEL-UNSAFE: .*custom_generate"):
        check_model_folder(folder)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", None, "E-MODEL-INVALID: model has no config.json"),
        ("config.json", "[]", "E-MODEL-INVALID: model/config.json is not a JSON object"),
        ("config.json", "{", "E-MODEL-INVALID: model/config.json is not a JSON object"),
        ("config.json", "[" * 100_000, "E-MODEL-INVALID: model/config.json is not a JSON object"),
        ("config.json", "{}", "E-MODEL-INVALID: model/config.json names no model_type"),
        ("tokenizer.json", None, "E-MODEL-INVALID: model has no tokenizer"),
        ("model.safetensors", None, "E-MODEL-INVALID: model has no model.safetensors"),
        ("model.safetensors", "", "E-MODEL-INVALID: .*claims -1 bytes of a file of 0"),
    ],
)
def test_an_incomplete_folder_says_what_is_missing(folder: Path, name: str, content: str | None, expected: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(TrainyardError, match=expected):
        check_model_folder(folder)


@pytest.mark.parametrize(
    ("header", "data_bytes", "why"),
    [
        ({"a": tensor(0, 8), "b": tensor(4, 12)}, 12, "'b' overlaps the tensor before it"),
        ({"a": tensor(0, 8), "b": tensor(12, 16)}, 16, "'b' leaves a hole before it"),
        ({"a": tensor(0, 8)}, 12, "cover 8 of 12 bytes"),
        ({"a": tensor(0, 8)}, 4, "cover 8 of 4 bytes"),
        ({"a": tensor(0, 8, [3])}, 8, "'a' has 8 bytes and needs 12"),
        ({"a": tensor(0, 8, [-2])}, 8, "'a' is not a tensor"),
        ({"a": tensor(0, 8, [True, 2])}, 8, "'a' is not a tensor"),
        ({"a": tensor(0, 8, dtype="PICKLE")}, 8, "'a' is not a tensor"),
        ({"a": {"dtype": "F32"}}, 8, "'a' is not a tensor"),
        ({"a": 1}, 8, "'a' is not a tensor"),
        (b"[1, 2]", 0, "not an object"),
        (b"{nonsense", 0, "not JSON"),
        (b'{"a":1,"a":2}', 0, "not JSON"),
        (b"[" * 100_000, 0, "not JSON"),
    ],
)
def test_a_broken_safetensors_header_is_refused(tmp_path: Path, header: Any, data_bytes: int, why: str) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, header, data_bytes)
    with pytest.raises(Corrupt, match=f"E-MODEL-INVALID: .*not a sound safetensors file: .*{why}"):
        read_safetensors_header(path)


def test_a_header_that_claims_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 30) + b"{}")
    with pytest.raises(Corrupt, match="claims 1,073,741,824 bytes of a file of 10"):
        read_safetensors_header(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_name(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    path.write_bytes(content)
    try:
        assert isinstance(read_safetensors_header(path), dict)
    except Corrupt as error:
        assert error.code == "E-MODEL-INVALID"  # noqa: PT017  (either outcome is right)


def test_metadata_and_scalars_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = {"__metadata__": {"format": "pt"}, "s": tensor(0, 4, []), "e": tensor(4, 4, [0, 7])}
    write_safetensors(path, header, 4)
    assert set(read_safetensors_header(path)) == {"s", "e"}


def test_shards_are_found_by_the_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    write_safetensors(folder / "model-2.safetensors", {"v": tensor(0, 4)}, 4)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}))
    assert check_model_folder(folder) == 3
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: model has no model-2\.safetensors"):
        check_model_folder(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "model.bin", 7])
def test_an_index_cannot_point_outside(folder: Path, name: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: .*not a file name in this folder"):
        check_model_folder(folder)


def test_the_digest_follows_what_the_model_computes(folder: Path) -> None:
    before = model_sha256(folder)
    (folder / "manifest.json").write_text("{}")
    (folder / "README.md").write_text("hello")
    assert model_sha256(folder) == before
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert model_sha256(folder) != before


def test_digests_are_remembered_by_size_and_time(folder: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory" / "digests.json"
    first = model_sha256(folder, digests=memory)
    remembered = json.loads(memory.read_text())
    assert len(remembered) == 3
    memory.write_text(json.dumps(dict.fromkeys(remembered, "0" * 64)))
    assert model_sha256(folder, digests=memory) != first
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    assert len(json.loads(memory.read_text())) == 3
    model_sha256(folder, digests=memory)
    assert len(json.loads(memory.read_text())) == 4


@pytest.mark.parametrize("damage", ["", "{", "[]"])
def test_a_damaged_memory_of_digests_is_an_empty_one(folder: Path, tmp_path: Path, damage: str) -> None:
    memory = tmp_path / "digests.json"
    memory.write_text(damage)
    assert model_sha256(folder, digests=memory) == model_sha256(folder)


def test_the_chat_template_is_found_where_a_loader_finds_it(folder: Path) -> None:
    assert chat_template(folder) is None
    assert chat_template_sha256(folder) is None
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": "A"}, {"name": "rag"}]}))
    assert chat_template(folder) == "A"
    config.write_text(json.dumps({"chat_template": "B"}))
    assert chat_template(folder) == "B"
    (folder / "chat_template.jinja").write_text("C")
    assert chat_template(folder) == "C"


def test_adapters_are_held_to_the_same_rules(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-ADAPTER-INVALID"):
        check_adapter_folder(tmp_path)
    config = tmp_path / "adapter_config.json"
    config.write_text('{"peft_type": "LORA"}')
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: .*has no adapter_model\.safetensors"):
        check_adapter_folder(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(InvalidInput, match=r"E-MODEL-UNSAFE: .*adapter_model\.bin"):
        check_adapter_folder(tmp_path)
    write_safetensors(tmp_path / "adapter_model.safetensors", {"a": tensor(0, 8)}, 8)
    assert check_adapter_folder(tmp_path)["peft_type"] == "LORA"
    config.write_text('{"peft_type": "LORA", "auto_mapping": {"parent_library": "evil.module"}}')
    with pytest.raises(InvalidInput, match=r"E-MODEL-UNSAFE: .*names the library 'evil\.module'"):
        check_adapter_folder(tmp_path)
