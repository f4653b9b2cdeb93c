"""Requests about adapter versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument, Option
from trainyard.serve.conversion.architectures import Layout


class AdaptersInput(Request):
    tenant: Annotated[str | None, Option(completes="tenant")] = Field(None, description="Only this tenant.")


class AdapterName(Request):
    name: Annotated[str, Argument("TENANT/ROLE[/vN]", completes="adapter")]


class ConvertInput(Request):
    source: Annotated[str, Argument("SOURCE", is_file=True, completes="adapter")] = Field(
        description="A folder, a .gguf file, TENANT/ROLE[/vN], or an ended job: JOB[/TRAINER]."
    )
    target: Annotated[Path, Argument("TARGET")] = Field(description="Folder or file to write; it must not exist.")
    to: Annotated[Layout, Option("--to", "--format")] = Field(description="Format: the layout to write.")
    base: str | None = Field(None, description="Its base model; default: the one that it names.")


Targets = Annotated[tuple[str, ...], Option("--target", local=True)]


class RegisterInput(Request):
    job: Annotated[str, Argument("JOB[/TRAINER]", completes="run")] = Field(
        min_length=1, description="An ended job: the name that it was given, its id, or the beginning of one."
    )
    role: Annotated[str, Option("--role")] = Field(
        min_length=1, max_length=63, description="What the adapter is for: it becomes TENANT/ROLE/vN."
    )
    promote: bool = Field(False, description="Make it live, too.")
    targets: Targets = Field(
        (),
        description="With --promote: TYPE, TYPE=URL or TYPE=ENDPOINT; default: embedded if it runs, and registry.",
    )


class PromoteInput(Request):
    name: Annotated[str, Argument("TENANT/ROLE[/vN]", completes="adapter")] = Field(
        description="The version; without one, the newest of the role."
    )
    targets: Targets = Field(
        (), description="TYPE, TYPE=URL or TYPE=ENDPOINT, instead of its deployment's; may repeat."
    )


class RollbackInput(Request):
    role: Annotated[str, Argument("TENANT/ROLE", completes="adapter")]
    targets: Targets = Field(
        (), description="TYPE, TYPE=URL or TYPE=ENDPOINT, instead of the deployment's; may repeat."
    )


class DeleteInput(Request):
    name: Annotated[str, Argument("TENANT/ROLE/vN", completes="adapter")]
    force: bool = Field(False, description="Also the version that a rollback would make live.")


class CardInput(Request):
    name: Annotated[str, Argument("TENANT/ROLE[/vN]", completes="adapter")]
    out: Annotated[Path | None, Option(local=True)] = Field(
        None, description="File to write; default: the card is printed."
    )


TokenVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class PushInput(Request):
    name: Annotated[str, Argument("TENANT/ROLE[/vN]", completes="adapter")]
    to: Annotated[str, Argument("TARGET")] = Field(
        "", description="org/name on the Hub, or gs://bucket/prefix; default: weights_store of trainyard.toml."
    )
    public: bool = Field(False, description="Make the repository public; it is private otherwise.")
    revision: str | None = Field(None, description="Branch of the repository; default: main.")
    token_env: TokenVariable = Field("HF_TOKEN", description="Environment variable with the token of the Hub.")


class PullInput(Request):
    source: Annotated[str, Argument("SOURCE")] = Field(
        description="org/name on the Hub, or STORE/adapters/TENANT/ROLE[/vN]; without /vN the live version."
    )
    alias: Annotated[str | None, Option("--as")] = Field(
        None, description="TENANT/ROLE to register it under; default: that of its publisher."
    )
    revision: str | None = Field(None, description="Branch, tag or commit of the repository; default: main.")
    token_env: TokenVariable = Field("HF_TOKEN", description="Environment variable with the token of the Hub.")


class MergeInput(Request):
    name: Annotated[str, Argument("NAME", completes="adapter")] = Field(
        description="TENANT/ROLE[/vN], or an ended job: JOB[/TRAINER]."
    )
    target: Annotated[Path | None, Argument("TARGET")] = Field(None, description="Folder to write; it must not exist.")
    to: Annotated[str, Option("--to", "--format")] = Field(
        "safetensors", description="Format: safetensors, or gguf, which needs the llamacpp environment."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="auto: that of the base.")
