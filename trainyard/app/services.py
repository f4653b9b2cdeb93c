"""The Prefect server and worker of one machine, started once, with a home and a port of their own.

Prefect itself is not imported here: a second `trainyard up` has to answer in well under five seconds, and importing
Prefect alone takes most of that.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import certifi
import httpx
import psutil
import yaml

from trainyard import inherited
from trainyard.app.access.access import PREFIX, refuse_other_access, server_variables
from trainyard.app.access.database import (
    database_variables,
    keep_database,
    password_variables,
    refuse_other_database,
)
from trainyard.app.exposure import Exposure, keep_exposure, list_exposed_urls, read_exposure
from trainyard.cancellation import CALLER_HOOKS
from trainyard.compute import services
from trainyard.compute.leftovers import temporary_folder
from trainyard.compute.pools import adapt_project, find_run_url, is_container_pool, worker_variables
from trainyard.compute.services import Service
from trainyard.errors import Conflict, InvalidInput, TrainyardError, Unavailable
from trainyard.locations import PACKAGE, checkout
from trainyard.settings import Settings
from trainyard.spec.axes.providers import provider_variables
from trainyard.stores.auth_string import CLIENT_VARIABLE, auth_file, auth_header, read_auth
from trainyard.stores.files import RealFiles
from trainyard.stores.whole import write_json_durably

Say = Callable[[str], None]

SERVER_WAIT_S = 180.0
"""The first start migrates an empty database: 5 to 45 s on two cores, more on a busy machine."""
GC_MODULE = "trainyard.prefect_api.gc_thread"
GUARD_MODULE = "trainyard.prefect_api.guard"
NO_AUTH = "--no-auth"
CONSOLE_FORMATTER = "PREFECT_LOGGING_HANDLERS_CONSOLE_FORMATTER"
"""Names a formatter of Prefect's `logging.yml`; the flows of a worker inherit it."""
ATTACHED_VARIABLE = "TRAINYARD_ATTACHED_SERVER"
"""Names the server of a stack that is not of its home, for the processes that the stack starts."""
STOP_GRACE_S = 30.0
"""A worker that ends first ends its flow runs, and those save a checkpoint."""
FOLDER_VARIABLE = "TRAINYARD_WORKING_FOLDER"
POOL_SETTINGS = {"work_pool", "work_pool_type", "work_queues", "image", "image_folder", "pool_api_url",
                 "pool_variables", "host_classes"}  # fmt: skip
STARTS = 3
"""Tries of another port, if another home's server takes the free one first."""


def running(settings: Settings, name: str) -> Service | None:
    """Return the service of that name of this home, if its process lives."""
    return services.find_service(services.record_path(settings, name))


def stop(settings: Settings, name: str, grace_s: float = STOP_GRACE_S) -> bool:
    """End the service of that name and everything below it; False if there was none."""
    return services.stop_service(services.record_path(settings, name), grace_s)


