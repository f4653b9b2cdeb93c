"""The services of one machine: start them, end them, and print what `prefect` needs to reach them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from trainyard.app import services as stack
from trainyard.app.context import Context
from trainyard.app.exposure import (
    EVERY_ADDRESS,
    Exposure,
    format_host,
    list_host_names,
    read_exposure,
    require_safe,
    resolve_addresses,
    warn_of_expiry,
)
from trainyard.app.responses import Response
from trainyard.app.runs import connect_runs
from trainyard.app.stack.api_service import NAME as API
from trainyard.app.stack.api_service import start_api
from trainyard.app.stack.data_service import NAME as DATA
from trainyard.app.stack.data_service import start_data
from trainyard.backends.job import complete_tenant, rename_work_folder, work_folders_of_earlier_versions
from trainyard.compute.leftovers import sweep, sweep_leftovers
from trainyard.compute.services import Service
from trainyard.errors import InvalidInput, NotFound
from trainyard.operations.base import Nothing
from trainyard.operations.stack import MigrateInput, UpInput
from trainyard.proxies import EXEMPTIONS
from trainyard.serve import embedded
from trainyard.serve.base_sources import find_bases
from trainyard.serve.targets import local
from trainyard.settings import Settings
from trainyard.stores.auth_string import auth_file
from trainyard.stores.schema import EarlierFiles, earlier_files


class UpOutput(Response):
    """Running services and their addresses."""

    api_url: str
    ui_url: str
    own_server: bool
    auth_file: Path | None
    """The file with the login of the UI; None if the server asks for none, or is not this home's."""
    worker_pid: int
    watchdog_pid: int
    service_url: str
    """Where the REST API answers."""
    embedded_url: str | None
    data_url: str | None
    """Where the data worker answers; None where the setting data_port names no port."""
    home: str
    exposed_urls: tuple[str, ...] = ()
    """Where both servers answer beyond loopback."""


class DownOutput(Response):
    stopped: tuple[str, ...]


class EnvOutput(Response):
    variables: dict[str, str]


def up(request: UpInput, context: Context) -> UpOutput:
    settings = context.settings
    exposure = resolve_exposure(request)
    with stack.exclusive(settings, context.say):
        stack.choose_exposure(settings, exposure)
        stack.choose_working_folder(settings, context.say)
        if exposure is not None and (certificate := require_safe(exposure, everybody=request.no_auth)):
            warn_of_expiry(certificate, context.say)
        attached = stack.find_attached_server(settings, auth=not request.no_auth)
        with serve_models(settings, context.say) as serving:
            url = attached or stack.start_server(settings, context.say, auth=not request.no_auth).url
            asks = not attached and stack.check_login(settings, url, context.say, auth=not request.no_auth)
            service = start_api(settings, url, context.say, request.port)  # starts while the deployments are written
            data = start_data(settings, url, context.say)
            if not stack.is_bootstrapped(settings, url):
                bootstrap(settings, url, context.say)
            worker = stack.find_running_service(settings, "worker", url) or begin_work(settings, url, context.say)
            watchdog = stack.start_watchdog(settings, url)
            embedded_url = serving.result()
        for line in local.restore_servers(settings):
            context.say(line)
        for server in (service, *([data] if data is not None else [])):
            stack.wait_until_healthy(server)
    return UpOutput(
        api_url=url,
        ui_url=url.removesuffix("/api"),
        own_server=attached is None,
        auth_file=auth_file(settings) if asks else None,
        worker_pid=worker.pid,
        watchdog_pid=watchdog.pid,
        service_url=service.url,
        embedded_url=embedded_url,
        data_url=data.url if data is not None else None,
        home=str(settings.home),
        exposed_urls=list_exposed_urls(settings, service.url, *([] if attached else [url.removesuffix("/api")])),
    )


def list_exposed_urls(settings: Settings, *urls: str) -> tuple[str, ...]:
    """Return the addresses beyond loopback of servers with these addresses on it."""
    exposure = read_exposure(settings)
    scheme = "https" if exposure is not None and exposure.tls_cert else "http"
    hosts = resolve_addresses(exposure.host) if exposure is not None and exposure.beyond_loopback else ()
    return tuple(f"{scheme}://{format_host(host)}:{urlsplit(url).port}" for url in urls for host in hosts)


def resolve_exposure(request: UpInput) -> Exposure | None:
    """Return where the servers listen besides loopback. Raises `InvalidInput` (`E-AUTH`, `E-PARAMETER`)."""
    only = ("host", "tls_cert", "tls_key", "behind_proxy", "allow_host")
    if not request.expose:
        if alone := sorted(request.model_fields_set.intersection(only)):
            raise InvalidInput(
                f"--{alone[0].replace('_', '-')} belongs to --expose.", do="Add --expose, or leave it out.",
                code="E-PARAMETER",
            )  # fmt: skip
        return None
    cert, key = (str(path.expanduser().absolute()) if path else "" for path in (request.tls_cert, request.tls_key))
    exposure = Exposure(request.host or EVERY_ADDRESS[0], cert, key, request.behind_proxy or "", request.allow_host)
    list_host_names(exposure, require_safe(exposure, everybody=request.no_auth))
    return exposure


