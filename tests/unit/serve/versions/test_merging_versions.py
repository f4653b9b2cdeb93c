"""A version as a whole model: what it says, what was measured, and that nothing is left of a failure."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainyard.app.adapters.versions import delete_version, merge, show_card
from trainyard.app.context import Context
from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound, Refused, TrainyardError, Unavailable
from trainyard.operations.adapters import CardInput, DeleteInput, MergeInput
from trainyard.serve.publication import read_publication
from trainyard.serve.versions.promotion import roll_out_version
from trainyard.settings import settings
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.nodes import Target
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.models import chat_template_sha256, model_sha256
from trainyard.surfaces.cli.command import render
from trainyard.testing.vllm_server import vllm_server

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers


def write_random_adapter(base: Path, folder: Path) -> None:
    """An adapter whose product is not zero, next to the tokenizer of its base."""
    torch.manual_seed(1)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "tokenizer")


def load_merged(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def require_same_model(base: Path, adapter: Path, merged: Path) -> None:
    """The merged model answers as base and adapter do, and otherwise than the base alone; it has a chat template."""
    ids = torch.arange(5, 60)[None]
    alone, whole = load_merged(base)(ids).logits, load_merged(merged)(ids).logits
    both = PeftModel.from_pretrained(load_merged(base), str(adapter))(ids).logits
    assert float((both - whole).abs().max()) < 1e-4
    assert float((alone - whole).abs().max()) > 1e-2
    assert AutoTokenizer.from_pretrained(merged).chat_template


def python(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", *arguments], check=False, capture_output=True, text=True, timeout=600, cwd=cwd
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random adapter of the tiny model, with the record of a training."""
    folder = tmp_path_factory.mktemp("trained") / "adapter"
    write_random_adapter(tiny_model, folder)
    (folder / "README.md").unlink(missing_ok=True)
    training = {"base_model": str(tiny_model), "base_path": str(tiny_model), "base_sha256": model_sha256(tiny_model)}
    training |= {"chat_template_sha256": chat_template_sha256(tiny_model), "stage": "sft", "method": "lora", "steps": 3}
    training |= {"hyperparameters": {"learning_rate": 0.001, "max_length": 256}, "loss_at_start": 5.5, "loss_at_end": 1}
    training["data"] = {"rows": {"read": 122, "trained": 120, "truncated": 0}}
    (folder / "training.json").write_text(json.dumps(training))
    return folder


@pytest.fixture
def context(home: Path, trained: Path) -> Context:
    here = Context(settings(), say=lambda _text: None)
    training = json.loads((trained / "training.json").read_text())
    facts = {key: training[key] for key in ("base_model", "base_path", "base_sha256", "chat_template_sha256")}
    bounds = {"mean": 0.5, "low": 0.25, "high": 0.75}
    line = {"rows": 40, "baseline": 2.0, "candidate": 1.5, "improvement": bounds}
    facts["report"] = {"baseline": "base", "confidence": 0.95, "benchmarks": {"heldout_loss/unseen_wording": line}}
    facts["gate"] = {"better": True, "passed": ["heldout_loss: +0.5"], "reasons": [], "cautions": []}
    AdapterRegistry(here.settings.adapters).register("acme", "bot", trained, facts=facts)
    return here


def test_merged_folder_says_what_both_say_and_how_far_it_is(
    context: Context, tmp_path: Path, tiny_model: Path, trained: Path
) -> None:
    done = merge(MergeInput(name="acme/bot/v1", target=tmp_path / "merged", dtype="float32"), context)
    assert 0 < done.divergence < 1e-3
    assert done.saved_divergence == done.divergence
    merge_report = json.loads((tmp_path / "merged" / "merged.json").read_text())
    assert (merge_report["divergence"], merge_report["version"]) == (done.divergence, "acme/bot/v1")
    assert "largest difference of a logit from base plus adapter: " in render("adapters merge", done)
    require_same_model(tiny_model, trained, tmp_path / "merged")
    with pytest.raises(Conflict, match="E-FILE-EXISTS"):
        merge(MergeInput(name="acme/bot/v1", target=tmp_path / "merged"), context)


