"""The starter model: shipped with its card, built again whole or not at all, a model like any other afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainyard.errors import NotFound, TrainyardError
from trainyard.settings import load_settings
from trainyard.stores.models import SHIPPED_STARTER, ModelSource, chat_template, resolve_model
from trainyard.train.starter.build import build_starter, compare, starter_key
from trainyard.train.starter.corpus import CARD_FILE, CHAT_TEMPLATE, MANIFEST, PACKAGES, StarterRecipe, corpus_sources
from trainyard.train.starter.pretrain import model_card

LITTLE = StarterRecipe(steps=8, vocabulary=1024, layers=2, hidden=64, intermediate=128, batch_rows=4, row_tokens=64)
PACKAGE = ("trl",)

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
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelSource, list[tuple[float, str]]]:
    """A starter of eight steps on one package, its home and what was reported."""
    home, reports = tmp_path_factory.mktemp("starter"), []
    source = build(home, report=lambda *line: reports.append(line))
    return home, source, reports


def build(home: Path, **options: Any) -> ModelSource:
    return build_starter(home, **{"recipe": LITTLE, "packages": PACKAGE, "threads": 1, **options})


def read_manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / MANIFEST).read_text()))


def test_shipped_weights_are_those_of_the_recipe() -> None:
    manifest = read_manifest(SHIPPED_STARTER)
    assert manifest["recipe_sha256"] == StarterRecipe().sha256
    assert manifest["tokens"] == StarterRecipe().steps * StarterRecipe().batch_rows * StarterRecipe().row_tokens
    assert set(manifest["packages"]) == set(PACKAGES)
    assert manifest["heldout_loss"] < manifest["losses"][0][1]
    assert sum(path.stat().st_size for path in SHIPPED_STARTER.iterdir()) < 12_000_000


def test_shipped_packages_are_those_that_are_pinned() -> None:
    """Another version of a package would give another corpus, and a rebuild that is not the shipped model."""
    pins = dict(line.split("==") for line in Path("constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {name.lower().replace("-", "_"): version for name, version in pins.items()}
    packages = read_manifest(SHIPPED_STARTER)["packages"]
    assert {name: entry["version"] for name, entry in packages.items()} == {name: pinned[name] for name in packages}


def test_cards_have_the_manifests_values(built: tuple[Path, ModelSource, Any]) -> None:
    for folder in (SHIPPED_STARTER, Path(built[1].location)):
        assert (folder / CARD_FILE).read_text() == model_card(read_manifest(folder))
        assert f"held-out loss, nats per token | {read_manifest(folder)['heldout_loss']} |" in model_card(
            read_manifest(folder)
        )


def test_a_home_without_a_build_uses_the_shipped_weights(tmp_path: Path) -> None:
    source = resolve_model("starter", load_settings(home=tmp_path))
    assert source.path == SHIPPED_STARTER
    assert source.parameters is not None
    assert 4_500_000 < source.parameters < 5_500_000


def test_a_build_is_resolved_by_its_name(built: tuple[Path, ModelSource, Any]) -> None:
    home, source, _ = built
    assert resolve_model("starter", load_settings(home=home)).sha256 == source.sha256


def test_manifest_records_what_went_in(built: tuple[Path, ModelSource, Any]) -> None:
    source = built[1]
    assert source.path is not None
    manifest = read_manifest(source.path)
    assert manifest["key"] == source.path.name
    assert list(manifest["packages"]) == list(PACKAGE)
    assert manifest["recipe"]["steps"] == 8
    assert manifest["tokens"] == 8 * 4 * 64
    first, last = manifest["losses"][0][1], manifest["losses"][-1][1]
    assert last < first < 9.5
    assert {"python", "torch", "transformers"} == set(manifest["versions"])


def test_a_build_is_compared_with_the_shipped_weights(built: tuple[Path, ModelSource, Any]) -> None:
    path = built[1].path
    assert path is not None
    comparison = compare(path, SHIPPED_STARTER)
    assert (comparison["same_recipe"], comparison["same_corpus"]) == (False, False)
    assert comparison["heldout_loss"] == read_manifest(path)["heldout_loss"] > comparison["shipped_heldout_loss"]
    assert compare(SHIPPED_STARTER, SHIPPED_STARTER)["same_recipe"] is True


def test_progress_is_reported_to_the_end(built: tuple[Path, ModelSource, list[tuple[float, str]]]) -> None:
    reports = built[2]
    fractions = [fraction for fraction, _ in reports]
    assert fractions == sorted(fractions)
    assert reports[-1] == (1.0, "the starter model is ready")
    assert any("loss" in text and "min left" in text for _, text in reports)


def test_a_second_call_builds_nothing(built: tuple[Path, ModelSource, Any]) -> None:
    home, source, _ = built
    written_ns = (Path(source.location) / MANIFEST).stat().st_mtime_ns
    assert build(home) == source
    assert (Path(source.location) / MANIFEST).stat().st_mtime_ns == written_ns


@pytest.mark.slow
def test_it_loads_as_any_other_model(built: tuple[Path, ModelSource, Any]) -> None:
    source = built[1]
    process = subprocess.run(
        [sys.executable, "-c", TRY_MODEL, str(source.path)], capture_output=True, text=True, check=True
    )
    facts = json.loads(process.stdout.splitlines()[-1])
    assert facts["assistant"] == "Yo<|im_end|>"
    assert facts["round_trip"] is True
    assert facts["vocabulary"] == LITTLE.vocabulary
    assert facts["parameters"] == source.parameters
    assert (facts["eos"], facts["pad"], facts["finite"]) == ([3, 1], 0, True)
    assert facts["pre_tokenizer"]["type"] == "ByteLevel"
    assert facts["pre_tokenizer"]["use_regex"] is True
    assert source.path is not None
    assert chat_template(source.path) == CHAT_TEMPLATE == chat_template(SHIPPED_STARTER)


def test_key_follows_recipe_and_packages() -> None:
    sources = corpus_sources(("trl", "peft"))
    key = starter_key(LITTLE, sources)
    assert key == starter_key(LITTLE, list(sources))
    assert key != starter_key(StarterRecipe(), sources)
    assert key != starter_key(LITTLE, sources[:-1])


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"E-STARTER: The package no_such_package"):
        build(tmp_path, packages=("no_such_package",))


def test_a_killed_build_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    failed: list[TrainyardError] = []

    def build_it() -> None:
        try:
            build(tmp_path, recipe=StarterRecipe(steps=5000))
        except TrainyardError as error:
            failed.append(error)

    builder = threading.Thread(target=build_it)
    builder.start()
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and builder.is_alive():
        for process in psutil.process_iter(["cmdline"]):
            if str(tmp_path) in " ".join(process.info["cmdline"] or []):
                process.kill()
        time.sleep(0.1)
    builder.join(timeout=60)
    assert [error.code for error in failed] == ["E-STARTER"]
    assert "ended with status -9" in str(failed[0])
    left = sorted(path.name for path in (tmp_path / "models" / "starter").iterdir())
    assert left == [".lock"]


@pytest.mark.slow
def test_the_same_recipe_gives_the_same_weights(built: tuple[Path, ModelSource, Any], tmp_path: Path) -> None:
    again = build(tmp_path)
    assert again.sha256 == built[1].sha256
    forced = build(tmp_path, force=True)
    assert forced.sha256 == again.sha256
