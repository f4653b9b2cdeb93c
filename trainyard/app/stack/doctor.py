"""Check versions, services, models and devices, and suggest fixes. Imports neither Prefect nor torch."""

from __future__ import annotations

import ipaddress
import platform
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx
import psutil
from packaging.version import Version
from pydantic import BaseModel

import trainyard
from trainyard.app import services as stack
from trainyard.app.access.database import inspect_database, read_database
from trainyard.app.backends import backend_table
from trainyard.app.context import Context
from trainyard.app.live.waits import read_devices
from trainyard.app.responses import Response
from trainyard.cancellation import iterate_until_departure
from trainyard.compute.gpus import MIB, GpuReadings, list_devices, physical_cores, read_amd_memory, read_gpus
from trainyard.compute.pools import list_problems
from trainyard.compute.services import EMBEDDED, find_service, is_healthy, read_record, record_path
from trainyard.errors import TrainyardError
from trainyard.locations import default_home
from trainyard.operations.base import Nothing
from trainyard.sandbox.service import Confinement, find_confinement
from trainyard.serve.targets import local
from trainyard.settings import Settings
from trainyard.spec.axes.devices import Device
from trainyard.spec.load.text import parse_text
from trainyard.spec.night import read_night
from trainyard.stores.auth_string import OTHERS, auth_file
from trainyard.stores.models import resolve_model

GIB = 1 << 30
NIGHT_FILE = "nightly.yaml"
LEAST_FREE_GIB = 2.0
"""A demo run leaves about 100 MB, the pinned packages take the rest on a first set-up."""


class Check(Response):
    """A check."""

    name: str
    ok: bool
    detail: str
    do: str = ""
    note: bool = False
    """For information only: it is not a problem either way."""


class Diagnosis(BaseModel):
    """All checks."""

    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        return 0 if all(check.ok or check.note for check in self.checks) else 1


def examine(_: Nothing, context: Context) -> Diagnosis:
    """Run all checks; one that fails hides no other."""
    return Diagnosis(checks=tuple(check for look in iterate_until_departure(LOOKS) for check in look(context.settings)))


def look_at_queue(settings: Settings) -> list[Check]:
    """Say who has each device, and who waits for it."""
    used = [device for device in read_devices(settings) if device.text]
    return [Check(name=f"device {device.device}", ok=True, note=True, detail=device.text) for device in used]


def look_at_python(_: Settings) -> list[Check]:
    fine = sys.version_info >= (3, 11)
    versions = f"{platform.python_version()}, trainyard {trainyard.__version__}"
    return [Check(name="python", ok=fine, detail=versions, do="Use Python 3.11 or newer.")]


def look_at_packages(_: Settings) -> list[Check]:
    """Prefect 3.8's server breaks with FastAPI 0.150 and newer, its scheduler with SQLAlchemy 2.1: pip chooses both."""
    pins = {
        "prefect": ("3.8.8", "3.9"),
        "fastapi": ("0.139", "0.150"),
        "sqlalchemy": ("2.0.40", "2.1"),
        "torch": ("2.13", "2.14"),
    }
    remedy, checks = "Install the pinned versions: pip install -c constraints.txt -e .", []
    for name, (least, below) in pins.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            checks.append(Check(name=name, ok=False, detail="not installed", do=remedy))
            continue
        fine = Version(least) <= Version(installed.split("+")[0]) < Version(below)
        detail = installed if fine else f"{installed}; >= {least}, < {below} is needed"
        checks.append(Check(name=name, ok=fine, detail=detail, do=remedy))
    return checks


def look_at_home(settings: Settings) -> list[Check]:
    folder = settings.home
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GIB
    detail, do = f"{free:.1f} GiB free for {settings.home}", "Free space, or point TRAINYARD_HOME at a larger disk."
    return [Check(name="disk", ok=free >= LEAST_FREE_GIB, detail=detail, do=do)]


def look_at_readers(settings: Settings) -> list[Check]:
    """Return whether other users of this machine can read the home, or the text that opens the server."""
    key, checks = auth_file(settings), []
    for name, path, mode in (("home", settings.home, "700"), ("login text", key, "600")):
        if path.exists():
            others_mode = stat.S_IMODE(path.stat().st_mode) & OTHERS
            detail = f"{path} is {'open to other users' if others_mode else 'for its owner alone'}"
            checks.append(Check(name=name, ok=not others_mode, detail=detail, do=f"chmod {mode} {path}"))
    return checks