def spawn(settings: Settings, name: str, argv: list[str], env: Mapping[str, str], url: str) -> Service:
    """Start a service and record it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell that starts us with `&` makes SIGINT ignored, and a Prefect worker ends itself by SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    service = services.spawn_service(argv, env, settings.services / f"{name}.log", name=name, url=url)
    services.write_record(services.record_path(settings, name), service)
    return service


@contextmanager
def exclusive(settings: Settings, say: Say | None = None) -> Iterator[None]:
    """One `up` or `down` at a time on this home; a second one waits for the first.

    With `say`, a home that other users may read (made by an earlier version, say) is closed to them first.
    """
    settings.services.mkdir(parents=True, exist_ok=True)
    changed = inherited.close_to_others(settings.home) if say else 0
    if say and changed:
        say(f"closed {settings.home} to other users, who could read it: {changed:,} files and folders changed")
    with RealFiles().locked(settings.services / "lock"):
        yield


def prefect_environment(settings: Settings, api_url: str) -> dict[str, str]:
    """Return the variables that make any Prefect command talk to this stack. `trainyard env` prints them.

    They include the home's string only for the home's own server: no other server receives it.
    """
    own = is_own(settings, api_url)
    auth = read_auth(settings) if own else None
    return {
        **({CLIENT_VARIABLE: auth} if auth else {}),
        **({} if own else {ATTACHED_VARIABLE: api_url}),
        "PREFECT_API_URL": api_url,
        "PREFECT_HOME": str(settings.prefect_home),
        "TRAINYARD_HOME": str(settings.home),
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def certificate_variables(settings: Settings, api_url: str) -> dict[str, str]:
    """Return the variable that gives Prefect one certificate instead of the whole bundle, for a server without TLS.

    Prefect builds a TLS context for each client that it opens itself, two for every task, also for an http:// address;
    none of them can be shared from here. Loading the bundle takes 46 ms each time, half a second for a chain of six
    nodes.
    """
    if not api_url.startswith("http://"):
        return {}
    path = settings.services / "one-certificate.pem"
    if not path.is_file():
        bundle = Path(certifi.where()).read_text(encoding="utf-8")
        end = "-----END CERTIFICATE-----\n"
        first = bundle[bundle.index("-----BEGIN CERTIFICATE-----") : bundle.index(end) + len(end)]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(first, encoding="utf-8")
    return {"PREFECT_API_SSL_CERT_FILE": str(path)}


def profile_variables(settings: Settings) -> list[str]:
    """Return the variables with the keys of the model servers of nights, as the operator's profiles name them."""
    names = []
    for path in (settings.home / "profiles").glob("*.yaml"):
        try:
            profile = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue  # a night that wants this profile says what is wrong with it
        if isinstance(profile, dict) and isinstance(profile.get("api_key_env"), str):
            names.append(profile["api_key_env"])
    return names


def service_environment(settings: Settings, api_url: str, name: str = "server") -> dict[str, str]:
    """Return a service's environment: Trainyard's variables over the caller's, with the caller's server settings."""
    keys = (*profile_variables(settings), *provider_variables()) if name in inherited.KEY_HOLDERS else ()
    variables = inherited.service_environment(name, settings, keys)
    return {
        **{key: value for key, value in variables.items() if not key.startswith(PREFIX)},
        **certificate_variables(settings, api_url),
        **prefect_environment(settings, api_url),
        **({CONSOLE_FORMATTER: "json"} if settings.log_format == "json" else {}),
        FOLDER_VARIABLE: str(working_folder(settings)),
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # Prefect starts runs by `python -m`, in a folder of the user's that may have a types.py
    }


def get(url: str, timeout_s: float, headers: dict[str, str] | None = None) -> httpx.Response:
    """Return one GET. Without TLS no certificates are loaded for it, which takes 46 ms."""
    encrypted = not url.startswith("http://")
    with httpx.Client(timeout=timeout_s, verify=encrypted, event_hooks=CALLER_HOOKS) as client:
        return client.get(url, headers=headers)


def fetch_status(settings: Settings, api_url: str, path: str) -> int:
    """Return the HTTP status of a GET with the credentials that this server may receive; 0 if it does not answer."""
    auth = read_auth(settings) if is_own(settings, api_url) else os.environ.get(CLIENT_VARIABLE)
    try:
        return get(f"{api_url}/{path}", 10, auth_header(auth)).status_code
    except httpx.HTTPError:
        return 0


def asks_for_auth(api_url: str) -> bool:
    """Return whether a server refuses a request without credentials. Raises `Unavailable` (`E-SERVER-UNREACHABLE`)."""
    try:
        return get(f"{api_url}/version", 30).status_code == httpx.codes.UNAUTHORIZED
    except httpx.HTTPError as error:
        raise unreachable_error(api_url) from error


def is_own(settings: Settings, api_url: str) -> bool:
    """Return whether this is the address of the server that `trainyard up` started for this home."""
    record = services.read_record(services.record_path(settings, "server"))
    return record is not None and record.url == api_url


def external_api_url(settings: Settings) -> str | None:
    """Return the caller's PREFECT_API_URL, unless it is what `trainyard env` exported for the server of this home.

    The variables that `prefect_environment` writes for an external server name it as one.
    """
    url = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    written = os.environ.get("PREFECT_HOME") == str(settings.prefect_home)
    exported = written and os.environ.get(ATTACHED_VARIABLE, "").rstrip("/") != url
    return None if not url or exported or is_own(settings, url) else url


