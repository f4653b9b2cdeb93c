"""Requests to serve models and the knowledge graph, and to talk to an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument, Option
from trainyard.api.requests.graph import ADDRESS


class ServeInput(Request):
    job: Annotated[str | None, Argument("JOB", completes="run")] = Field(
        None, min_length=1, description="Serve the adapter of this ended job on its base, or its model."
    )
    role: Literal["training", "graph", "model"] | None = Field(
        None,
        description="What to serve: the REST API (training), the graph that nights write, or models. "
        "Default: training; model for a JOB.",
    )
    host: str = Field(
        "127.0.0.1", description="Another one than loopback needs TLS (training), or TRAINYARD_TOKEN (graph, model)."
    )
    port: int | None = Field(
        None, ge=0, le=65535, description="0 takes a free one; default: training 8898, graph 9081, model 0."
    )
    tls_cert: Path | None = Field(None, description="Role training: certificate (PEM) for addresses beyond loopback.")
    tls_key: Path | None = Field(None, description="Role training: its key (PEM).")
    behind_proxy: str | None = Field(
        None, description="Role training: address of the proxy that has the TLS; X-Forwarded headers of it are used."
    )
    allow_host: tuple[str, ...] = Field(
        (), description="Role training: a name by which clients call it; may repeat. Those of the certificate count."
    )
    no_auth: bool = Field(False, description="Role training: every user of this machine may do everything.")
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
        "admin", description="What the agent may do: look; start work, too; or all that you may."
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