def look_at_listeners(settings: Settings) -> list[Check]:
    """Check which ports of this home other machines can connect to."""
    commands, open_ports = {}, []
    for process in psutil.process_iter():
        try:
            home, command = Path(process.environ().get("TRAINYARD_HOME") or default_home()), process.cmdline()
        except (psutil.Error, OSError):  # ended meanwhile, or another user's
            continue
        if home == settings.home and any("trainyard" in word for word in command):
            commands[process.pid] = " ".join(command[2:5])
    for pid, at in listening_addresses(commands):
        if not ipaddress.ip_address(at.ip).is_loopback:
            open_ports.append(f"{at.ip}:{at.port} ({commands[pid]}, pid {pid})")
    detail = f"OPEN to other machines: {', '.join(open_ports)}" if open_ports else "on loopback only"
    return [Check(name="listening", ok=not open_ports, note=bool(open_ports), detail=detail)]


def listening_addresses(pids: Iterable[int]) -> list[tuple[int, Any]]:
    """Return the TCP addresses that these processes listen on, each with its process.

    The system's table of connections is read once for all of them where that is allowed: it can have thousands.
    """
    try:
        table = [(connection.pid, connection) for connection in psutil.net_connections("tcp")]
    except psutil.AccessDenied:  # macOS, but for root
        table = [(pid, connection) for pid in pids for connection in list_connections(pid)]
    process_ids = {*pids}
    return [
        (pid, connection.laddr)
        for pid, connection in table
        if pid in process_ids and connection.status == psutil.CONN_LISTEN
    ]


def list_connections(pid: int) -> list[object]:
    try:
        return [*psutil.Process(pid).net_connections("tcp")]
    except psutil.Error:  # ended meanwhile
        return []


def look_at_server(settings: Settings) -> list[Check]:
    url = stack.api_url(settings)
    if url is None:
        missing = stack.no_server_error(settings)
        return [Check(name="prefect server", ok=False, detail=f"not running. {missing.why}".strip(), do=missing.do)]
    if not is_healthy(url, timeout_s=5):
        log = settings.services / "server.log"
        return [Check(name="prefect server", ok=False, detail=f"{url} does not answer", do=f"Read {log}.")]
    there = Check(name="prefect server", ok=True, detail=url)
    pool = [*look_at_pool_settings(settings), *look_at_pool(settings, url)]
    return [there, *look_at_database(settings, url), *look_at_login(settings, url), *pool, *look_at_worker(settings)]


def look_at_database(settings: Settings, url: str) -> list[Check]:
    """Report the database of this home's server, and whether it can be used."""
    if not stack.is_own(settings, url):
        return []
    database = read_database(settings)
    if not database:
        return [Check(name="prefect database", ok=True, detail=f"SQLite in {settings.prefect_home}")]
    try:
        version = inspect_database(settings)
    except TrainyardError as error:
        return [Check(name="prefect database", ok=False, detail=f"{error.what} {error.why}", do=error.do)]
    return [Check(name="prefect database", ok=True, detail=f"{database}, {version}")]


def look_at_pool_settings(settings: Settings) -> list[Check]:
    """Check whether runs of the work pool have what they need."""
    problems = [Check(name="pool settings", ok=False, detail=each.what, do=each.do) for each in list_problems(settings)]
    fine = Check(name="pool settings", ok=True, detail=f"type {settings.work_pool_type}")
    return problems or [fine]


def look_at_login(settings: Settings, url: str) -> list[Check]:
    """Check whether the server asks for credentials: without them every user of this machine can start commands."""
    server = stack.running(settings, "server")
    if server is None or server.url != url:
        return []
    try:
        asks = stack.asks_for_auth(url)
    except TrainyardError as error:
        return [Check(name="prefect login", ok=False, detail=error.what, do=error.do)]
    if asks:
        fine = stack.fetch_status(settings, url, "version") == httpx.codes.OK
        detail = f"asks for the text in {auth_file(settings)}" + ("" if fine else ", and does not accept it")
        return [Check(name="prefect login", ok=fine, detail=detail, do="Run `trainyard down`, then `trainyard up`.")]
    process = server.process()
    no_auth = process is not None and stack.NO_AUTH in process.cmdline()
    detail = f"OPEN: every user of this machine can start runs{' (--no-auth)' if no_auth else ''}"
    return [Check(name="prefect login", ok=False, note=no_auth, detail=detail,
                  do="Run `trainyard down`, then `trainyard up`.")]  # fmt: skip


def look_at_pool(settings: Settings, url: str) -> list[Check]:
    """Check whether the server has what `up` writes."""
    paths = {
        f"work pool {settings.work_pool}": f"work_pools/{settings.work_pool}",
        "deployment chain/adhoc": "deployments/name/chain/adhoc",
    }
    checks = []
    for name, path in paths.items():
        fine = stack.fetch_status(settings, url, path) == httpx.codes.OK
        checks.append(Check(name=name, ok=fine, detail="there" if fine else "missing", do="Run `trainyard up`."))
    return checks


