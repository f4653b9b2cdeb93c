"""Requests to the services of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument


class UpInput(Request):
    port: int | None = Field(
        None, ge=1, le=65_535, description="Port of the API; default: the setting api_port, else the one it had."
    )
    no_auth: bool = Field(False, description="Start both servers without authentication: for a machine of one user.")
    expose: bool = Field(False, description="Listen beyond loopback, too, with TLS or behind a proxy that has it.")
    host: str | None = Field(None, description="With --expose: an address of this machine; default: all that it has.")
    tls_cert: Path | None = Field(None, description="With --expose: certificate, with those above it (PEM).")
    tls_key: Path | None = Field(None, description="With --expose: its key (PEM).")
    behind_proxy: str | None = Field(None, description="With --expose: address of the proxy that has the TLS.")
    allow_host: tuple[str, ...] = Field(
        (), description="With --expose: a name by which clients call it; may repeat. Those of the certificate count."
    )


class MigrateInput(Request):
    dry_run: bool = Field(False, description="Show what would change, and change nothing.")


class GcInput(Request):
    days: int = Field(30, ge=1, le=36_500, description="Nothing that was used in the last so many days goes.")
    dry_run: bool = Field(False, description="Show what would be removed, and how much, and remove nothing.")


class BackupInput(Request):
    file: Annotated[Path, Argument("FILE")] = Field(description="File to write (.tar.gz); it must not exist.")
    with_models: bool = Field(False, description="Include models/, which can be downloaded or built again.")


class RestoreInput(Request):
    file: Annotated[Path, Argument("FILE")] = Field(description="A file that `trainyard backup` wrote.")
