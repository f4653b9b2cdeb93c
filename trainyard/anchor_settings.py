"""Settings of the places that keep checkpoints of the ledger besides this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class FolderAnchor(BaseModel):
    """Folder on another machine's disk, such as a mount: each checkpoint is a file, which is never written over."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["folder"]
    folder: Path = Field(description="Folder, which has to exist: a mount that is not there is not written to.")


class BucketAnchor(BaseModel):
    """Bucket, whose retention forbids to remove what is in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["bucket"]
    address: str = Field(pattern=r"^(s3|gs|az)://.+", description="Such as s3://bucket/prefix; extra buckets.")


class GitAnchor(BaseModel):
    """Git repository: each checkpoint is a commit on a branch of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["git"]
    repository: Path = Field(description="Repository of this machine, with or without a working tree.")
    branch: str = Field("trainyard-ledger", pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}$")
    push: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$", description="Remote to push to, if any.")


class TimestampAnchor(BaseModel):
    """Timestamp authority (RFC 3161)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["timestamp"]
    url: str = Field(pattern=r"^https?://.+")
    roots: Path = Field(description="PEM file with the root certificates that are trusted for it.")


class WitnessAnchor(BaseModel):
    """Witness that answers c2sp.org/tlog-witness."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["witness"]
    url: str = Field(pattern=r"^https?://.+", description="Its submission prefix.")
    key: str = Field(max_length=4096, description="Its public key: NAME+ID+BASE64.")


SecretReference = Annotated[str, Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|/.+)$")]
"""Where a secret is: env:VARIABLE, or the path of a file that others cannot read."""


class EvmAnchor(BaseModel):
    """Contract on an EVM chain (`trainyard/stores/ledger/anchors/LedgerAnchor.vy`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["evm"]
    url: str = Field(
        pattern=r"^(https?://.+|env:[A-Za-z_][A-Za-z0-9_]*)$",
        description="JSON-RPC address of a node, or env:VARIABLE where it contains a key.",
    )
    contract: str = Field("", pattern=r"^(0x[0-9a-fA-F]{40})?$", description="Address of the deployed contract.")
    key: SecretReference = Field(description="Private key of the sender: env:VARIABLE, or the path of a file.")


AnchorSetting = Annotated[
    FolderAnchor | BucketAnchor | GitAnchor | TimestampAnchor | WitnessAnchor | EvmAnchor, Field(discriminator="kind")
]