def find_attached_server(settings: Settings, *, auth: bool) -> str | None:
    """Return the external server that `up` uses; None for one of its own. Raises `Unavailable` if it does not answer.

    Raises `InvalidInput` (`E-AUTH`) for `--no-auth`, which belongs to the `up` that starts that server.
    """
    url = external_api_url(settings)
    if url is None:
        return None
    if not auth:
        raise InvalidInput(
            f"--no-auth has no effect on the server at {url}.",
            why="PREFECT_API_URL names a server that `trainyard up` does not start.",
            do="Leave it out, or unset PREFECT_API_URL for a server on this machine.",
            code="E-AUTH",
        )
    if not services.is_healthy(url, timeout_s=10):
        raise unreachable_error(url)
    return url


def check_login(settings: Settings, url: str, say: Say, *, auth: bool) -> bool:
    """Return whether this home's server asks for credentials. It must accept this home's, and match a new server.

    Raises `Unavailable` (`E-AUTH`, `E-SERVER-UNREACHABLE`) or `Conflict` (`E-SERVER-RUNS`).
    """
    asks = asks_for_auth(url)
    refuse_other_access(settings, asks=asks, auth=auth)
    if asks and fetch_status(settings, url, "version") == httpx.codes.UNAUTHORIZED:
        raise locked_out_error(settings, url)
    if not asks:
        why = (
            "as it was started; `trainyard down`, then `trainyard up` turns authentication on" if auth else "--no-auth"
        )
        say(f"every user of this machine can start runs on the Prefect server, without authentication ({why})")
    return asks


def api_url(settings: Settings) -> str | None:
    """Return where the Prefect server of this home is: the caller's PREFECT_API_URL, else the one that we started."""
    server = running(settings, "server")
    return external_api_url(settings) or (server.url if server else None)


def require_api_url(settings: Settings) -> str:
    """Like `api_url`, but the server has to answer and to accept the credentials.

    Raises `Unavailable` (`E-NO-SERVER`, `E-SERVER-UNREACHABLE`, `E-AUTH`).
    """
    url = resolve_api_url(settings)
    status = fetch_status(settings, url, "version" if is_own(settings, url) else "health")
    if status == httpx.codes.UNAUTHORIZED:
        raise locked_out_error(settings, url)
    if status != httpx.codes.OK:
        raise unreachable_error(url)
    return url


def resolve_api_url(settings: Settings) -> str:
    """Like `api_url`. Raises `Unavailable` (`E-NO-SERVER`) where there is none."""
    if url := api_url(settings):
        return url
    raise no_server_error(settings)


def locked_out_error(settings: Settings, url: str) -> Unavailable:
    return Unavailable(
        f"The Prefect server at {url} does not accept the string in {auth_file(settings)}.",
        why="The file was changed or removed while the server was running.",
        do="Run `trainyard down`, then `trainyard up`.",
        code="E-AUTH",
    )


def no_server_error(settings: Settings) -> Unavailable:
    """`E-NO-SERVER`, with the servers of other homes that are running."""
    other_servers = servers_of_other_homes(settings)
    instead = "".join(f", or use the other with `export TRAINYARD_HOME={home}`" for home in other_servers)
    return Unavailable(
        f"No Prefect server of the home {settings.home} is running.",
        why=" ".join(f"One of the home {home} answers at {url}." for home, url in other_servers.items()),
        do=f"Run `trainyard up`{instead}.",
        code="E-NO-SERVER",
    )


def servers_of_other_homes(settings: Settings) -> dict[Path, str]:
    """Home -> address of the Prefect servers that `trainyard up` started for other homes of this user."""
    urls = {}
    for process in psutil.process_iter(["cmdline"]):
        if GUARD_MODULE not in (process.info["cmdline"] or ()):
            continue
        try:
            home = Path(process.environ().get("TRAINYARD_HOME", ""))
        except psutil.Error:  # ended meanwhile, or another user's
            continue
        record = services.read_record(home / "services" / "server.json")
        if home != settings.home and record is not None:
            urls[home] = record.url
    return urls


