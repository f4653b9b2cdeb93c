"""What there is to train on: data sets and base models. Rows of the table of operations."""

from __future__ import annotations

from trainyard.api.table.operation import Operation, Scope

DATA: dict[str, Operation] = {
    "models": Operation(
        "The base models on this machine: the starter, the default, folders, and the cache of the Hub.",
        "base:Nothing", "data.listing:list_models", "data:models_text", Scope.READ,
        route="GET /api/v1/models", tenants=True,
    ),
    "data list": Operation(
        "The files and folders that a chain may read, as a path names them.",
        "data:FolderInput", "data.listing:list_data", "data:data_list_text", Scope.READ,
        example="trainyard data list handbook",
        route="GET /api/v1/data", tenants=True,
    ),
    "data preview": Operation(
        "A data set as a training would see it: format, rendered rows, what is learned, lengths, problems, cost.",
        "data:PreviewInput", "data.preview:preview", "data:preview_text", Scope.READ, part_renderer="data:raw_text",
        example="trainyard data preview chats.jsonl --base-model Qwen/Qwen3-4B --max-length 2048",
        route="GET /api/v1/data/preview", heavy=True, tenants=True, confined=True,
    ),
}  # fmt: skip
