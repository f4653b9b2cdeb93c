"""Requests about data sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import BeforeValidator, Field, PrivateAttr

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
    generate: bool = Field(False, description="Show the pairs that documents give by rule, without a model.")
    count: int = Field(200, ge=1, le=10_000_000, description="Rows to train on that are wanted, with generate.")
    wordings: int = Field(3, ge=1, le=8, description="Of each question, with generate.")
    rows: int = Field(10, ge=1, le=1000, description="Rows that are shown.")
    limit: int = Field(10_000, ge=1, le=10_000_000, description="Rows that are rendered and counted.")


class FolderInput(Request):
    folder: Annotated[str, Argument("FOLDER")] = Field(
        "", max_length=4096, description="Folder inside a data root; left out: the data roots themselves."
    )
    limit: int = Field(200, ge=1, le=10_000, description="Entries that are shown.")


class UploadInput(Request):
    """A file to keep. Over REST, its bytes are the body."""

    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(None, description="A file of this machine.")
    name: Annotated[str, Option("--name")] = Field(
        "", max_length=1024, description="Name of the upload, such as chats.jsonl; default: the file's own."
    )
    folder: str = Field("", max_length=1024, description="Folder of uploads that it belongs to, as for documents.")
    _received: BinaryIO | None = PrivateAttr(None)

    @property
    def received(self) -> BinaryIO | None:
        """The bytes that came over REST."""
        return self._received

    def with_received(self, body: BinaryIO) -> UploadInput:
        """Return the request with the bytes that came with it, which no log and no answer contains."""
        request = self.model_copy()
        request._received = body
        return request


class UploadNameInput(Request):
    name: Annotated[str, Argument("NAME", completes="upload")] = Field(
        min_length=1, max_length=1024, description="Name of an uploaded file or folder."
    )


class ColumnsInput(Request):
    path: Annotated[str, BeforeValidator(os.fspath), Argument("PATH", is_file=True)] = Field(
        min_length=1, max_length=4096, description="File or folder of rows inside a data root."
    )
