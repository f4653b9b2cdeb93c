"""The operations on adapter versions: the rows of the table whose first word is `adapters`."""

from __future__ import annotations

from trainyard.api.table.operation import Operation, Scope

READ, RUN, _ = Scope

ADAPTERS: dict[str, Operation] = {
    "adapters list": Operation(
        "Every adapter version, the live one of each role marked.",
        "adapters:AdaptersInput", "adapters:list_adapters", "adapters:adapters_text", READ,
        route="GET /api/v1/adapters", tenants=True,
    ),
    "adapters show": Operation(
        "One adapter version's manifest; without a version, the live one's.",
        "adapters:AdapterName", "adapters:show_adapter", "adapters:record_text", READ,
        route="GET /api/v1/adapters/show", tenants=True,
    ),
    "adapters register": Operation(
        "Give the adapter of an ended job a number in the registry; with --promote, make it live.",
        "adapters:RegisterInput", "registering:register_job", "adapters:registered_text", RUN,
        example="trainyard adapters register desk --role support --promote",
        route="POST /api/v1/adapters/register", tenants=True, heavy=True,
    ),
    "adapters convert": Operation(
        "Write an adapter in the layout of PEFT, mlx-lm or llama.cpp (gguf), without changing a bit of its weights.",
        "adapters:ConvertInput", "adapters:convert_adapter", "adapters:converted_text", RUN,
        local="It writes a folder anywhere on this machine.",
    ),
    "adapters promote": Operation(
        "Make a version live on the targets of its deployment: all of them, or none.",
        "adapters:PromoteInput", "versions:promote", "adapters:promotion_text", RUN,
        example="trainyard adapters promote default/handbook/v3",
        route="POST /api/v1/adapters/promote", tenants=True, heavy=True,
    ),
    "adapters rollback": Operation(
        "Make the version live again that the live one replaced, on all targets or none.",
        "adapters:RollbackInput", "versions:rollback", "adapters:promotion_text", RUN,
        route="POST /api/v1/adapters/rollback", tenants=True, heavy=True,
    ),
    "adapters delete-version": Operation(
        "Remove the files of a version that is not live; its number is never used again.",
        "adapters:DeleteInput", "versions:delete_version", "adapters:deleted_text", RUN,
        route="POST /api/v1/adapters/delete-version", tenants=True,
    ),
    "adapters merge": Operation(
        "Write a version, or a job's adapter, and its base as one model whose answers were compared.",
        "adapters:MergeInput", "versions:merge", "adapters:merged_text", RUN,
        example="trainyard adapters merge default/handbook/v3 merged/ --to safetensors",
        local="It writes a folder anywhere on this machine.",
    ),
    "adapters card": Operation(
        "The model card of a version: recipe, data, metrics with intervals, limits, and how to load it.",
        "adapters:CardInput", "versions:show_card", "adapters:card_text", READ,
        route="GET /api/v1/adapters/card", tenants=True,
    ),
    "adapters ask": Operation(
        "Ask a version and its base the same question; both answers come back side by side.",
        "records.asking:AskInput", "records.asking:ask", "records.asking:answer_text", RUN,
        example="trainyard adapters ask handbook 'How long does the battery last?'",
        route="POST /api/v1/adapters/ask", tenants=True, heavy=True, only_answers=True,
        stream="live.answers:follow_answers",
    ),
    "adapters push": Operation(
        "Publish a version on the Hugging Face Hub, private unless asked, or in an object store; twice is once.",
        "adapters:PushInput", "versions:push", "adapters:published_text", RUN,
        example="trainyard adapters push default/handbook/v3 acme/handbook",
        local="It reads a token from this machine's environment and sends files to a server.",
    ),
    "adapters pull": Operation(
        "Fetch a published version, verify every file, and register it here as a new version.",
        "adapters:PullInput", "versions:pull", "adapters:pulled_text", RUN,
        example="trainyard adapters pull gs://weights/prod/adapters/acme/handbook",
        local="It reads a token from this machine's environment and fetches files from a server.",
    ),
}  # fmt: skip
