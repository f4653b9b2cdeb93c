"""The requests of the second engines against their real servers, as far as these go without an account of a cloud.

Each server is in an environment of its own, made by the line of docs/rented-gpus.md in `.trainyard/envs`, or in the
folder that RENT_ENVS names, and kept for the next run: `make test-backends` runs these.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from tests.conftest import REPOSITORY
from trainyard.app.chains.launch_files import export_skypilot
from trainyard.compute.child import kill
from trainyard.compute.rent.dstack import DstackService
from trainyard.compute.rent.rentals import Offer, OfferQuery, Rental, RentalLimits, RentalService, RentalStore, Work
from trainyard.compute.rent.renting import Renter
from trainyard.compute.rent.skypilot import SkyPilotService
from trainyard.compute.rent.wire import Pod, RentService
from trainyard.errors import Denied, NotFound, TrainyardError, Unavailable
from trainyard.spec.chain import ChainSpec
from trainyard.spec.graph import resolve

pytestmark = [pytest.mark.backends, pytest.mark.slow, pytest.mark.timeout(1500)]
ENVIRONMENTS = Path(os.environ.get("RENT_ENVS", REPOSITORY / ".trainyard" / "envs"))
LIMITS = RentalLimits(max_price=Decimal(3), max_duration_s=3600, max_spend=Decimal(3), idle_duration_s=600)
STARTS_S, ENDS_S = 300.0, 120.0
CATALOGS = {
    "common/accelerators.csv": 'AcceleratorName,Clouds\nH100,"[""Lambda""]"\n',
    "common/metadata.csv": "GPU,MemoryGB,Manufacturer\nH100,80,NVIDIA\n",
    "lambda/vms.csv": "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
    "gpu_1x_h100_pcie,H100,1,26,200,2.49,us-east-1,"
    "\"{'Gpus': [{'Name': 'H100', 'Count': 1.0, 'MemoryInfo': {'SizeInMiB': 81920}}]}\",\n",
}
"""Copies of the price lists that SkyPilot downloads, with one machine."""
ENABLE = (
    "from sky import global_user_state; from sky.clouds import cloud; "
    "global_user_state.set_enabled_clouds(['Lambda'], cloud.CloudCapability.COMPUTE, 'default')"
)
ADD_CLUSTER = (
    "import sys, sky; from sky import global_user_state; from sky.backends import cloud_vm_ray_backend as backend; "
    "resources = sky.Resources(infra='lambda/us-east-1', instance_type='gpu_1x_h100_pcie'); "
    "handle = backend.CloudVmRayResourceHandle(cluster_name=sys.argv[1], cluster_name_on_cloud='x', cluster_yaml=None, "
    "launched_nodes=1, launched_resources=resources); "
    "global_user_state.add_or_update_cluster(sys.argv[1], handle, requested_resources={resources}, ready=True)"
)


def read_install_line(engine: str) -> str:
    """Return the packages that the manual installs for an engine."""
    page = (REPOSITORY / "docs" / "rented-gpus.md").read_text()
    match = re.search(rf"pip install '({engine}\[[^']+)'", page)
    assert match is not None, f"the manual does not say how to install {engine}"
    return match[1]


def prepare_environment(engine: str) -> Path:
    """Return the folder of an engine's programs; installed where it is not there yet."""
    folder = ENVIRONMENTS / engine
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        installed = subprocess.run(
            [str(folder / "bin" / "pip"), "install", "-q", read_install_line(engine)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert installed.returncode == 0, installed.stderr[-2000:]
    return folder / "bin"


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def run_server(argv: list[str], home: Path, url: str, **variables: str) -> Iterator[str]:
    """Yield the address of a server once it answers; every process of it is ended."""
    path = f"{Path(argv[0]).parent}:{os.environ['PATH']}"
    environment = {"HOME": str(home), "PATH": path, "DO_NOT_TRACK": "1", **variables}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=home, env=environment, stdout=log, stderr=log)
    tree = psutil.Process(process.pid)
    try:
        assert wait_until(lambda: answers(url), STARTS_S), (home / "log").read_text()[-2000:]
        yield url
    finally:
        kill([*tree.children(recursive=True), tree])
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=20, trust_env=False).status_code < 500
    except httpx.HTTPError:
        return False


