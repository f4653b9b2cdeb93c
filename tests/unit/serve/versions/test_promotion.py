"""Versions that are made live again, on doubles that a deployer has used before: all targets or none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.serve.test_deploy import Yard, make_adapter, make_report, make_target
from trainyard.app.adapters.versions import delete_version, promote, rollback
from trainyard.app.context import Context
from trainyard.errors import Conflict, InvalidInput, NotFound, Refused, TrainyardError, Unavailable
from trainyard.operations.adapters import DeleteInput, PromoteInput, RollbackInput
from trainyard.settings import load_settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.surfaces.cli.command import render
from trainyard.testing.vllm_server import VllmDouble, vllm_server


class Deployed(Yard):
    """Three versions of acme/bot, each with files of its own, deployed to the same two servers."""

    def __init__(self, folder: Path, embedded: VllmDouble, vllm: VllmDouble) -> None:
        super().__init__(folder, load_settings())
        self.context = Context(self.settings, say=lambda _text: None)
        self.targets = [make_target("embedded", embedded), make_target("vllm", vllm)]
        for number in (1, 2, 3):
            self.adapter = make_adapter(folder / f"adapter-{number}")
            self.report = make_report(folder / f"report-{number}", self.adapter)
            self.deploy(*self.targets, canary=f"Are you {number}?")

    def actions(self) -> list[tuple[int, str]]:
        return [(entry["version"], entry["action"]) for entry in self.registry.live("acme", "bot").history]


@pytest.fixture
def servers() -> Iterator[tuple[VllmDouble, VllmDouble]]:
    with vllm_server("org/base", aliases=True) as embedded, vllm_server("org/base") as vllm:
        yield embedded, vllm


@pytest.fixture
def deployed(tmp_path: Path, home: Path, servers: tuple[VllmDouble, VllmDouble]) -> Deployed:
    return Deployed(tmp_path, *servers)


def test_rollback_switches_every_target_and_says_so(deployed: Deployed, servers: tuple[VllmDouble, VllmDouble]) -> None:
    embedded, vllm = servers
    done = rollback(RollbackInput(role="acme/bot"), deployed.context)
    assert (done.version, done.previous, deployed.live()) == ("acme/bot/v2", "acme/bot/v3", 2)
    assert set(embedded.adapters) == set(vllm.adapters) == {"acme/bot/v2"}
    assert embedded.alias == {"acme/bot": "acme/bot/v2"}
    assert done.targets[0]["answer"] == "acme/bot/v2 heard: Are you 2?"
    assert deployed.actions()[-1] == (2, "rollback")
    assert render("adapters rollback", done).splitlines()[0] == "acme/bot/v2 is live (before: acme/bot/v3)"
    assert rollback(RollbackInput(role="acme/bot"), deployed.context).version == "acme/bot/v1"
    with pytest.raises(Conflict, match="E-ADAPTER-NOT-FOUND: acme/bot has no earlier live version"):
        rollback(RollbackInput(role="acme/bot"), deployed.context)


def test_promotion_by_number_and_of_the_newest(deployed: Deployed, servers: tuple[VllmDouble, VllmDouble]) -> None:
    assert promote(PromoteInput(name="acme/bot/v1"), deployed.context).version == "acme/bot/v1"
    assert set(servers[0].adapters) == set(servers[1].adapters) == {"acme/bot/v1"}
    assert promote(PromoteInput(name="acme/bot"), deployed.context).version == "acme/bot/v3"
    assert deployed.actions()[-2:] == [(1, "promote"), (3, "promote")]


def test_live_version_is_left_alone(deployed: Deployed, servers: tuple[VllmDouble, VllmDouble]) -> None:
    before = [len(double.requests) for double in servers]
    done = promote(PromoteInput(name="acme/bot/v3"), deployed.context)
    assert (done.changed, [len(double.requests) for double in servers], len(deployed.actions())) == (False, before, 3)
    assert render("adapters promote", done) == "acme/bot/v3 is live already; nothing was changed"


def test_target_that_fails_in_the_middle_leaves_everything_as_it_was(
    deployed: Deployed, servers: tuple[VllmDouble, VllmDouble]
) -> None:
    embedded, vllm = servers
    vllm.broken["/v1/load_lora_adapter"] = (500, "no room")
    with pytest.raises(TrainyardError, match=r"E-SERVER-REFUSED.*Everything was undone; acme/bot/v3 stays live"):
        promote(PromoteInput(name="acme/bot/v1"), deployed.context)
    assert set(embedded.adapters) == set(vllm.adapters) == {"acme/bot/v3"}
    assert (embedded.alias, deployed.live(), len(deployed.actions())) == ({"acme/bot": "acme/bot/v3"}, 3, 3)
    vllm.broken.clear()
    vllm.mute.add("acme/bot/v2")
    with pytest.raises(TrainyardError, match=r"E-CANARY.*Everything was undone; acme/bot/v3 stays live"):
        rollback(RollbackInput(role="acme/bot"), deployed.context)
    assert (embedded.alias, deployed.live()) == ({"acme/bot": "acme/bot/v3"}, 3)


def test_target_that_is_down_is_an_error_and_others_can_be_named(
    deployed: Deployed, servers: tuple[VllmDouble, VllmDouble]
) -> None:
    embedded, vllm = servers
    manifest = deployed.registry.path(deployed.registry.show("acme/bot/v3")) / "manifest.json"
    manifest.write_text(manifest.read_text().replace(vllm.url, "http://127.0.0.1:9"))  # it was moved since
    with pytest.raises(Unavailable, match=r"E-SERVER-UNREACHABLE: vllm at http://127\.0\.0\.1:9"):
        promote(PromoteInput(name="acme/bot/v1"), deployed.context)
    assert deployed.live() == 3
    request = PromoteInput(name="acme/bot/v1", targets=(f"embedded={embedded.url}",))
    assert [target["type"] for target in promote(request, deployed.context).targets] == ["embedded", "registry"]
    assert embedded.alias == {"acme/bot": "acme/bot/v1"}


def test_targets_of_the_live_version_are_switched_too(
    deployed: Deployed, servers: tuple[VllmDouble, VllmDouble]
) -> None:
    """The version before was only registered: the servers would go on with the live one."""
    deployed.deploy()
    deployed.deploy(*deployed.targets)
    assert rollback(RollbackInput(role="acme/bot"), deployed.context).version == "acme/bot/v4"
    assert servers[0].alias == {"acme/bot": "acme/bot/v4"}


def test_version_without_a_deployment_wants_targets(deployed: Deployed) -> None:
    deployed.registry.register("acme", "other", deployed.folder / "adapter-1")
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID: acme/other/v1 does not say where .*--target embedded"):
        promote(PromoteInput(name="acme/other"), deployed.context)
    done = promote(PromoteInput(name="acme/other/v1", targets=("registry",)), deployed.context)
    assert (done.previous, deployed.registry.live("acme", "other").version) == (None, 1)


@pytest.mark.parametrize(
    ("target", "message"),
    [("vlm", "E-PARAMETER: 'vlm' is not a valid target"), ("vllm=house", "E-ENDPOINT: trainyard.toml has no endpoint")],
)
def test_wrong_target_is_explained(deployed: Deployed, target: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        promote(PromoteInput(name="acme/bot/v1", targets=(target,)), deployed.context)


def test_changed_files_and_another_base_are_refused(deployed: Deployed, servers: tuple[VllmDouble, VllmDouble]) -> None:
    servers[1].base = servers[1].root = "org/else"
    with pytest.raises(Refused, match="R-BASE-MISMATCH"):
        promote(PromoteInput(name="acme/bot/v2"), deployed.context)
    servers[1].base = servers[1].root = "org/base"
    weights = deployed.registry.path(deployed.registry.show("acme/bot/v2")) / "adapter_model.safetensors"
    weights.unlink()
    weights.write_bytes(b"other")
    with pytest.raises(TrainyardError, match="E-CORRUPT: The files of acme/bot/v2"):
        promote(PromoteInput(name="acme/bot/v2"), deployed.context)
    assert deployed.live() == 3


def test_deleted_version_keeps_its_number_and_nothing_else(deployed: Deployed) -> None:
    deletion = delete_version(DeleteInput(name="acme/bot/v1"), deployed.context)
    assert (deletion.version, deletion.files, deletion.bytes > 0) == ("acme/bot/v1", 4, True)
    folder = deployed.registry.root / "acme" / "bot" / "v1"
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
    assert json.loads((folder / "manifest.json").read_text())["deleted"] > 0
    assert [adapter_version.version for adapter_version in deployed.registry.list()] == [2, 3]
    with pytest.raises(NotFound, match="E-ADAPTER-NOT-FOUND: The adapter version acme/bot/v1 was deleted at 20"):
        promote(PromoteInput(name="acme/bot/v1"), deployed.context)
    again = delete_version(DeleteInput(name="acme/bot/v1"), deployed.context)
    assert again.deleted == deletion.deleted
    assert deployed.deploy(*deployed.targets).facts["version"] == "acme/bot/v4"


def test_live_version_is_never_deleted_and_the_one_before_it_only_by_force(deployed: Deployed) -> None:
    for force in (False, True):
        with pytest.raises(Conflict, match="E-CONFLICT: The version acme/bot/v3 is live"):
            delete_version(DeleteInput(name="acme/bot/v3", force=force), deployed.context)
    with pytest.raises(Conflict, match="E-CONFLICT: A rollback of acme/bot would make acme/bot/v2 live again"):
        delete_version(DeleteInput(name="acme/bot/v2"), deployed.context)
    delete_version(DeleteInput(name="acme/bot/v2", force=True), deployed.context)
    with pytest.raises(Conflict, match="would make acme/bot/v1 live again"):
        delete_version(DeleteInput(name="acme/bot/v1"), deployed.context)
    assert rollback(RollbackInput(role="acme/bot"), deployed.context).version == "acme/bot/v1"


def test_deletion_that_was_cut_short_is_finished(deployed: Deployed, tmp_path: Path) -> None:
    """A crash after the manifest: the version is gone for readers, its files are removed by the next call."""
    registry = deployed.registry
    folder = registry.path(registry.show("acme/bot/v1"))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "deleted": 1.0}))
    assert [adapter_version.version for adapter_version in AdapterRegistry(registry.root).list()] == [2, 3]
    delete_version(DeleteInput(name="acme/bot/v1"), deployed.context)
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("name", ["acme/nobody", "acme/bot/v9"])
def test_unknown_names_are_not_found(deployed: Deployed, name: str) -> None:
    with pytest.raises(NotFound, match="E-ADAPTER-NOT-FOUND"):
        promote(PromoteInput(name=name), deployed.context)
    with pytest.raises(InvalidInput, match="E-NAME"):
        rollback(RollbackInput(role="acme/bot/v1"), deployed.context)
    with pytest.raises(InvalidInput, match="E-NAME"):
        delete_version(DeleteInput(name="acme/bot"), deployed.context)