@pytest.mark.slow
def test_adapter_with_nan_is_not_merged_and_nothing_is_left(context: Context, tmp_path: Path, trained: Path) -> None:
    broken = shutil.copytree(trained, tmp_path / "broken")
    weights = broken / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-4:] = b"\x00\x00\xc0\x7f"  # a float32 that is not a number, little-endian
    weights.write_bytes(bytes(data))
    AdapterRegistry(context.settings.adapters).register("acme", "broken", broken)
    with pytest.raises(TrainyardError, match="E-MERGE: The adapter contains values that are not finite"):
        merge(MergeInput(name="acme/broken/v1", target=tmp_path / "out" / "merged"), context)
    assert list((tmp_path / "out").iterdir()) == []


def test_wrong_merges_are_refused_before_anything_is_loaded(context: Context, tmp_path: Path, trained: Path) -> None:
    target = tmp_path / "merged"
    with pytest.raises(Unavailable, match=r"E-PACKAGE-MISSING: .*trainyard backends install llamacpp"):
        merge(MergeInput(name="acme/bot/v1", target=target, to="gguf"), context)
    with pytest.raises(InvalidInput, match="E-PARAMETER: A GGUF file is written in float32, not in bfloat16"):
        merge(MergeInput(name="acme/bot/v1", target=target, to="gguf", dtype="bfloat16"), context)
    registry = AdapterRegistry(context.settings.adapters)
    other = shutil.copytree(trained, tmp_path / "other")
    training = json.loads((other / "training.json").read_text())
    (other / "training.json").write_text(json.dumps({**training, "base_sha256": "0" * 64}))
    registry.register("acme", "other", other)
    with pytest.raises(Refused, match="R-BASE-MISMATCH"):
        merge(MergeInput(name="acme/other/v1", target=target), context)
    (other / "training.json").write_text(json.dumps({**training, "base_path": "gone", "base_model": "org/gone"}))
    registry.register("acme", "other", other)
    with pytest.raises(NotFound, match="E-MODEL-NOT-FOUND: The base 'org/gone' of acme/other/v2"):
        merge(MergeInput(name="acme/other/v2", target=target), context)
    registry.register("acme", "whole", other, kind="model")
    with pytest.raises(InvalidInput, match="E-MERGE: acme/whole/v1 is a whole model"):
        merge(MergeInput(name="acme/whole/v1", target=target), context)
    assert not target.exists()
    target.mkdir()
    with pytest.raises(Conflict, match="E-FILE-EXISTS"):
        merge(MergeInput(name="acme/bot/v1", target=target), context)


@pytest.mark.slow
def test_snippet_of_the_card_runs_as_it_is(context: Context, tmp_path: Path, tiny_model: Path, trained: Path) -> None:
    card_report = show_card(CardInput(name="acme/bot/v1", out=tmp_path / "card.md"), context)
    card = (tmp_path / "card.md").read_text()
    assert (card, card_report.path) == (card_report.markdown, str(tmp_path / "card.md"))
    assert "| heldout_loss/unseen_wording | 40 | 2 | 1.5 | +0.5000 [+0.2500, +0.7500] |" in card
    assert "| rows | 122 | 120 | 0 |" in card
    assert [line for line in card.splitlines() if line.startswith("### ")] == [
        "### transformers", "### vLLM", "### llama.cpp", "### Ollama", "### MLX",
    ]  # fmt: skip
    code = card.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "base").symlink_to(tiny_model)
    (tmp_path / "path" / "to" / "adapter").symlink_to(trained)
    python(code, cwd=tmp_path)


