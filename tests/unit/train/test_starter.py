"""The starter model: built once, whole or not at all, a model like any other afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainyard.errors import InvalidInput, NotFound, TrainyardError
from trainyard.settings import load_settings
from trainyard.stores.artifacts import file_sha256
from trainyard.stores.models import ModelSource, chat_template, resolve_model
from trainyard.train.starter import CHAT_TEMPLATE, MANIFEST, Recipe, build_starter, starter_key
from trainyard.train.starter.corpus import corpus_sources

TRY_MODEL = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
masked = tokenizer.apply_chat_template(turns, return_dict=True, return_assistant_tokens_mask=True)
kept = [token for token, mark in zip(masked["input_ids"], masked["assistant_masks"]) if mark]
text = "Grüße, naïve 日本 \\n\\t x=1"
print(json.dumps({
    "assistant": tokenizer.decode(kept), "round_trip": tokenizer.decode(tokenizer(text)["input_ids"]) == text,
    "vocabulary": len(tokenizer), "parameters": sum(p.numel() for p in model.parameters()),
    "eos": model.generation_config.eos_token_id, "pad": model.generation_config.pad_token_id,
    "pre_tokenizer": json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"],
    "finite": all(bool(torch.isfinite(p).all()) for p in model.parameters()),
}))
"""


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    (folder / "page.md").write_text("# A page\n\nIt has a few words.\n")
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, docs: Path) -> tuple[Path, ModelSource, list[tuple[float, str]]]:
    """A starter of eight steps, its home and what was reported."""
    home, reports = tmp_path_factory.mktemp("starter"), []
    source = build_starter(home, seconds=1, threads=1, docs=docs, report=lambda *told: reports.append(told))
    return home, source, reports


def test_it_is_resolved_by_its_name(built: tuple[Path, ModelSource, Any]) -> None:
    home, source, _ = built
    assert resolve_model("starter", load_settings(home=home)).sha256 == source.sha256
    assert source.parameters is not None
    assert 4_500_000 < source.parameters < 5_500_000


def test_the_manifest_says_what_went_in(built: tuple[Path, ModelSource, Any], docs: Path) -> None:
    source = built[1]
    assert source.path is not None
    manifest = json.loads((source.path / "manifest.json").read_text())
    assert manifest["key"] == source.path.name
    assert manifest["sources"]["docs/page.md"] == file_sha256(docs / "page.md")
    assert manifest["recipe"]["steps"] == 8
    assert manifest["tokens"] == 8 * 2048
    first, last = manifest["losses"][0][1], manifest["losses"][-1][1]
    assert last < first < 9.5
    assert {"python", "torch", "transformers"} == set(manifest["versions"])


def test_progress_is_reported_to_the_end(built: tuple[Path, ModelSource, list[tuple[float, str]]]) -> None:
    reports = built[2]
    fractions = [fraction for fraction, _ in reports]
    assert fractions == sorted(fractions)
    assert reports[-1] == (1.0, "the starter model is ready")
    assert any("loss" in text for _, text in reports)


def test_a_second_call_builds_nothing(built: tuple[Path, ModelSource, Any], docs: Path) -> None:
    home, source, _ = built
    made = (Path(source.location) / MANIFEST).stat().st_mtime_ns
    assert build_starter(home, seconds=1, docs=docs) == source
    assert (Path(source.location) / MANIFEST).stat().st_mtime_ns == made


def test_it_loads_as_any_other_model(built: tuple[Path, ModelSource, Any]) -> None:
    source = built[1]
    asked = subprocess.run(
        [sys.executable, "-c", TRY_MODEL, str(source.path)], capture_output=True, text=True, check=True
    )
    facts = json.loads(asked.stdout.splitlines()[-1])
    assert facts["assistant"] == "Yo<|im_end|>"
    assert facts["round_trip"] is True
    assert facts["vocabulary"] == 4096
    assert facts["parameters"] == source.parameters
    assert (facts["eos"], facts["pad"], facts["finite"]) == ([3, 1], 0, True)
    assert facts["pre_tokenizer"]["type"] == "ByteLevel"
    assert facts["pre_tokenizer"]["use_regex"] is True
    assert source.path is not None
    assert chat_template(source.path) == CHAT_TEMPLATE


def test_the_key_follows_recipe_and_corpus(docs: Path) -> None:
    sources = corpus_sources(docs)
    key = starter_key(Recipe(steps=8), sources)
    assert key == starter_key(Recipe(steps=8), list(sources))
    assert key != starter_key(Recipe(steps=9), sources)
    assert key != starter_key(Recipe(steps=8), sources[:-1])


def test_the_small_one_has_a_name_and_a_place_of_its_own(
    built: tuple[Path, ModelSource, Any], docs: Path, tmp_path: Path
) -> None:
    here, folder = load_settings(home=tmp_path), tmp_path / "models" / "starter-small"
    with pytest.raises(NotFound, match=r"E-MODEL-STARTER: There is no starter-small model yet.*starter build --small"):
        resolve_model("starter-small", here)
    shutil.copytree(Path(built[1].location), folder / Path(built[1].location).name)
    made = build_starter(tmp_path, name="starter-small", seconds=1, docs=docs)
    assert resolve_model("starter-small", here).sha256 == made.sha256 == built[1].sha256
    assert (made.name, Path(made.location).parent) == ("starter-small", folder)
    with pytest.raises(NotFound, match="There is no starter model yet"):
        resolve_model("starter", here)


@pytest.mark.parametrize("seconds", [0, -1, 1e6, float("nan")])
def test_a_senseless_time_is_refused(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(InvalidInput, match=r"E-STARTER-SECONDS: .* is not a training time"):
        build_starter(tmp_path, seconds=seconds)
    assert not list(tmp_path.iterdir())


def test_a_killed_build_leaves_nothing_and_says_so(tmp_path: Path, docs: Path) -> None:
    failed: list[TrainyardError] = []

    def build() -> None:
        try:
            build_starter(tmp_path, seconds=500, docs=docs)
        except TrainyardError as error:
            failed.append(error)

    builder = threading.Thread(target=build)
    builder.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and builder.is_alive():
        for process in psutil.process_iter(["cmdline"]):
            if str(tmp_path) in " ".join(process.info["cmdline"] or []):
                process.kill()
        time.sleep(0.1)
    builder.join(timeout=10)
    assert [error.code for error in failed] == ["E-STARTER-BUILD"]
    assert "ended with status -9" in str(failed[0])
    left = sorted(path.name for path in (tmp_path / "models" / "starter").iterdir())
    assert left == [".lock"]


@pytest.mark.slow
def test_the_same_recipe_gives_the_same_weights(
    built: tuple[Path, ModelSource, Any], docs: Path, tmp_path: Path
) -> None:
    again = build_starter(tmp_path, seconds=1, threads=1, docs=docs)
    assert again.sha256 == built[1].sha256
    forced = build_starter(tmp_path, seconds=1, threads=1, docs=docs, force=True)
    assert forced.sha256 == again.sha256