def unreachable_error(url: str) -> Unavailable:
    return Unavailable(
        f"The Prefect server at {url} does not answer.",
        do="Start it, or unset PREFECT_API_URL and run `trainyard up` for one on this machine.",
        code="E-SERVER-UNREACHABLE",
    )


def start_server(settings: Settings, say: Say, *, auth: bool = True) -> Service:
    """Return the server of this home: the running one, or a new one on the first free port. Waits until it answers."""
    existing = running(settings, "server")
    if existing:
        refuse_other_database(settings)
        wait_until_healthy(existing)
        return existing
    settings.prefect_home.mkdir(parents=True, exist_ok=True)
    database = database_variables(settings)
    for _ in range(STARTS):
        port = read_previous_port(settings) or services.free_port(settings.prefect_port)
        url = f"http://127.0.0.1:{port}/api"
        say(f"starting the Prefect server on port {port} (the first start prepares its database)")
        argv = [sys.executable, "-P", "-m", GC_MODULE, GUARD_MODULE, "--port", str(port), *([] if auth else [NO_AUTH])]
        environment = {**service_environment(settings, url), **server_variables(settings, url, auth=auth), **database}
        keep_database(settings, environment)
        if (exposed := read_exposure(settings)) is not None:
            argv += exposed.arguments()
            environment.setdefault("PREFECT_SERVER_UI_API_URL", "/api")  # the page asks the address it came from
        service = spawn(settings, "server", argv, environment, url)
        open_server_mark(settings).unlink(missing_ok=True)
        if not auth:
            open_server_mark(settings).touch()
        wait_until_healthy(service)
        if owns_listener(service, port):
            return service
        say(f"another server took port {port} meanwhile")
        stop(settings, "server")
    raise cannot_start(service, f"another server took its port, {STARTS} times")


def choose_exposure(settings: Settings, exposure: Exposure | None) -> None:
    """Keep what `up --expose` asks for; without it nothing is exposed, unless the servers are running.

    Raises `Conflict` (`E-SERVER-RUNS`) for a server that is running and listens elsewhere.
    """
    if running(settings, "server") is None and running(settings, "api") is None:
        keep_exposure(settings, exposure)
    elif exposure is not None and exposure != read_exposure(settings):
        raise Conflict(
            "--expose has no effect on servers that are running.", why="They were started with other addresses.",
            do="Run `trainyard down`, then `trainyard up --expose` again.", code="E-SERVER-RUNS",
        )  # fmt: skip


def choose_working_folder(settings: Settings, say: Say) -> None:
    """Let relative paths of forms, of the REST API and of Prefect's runs start at the caller's folder.

    Services that are running keep theirs, so that one path means the same in all of them.
    """
    if any(running(settings, name) for name in ("server", "api", "worker", "watchdog")):
        if (folder := working_folder(settings)) != settings.working_folder:
            say(f"relative paths of forms and of Prefect's runs start at {folder}, where the services were started")
        return
    settings.services.mkdir(parents=True, exist_ok=True)
    write_json_durably(folder_record(settings), str(settings.working_folder))


