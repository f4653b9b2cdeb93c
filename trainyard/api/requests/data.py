"""Requests about data sets."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument, Option
from trainyard.spec.axes.data import DataFormat


class PreviewInput(Request):
    path: Annotated[str, BeforeValidator(os.fspath), Argument("PATH")] = Field(
        min_length=1, max_length=4096, description="File or folder inside a data root, hub:org/name, or an address."
    )
    format: DataFormat | None = Field(None, description="Format of the rows; default: recognised.")
    columns: Annotated[dict[str, Any], Option("--column")] = Field(
        {}, description="Field of a row and its column, as prompt=question_text; may be repeated."
    )
    base_model: str | None = Field(None, description="Model whose tokenizer counts; default: the default base model.")
    template: str = Field("auto", description="Chat template: auto, a renderer's name, or a .jinja file.")
    max_length: int = Field(512, ge=1, le=1_000_000, description="Longest row in tokens, as in the training.")
    rows: int = Field(10, ge=1, le=1000, description="Rows that are shown.")
    limit: int = Field(10_000, ge=1, le=10_000_000, description="Rows that are rendered and counted.")