def begin_work(settings: Settings, url: str, say: Callable[[str], None]) -> Service:
    """Start a worker, after ending what the previous one left running and marking its dead runs as crashed."""
    for line in sweep_leftovers(settings.home):
        say(line)
    for pid in sweep(settings.home):
        say(f"ended the process {pid}, which a run had left behind")
    if (settings.services / "worker.log").is_file():
        runs = connect_runs(settings)
        for run_id in runs.crash_dead_runs(stack.worker_name(settings)):
            say(f"the run {run_id} had died with its worker; `trainyard jobs resume {run_id} --watch` continues it")
        for device in runs.free_unheld_slots() if stack.external_api_url(settings) is None else ():
            say(f"freed the slot of device {device}, which a run that is gone had kept")
    return stack.start_worker(settings, url, say)


def bootstrap(settings: Settings, url: str, say: Callable[[str], None]) -> None:
    say("writing the work pool, the device limit, the automation and the deployments")
    os.environ.update(stack.prefect_environment(settings, url))
    connect_runs(settings).bootstrap()
    stack.deploy_all(settings, url)
    connect_runs(settings).ensure_alerts()
    stack.mark_bootstrapped(settings, url)


@contextmanager
def serve_models(settings: Settings, say: Callable[[str], None]) -> Iterator[Future[str | None]]:
    """Start the embedded model server meanwhile, which needs no Prefect; without Prefect it is ended again."""
    was_running = embedded.instance(settings) is not None
    with ThreadPoolExecutor(1) as aside:
        serving = aside.submit(start_embedded, settings, say)
        try:
            yield serving
        except BaseException:
            wait([serving])
            if not was_running:
                embedded.stop(settings)
            raise


def start_embedded(settings: Settings, say: Callable[[str], None]) -> str | None:
    """Return the address of the embedded model server; None where no base model is to be served, or none is on this
    machine.

    A base that is not here is reported, and the others are served.
    """
    if (url := embedded.find_running(settings)) is not None:
        return url
    models = []
    for name in settings.served_models:
        try:
            find_bases([name], settings)
            models.append(name)
        except NotFound as missing:
            say(f"no embedded model server for {name} yet: {missing.what} {missing.do}")
    if not models:
        return None
    say(f"starting the embedded model server with {', '.join(models)}")
    url = embedded.start(settings, *models, threads=settings.threads)
    for line in embedded.restore_live(settings, url):
        say(line)
    return url


def down(_: Nothing, context: Context) -> DownOutput:
    settings = context.settings
    with stack.exclusive(settings):
        # The watchdog first: it would start the others again.
        stopped = [name for name in ("watchdog", API, DATA, "worker") if stack.stop(settings, name)]
        stopped += [*(["embedded"] if embedded.stop(settings) else []), *local.end_all(settings)]
        stopped += ["server"] if stack.stop(settings, "server") else []
    return DownOutput(stopped=tuple(stopped))


def env(_: Nothing, context: Context) -> EnvOutput:
    """Return what Prefect's own commands need: the server's address and, behind a proxy, that loopback does not go to
    it.
    """
    settings = context.settings
    exemptions = {name: os.environ[name] for name in EXEMPTIONS if name in os.environ}
    return EnvOutput(variables={**stack.prefect_environment(settings, stack.resolve_api_url(settings)), **exemptions})


# What earlier versions wrote. Files in an earlier form are read as they are (`stores/schema.py`) and counted here. Work
# folders of trainings are named by a digest that a new setting changes; a run of the same training renames its own
# folder, and this operation all of them.


class MigratedFolder(Response):
    """A work folder, as an earlier version named it and as this one does."""

    before: str
    now: str


class Migration(Response):
    """Changes made, or those that would be."""

    dry_run: bool
    folders: tuple[MigratedFolder, ...]
    earlier: tuple[EarlierFiles, ...] = ()
    """Files in an earlier form, which are read as they are and get the present one when they are written again."""


def migrate(request: MigrateInput, context: Context) -> Migration:
    """Rename the work folders of earlier versions. Raises `Conflict` (`E-DEVICE-BUSY`) while one is worked in."""
    settings = context.settings
    renames = list(work_folders_of_earlier_versions(settings.runs / "training", partial(complete_tenant, settings)))
    for before, now in () if request.dry_run else renames:
        rename_work_folder(before, now, settings)
    folders = tuple(MigratedFolder(before=str(before), now=str(now)) for before, now in renames)
    return Migration(dry_run=request.dry_run, folders=folders, earlier=tuple(earlier_files(settings.home)))
