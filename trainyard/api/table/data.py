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
    "data upload": Operation(
        "Copy a file of this machine into the tenant's folder of uploads, from where chains read it.",
        "data:UploadInput", "data.uploads:upload_file", "data:uploaded_text", Scope.RUN,
        example="trainyard data upload ~/Downloads/chats.jsonl",
        route="PUT /api/v1/data/uploads/{name}", status=201, tenants=True, takes_file=True,
    ),
    "data delete": Operation(
        "Remove an uploaded file, or an uploaded folder with its files.",
        "data:UploadNameInput", "data.uploads:delete_upload", "data:deleted_upload_text", Scope.RUN,
        route="DELETE /api/v1/data/uploads/{name}", tenants=True,
    ),
    "data columns": Operation(
        "The columns of a file of rows, and the fields that `columns` of a data set maps them to.",
        "data:ColumnsInput", "data.columns:show_columns", "data:columns_text", Scope.READ,
        example="trainyard data columns tickets.csv",
        route="GET /api/v1/data/columns", tenants=True, confined=True,
    ),
    "data preview": Operation(
        "A data set as a training would see it: format, rendered rows, what is learned, lengths, problems, cost.",
        "data:PreviewInput", "data.preview:preview", "data:preview_text", Scope.READ, part_renderer="data:raw_text",
        example="trainyard data preview chats.jsonl --base-model Qwen/Qwen3-4B --max-length 2048",
        route="GET /api/v1/data/preview", heavy=True, tenants=True, confined=True,
    ),
}  # fmt: skip
