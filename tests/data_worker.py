"""A data worker of a test behind a real socket, in a thread, with a token of each tenant."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard.serve.listening import bind, build_url
from trainyard.settings import Settings
from trainyard.stores.repositories.client import DataWorkers
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
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(method, path) of every request."""
    gated: set[str] = field(default_factory=set)
    """Repositories that are refused as the Hub refuses those whose terms an account has not accepted."""
    failing: dict[str, int] = field(default_factory=dict)
    """End of a path -> status with which requests to it are answered."""
    public: set[str] = field(default_factory=set)
    """Repositories that are said to be public, which no repository of a data worker is."""

    def fill(self, kind: str, repository: str, folder: Path) -> str:
        """Upload a folder, and return its commit."""
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        workers = DataWorkers([self.url], self.token(repository.partition("/")[0]))
        return workers.upload_folder(kind, repository, files, "add")

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


def watch(worker: DataWorker, app: ASGIApp) -> ASGIApp:
    """Return the application with what the Hub has besides: a record of requests, and gated repositories."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        worker.requests.append((str(scope["method"]), path))
        if failures := [status for end, status in worker.failing.items() if path.endswith(end)]:
            await JSONResponse({"error": "The Hub is not well"}, failures[0])(scope, receive, send)
        elif any(f"/{name}" in path for name in worker.gated):
            await JSONResponse({"error": "gated"}, 403, {"x-error-code": "GatedRepo"})(scope, receive, send)
        elif path.removeprefix("/api/models/").partition("/revision/")[0] in worker.public:
            await app(scope, receive, publish(send))
        else:
            await app(scope, receive, send)

    return answer


def publish(send: Send) -> Send:
    """Return what sends the description of a repository as one of a public repository."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [header for header in message["headers"] if header[0] != b"content-length"]
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body":
            message = {**message, "body": message["body"].replace(b'"private":true', b'"private":false')}
        await send(message)

    return sending


@contextmanager
def serving_data(worker: DataWorker, *, everybody: bool = False) -> Iterator[DataWorker]:
    """Serve a data worker on a free port; with `everybody` to callers without a token, too."""
    app = watch(worker, build_data_app(worker.settings, worker.repositories, everybody=everybody))
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
