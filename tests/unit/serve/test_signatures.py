"""Signatures of adapter versions: what is refused before it is loaded, by which policy, and in which words."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.unit.serve.fitting_adapter import fitting_adapter
from trainyard.app.context import Context
from trainyard.errors import Conflict, Corrupt, Denied, InvalidInput, NotFound, TrainyardError
from trainyard.night.training import reference
from trainyard.serve.base_sources import find_adapter
from trainyard.serve.deploy import deploy
from trainyard.serve.publication import new_version
from trainyard.serve.signatures import check_signature, sign_version
from trainyard.serve.trial import TrialRun
from trainyard.serve.versions.bucket import fetch_published, push_to_store
from trainyard.serve.versions.promotion import roll_out_version
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.nodes import DeployerConfig, Target
from trainyard.stores.adapters import SIGNED, AdapterRegistry, AdapterVersion
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.signing.bundles import read_key_id, read_signed_files
from trainyard.stores.signing.keys import SigningKeys
from trainyard.surfaces.invocation import build_request, execute_operation

Policy = Literal["require", "verify-if-present", "off"]


class Home:
    """A home with a signed version."""

    def __init__(self, path: Path, policy: Policy = "verify-if-present") -> None:
        self.path = path
        self.settings = load_settings(home=path, signatures=policy)
        self.registry = AdapterRegistry(self.settings.adapters)
        self.keys = SigningKeys(path)

    def register(self, source: Path, *, sign: bool = True) -> AdapterVersion:
        version = self.registry.register("acme", "bot", source, facts={"evaluated": True})
        return sign_version(version, self.registry, self.settings) if sign else version

    def with_policy(self, policy: Policy) -> Settings:
        return self.settings.model_copy(update={"signatures": policy})

    def check(self, version: AdapterVersion, policy: Policy = "require") -> str:
        return check_signature(version, self.registry, self.with_policy(policy))

    def run(self, operation: str, **fields: object) -> object:
        context = Context(self.settings, say=lambda _text: None)
        return execute_operation(operation, build_request(operation, fields), context)


def pull(home: Home, store: Path, policy: Policy = "verify-if-present") -> AdapterVersion:
    """Pull the version of a store by hand, without a run of the adapter."""
    to = replace(new_version(home.with_policy(policy)), try_run=lambda _folder: TrialRun("not in this test"))
    return fetch_published(open_store(f"file://{store}"), "acme/bot", 1, to=to)


@pytest.fixture
def source(tmp_path: Path, tiny_model: Path) -> Path:
    return fitting_adapter(tmp_path / "trained", tiny_model)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_registered_version_is_signed_over_each_file(home: Home, source: Path) -> None:
    version = home.register(source)
    bundle = home.registry.read_signature(version)
    assert bundle is not None
    assert read_signed_files(bundle) == {name: entry["sha256"] for name, entry in version.files.items()}
    assert read_key_id(bundle, "v1") == home.keys.own().id == version.facts[SIGNED]
    assert home.keys.private_file.stat().st_mode & 0o777 == 0o600
    assert home.check(version) == ""
    assert sign_version(version, home.registry, home.settings) == version


def test_the_librarys_own_command_verifies_it(home: Home, source: Path, tmp_path: Path) -> None:
    version, key = home.register(source), tmp_path / "key.pem"
    key.write_text(home.keys.own().pem)
    folder = home.registry.path(version)
    command = [
        sys.executable, "-m", "model_signing", "verify", "key", str(folder), "--public_key", str(key),
        "--signature", str(home.registry.signature_path(version)), "--ignore-paths", str(folder / "manifest.json"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "adapter_config.json").write_text("{}")
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def change(name: str) -> Callable[[Home, AdapterVersion], None]:
    def apply(home: Home, version: AdapterVersion) -> None:
        path = home.registry.path(version) / name
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    return apply


def remove(home: Home, version: AdapterVersion) -> None:
    (home.registry.path(version) / "adapter_config.json").unlink()


def add(home: Home, version: AdapterVersion) -> None:
    (home.registry.path(version) / "more.safetensors").write_bytes(b"x")


def resign(home: Home, version: AdapterVersion) -> None:
    """Put another list of files into the signed statement."""
    path = home.registry.signature_path(version)
    bundle = json.loads(path.read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    statement["predicate"]["resources"][0]["digest"] = "0" * 64
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    path.write_text(json.dumps(bundle))


def garble(home: Home, version: AdapterVersion) -> None:
    home.registry.signature_path(version).write_text('{"verificationMaterial": [')


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (change("adapter_model.safetensors"), "adapter_model.safetensors"),
        (change("adapter_config.json"), "adapter_config.json"),
        (remove, "adapter_config.json"),
        (resign, "model.sig"),
        (garble, "cannot be read"),
    ],
)
@pytest.mark.parametrize("policy", ["require", "verify-if-present"])
def test_an_altered_file_is_refused_by_its_name(
    home: Home, source: Path, tamper: Callable[[Home, AdapterVersion], None], named: str, policy: Policy
) -> None:
    version = home.register(source)
    tamper(home, version)
    with pytest.raises(Corrupt, match=named) as refused:
        home.check(version, policy)
    assert refused.value.code == "E-SIGNATURE"
    assert home.check(version, "off").endswith("the setting signatures is off")


def test_an_added_file_is_refused_by_the_manifest(home: Home, source: Path) -> None:
    version = home.register(source)
    add(home, version)
    with pytest.raises(Corrupt, match="not what its manifest says"):
        home.run("adapters verify", name=version.name)


def test_a_removed_signature_is_refused_and_an_old_version_is_noted(home: Home, source: Path) -> None:
    signed, old = home.register(source), home.register(source, sign=False)
    home.registry.signature_path(signed).unlink()
    with pytest.raises(NotFound, match="is gone"):
        home.check(signed, "verify-if-present")
    assert "has no signature" in home.check(old, "verify-if-present")
    for version in (signed, old):
        with pytest.raises(NotFound, match="has no signature"):
            home.check(version, "require")
    home.run("adapters sign", name=old.name)
    assert home.check(home.registry.show(old.name), "require") == ""


def test_a_key_of_another_home_is_accepted_only_from_the_list(home: Home, source: Path, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    version = other.register(source)
    push_to_store(version, other.registry, f"file://{tmp_path / 'store'}", {"README.md": "card"})
    with pytest.raises(Denied, match="does not trust"):
        pull(home, tmp_path / "store")
    assert home.registry.list() == []
    other.run("adapters keys", out=tmp_path / "other.pem")
    home.run("adapters trust-key", file=tmp_path / "other.pem", name="lab-two")
    pulled = pull(home, tmp_path / "store")
    assert pulled.facts[SIGNED] == other.keys.own().id
    assert home.check(pulled) == ""
    home.run("adapters revoke-key", key="lab-two", because="its laptop was stolen")
    with pytest.raises(Denied, match="is revoked") as refused:
        home.check(pulled, "verify-if-present")
    assert "stolen" in refused.value.why
    with pytest.raises(Conflict, match="was revoked"):
        home.keys.trust((tmp_path / "other.pem").read_text(), "again")


def test_a_pull_without_a_signature_follows_the_policy(home: Home, source: Path, tmp_path: Path) -> None:
    other = Home(tmp_path / "other", "off")
    version = other.register(source)
    push_to_store(version, other.registry, f"file://{tmp_path / 'store'}", {"README.md": "card"})
    with pytest.raises(NotFound, match="has no signature"):
        pull(home, tmp_path / "store", "require")
    pulled = pull(home, tmp_path / "store")
    assert "has no signature" in pulled.facts["signature_notice"]
    assert sign_version(pulled, home.registry, home.settings) == pulled, "what others made is not signed as ours"


def test_a_revoked_own_key_is_replaced(home: Home, source: Path) -> None:
    version, first = home.register(source), home.keys.own()
    home.run("adapters revoke-key", key="this-home", because="leaked")
    with pytest.raises(Denied, match="is revoked"):
        home.check(version)
    home.run("adapters sign", name=version.name)
    assert home.keys.own().id != first.id
    assert home.check(home.registry.show(version.name)) == ""
    states = {key.id: bool(key.revoked) for key in home.keys.list()}
    assert states == {first.id: True, home.keys.own().id: False}


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_key_file_that_cannot_be_read_stops_the_registration(home: Home, source: Path, content: bytes) -> None:
    home.keys.own()
    home.keys.private_file.write_bytes(content)
    with pytest.raises(Corrupt, match=r"signing\.pem cannot be read"):
        home.register(source)


def test_a_private_or_foreign_key_is_not_trusted(home: Home, tmp_path: Path) -> None:
    home.keys.own()
    for text in (home.keys.private_file.read_text(), "no key", ""):
        (tmp_path / "key.pem").write_text(text)
        with pytest.raises(InvalidInput, match="not a public key"):
            home.run("adapters trust-key", file=tmp_path / "key.pem", name="x")
    with pytest.raises(NotFound, match="cannot be read"):
        home.run("adapters trust-key", file=tmp_path / "none.pem", name="x")


def test_a_second_deployment_does_not_sign_what_the_first_refused(home: Home, source: Path, tmp_path: Path) -> None:
    """A home that registered a version before its publisher's key was revoked deploys it once more, and once more."""
    other = Home(tmp_path / "other")
    version = other.register(source)
    push_to_store(version, other.registry, f"file://{tmp_path / 'store'}", {"README.md": "card"})
    other.run("adapters keys", out=tmp_path / "other.pem")
    home.run("adapters trust-key", file=tmp_path / "other.pem", name="lab-two")
    pulled = pull(home, tmp_path / "store")
    home.run("adapters revoke-key", key="lab-two", because="its laptop was stolen")
    adapter = reference(home.registry.path(pulled), Port.ADAPTER)
    config = DeployerConfig(tenant="acme", role="bot", unevaluated=True, targets=(Target(type=TargetType.REGISTRY),))
    for attempt in ("first", "second"):
        with pytest.raises(Denied, match="is revoked"):
            deploy(
                config, adapter=adapter, report=None, folder=tmp_path / attempt, settings=home.settings, tenant="acme",
                run_key=pulled.run_key,
            )  # fmt: skip
    (registered,) = home.registry.list()
    assert registered.facts[SIGNED] == other.keys.own().id
    assert registered.facts["adapter_run"] is False, "it was not loaded for a run either"
    assert home.registry.live("acme", "bot").version is None


def test_nothing_loads_what_does_not_verify(home: Home, source: Path) -> None:
    version = home.register(source)
    change("adapter_model.safetensors")(home, version)
    # Whoever can write the folder can write its manifest, too: then the digests agree and the signature does not.
    forged = home.registry.register("acme", "bot", home.registry.path(version), facts=version.facts)
    home.registry.keep_signature(forged, home.registry.read_signature(version) or b"", version.facts[SIGNED])
    loads: tuple[Callable[[], object], ...] = (
        lambda: find_adapter(forged.name, home.settings),
        lambda: home.run("adapters verify", name=forged.name),
        lambda: roll_out_version(
            forged, home.registry, home.settings, action="promote", targets=(Target(type=TargetType.REGISTRY),)
        ),
    )
    for load in loads:
        with pytest.raises(TrainyardError, match=r"adapter_model\.safetensors") as refused:
            load()
        assert refused.value.code == "E-SIGNATURE"
    assert home.registry.live("acme", "bot").version is None