def wait_until(is_true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_true():
            return True
        time.sleep(1)
    return False


def plan_work(rental: Rental) -> Work:
    script = 'set -e\necho "it\'s"\nexec timeout 60 prefect worker start'
    return Work(script=script, variables={"PREFECT_API_URL": "https://desk/api"}, secrets={"LOGIN": "secret-login"})


def build_rental(service: RentalService, folder: Path) -> Rental:
    """Return a record for an order of a machine that the server knows the cloud of."""
    offer = Offer(
        service=service, provider={"skypilot": "Lambda", "dstack": "lambda"}[service], instance="gpu_1x_h100_pcie",
        region="us-east-1", gpu="H100", gpus=1, gpu_memory_gb=80, usd_per_hour=Decimal("2.49"), source="test",
        date=datetime.now(UTC).date(),
    )  # fmt: skip
    key = f"t{secrets.token_hex(3)}"
    name = f"{RentalStore(folder).prefix}{key}"
    return Rental(key=key, name=name, offer=offer, limits=LIMITS, created=time.time())


def wait_for_end(service: RentService, name: str) -> Pod | None:
    """Return what is left of an order that can come to nothing only."""
    pods = [service.find_pod(name)]

    def has_ended() -> bool:
        pods[0] = service.find_pod(name)
        return pods[0] is None or bool(pods[0].end)

    assert wait_until(has_ended, ENDS_S), pods
    return pods[0]


# dstack


@pytest.fixture(scope="module")
def dstack_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    programs, home, port = prepare_environment("dstack"), tmp_path_factory.mktemp("dstack"), find_port()
    argv = [str(programs / "dstack"), "server", "--host", "127.0.0.1", "--port", str(port), "--token", "t-1", "--yes"]
    url = f"http://127.0.0.1:{port}"
    with run_server(argv, home, url, DSTACK_SERVER_DIR=str(home / "server")):
        yield url


@pytest.fixture
def dstack(dstack_url: str) -> Iterator[DstackService]:
    with DstackService(dstack_url, "t-1", "main", plan_work) as service:
        yield service


def test_dstack_refuses_a_wrong_token_and_an_unknown_project(dstack_url: str) -> None:
    with DstackService(dstack_url, "wrong", "main", plan_work) as service, pytest.raises(Denied, match="Invalid token"):
        service.list_offers(OfferQuery())
    with (
        DstackService(dstack_url, "t-1", "nowhere", plan_work) as service,
        pytest.raises(Denied, match="no project 'nowhere'"),
    ):
        service.find_pod("trainyard-x")


def test_dstack_without_a_backend_has_no_offer_and_nothing_to_release(dstack: DstackService, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="None is in stock"):
        Renter(dstack, RentalStore(tmp_path)).rent("desk", OfferQuery(gpu="H100"), LIMITS, 0.5)
    assert (dstack.list_pods("trainyard-"), dstack.find_pod("trainyard-x")) == ([], None)
    dstack.delete_pod("trainyard-x")


def test_dstack_takes_an_order_and_says_why_it_came_to_nothing(dstack: DstackService, tmp_path: Path) -> None:
    rental = build_rental("dstack", tmp_path)
    assert dstack.create_pod(rental).id == rental.name
    assert [pod.name for pod in dstack.list_pods(rental.name)] == [rental.name]
    pod = wait_for_end(dstack, rental.name)
    assert pod is not None
    assert (pod.is_order, pod.created_at) == (False, None)
    assert "the run is failed: No offers matching" in pod.end

    def is_deleted() -> bool:
        dstack.delete_pod(rental.name)
        return dstack.list_pods(rental.name) == []

    assert wait_until(is_deleted, ENDS_S)


def test_dstack_stops_an_order_that_is_under_way(dstack: DstackService, tmp_path: Path) -> None:
    rental = build_rental("dstack", tmp_path)
    store = RentalStore(tmp_path)
    dstack.create_pod(rental)
    renter = Renter(dstack, store, poll_s=1.0)
    released = renter.release(store.put(rental.model_copy(update={"pod_id": rental.name})), "test")
    assert (released.state, released.usd) == ("released", 0)


def test_dstack_names_a_field_that_it_does_not_know_without_its_value(dstack: DstackService) -> None:
    configuration = {"type": "task", "commands": ["true"], "bogus": "secret-login"}
    with pytest.raises(TrainyardError, match=r"configuration.*bogus: Extra inputs are not permitted") as caught:
        dstack.post("runs/apply", {"plan": {"run_spec": {"configuration": configuration}}, "force": False})
    assert "secret-login" not in str(caught.value)


# SkyPilot


@pytest.fixture(scope="module")
def skypilot_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("skypilot")
    for name, text in CATALOGS.items():
        path = home / ".sky" / "catalogs" / "v8" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return home


@pytest.fixture(scope="module")
def skypilot_url(skypilot_home: Path) -> Iterator[str]:
    programs, port = prepare_environment("skypilot"), find_port()
    argv = [str(programs / "python"), "-m", "sky.server.server", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with run_server(argv, skypilot_home, f"{url}/api/health", SKYPILOT_DISABLE_USAGE_COLLECTION="1"):
        yield url


@pytest.fixture
def skypilot(skypilot_url: str) -> Iterator[SkyPilotService]:
    with SkyPilotService(skypilot_url, "", plan_work) as service:
        yield service


def run_in_skypilot(home: Path, program: str, *arguments: str) -> str:
    """Run a program in SkyPilot's environment; returns what it prints."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    argv = [str(prepare_environment("skypilot") / "python"), "-c", program, *arguments]
    done = subprocess.run(argv, env=environment, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_skypilot_without_a_cloud_has_no_offer_and_nothing_to_release(skypilot: SkyPilotService) -> None:
    with pytest.raises(Unavailable, match="SkyPilot has no cloud"):
        skypilot.list_offers(OfferQuery())
    assert (skypilot.list_pods("trainyard-"), skypilot.find_pod("trainyard-x")) == ([], None)
    skypilot.delete_pod("trainyard-x")


def test_skypilot_refuses_a_wrong_token(skypilot_url: str) -> None:
    with (
        SkyPilotService(skypilot_url, "sky_wrong", plan_work) as service,
        pytest.raises(Denied, match="SkyPilot refuses the key") as caught,
    ):
        service.list_pods("trainyard-")
    assert "sky_wrong" not in str(caught.value)


def test_skypilot_offers_takes_an_order_and_says_why_it_came_to_nothing(
    skypilot: SkyPilotService, skypilot_home: Path, tmp_path: Path
) -> None:
    run_in_skypilot(skypilot_home, ENABLE)
    (offer,) = skypilot.list_offers(OfferQuery(gpu="h100"))
    assert (offer.provider, offer.instance, offer.region) == ("Lambda", "gpu_1x_h100_pcie", "us-east-1")
    assert (offer.gpu_memory_gb, str(offer.usd_per_hour)) == (80.0, "2.49")
    rental = build_rental("skypilot", tmp_path)
    assert skypilot.create_pod(rental).id == rental.name
    pod = wait_for_end(skypilot, rental.name)
    assert pod is not None
    assert pod.end.startswith("no machine: ")
    assert "\x1b" not in pod.end
    skypilot.delete_pod(rental.name)
    assert skypilot.list_pods(rental.name) == []


def test_skypilot_tells_when_a_cluster_began_and_what_it_costs(
    skypilot: SkyPilotService, skypilot_home: Path, tmp_path: Path
) -> None:
    """The server's own code writes the record: no cloud made the cluster, and its refresh removes it each minute."""
    name = build_rental("skypilot", tmp_path).name
    pods: list[Pod] = []

    def is_listed() -> bool:
        run_in_skypilot(skypilot_home, ADD_CLUSTER, name)
        time.sleep(2)  # it has cost something
        pods[:] = [pod for pod in [skypilot.find_pod(name), *skypilot.list_pods(name)] if pod is not None]
        return len(pods) == 2

    assert wait_until(is_listed, ENDS_S)
    assert [pod.name for pod in pods] == [name, name]
    assert all(pod.created_at is not None and abs(pod.created_at.timestamp() - time.time()) < 300 for pod in pods)
    assert str(pods[0].price) == "2.4900"
    skypilot.delete_pod(name)
    assert skypilot.find_pod(name) is None


def test_skypilot_refuses_a_task_with_an_unknown_field_before_an_order(
    skypilot: SkyPilotService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rental = build_rental("skypilot", tmp_path)
    task = skypilot.build_task(rental)
    monkeypatch.setattr(skypilot, "build_task", lambda _rental: {**task, "resources": task["resources"] | {"bogus": 1}})
    with pytest.raises(TrainyardError, match="unsupported field 'bogus'"):
        skypilot.create_pod(rental)
    assert skypilot.list_requests(rental.name, all_status=True) == []


def test_skypilot_accepts_the_task_that_export_writes(skypilot_home: Path) -> None:
    spec = ChainSpec.model_validate({
        "name": "desk",
        "nodes": [
            {"type": "data_source", "config": {"path": "pairs.jsonl", "format": "preference"}},
            {"type": "trainer", "config": {"stage": "dpo", "base_model": "starter",
                                           "launch": {"processes": 2, "strategy": "ddp"}}},
        ],
    })  # fmt: skip
    task, _ = export_skypilot(spec, resolve(spec), "H100")
    (skypilot_home / "desk.sky.yaml").write_text(yaml.safe_dump(task, sort_keys=False))
    program = (
        "import sky; from sky.utils import dag_utils; task = sky.Task.from_yaml('desk.sky.yaml'); "
        "dag_utils.convert_entrypoint_to_dag(task).validate(); "
        "print(task.name, [resource.accelerators for resource in task.resources])"
    )
    assert run_in_skypilot(skypilot_home, program).splitlines()[-1] == "desk [{'H100': 2}]"
