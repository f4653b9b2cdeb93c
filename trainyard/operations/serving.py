"""Servers and chats. Requests, texts and rows."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from rich.console import Console
from rich.table import Table

from trainyard.operations.base import Request
from trainyard.operations.fields import Argument, Option
from trainyard.operations.graph import ADDRESS
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import json_text

if TYPE_CHECKING:
    from trainyard.app.chat import ChatOutput


class ServeAddress(Request):
    """Where a server answers, and for whom."""

    host: str = Field(
        "127.0.0.1",
        description="Another one than loopback needs TLS (training, data), or TRAINYARD_TOKEN (graph, model).",
    )
    port: int | None = Field(
        None, ge=0, le=65535, description="0 takes a free one; default: training 8898, graph 9081, data 8892, model 0."
    )
    tls_cert: Path | None = Field(
        None, description="Roles training and data: certificate (PEM) for addresses beyond loopback."
    )
    tls_key: Path | None = Field(None, description="Roles training and data: its key (PEM).")
    behind_proxy: str | None = Field(
        None,
        description="Roles training and data: address of the proxy that has the TLS; its X-Forwarded headers are used.",
    )
    allow_host: tuple[str, ...] = Field(
        (),
        description="Roles training and data: a name by which clients call it; may repeat. The certificate's count.",
    )
    no_auth: bool = Field(False, description="Roles training and data: every user of this machine may do everything.")


class ServeInput(ServeAddress):
    job: Annotated[str | None, Argument("JOB", completes="run")] = Field(
        None, min_length=1, description="Serve the adapter of this ended job on its base, or its model."
    )
    role: Literal["training", "graph", "model", "data"] | None = Field(
        None,
        description="What to serve: the REST API (training), the graph that nights write, models, or repositories "
        "(data). Default: training; model for a JOB.",
    )
    controller: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        description="Role training: address of the Prefect server that gets the runs; default: that of this home.",
    )
    data_workers: Annotated[tuple[str, ...], Option("--data-workers")] = Field(
        (),
        description="Role training: data workers of every run, with commas or repeated; the next is asked when one is "
        "down. Default: the setting data_workers.",
    )
    graph: str = Field("", description=f"Role graph. {ADDRESS}")
    model: tuple[str, ...] = Field(
        (), description="Role model: `starter`, a folder or a Hub name; may repeat. Default: the setting serve_models."
    )
    adapters: Annotated[tuple[str, ...], Option("--adapters", completes="adapter")] = Field(
        (),
        description="Role model: ROLE or TENANT/ROLE, whose live version is loaded, or an ended job; may repeat.",
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Role model: dtype of the weights. Default: float32."
    )
    threads: int | None = Field(None, ge=0, description="Role model: threads; default: the setting threads.")


class McpInput(Request):
    scope: Literal["read", "run", "admin"] = Field(
        "admin", description="Permissions of the agent: read; start work, too; or all of yours."
    )


class ChatInput(Request):
    adapter: Annotated[str, Argument("ADAPTER", completes="adapter")] = Field(
        min_length=1,
        description="ROLE, TENANT/ROLE, TENANT/ROLE/vN, or an ended job: JOB[/TRAINER].",
    )
    questions: Annotated[tuple[str, ...], Option("-q", "--question")] = Field(
        (), description="Ask this instead of reading questions; may repeat."
    )
    system: str = Field("", description="System message of both conversations.")
    max_tokens: int = Field(256, ge=1, le=4096, description="Most tokens of an answer.")
    temperature: float = Field(0.0, ge=0, le=2, description="0 takes the likeliest token.")
    seed: int = Field(0, ge=0, description="Of the random numbers, where temperature is not 0.")


NARROWEST = 60
"""Columns of a terminal below which answers are shown one below the other."""


def chat_text(result: ChatOutput) -> str:
    return "\n\n".join(map(turn_text, result.turns))


def turn_text(turn: Any) -> str:
    """Return one turn: the question only where a user has not just typed it."""
    if turn.error:
        return str(turn.error)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    if width >= NARROWEST:
        return side_by_side(turn.base, turn.adapter, width)
    question = "" if sys.stdin.isatty() else f"> {turn.question}\n"
    return f"{question}base: {turn.base}\nadapter: {turn.adapter}\n"


def side_by_side(base: str, adapter: str, width: int) -> str:
    """Return both answers in columns of the same width."""
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    table = Table("base", "adapter", expand=True)
    for column in table.columns:
        column.ratio, column.overflow = 1, "fold"
    table.add_row(base, adapter)
    console.print(table)
    return str(console.file.getvalue()).rstrip("\n")  # type: ignore[attr-defined]


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "serve": Operation(
        "Answer over HTTP until stopped: the REST API, models and adapters, the graph of nights, or repositories.",
        request=ServeInput, run="surfaces.serve:serve", text=json_text, scope=ADMIN,
        example="trainyard serve --role model --model starter --adapters handbook",
        local="It becomes a server on this machine.", endless=True,
    ),
    "mcp": Operation(
        "Answer an agent over the Model Context Protocol, on standard input and output: every command as a tool.",
        request=McpInput, run="surfaces.serve:serve_mcp", text=json_text, scope=ADMIN,
        example="trainyard mcp --scope run",
        local="It speaks on the standard input and output of a process.", endless=True,
    ),
    "chat": Operation(
        "Talk to an adapter and its base side by side; questions come from the terminal, a pipe or --question.",
        request=ChatInput, run="app.chat:chat", text=chat_text, scope=RUN,
        example="trainyard chat handbook",
        part_text=turn_text, read_input="surfaces.cli.read_question:read_question",
        local="It asks questions in a terminal; over a network, ask the model server's /v1/chat/completions.",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
