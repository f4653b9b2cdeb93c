"""What `check` says about the workers of `fan_out`, of real clusters."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.dask_cluster import Cluster, running_cluster
from trainyard.app.plan.parse import parse_chain
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.plan.workers import check_workers
from trainyard.errors import InvalidInput
from trainyard.settings import load_settings

VALIDATED = {"name": "t", "nodes": [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "validator"}]}
BY_RULE = {"name": "t", "nodes": [{"type": "data_source", "config": {"path": "docs"}}, {"type": "ai_generator"}]}
API = {"PREFECT_API_URL": "http://127.0.0.1:4200/api"}
UNTOUCHED = {"name": "t", "nodes": [{"type": "data_source", "config": {"path": "rows.jsonl"}}]}


def check(chain: object = VALIDATED, **fan_out: object) -> list[str]:
    settings = load_settings(fan_out=fan_out)
    settings.home.mkdir(parents=True, exist_ok=True)
    return [reason.line() for reason in check_workers(resolve_chain(parse_chain(chain), settings), settings)]


@pytest.mark.parametrize(
    ("fan_out", "words"),
    [
        ({"engine": "spark"}, "'threads', 'processes', 'dask' or 'ray'"),
        ({"engine": "dask", "workers": 0}, "greater than or equal to 1"),
        ({"engine": "dask", "pieces": 0}, "greater than or equal to 1"),
        ({"engine": "ray", "address": "tcp://127.0.0.1:8786"}, "does not fit engine ray, which takes ray://HOST:PORT"),
        ({"engine": "threads", "address": "tcp://127.0.0.1:8786"}, "does not fit engine threads, which takes none"),
        ({"engine": "dask", "address": "tcp://user:word@host:8786"}, "should match pattern"),
        ({"engine": "dask", "port": 1}, "Extra inputs"),
    ],
)
def test_a_wrong_setting_is_refused(fan_out: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        load_settings(fan_out=fan_out)


def test_engines_of_this_machine_need_their_package_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(engine="dask") == check(engine="ray") == check(engine="processes") == []
    monkeypatch.setitem(sys.modules, "prefect_ray", None)
    assert check(engine="ray") == [
        "R-PACKAGE-MISSING fan_out: fan_out.engine is ray, and its package is not installed here. "
        "Instead: Run `pip install 'trainyard[ray]'`."
    ]
    assert check(BY_RULE, engine="ray")
    assert check(UNTOUCHED, engine="ray") == []


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_an_address_where_nobody_listens_is_refused(engine: str) -> None:
    address = f"{'tcp' if engine == 'dask' else 'ray'}://127.0.0.1:9"
    (line,) = check(engine=engine, address=address)
    assert line.startswith(f"E-SERVER-UNREACHABLE fan_out: {engine} at {address}: nothing answers there (")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.integration
def test_a_cluster_is_asked_for_its_workers(cluster: Cluster, tmp_path: Path) -> None:
    assert "it has no worker." in check(engine="dask", address=cluster.address)[0]
    worker = cluster.start_worker()
    assert "has no PREFECT_API_URL in its environment" in check(engine="dask", address=cluster.address)[0]
    worker.kill()
    worker.wait()
    worker = cluster.start_worker(API)
    assert check(engine="dask", address=cluster.address) == []
    worker.kill()
    worker.wait()


@pytest.mark.integration
def test_a_worker_with_other_code_is_refused(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    shutil.copytree(
        REPOSITORY / "trainyard", other / "trainyard", ignore=shutil.ignore_patterns("*.safetensors", "web")
    )
    with (other / "trainyard" / "data" / "rows.py").open("a") as module:
        module.write("# a later release\n")
    worker = cluster.start_worker({**API, "PYTHONPATH": str(other)})
    (line,) = check(engine="dask", address=cluster.address)
    assert "a worker has other versions: trainyard's code" in line
    worker.kill()
    worker.wait()


def may_mount() -> bool:
    """Whether this user may give a process other mounts."""
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            ["unshare", "--mount", "--map-root-user", "true"], capture_output=True, check=False
        ).returncode
    )


@pytest.mark.integration
@pytest.mark.skipif(not may_mount(), reason="this user may not give a process other mounts")
def test_a_worker_that_does_not_see_the_home_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "shared"
    home.mkdir()
    monkeypatch.setenv("TRAINYARD_HOME", str(home))
    hide = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'mount -t tmpfs none "{home}" && exec "$@"', "hide"]
    worker = cluster.start_worker(API, before=hide)
    (line,) = check(engine="dask", address=cluster.address)
    assert f"does not see {home}, or may not write there." in line
    worker.kill()
    worker.wait()
