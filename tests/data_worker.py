"""A data worker of a test behind a real socket, in a thread, with a token of each tenant."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from trainyard.serve.listening import bind, build_url
from trainyard.settings import Settings
from trainyard.stores.repositories.repository import Repositories
from trainyard.stores.secret_files import TokenFile
from trainyard.surfaces.hub.service import build_data_app, open_repositories


@dataclass
class DataWorker:
    """A data worker with a home of its own."""

    settings: Settings
    repositories: Repositories
    url: str = ""
    tokens: dict[str, str] = field(default_factory=dict)

    def token(self, tenant: str, scope: str = "run") -> str:
        """Return a token of a tenant."""
        key = f"{tenant}-{scope}"
        if key not in self.tokens:
            self.tokens[key] = TokenFile(self.settings.home).create(key, scope, tenant, days=1)
        return self.tokens[key]

    def bearer(self, tenant: str, scope: str = "run") -> dict[str, str]:
        return {"authorization": f"Bearer {self.token(tenant, scope)}"}

    def environment(self, tenant: str, folder: Path) -> dict[str, str]:
        """Return the variables with which clients of the Hub use this data worker."""
        return {
            "HF_ENDPOINT": self.url, "HF_TOKEN": self.token(tenant), "HF_HOME": str(folder), "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }  # fmt: skip


def make_data_worker(folder: Path, quotas_mb: Mapping[str, int] | None = None) -> DataWorker:
    """Return a data worker that is not served."""
    settings = Settings(home=folder, data_quota_mb=1024, data_quotas_mb=dict(quotas_mb or {}))
    return DataWorker(settings, open_repositories(settings))


@contextmanager
def serving_data(worker: DataWorker) -> Iterator[DataWorker]:
    """Serve a data worker on a free port."""
    app = build_data_app(worker.settings, worker.repositories)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    with bind("127.0.0.1", 0) as listener:
        worker.url = build_url(listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield worker
        finally:
            server.should_exit = True
            thread.join()
