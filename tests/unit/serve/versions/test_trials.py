"""Each adapter is loaded and run once on its base before anything says that it is there, or a version says why not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.serve.fitting_adapter import FAULTS, fitting_adapter
from trainyard.app.adapters.registry import convert_adapter, list_adapters, show_adapter
from trainyard.app.adapters.versions import promote, pull, push, show_card
from trainyard.app.context import Context
from trainyard.app.stack.backup import back_up, restore
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.operations.adapters import (
    AdapterName,
    AdaptersInput,
    CardInput,
    ConvertInput,
    PromoteInput,
    PullInput,
    PushInput,
)
from trainyard.operations.stack import BackupInput, RestoreInput
from trainyard.serve.conversion.architectures import Layout
from trainyard.serve.deploy import deploy
from trainyard.serve.inference import ModelRunner
from trainyard.settings import load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import DeployerConfig
from trainyard.stores.adapters import AdapterRegistry, files_digest
from trainyard.stores.artifacts import Reference
from trainyard.stores.whole import describe_files
from trainyard.surfaces.cli.command import render

INVALID = "E-ADAPTER-INVALID"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
]  # PEFT asks transformers


class Yard:
    """A publishing home and a pulling one; the base is a folder that can be taken away."""

    def __init__(self, root: Path, base: Path) -> None:
        self.root, self.base = root, root / "base"
        shutil.copytree(base, self.base)
        self.here, self.there = (
            Context(load_settings(home=root / name), say=lambda _text: None) for name in ("here", "there")
        )

    def publish(self, fault: str = "") -> str:
        """Register an adapter without a trial, send its files to a store, and return their address."""
        adapter_folder = fitting_adapter(self.root / "made", self.base, fault)
        registry = AdapterRegistry(self.here.settings.adapters)
        facts = {"base_model": str(self.base), "adapter_run": True}  # a publisher that says so is not believed
        registry.register("acme", "bot", adapter_folder, facts=facts)
        push(PushInput(name="acme/bot/v1", to=(self.root / "store").as_uri()), self.here)
        return f"{(self.root / 'store').as_uri()}/adapters/acme/bot/v1"

    def registered(self) -> list[dict[str, Any]]:
        return list(list_adapters(AdaptersInput(), self.there).rows)


@pytest.fixture
def yard(tmp_path: Path, home: Path, tiny_model: Path) -> Yard:
    return Yard(tmp_path, tiny_model)


def test_pulled_adapter_is_run_once_and_the_version_says_so(yard: Yard) -> None:
    pulled = pull(PullInput(source=yard.publish()), yard.there)
    assert (pulled.adapter_run, pulled.adapter_run_because) == (True, "")
    assert [row["run"] for row in yard.registered()] == ["yes"]


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_adapter_is_not_pulled(yard: Yard, fault: str) -> None:
    with pytest.raises(TrainyardError, match=INVALID):
        pull(PullInput(source=yard.publish(fault)), yard.there)
    assert yard.registered() == []


@pytest.mark.parametrize("fault", ["", "other base"])
def test_version_without_its_base_says_so_and_is_run_before_it_is_live(yard: Yard, fault: str) -> None:
    source = yard.publish(fault)
    yard.base.rename(yard.root / "away")
    pulled = pull(PullInput(source=source), yard.there)
    assert pulled.adapter_run is False
    assert pulled.adapter_run_because == "its base base is not on this machine"
    assert "not run on its base here" in render("adapters pull", pulled)
    adapter_facts = show_adapter(AdapterName(name="acme/bot/v1"), yard.there).record["facts"]
    assert (adapter_facts["adapter_run"], adapter_facts["adapter_run_because"]) == (False, pulled.adapter_run_because)
    assert [row["run"] for row in yard.registered()] == ["no"]
    card = show_card(CardInput(name="acme/bot/v1"), yard.there).markdown
    assert f"never run on its base where it was registered: {pulled.adapter_run_because}." in card
    (yard.root / "away").rename(yard.base)
    request = PromoteInput(name="acme/bot/v1", targets=("registry",))
    if fault:
        with pytest.raises(TrainyardError, match=INVALID):
            promote(request, yard.there)
        assert [row["live"] for row in yard.registered()] == [False]
    else:
        (unsigned,) = promote(request, yard.there).warnings
        assert unsigned.startswith("acme/bot/v1 has no signature")
        assert [(row["run"], row["live"]) for row in yard.registered()] == [("yes", True)]


def test_weights_that_are_not_finite_are_refused_without_the_base_too(yard: Yard) -> None:
    source = yard.publish("not finite")
    shutil.rmtree(yard.base)
    with pytest.raises(TrainyardError, match=INVALID):
        pull(PullInput(source=source), yard.there)
    assert yard.registered() == []


def test_version_that_was_never_run_is_run_before_it_is_pushed(yard: Yard) -> None:
    registry = AdapterRegistry(yard.here.settings.adapters)
    registry.register("acme", "good", fitting_adapter(yard.root / "good", yard.base), facts={})
    registry.register("acme", "bad", fitting_adapter(yard.root / "bad", yard.base, "wrong shape"), facts={})
    store = (yard.root / "store").as_uri()
    assert push(PushInput(name="acme/good/v1", to=store), yard.here).adapter_run is True
    with pytest.raises(TrainyardError, match=INVALID):
        push(PushInput(name="acme/bad/v1", to=store), yard.here)
    assert not (yard.root / "store" / "adapters" / "acme" / "bad").exists()


def test_adapter_that_its_trainer_could_not_run_is_run_before_it_gets_a_number(yard: Yard) -> None:
    """Of an external trainer: `adapter_run` of its training.json is a reason."""
    tried = fitting_adapter(yard.root / "tried", yard.base, adapter_run="its base did not fit")
    broken = fitting_adapter(yard.root / "broken", yard.base, "ignored key", adapter_run="its base did not fit")
    config = DeployerConfig(role="bot", unevaluated=True)

    def run(folder: Path) -> dict[str, Any]:
        sha256 = files_digest(describe_files(folder))
        adapter = Reference(uri=f"file://{folder}", sha256=sha256, kind=Port.ADAPTER)
        out = yard.root / "out"
        out.mkdir(exist_ok=True)
        settings = yard.there.settings
        return deploy(config, adapter=adapter, report=None, folder=out, settings=settings, tenant="acme").facts

    with pytest.raises(TrainyardError, match=INVALID):
        run(broken)
    assert yard.registered() == []
    assert run(tried)["warnings"] == []
    assert [row["run"] for row in yard.registered()] == ["yes"]
    third = fitting_adapter(yard.root / "third", yard.base, adapter_run="no memory")
    shutil.rmtree(yard.base)
    (warning,) = run(third)["warnings"]
    assert warning == "The adapter was never run on its base here: its base base is not on this machine"


def test_converted_adapter_is_run_once(yard: Yard) -> None:
    for name, fault in (("good", ""), ("bad", "other base")):
        fitting_adapter(yard.root / name, yard.base, fault)
    request = ConvertInput(source=str(yard.root / "good"), target=yard.root / "mlx", to=Layout.MLX)
    assert convert_adapter(request, yard.there).adapter_run is True
    wrong = request.model_copy(update={"source": str(yard.root / "bad"), "target": yard.root / "none"})
    with pytest.raises(TrainyardError, match=INVALID):
        convert_adapter(wrong, yard.there)
    assert not (yard.root / "none").exists()


def test_live_adapters_of_a_restored_home_are_run(yard: Yard) -> None:
    registry = AdapterRegistry(yard.here.settings.adapters)
    for role, fault in (("good", ""), ("bad", "wrong shape")):
        adapter_folder = fitting_adapter(yard.root / role, yard.base, fault)
        for _ in range(2):
            registry.register("acme", role, adapter_folder, facts={"adapter_run": True})
        registry.promote(f"acme/{role}/v2")
    back_up(BackupInput(file=yard.root / "home.tar.gz"), yard.here)
    shutil.rmtree(yard.here.settings.home)
    restored = restore(RestoreInput(file=yard.root / "home.tar.gz"), yard.here)
    bad, good = restored.adapters
    assert good == "acme/good/v2 was run once on its base"
    assert bad.startswith(f"acme/bad/v2 is live and cannot be run: {INVALID}")
    assert good in render("restore", restored)
    runs = {adapter_version.name: adapter_version.facts["adapter_run"] for adapter_version in registry.list()}
    assert runs == {"acme/bad/v1": False, "acme/bad/v2": False, "acme/good/v1": False, "acme/good/v2": True}


def test_server_takes_no_adapter_whose_answers_are_not_finite(yard: Yard) -> None:
    good = fitting_adapter(yard.root / "good", yard.base)
    bad = fitting_adapter(yard.root / "bad", yard.base, "not finite")
    runner = ModelRunner(yard.base)
    runner.load_adapter("acme/good/v1", good)
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-MISMATCH: .*NaN or infinity"):
        runner.load_adapter("acme/bad/v1", bad)
    assert list(runner.adapters) == ["acme/good/v1"]
