"""The process of a data worker: its storage, its application, and the collection of what nothing refers to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from trainyard.app.exposure import Exposure
from trainyard.errors import TrainyardError
from trainyard.settings import Settings
from trainyard.stores.repositories.bucket import open_bucket
from trainyard.stores.repositories.quota import MIB, Quotas
from trainyard.stores.repositories.repository import Repositories
from trainyard.stores.repositories.storage import FolderStorage, Staging, Storage
from trainyard.surfaces.access.authentication import Authenticator
from trainyard.surfaces.access.listening import serve_guarded
from trainyard.surfaces.hub.routes import HubApp, guard_app

LOG = logging.getLogger("trainyard.hub")
PORT = 8892
COLLECT_S = 3600.0
STAGING_S = 2 * COLLECT_S


def open_storage(settings: Settings) -> Storage:
    """Return the storage of this home's data worker. Raises what `open_bucket` raises."""
    address = settings.data_storage
    return open_bucket(address) if "://" in address else FolderStorage(settings.repositories)


def open_repositories(settings: Settings) -> Repositories:
    """Return the repositories of this home's data worker."""
    storage = open_storage(settings)

    def limit(tenant: str) -> int:
        return settings.data_quotas_mb.get(tenant, settings.data_quota_mb) * MIB

    return Repositories(storage, Quotas(storage, limit))


def build_data_app(
    settings: Settings, repositories: Repositories, *, everybody: bool = False, names: tuple[str, ...] = ()
) -> ASGIApp:
    """Return the application of a data worker behind its checks."""
    staging = Staging(settings.repositories / "staging", STAGING_S)
    app = HubApp(Authenticator(settings, everybody), repositories, staging)
    return guard_app(app, settings.api_origins, (*settings.api_hosts, *names))


def serve_data(
    settings: Settings, port: int, say: Callable[[str], None], exposure: Exposure, *, everybody: bool = False
) -> str:
    """Answer until SIGINT or SIGTERM. Raises as `serve_guarded` and `open_storage` do."""
    repositories = open_repositories(settings)

    def build(names: tuple[str, ...]) -> ASGIApp:
        return build_data_app(settings, repositories, everybody=everybody, names=names)

    with collecting(repositories, Staging(settings.repositories / "staging", STAGING_S)):
        return serve_guarded(
            settings, build, port, exposure, say, everybody=everybody,
            title=lambda url: f"the data worker answers at {url} (HF_ENDPOINT={url})",
        )  # fmt: skip


@contextmanager
def log_failure(subject: str) -> Iterator[None]:
    try:
        yield
    except (TrainyardError, OSError, ValueError) as error:  # ValueError: a record that is not JSON
        LOG.error("the collection of %s failed; it is tried again in an hour", subject, exc_info=error)


@contextmanager
def collecting(repositories: Repositories, staging: Staging, every_s: float = COLLECT_S) -> Iterator[None]:
    """Remove what nothing refers to, now and every hour, in a thread that ends with the block."""
    stop = threading.Event()

    def collect() -> None:
        while True:
            with log_failure("the staging folder"):
                staging.sweep()
            tenants: list[str] = []
            with log_failure("the list of tenants"):
                tenants = repositories.tenants()
            for tenant in tenants:  # the damaged repository of one keeps no other from being collected
                with log_failure(tenant):
                    if removed := repositories.collect(tenant):
                        LOG.info("removed %s bytes of %s that nothing refers to", f"{removed:,}", tenant)
            if stop.wait(every_s):
                return

    thread = threading.Thread(target=collect, name="collect", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