def test_card_shows_only_what_can_load_the_version(context: Context, tmp_path: Path, trained: Path) -> None:
    dora = shutil.copytree(trained, tmp_path / "dora")
    config = json.loads((dora / "adapter_config.json").read_text())
    (dora / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    AdapterRegistry(context.settings.adapters).register("acme", "dora", dora)
    AdapterRegistry(context.settings.adapters).promote("acme/dora/v1")
    card = show_card(CardInput(name="acme/dora"), context).markdown
    assert [line for line in card.splitlines() if line.startswith("### ")] == ["### transformers", "### MLX"]
    assert "It was not evaluated." in card


# Targets that get a merged model


def roll_out(context: Context, *targets: Target) -> dict[str, Any]:
    registry = AdapterRegistry(context.settings.adapters)
    with registry.deploying("acme", "bot"):
        version = registry.show("acme/bot/v1")
        return roll_out_version(version, registry, context.settings, action="promote", targets=targets)


def test_a_registry_target_keeps_the_merged_model_of_its_version(
    context: Context, tiny_model: Path, trained: Path
) -> None:
    merged_target = Target(type=TargetType.REGISTRY, merged="safetensors")
    (deployed_target,) = roll_out(context, merged_target)["targets"]
    folder = Path(deployed_target["merged"]["path"])
    assert folder == context.settings.models / "merged" / "acme/bot/v1/safetensors"
    assert 0 < deployed_target["merged"]["divergence"] < 1e-3
    require_same_model(tiny_model, trained, folder)
    merged_at_ns = (folder / "merged.json").stat().st_mtime_ns
    again = roll_out(context, merged_target)
    assert again["targets"] == [deployed_target]
    assert (folder / "merged.json").stat().st_mtime_ns == merged_at_ns
    registry = AdapterRegistry(context.settings.adapters)
    registry.register("acme", "bot", trained)
    registry.point("acme", "bot", 2, "promote")
    delete_version(DeleteInput(name="acme/bot/v1", force=True), context)
    assert not folder.exists()


@pytest.mark.slow
def test_nothing_is_left_of_a_merged_model_that_is_not_served(context: Context) -> None:
    merged_target = Target(type=TargetType.REGISTRY, merged="safetensors")
    base = AdapterRegistry(context.settings.adapters).show("acme/bot/v1").facts["base_path"]
    with vllm_server(base) as server:
        server.broken["/v1/load_lora_adapter"] = (500, "out of memory")
        with pytest.raises(TrainyardError, match=r"Everything was undone"):
            roll_out(context, Target(type=TargetType.VLLM, url=server.url), merged_target)
    assert not list((context.settings.models / "merged").rglob("merged.json"))
    assert AdapterRegistry(context.settings.adapters).live("acme", "bot").version is None


def test_a_gguf_of_a_version_needs_the_converter_and_a_whole_model_is_not_merged(context: Context) -> None:
    with pytest.raises(Refused, match=r"R-PACKAGE-MISSING.*targets.0.merged.*trainyard backends install llamacpp"):
        roll_out(context, Target(type=TargetType.REGISTRY, merged="gguf"))


@pytest.mark.parametrize(
    ("report", "where"),
    [
        ({"baseline": "base", "confidence": 0.95, "benchmarks": {"f1/heldout": {"rows": 4}}}, "report.benchmarks"),
        ({"benchmarks": "none"}, "report.benchmarks"),
        ({"confidence": 0.9, "benchmarks": {"f1/x": {"rows": 1, "baseline": 1, "candidate": 1}}}, "improvement"),
        ([1], "report"),
    ],
)
def test_a_card_of_a_malformed_report_is_an_error_and_none_is_pulled(
    report: Any, where: str, context: Context, trained: Path
) -> None:
    AdapterRegistry(context.settings.adapters).register(
        "acme", "odd", trained, facts={"gate": {"better": True}, "report": report}
    )
    with pytest.raises(Corrupt, match=rf"E-CORRUPT: The facts of acme/odd/v1 .*{where}.*Publish the version again"):
        show_card(CardInput(name="acme/odd/v1"), context)
    manifest = {"name": "acme/odd/v1", "sha256": "0", "files": {}, "facts": {"report": report}}
    with pytest.raises(Corrupt, match=rf"E-CORRUPT: The facts of gs://b .*{where}"):
        read_publication(json.dumps(manifest).encode(), "gs://b")
