"""The registry: numbers are never reused, a version exists whole or not at all, nothing leaves the root."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound
from trainyard.spec.chain import digest
from trainyard.stores.adapters import AdapterRegistry, parse_name
from trainyard.stores.whole import MANIFEST, describe_files


def adapter(folder: Path, text: bytes = b"weights") -> Path:
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(text)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def registry(tmp_path: Path) -> AdapterRegistry:
    return AdapterRegistry(tmp_path / "adapters")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return adapter(tmp_path / "trained")


def test_a_registered_version_has_its_files_their_digests_and_its_facts(
    registry: AdapterRegistry, source: Path
) -> None:
    version = registry.register("acme", "bot", source, facts={"base_model": "starter"})
    assert (version.name, version.alias) == ("acme/bot/v1", "acme/bot")
    assert set(version.files) == {"adapter_model.safetensors", "adapter_config.json", "tokenizer/tokenizer.json"}
    assert version.sha256 == digest({name: entry["sha256"] for name, entry in describe_files(source).items()})
    assert registry.show("acme/bot/v1") == version
    assert registry.verify(version) is version
    assert version.facts == {"base_model": "starter"}


def test_numbers_rise_and_the_list_is_in_order(registry: AdapterRegistry, source: Path) -> None:
    for role in ("bot", "bot", "agent"):
        registry.register("acme", role, source)
    registry.register("zoo", "bot", source)
    assert [adapter_version.name for adapter_version in registry.list()] == [
        "acme/agent/v1",
        "acme/bot/v1",
        "acme/bot/v2",
        "zoo/bot/v1",
    ]
    assert [adapter_version.name for adapter_version in registry.list("acme", "bot")] == ["acme/bot/v1", "acme/bot/v2"]
    assert registry.list("nobody") == []


def test_a_number_is_not_reused_after_its_folder_lost_its_manifest(registry: AdapterRegistry, source: Path) -> None:
    registry.register("acme", "bot", source)
    second = registry.register("acme", "bot", source)
    (registry.path(second) / MANIFEST).unlink()
    assert [adapter_version.version for adapter_version in registry.list()] == [1]
    assert registry.register("acme", "bot", source).version == 3
    with pytest.raises(NotFound, match=r"E-ADAPTER-NOT-FOUND: There is no adapter version acme/bot/v2"):
        registry.show("acme/bot/v2")


def test_the_same_run_key_registers_once(registry: AdapterRegistry, source: Path, tmp_path: Path) -> None:
    first = registry.register("acme", "bot", source, run_key="run-1")
    assert registry.register("acme", "bot", source, run_key="run-1") == first
    assert registry.register("acme", "bot", source, run_key="run-2").version == 2
    other = adapter(tmp_path / "other", b"different")
    assert registry.register("acme", "bot", other, run_key="run-1").version == 3


def test_a_version_is_itself_also_after_its_card_was_written(registry: AdapterRegistry, source: Path) -> None:
    """A deployment of a registered version, which a crash or a refusal ended, comes again with the version's folder."""
    first = registry.register("acme", "bot", source, run_key="run-1")
    (registry.path(first) / "README.md").write_text("A card.")
    assert registry.register("acme", "bot", registry.path(first), run_key="run-1") == first
    assert registry.register("acme", "bot", registry.path(first), run_key="run-2").version == 2
    assert registry.find_folder(registry.path(first)) == first
    assert registry.find_folder(source) is None


