"""Fixtures of every test: an own home, one tiny real model for the session, and nothing left running."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from tqdm import tqdm
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.fast import EXAMPLES, is_heavy, needs_a_model, starts_processes
from trainyard import settings as settings_module
from trainyard.data.limited.service import ReadingService, keep_service

if TYPE_CHECKING:
    from tests.flows.real_stack import Stack
    from tests.small_jobs import Jobs

REPOSITORY = Path(__file__).parent.parent
# How long a draw takes says how busy the machine is.
hypothesis_settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.register_profile("default_tests", hypothesis_settings.get_profile("busy"), max_examples=30)
hypothesis_settings.load_profile("default_tests")  # `make test-all` draws the 100 of `busy`
tqdm.monitor_interval = 0  # the thread that looks after slow progress bars is not started
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", DO_NOT_TRACK="1", TOKENIZERS_PARALLELISM="false")
# Tiny tensors in several threads: the workers of pytest share the cores, and threads that wait for each other spin.
# Before torch and numpy are imported; also for the processes that tests start.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

READING = ReadingService()
"""What reads data sets for all tests of this process: a start takes a second of CPU time, a request milliseconds."""
END_S = 60.0
"""How long a thread or process may take to end after its test."""
PREFECTS_THREADS = (
    "APILogWorkerThread",
    "ConcurrencySlotAcquisitionWithLeaseServiceThread",
    "EventsWorkerThread",
    "GlobalEventLoopThread",
    "RunSyncEventLoopThread",
)
"""Prefect keeps them from the first flow of a process on; the fixture `prefect` ends them with its server."""
EXECUTORS_THREADS = ("asyncio_",)
"""An event loop starts them at need and ends them with itself; that of a server may have a wider scope than a test."""
CONNECTIONS_THREADS = ("loopback-connection",)
"""A double may have a wider scope, too, and its clients connections that stay; each ends with its server."""


TOGETHER = ("tests/flows/", "tests/browser/")
SINGLY = "tests/integration/"
"""Folder whose tests share nothing, each as long as a file of others: whichever worker is free takes the next."""
INTEGRATION = ("tests/flows/", "tests/integration/")
"""Folders whose tests all start servers, flows or many processes."""


class FlowsTogether(LoadFileScheduling):
    """`--dist loadfile`, with all flow tests in one worker, and all of a browser: a Prefect server starts slowly."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SINGLY):
            return nodeid
        return next((prefix for prefix in TOGETHER if nodeid.startswith(prefix)), super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Take the place of `--dist loadfile`; any other value of `--dist` means what it says."""
    return FlowsTogether(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="Only tests without torch, servers and child processes.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files that import torch or start processes (`tests/fast.py`)."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if not is_test or not config.getoption("fast"):
        return None
    return True if is_heavy(collection_path) or starts_processes(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what collection imports out of garbage collections: each full one would take 0.5 s, and libraries that
    train ask for them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(INTEGRATION):
            item.add_marker(pytest.mark.integration)
    if config.getoption("fast"):
        items[:] = [item for item in items if not needs_a_model(item)]


def pytest_configure(config: pytest.Config) -> None:
    """Draw few examples in `--fast`; measure the coverage of reading children (`child_coverage/sitecustomize.py`)."""
    os.environ.pop("COLUMNS", None)  # that of the terminal in which pytest runs, which its workers inherit
    if config.getoption("fast"):
        hypothesis_settings.register_profile("fast", hypothesis_settings(), max_examples=EXAMPLES)
        hypothesis_settings.load_profile("fast")
    if getattr(config.option, "cov_source", None):
        folder = str(REPOSITORY / "tests" / "child_coverage")
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))


def list_running() -> set[threading.Thread | psutil.Process]:
    """The threads and child processes that are running."""
    return set(threading.enumerate()) | running_children()


def running_children() -> set[psutil.Process]:
    """The child processes. Linux lists them in 0.03 ms; to look through all processes takes 2 ms, twice a test."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    lists = list(Path("/proc/self/task").glob("*/children"))
    if not lists:
        return set(psutil.Process().children())
    children = set[psutil.Process]()
    for path in lists:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # a thread or a child that has ended meanwhile
            children |= {psutil.Process(int(pid)) for pid in path.read_text().split()}
    return children


def require_nothing_left(before: set[threading.Thread | psutil.Process], spared: tuple[str, ...] = ()) -> None:
    """Fail if a thread or process has come since `before`: what it does next happens in another test."""
    deadline = time.monotonic() + END_S
    while left := {
        runner for runner in list_running() - before if not (thread_name(runner).startswith(spared) or is_kept(runner))
    }:
        assert time.monotonic() < deadline, f"still running: {sorted(map(describe_runner, left))}"
        time.sleep(0.02)


def is_kept(runner: threading.Thread | psutil.Process) -> bool:
    return renders(runner) or reads(runner)


def renders(runner: threading.Thread | psutil.Process) -> bool:
    """Whether this is a child that renders a template: it ends with who has the template, at last with this process."""
    limited = sys.modules.get("trainyard.data.renderers.limited")
    if limited is None or isinstance(runner, threading.Thread):
        return False
    return any(runner.pid == each.process.pid for each in list(limited.RUNNING.values()) if each.process)


def reads(runner: threading.Thread | psutil.Process) -> bool:
    """Whether this is the server of `READING`; the processes that it forks end with each request."""
    return isinstance(runner, psutil.Process) and READING.process is not None and runner.pid == READING.process.pid


def describe_runner(runner: threading.Thread | psutil.Process) -> str:
    """What is left, with the command of a process that has not ended meanwhile."""
    if isinstance(runner, threading.Thread):
        return str(runner)
    try:
        return f"{runner} {' '.join(runner.cmdline())}"
    except psutil.NoSuchProcess:
        return str(runner)


def thread_name(runner: threading.Thread | psutil.Process) -> str:
    return runner.name if isinstance(runner, threading.Thread) else ""


RECURSION_LIMIT = sys.getrecursionlimit()
"""Before any import: py-evm raises it so far that nested JSON overflows the stack."""


@pytest.fixture(autouse=True, scope="session")
def nothing_is_left_by_the_session() -> Iterator[None]:
    before = list_running()
    with keep_service(READING):
        yield
    limited = sys.modules.get("trainyard.data.renderers.limited")
    for each in list(limited.RUNNING.values()) if limited else ():
        each.stop()
    end_loops_of_prefect()
    require_nothing_left(before)


@pytest.fixture
def reading_service() -> ReadingService:
    """What reads data sets for all tests of this process."""
    return READING


def end_loops_of_prefect() -> None:
    """End the threads with event loops that Prefect keeps until the process exits, also without a flow: a client of its
    API starts one.
    """
    threads = sys.modules.get("prefect._internal.concurrency.threads")
    for portal in list(threads._active_instances) if threads else ():
        portal.shutdown()
        if portal.thread.is_alive():
            portal.thread.join(END_S)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Each test ends the threads and processes that it starts. Fixtures of a wider scope end theirs later."""
    before = list_running()
    yield
    sys.setrecursionlimit(RECURSION_LIMIT)
    require_nothing_left(before, spared=PREFECTS_THREADS + EXECUTORS_THREADS + CONNECTIONS_THREADS)


@pytest.fixture(autouse=True, scope="module")
def variables_are_given_back() -> Iterator[None]:
    """The product sets what its children need to reach the Prefect server; the next module has another server."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty TRAINYARD_HOME; every other TRAINYARD_ and PREFECT_ variable of the caller is hidden."""
    for name in [name for name in os.environ if name.startswith("TRAINYARD_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("TRAINYARD_HOME", str(folder))
    settings_module.settings.cache_clear()
    yield folder
    settings_module.settings.cache_clear()


@pytest.fixture
def shared_data() -> Path:
    """Public data sets beside the repository; tests that need them skip where they are not."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the public sample data sets are not beside the repository (../shared/data)")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random two-layer Llama (hidden 64) with a trained byte-level BPE tokenizer of about 600 tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    if "torch" in sys.modules:
        import_module("trainyard.testing.tiny").build_tiny_model(folder)
    else:  # A process of its own: importing torch here would cost every torch-free test run four seconds.
        subprocess.run([sys.executable, "-m", "trainyard.testing.tiny", str(folder)], check=True, capture_output=True)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
    return folder


@pytest.fixture(scope="module")
def jobs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Small trainings of the tiny model on rows of their own."""
    from tests.small_jobs import Jobs, write_data  # torch takes seconds

    return Jobs(tiny_model, write_data(tmp_path_factory.mktemp("data")), tmp_path_factory.mktemp("locks"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    """A Prefect server, a worker and a model server in a home of their own."""
    from tests.flows.real_stack import standing  # for few tests

    with standing(tmp_path_factory.mktemp("stack"), tiny_model) as stack:
        yield stack