def working_folder(settings: Settings) -> Path:
    """Return the folder of relative paths in runs of this home's services."""
    path = folder_record(settings)
    return Path(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else settings.working_folder


def folder_record(settings: Settings) -> Path:
    return settings.services / "working_folder.json"


def open_server_mark(settings: Settings) -> Path:
    """Return the file that exists while the server runs with --no-auth, so that a restart keeps that option."""
    return settings.services / "server.no-auth"


def read_previous_port(settings: Settings, name: str = "server") -> int | None:
    """Return the port of a service of this home if that died without being stopped and the port is still free.

    The processes of its runs, and the pages that are open in a browser, know only that address.
    """
    record = services.read_record(services.record_path(settings, name))
    port = urlsplit(record.url).port if record is not None else None
    return port if port and services.free_port(port) == port else None


def owns_listener(service: Service, port: int) -> bool:
    """Return whether this process, or a child of it, listens: two homes may have started on the same free port."""
    process = service.process()
    if process is None:
        return False
    try:
        sockets = [
            connection
            for each in (process, *process.children(recursive=True))
            for connection in each.net_connections("tcp")
        ]
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # as macOS does even for own processes; then the port's answer has to do
        return True
    return any(connection.status == psutil.CONN_LISTEN and connection.laddr.port == port for connection in sockets)


def wait_until_healthy(service: Service) -> None:
    """Return when the server answers. Raises `Unavailable` (`E-SERVER-START`) with the cause from its log."""
    problem = services.wait_until(service.answers, lambda: "" if service.process() else "ended at once", SERVER_WAIT_S)
    if problem:
        raise cannot_start(service, f"it {problem}")


TAKEN = "address already in use"
"""In the log of a server that lost the race for its port."""
CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        "unexpected keyword argument 'min_items'",
        "This FastAPI is too new for Prefect 3.8.",
        "Install the pinned versions: pip install -c constraints.txt -e .",
    ),
    (TAKEN, "Another process took the port meanwhile.", "Run `trainyard up` again."),
    ("No space left on device", "The disk is full.", "Free space under TRAINYARD_HOME and run `trainyard up` again."),
    ("database is locked", "Another server uses the same database.", "Run `trainyard down`, then `trainyard up`."),
    (
        "unable to open database file",
        "The database folder cannot be written.",
        "Make TRAINYARD_HOME/prefect writable, or point TRAINYARD_HOME elsewhere.",
    ),
    ("Permission denied", "A folder cannot be written.", "Make TRAINYARD_HOME writable, or point it elsewhere."),
    ("No module named", "A package is missing.", "Install the pinned versions: pip install -c constraints.txt -e ."),
    (
        "Can't locate revision",
        "The database was written by a newer Prefect.",
        "Install that Prefect, or move TRAINYARD_HOME/prefect away.",
    ),
)
"""(text in the log, what it means, what to do): what stopped servers from starting so far."""


def read_log(service: Service) -> str:
    return Path(service.log).read_text(encoding="utf-8", errors="replace") if Path(service.log).is_file() else ""


def cannot_start(service: Service, how: str) -> TrainyardError:
    """Return the error for a service that does not start: a known cause from its log, else the log's last lines."""
    text = read_log(service)
    last = " | ".join(line.strip() for line in text.splitlines()[-3:] if line.strip()) or "its log is empty"
    causes = ((f"{meaning} ({last})", do) for marker, meaning, do in CAUSES if marker.lower() in text.lower())
    why, do = next(causes, (last, f"Read {service.log}."))
    return Unavailable(f"The Prefect {service.name} cannot start: {how}.", why=why, do=do, code="E-SERVER-START")


def worker_name(settings: Settings) -> str:
    """Return one name per host and home, so that a restarted worker is recognised as the same one."""
    return f"{socket.gethostname()}-{hashlib.sha256(str(settings.home).encode()).hexdigest()[:6]}"


def find_running_service(settings: Settings, name: str, url: str) -> Service | None:
    """Return the service of this home, if it serves this server; one that serves another server is ended."""
    existing = running(settings, name)
    if existing and existing.url != url:
        stop(settings, name)
        return None
    return existing