def test_eight_racing_processes_get_distinct_numbers(registry: AdapterRegistry, source: Path) -> None:
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from trainyard.stores.adapters import AdapterRegistry
        sys.stdin.readline()
        registry = AdapterRegistry(Path(sys.argv[1]))
        print(*[registry.register("acme", "bot", Path(sys.argv[2])).version for _ in range(5)])
        """
    )
    argv = [sys.executable, "-c", code, str(registry.root), str(source)]
    racers = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    numbers = [int(word) for racer in racers for word in racer.communicate(timeout=60)[0].split()]
    assert sorted(numbers) == list(range(1, 41))
    assert [adapter_version.version for adapter_version in registry.list()] == list(range(1, 41))


def test_a_registration_that_is_killed_leaves_no_complete_version(registry: AdapterRegistry, source: Path) -> None:
    code = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        import trainyard.stores.adapters as adapters

        sys.addaudithook(lambda event, args: os.kill(os.getpid(), signal.SIGKILL)
                         if event == "os.link" and str(args[1]).endswith("tokenizer.json") else None)
        adapters.AdapterRegistry(Path(sys.argv[1])).register("acme", "bot", Path(sys.argv[2]))
        """
    )
    died = subprocess.run([sys.executable, "-c", code, str(registry.root), str(source)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert (registry.root / "acme" / "bot" / "v1" / "adapter_model.safetensors").is_file()
    assert registry.list() == []
    assert registry.register("acme", "bot", source).version == 2


def test_a_full_disk_leaves_no_version_and_says_so(tmp_path: Path) -> None:
    """A file-size limit gives the same error path as a full disk, in a process of its own."""
    big = adapter(tmp_path / "big", b"w" * 200_000)
    code = textwrap.dedent(
        """
        import errno, os, resource, signal, sys
        from pathlib import Path
        import trainyard.stores.adapters as adapters

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

        def no_links(event, args):
            if event == "os.link":
                raise OSError(errno.EXDEV, "other device")

        sys.addaudithook(no_links)
        try:
            adapters.AdapterRegistry(Path(sys.argv[1])).register("acme", "bot", Path(sys.argv[2]))
        except adapters.LimitExceeded as error:
            print(error)
        """
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "adapters"), str(big)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("E-DISK-FULL: The disk is full; acme/bot/v1 was not registered.")
    registry = AdapterRegistry(tmp_path / "adapters")
    assert registry.list() == []
    assert list((registry.root / "acme" / "bot" / "v1").iterdir()) == []
    assert registry.register("acme", "bot", big).version == 2


def test_changed_bytes_are_found(registry: AdapterRegistry, source: Path) -> None:
    version = registry.register("acme", "bot", source)
    extra = registry.path(version) / "extra.py"
    extra.write_text("")
    with pytest.raises(Corrupt, match=r"E-CORRUPT: The files of acme/bot/v1 are not what its manifest says"):
        registry.promote("acme/bot/v1")
    extra.unlink()
    (registry.path(version) / MANIFEST).write_text("{")
    with pytest.raises(Corrupt, match=r"E-CORRUPT: The manifest of acme/bot/v1 cannot be read"):
        registry.show("acme/bot/v1")


def test_promote_and_rollback_move_the_live_pointer_and_keep_its_history(
    registry: AdapterRegistry, source: Path
) -> None:
    for _ in range(3):
        registry.register("acme", "bot", source)
    assert registry.live("acme", "bot").version is None
    for number in (1, 3):
        registry.promote(f"acme/bot/v{number}")
    assert registry.show("acme/bot").name == "acme/bot/v3"
    assert registry.rollback("acme", "bot").name == "acme/bot/v1"
    live = registry.live("acme", "bot")
    assert live.version == 1
    assert [(entry["version"], entry["action"]) for entry in live.history] == [
        (1, "promote"),
        (3, "promote"),
        (1, "rollback"),
    ]


def test_rolling_back_twice_goes_further_back_and_never_to_what_was_left(
    registry: AdapterRegistry, source: Path
) -> None:
    for number in (1, 2, 3, 4):
        registry.register("acme", "bot", source)
        registry.point("acme", "bot", number, "deploy")
    registry.point("acme", "bot", 3, "undo")
    assert [registry.rollback("acme", "bot").version for _ in range(2)] == [2, 1]
    with pytest.raises(Conflict, match="E-ADAPTER-NOT-FOUND"):
        registry.rollback("acme", "bot")


def test_rollback_without_an_earlier_version_is_refused(registry: AdapterRegistry, source: Path) -> None:
    registry.register("acme", "bot", source)
    registry.promote("acme/bot/v1")
    with pytest.raises(Conflict, match=r"E-ADAPTER-NOT-FOUND: acme/bot has no earlier live version"):
        registry.rollback("acme", "bot")


def test_an_alias_without_a_live_version_is_not_found(registry: AdapterRegistry, source: Path) -> None:
    registry.register("acme", "bot", source)
    with pytest.raises(NotFound, match=r"E-ADAPTER-NOT-FOUND: No version of 'acme/bot' is live"):
        registry.show("acme/bot")


def test_a_role_that_is_written_wrong_is_suggested(registry: AdapterRegistry, source: Path) -> None:
    registry.register("acme", "assistant", source)
    with pytest.raises(NotFound, match=r"No version of 'acme/asistant' is live\. Do: Did you mean 'assistant'\?"):
        registry.show("acme/asistant")


BAD_NAMES = ["..", "../x", "/etc", "a/../b", "%2e%2e", "a%2fb", ".", "", "A", "a_b", "-a", "a" * 64, "a\n", "ä", "a\0"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_could_leave_the_root_are_refused(registry: AdapterRegistry, source: Path, name: str) -> None:
    for tenant, role in ((name, "bot"), ("acme", name)):
        with pytest.raises(InvalidInput, match="E-NAME"):
            registry.register(tenant, role, source)
    with pytest.raises(InvalidInput, match="E-NAME"):
        registry.show(f"{name}/bot/v1")
    assert not registry.root.exists()


@pytest.mark.parametrize(
    "name", ["acme", "acme/bot/v0", "acme/bot/v01", "acme/bot/1", "acme/bot/v1/x", "acme/bot/", "/"]
)
def test_what_is_no_adapter_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"E-NAME: .* is not a valid adapter name"):
        parse_name(name)


def test_a_link_out_of_the_root_is_refused(registry: AdapterRegistry, source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    registry.root.mkdir()
    (registry.root / "acme").symlink_to(outside)
    with pytest.raises(InvalidInput, match=r"E-NAME: The folder of acme/bot lies outside the registry"):
        registry.register("acme", "bot", source)
    assert list(outside.iterdir()) == []


def test_what_must_not_be_served_is_not_registered(registry: AdapterRegistry, source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="E-ADAPTER-INVALID: There is no adapter folder"):
        registry.register("acme", "bot", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID: .* contains no safetensors file"):
        registry.register("acme", "bot", tmp_path / "empty")
    (source / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(InvalidInput, match=r"E-MODEL-UNSAFE: .*adapter_model\.bin"):
        registry.register("acme", "bot", source)
    (source / "adapter_model.bin").unlink()
    (source / "link.json").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID: .*symbolic link: link\.json"):
        registry.register("acme", "bot", source)
    assert registry.list() == []


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(actions=st.lists(st.sampled_from(["register", "die", "promote", "rollback"]), max_size=12))
def test_any_sequence_keeps_numbers_rising_and_the_pointer_on_a_complete_version(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    root = tmp_path_factory.mktemp("sequence")
    registry, source = AdapterRegistry(root / "adapters"), adapter(root / "trained")
    seen: list[int] = []
    for action in actions:
        complete = registry.list("acme", "bot")
        if action == "register":
            seen.append(registry.register("acme", "bot", source).version)
        elif action == "die":  # what a killed registration leaves
            numbers = [int(path.name[1:]) for path in (root / "adapters").glob("acme/bot/v*")]
            (root / "adapters" / "acme" / "bot" / f"v{max(numbers, default=0) + 1}").mkdir(parents=True)
        elif action == "promote" and complete:
            registry.promote(complete[0].name)
        elif action == "rollback":
            try:
                registry.rollback("acme", "bot")
            except Conflict:
                assert len({entry["version"] for entry in registry.live("acme", "bot").history}) <= 1
    assert seen == sorted(set(seen))
    live = registry.live("acme", "bot").version
    assert live is None or live in [adapter_version.version for adapter_version in registry.list("acme", "bot")]


def test_the_pointer_is_readable_json(registry: AdapterRegistry, source: Path) -> None:
    registry.register("acme", "bot", source)
    registry.promote("acme/bot/v1")
    value = json.loads((registry.root / "acme" / "bot" / "live.json").read_text())
    assert value["version"] == 1