def look_at_worker(settings: Settings) -> list[Check]:
    worker = stack.running(settings, "worker")
    detail = f"pid {worker.pid}" if worker else "none of this home is running"
    return [Check(name="worker", ok=worker is not None, detail=detail, do="Run `trainyard up`.")]


def look_at_models(settings: Settings) -> list[Check]:
    names = dict.fromkeys((settings.default_base_model, *settings.served_models))
    return [look_at_model(name, settings) for name in names]


def look_at_model(name: str, settings: Settings) -> Check:
    try:
        source = resolve_model(name, settings)
    except TrainyardError as error:
        return Check(name="base model", ok=False, detail=error.what, do=error.do)
    size = f"{source.parameters / 1e6:.1f} M parameters" if source.parameters else "on the Hub"
    return Check(name="base model", ok=True, detail=f"{source.name}, {size}")


def look_at_embedded(settings: Settings) -> list[Check]:
    server = read_record(record_path(settings, EMBEDDED))
    fine = server is not None and server.answers()
    return [Check(name="embedded model server", ok=fine, note=server is None,
                  detail=server.url if server else "not running", do="Run `trainyard up`.")]  # fmt: skip


def look_at_night(settings: Settings) -> list[Check]:
    """Check which model reads the documents of a night. The night itself starts and ends it."""
    path = settings.home / NIGHT_FILE
    try:
        config = parse_text(path.read_bytes()) if path.is_file() else {}
        serving = read_night({"tenant": settings.tenant, **(config if isinstance(config, dict) else {})}).serving
    except TrainyardError as error:
        return [Check(name="night", ok=False, detail=f"{path.name}: {error.why or error.what}", do="Correct the file.")]
    detail = f"reads with profile {serving.profile}; the night starts and ends that server, `trainyard up` starts none"
    return [Check(name="night", ok=True, note=True, detail=detail)]


def look_at_targets(settings: Settings) -> list[Check]:
    """Check the servers that deployments started and that should answer; after `down` they are only reported."""
    checks = []
    for path, recipe in local.list_expected(settings).items():
        server = find_service(path)
        fine = server is not None and server.answers()
        absent = "its process is gone" if path.is_file() else "not running"
        state = f"{server.url} does not answer" if server else absent
        detail = f"{recipe.model}, {server.url if server and fine else state}"
        do = "Run `trainyard up`, which starts it again." if server is None else f"Read {recipe.log}."
        checks.append(Check(name=f"server {path.stem}", ok=fine, note=not path.is_file(), detail=detail, do=do))
    return checks


def look_at_devices(_: Settings, read: Callable[[], GpuReadings] = read_gpus) -> list[Check]:
    """Report cores and GPUs, each with the half precision that it multiplies in hardware."""
    readings = read()
    devices = [f"{gpu.name} {gpu.memory_mb} MiB {'bf16' if gpu.native_bf16 else 'fp16'}" for gpu in readings.gpus]
    if Device.ROCM in list_devices():
        devices += [f"AMD {size // MIB} MiB" for size in read_amd_memory()]
    gpus = ", ".join(devices) or readings.state
    return [Check(name="devices", ok=True, note=True, detail=f"{physical_cores()} CPU cores; GPU: {gpus}")]


def look_at_confinement(settings: Settings) -> list[Check]:
    """Report how the operating system confines code that a model has written."""
    confinement = find_confinement()
    detail = f"{confinement}: {confinement.detail}"
    if confinement is Confinement.NONE and settings.allow_unconfined_code:
        detail = "none, and allow_unconfined_code lets code of completions do what your user can"
    do = "Python rewards need Linux with user namespaces or Landlock, such as Linux 5.13."
    return [Check(name="code sandbox", ok=confinement is not Confinement.NONE, note=True, detail=detail, do=do)]


def look_at_backends(settings: Settings) -> list[Check]:
    """Return each trainer in a line; import tests that have not been run are not run here."""
    return [
        Check(
            name=f"backend {row.name.value}",
            ok=row.available and row.fits,
            note=True,
            detail=", ".join([row.version, f"imports: {row.imports}"]) if row.available else f"{row.why} {row.fix}",
            do=row.fix,
        )
        for row in backend_table(settings, imports=False).rows
    ]


LOOKS: tuple[Callable[[Settings], list[Check]], ...] = (
    look_at_python,
    look_at_packages,
    look_at_home,
    look_at_readers,
    look_at_listeners,
    look_at_server,
    look_at_models,
    look_at_embedded,
    look_at_night,
    look_at_targets,
    look_at_devices,
    look_at_queue,
    look_at_confinement,
    look_at_backends,
)