def start_worker(settings: Settings, url: str, say: Say) -> Service:
    """Start a worker in its own session, so that a closing terminal does not end runs; it lets them save at its end."""
    queues = f", queues {', '.join(settings.work_queues)}" if settings.work_queues else ""
    say(f"starting a worker for the pool {settings.work_pool!r}{queues}")
    argv = [sys.executable, "-P", "-m", "trainyard.prefect_api.draining_worker"]
    argv += [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", settings.work_pool]
    argv += ["--type", settings.work_pool_type, "--name", worker_name(settings), "--install-policy", "never"]
    argv += ["--no-create-pool-if-not-found", *(word for name in settings.work_queues for word in ("-q", name))]
    environment = {**service_environment(settings, url, "worker"), **worker_variables(settings)}
    environment["TMPDIR"] = str(temporary_folder(settings.home))
    # A run that Prefect starts reads relative paths where one of the dashboard does.
    environment["TRAINYARD_WORKING_FOLDER"] = str(settings.working_folder)
    service = spawn(settings, "worker", argv, environment, url)
    time.sleep(0.5)
    if service.process() is None:
        raise cannot_start(service, "it ended at once")
    return service


def start_watchdog(settings: Settings, url: str) -> Service:
    """Return the watchdog of this home, for this server: the running one, or a new one."""
    if existing := find_running_service(settings, "watchdog", url):
        return existing
    argv = [sys.executable, "-P", "-m", "trainyard.prefect_api.watchdog"]
    # It starts the server and the worker again when they die, and passes on what the operator set for them.
    operators = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    operators |= password_variables(settings) | worker_variables(settings)
    return spawn(settings, "watchdog", argv, {**service_environment(settings, url, "watchdog"), **operators}, url)


def deploy_all(settings: Settings, url: str) -> None:
    """`prefect deploy --all` in the checkout, as a user would type it. Raises with its last lines (`E-DEPLOY`).

    Most of it is imports, and a part of their time would go into garbage collections.
    """
    argv = [
        sys.executable,
        "-P",
        "-m",
        GC_MODULE,
        "prefect",
        "--no-prompt",
        "deploy",
        "--all",
        *write_other_pool(settings, url),
    ]
    done = subprocess.run(
        argv,
        cwd=checkout(),
        env=service_environment(settings, url, "deploy"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    (settings.services / "deploy.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode != 0:
        last = " | ".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise TrainyardError(
            "The deployments of prefect.yaml could not be written to the server.",
            why=last,
            do=f"Read {settings.services / 'deploy.log'}.",
            code="E-DEPLOY",
        )


def write_other_pool(settings: Settings, url: str) -> list[str]:
    """For a pool of another name or of containers: a copy of prefect.yaml for it, which options cannot make.

    Raises `InvalidInput` (`E-SETTINGS`) where containers could not reach the server.
    """
    project = yaml.safe_load((checkout() / "prefect.yaml").read_text(encoding="utf-8"))
    names = {deployment["work_pool"]["name"] for deployment in project["deployments"]}
    if names == {settings.work_pool} and not is_container_pool(settings):
        return []
    exposed = list_exposed_urls(settings, url.removesuffix("/api")) if is_own(settings, url) else ()
    run_url = find_run_url(settings, url, exposed) if is_container_pool(settings) else ""
    path = settings.services / "prefect.yaml"
    path.write_text(yaml.safe_dump(adapt_project(project, settings, run_url)), encoding="utf-8")
    return ["--prefect-file", str(path)]


def bootstrap_digest(settings: Settings, url: str) -> str:
    """Changes when the pool, the deployments or the forms of the flows would: then they are written again."""
    root = checkout()
    runs = PACKAGE / "prefect_api"
    files = [root / "prefect.yaml", *(runs / name for name in ("server.py", "alerts.py", "pools.py"))]
    for folder in (root / "deployments", root / "flows", PACKAGE / "spec"):
        files += sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".yaml"))
    pool = settings.model_dump_json(include=POOL_SETTINGS)
    parts = (root, url, version("prefect"), settings.prefect_home, settings.alerts, pool)
    hasher = hashlib.sha256("|".join(map(str, parts)).encode())
    for path in files:
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


def is_bootstrapped(settings: Settings, url: str) -> bool:
    """Return whether this server already has the pool and the deployments in their present form."""
    stamp = settings.services / "bootstrap.json"
    if not stamp.is_file() or json.loads(stamp.read_text(encoding="utf-8")) != bootstrap_digest(settings, url):
        return False
    paths = (f"work_pools/{settings.work_pool}", "deployments/name/chain/adhoc")
    return all(fetch_status(settings, url, path) == httpx.codes.OK for path in paths)


def mark_bootstrapped(settings: Settings, url: str) -> None:
    write_json_durably(settings.services / "bootstrap.json", bootstrap_digest(settings, url))
