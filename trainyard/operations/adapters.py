"""Adapter versions: list, register, promote, merge, convert, publish and ask. Requests, texts and rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from trainyard.operations.base import Request
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table, next_lines
from trainyard.serve.conversion.architectures import Layout

if TYPE_CHECKING:
    from trainyard.app.adapters.registry import AdapterRows, Converted, Registered
    from trainyard.app.adapters.signing import Keys, VerifiedVersion
    from trainyard.app.adapters.versions import Card, DeletedVersion, Merged, Promotion, Published, Pulled
    from trainyard.app.chat import AskedAnswer
    from trainyard.app.responses import Record


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
        min_length=1, max_length=63, description="Purpose of the adapter: it becomes TENANT/ROLE/vN."
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
    data: bool = Field(False, description="The card of its data instead: sources, synthetic share, filters.")


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


class VersionInput(Request):
    name: Annotated[str, Argument("TENANT/ROLE[/vN]", completes="adapter")] = Field(
        description="The version; without one, the live one."
    )


class KeysInput(Request):
    out: Annotated[Path | None, Option(local=True)] = Field(
        None, description="File for this home's public key; other homes trust it."
    )


class TrustKeyInput(Request):
    file: Annotated[Path, Argument("FILE")] = Field(description="Public key (PEM); `adapters keys --out` writes it.")
    name: str = Field(min_length=1, max_length=63, description="Whose key it is; such as lab-two.")


class RevokeKeyInput(Request):
    key: Annotated[str, Argument("KEY")] = Field(
        min_length=1, max_length=64, description="Its name; or enough of the beginning of its id."
    )
    because: str = Field(min_length=1, max_length=500, description="Why; it is shown where a signature is refused.")


class MergeInput(Request):
    name: Annotated[str, Argument("NAME", completes="adapter")] = Field(
        description="TENANT/ROLE[/vN], or an ended job: JOB[/TRAINER]."
    )
    target: Annotated[Path | None, Argument("TARGET")] = Field(None, description="Folder to write; it must not exist.")
    to: Annotated[str, Option("--to", "--format")] = Field(
        "safetensors", description="Format: safetensors, or gguf, which needs the llamacpp environment."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="auto: that of the base.")


LONGEST_TEXT = 100_000
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]


class EarlierTurn(Request):
    """A question with both answers, as an earlier call gave them."""

    question: Text
    base: Text
    adapter: Text


class AskInput(Request):
    adapter: Annotated[str, Argument("ADAPTER", completes="adapter")] = Field(
        min_length=1, max_length=200, description="ROLE, TENANT/ROLE, a version of it, or an ended job."
    )
    question: Annotated[Text, Argument("QUESTION")] = Field(min_length=1, description="What both are asked.")
    turns: Annotated[tuple[EarlierTurn, ...], Option("--turn", local=False)] = Field(
        (), max_length=100, description="The conversation so far; each answers with its own part of it."
    )
    system: Text = Field("", description="System message of both conversations.")
    max_tokens: int = Field(256, ge=1, le=4096, description="Most tokens of an answer.")
    temperature: float = Field(0.0, ge=0, le=2, description="0 takes the likeliest token.")
    seed: int = Field(0, ge=0, le=2**53, description="Of the random numbers, where temperature is not 0.")


def adapters_text(result: AdapterRows) -> str:
    if not result.rows:
        return "no adapters yet"
    header = list(result.rows[0])
    return format_table([[str(row[key]) for key in header] for row in result.rows], header)


def registered_text(result: Registered) -> str:
    verdict = {True: "better", False: "not better", None: "not evaluated"}[result.better]
    state = "live" if result.live else "registered, not live"
    lines = [f"{result.version} is {state}: the adapter of {result.job}, {verdict}{run_line(result)}"]
    lines += [f"  {target['type']}{' at ' + target['url'] if target['url'] else ''}" for target in result.targets]
    lines += [f"warning: {warning}" for warning in result.warnings]
    return "\n".join([*lines, *next_lines(result.next)])


def converted_text(result: Converted) -> str:
    return f"{result.target} ({result.to}, was {result.was})" + run_line(result)


def run_line(result: Any) -> str:
    """Return a line of its own where an adapter was not run on its base here."""
    if result.adapter_run is False:
        return f"\nnot run on its base here, files and shapes compared alone: {result.adapter_run_because}"
    return ""


def record_text(result: Record) -> str:
    return json.dumps(result.record, indent=2, default=str)


def promotion_text(result: Promotion) -> str:
    if not result.changed:
        return f"{result.version} is live already; nothing was changed"
    lines = [f"{result.version} is live (before: {result.previous or 'nothing'})"]
    lines += [
        f"  {target['type']}{' at ' + target['url'] if target['url'] else ''}{format_merged(target.get('merged'))}"
        for target in result.targets
    ]
    return "\n".join([*lines, *(f"warning: {warning}" for warning in result.warnings)])


def format_merged(merged: Mapping[str, object] | None) -> str:
    """Return where the merged model of a target is, and how far its logits are from base plus adapter."""
    if merged is None:
        return ""
    return f": {merged['format']} in {merged['path']}, largest difference of a logit {merged['divergence']:.3g}"


def deleted_text(result: DeletedVersion) -> str:
    return f"{result.version} was deleted at {result.deleted}: {result.files} files, {result.bytes:,} bytes"


def card_text(result: Card) -> str:
    return f"{result.path}: the card of {result.name}" if result.path else str(result.markdown)


def published_text(result: Published) -> str:
    done = "is published at" if result.changed else "was published before, nothing is new at"
    live = "; it is the live one there" if result.live else ""
    return f"{result.version} {done} {result.where} ({result.revision[:12]}){live}" + run_line(result)


def pulled_text(result: Pulled) -> str:
    return (
        f"{result.version} is registered, from {result.source} (base: {result.base_model}){run_line(result)}\n"
        f"{f'signed by {result.signed_by[:16]}' if result.signed_by else result.notice}\n"
        f"make it live: trainyard adapters promote {result.version} --target embedded"
    )


def merged_text(result: Merged) -> str:
    return (
        f"{result.target}: {result.version} as one model ({result.format}, {result.dtype})\n"
        f"largest difference of a logit from base plus adapter: {result.divergence:.3g} after the sum, "
        f"{result.saved_divergence:.3g} as written"
    )


def answer_text(result: AskedAnswer) -> str:
    if result.error:
        return f"refused: {result.error}"
    return f"{result.base_model}: {result.base}\n\n{result.adapter_version}: {result.adapter}"


def verified_text(result: VerifiedVersion) -> str:
    """Return a line for each thing that was checked."""
    signed = f"signed by {result.key_name} ({result.signed_by[:16]})" if result.signed_by else result.notice
    lines = [f"{result.version}: {result.files} files as its manifest says", signed, result.ledger]
    return "\n".join(filter(None, lines))


def keys_text(result: Keys) -> str:
    rows = [
        (key.id[:16], key.name, "revoked" if key.revoked else "this home" if key.own else "trusted", key.because)
        for key in result.keys
    ]
    table = (
        format_table(rows, ("id", "name", "state", "because")) if rows else "no keys yet: the first signature makes one"
    )
    return "\n".join([table, f"signatures: {result.policy}", *([f"public key: {result.out}"] if result.out else [])])


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "adapters list": Operation(
        "Every adapter version, the live one of each role marked.",
        request=AdaptersInput, run="app.adapters.registry:list_adapters", text=adapters_text, scope=READ,
        route="GET /api/v1/adapters", tenants=True,
    ),
    "adapters show": Operation(
        "One adapter version's manifest; without a version, the live one's.",
        request=AdapterName, run="app.adapters.registry:show_adapter", text=record_text, scope=READ,
        route="GET /api/v1/adapters/show", tenants=True,
    ),
    "adapters register": Operation(
        "Give the adapter of an ended job a number in the registry; with --promote, make it live.",
        request=RegisterInput, run="app.adapters.registry:register_job", text=registered_text, scope=RUN,
        example="trainyard adapters register desk --role support --promote",
        route="POST /api/v1/adapters/register", tenants=True, heavy=True,
    ),
    "adapters convert": Operation(
        "Write an adapter in the layout of PEFT, mlx-lm or llama.cpp (gguf), without changing a bit of its weights.",
        request=ConvertInput, run="app.adapters.registry:convert_adapter", text=converted_text, scope=RUN,
        local="It writes a folder anywhere on this machine.",
    ),
    "adapters promote": Operation(
        "Make a version live on the targets of its deployment: all of them, or none.",
        request=PromoteInput, run="app.adapters.versions:promote", text=promotion_text, scope=RUN,
        example="trainyard adapters promote default/handbook/v3",
        route="POST /api/v1/adapters/promote", tenants=True, heavy=True,
    ),
    "adapters rollback": Operation(
        "Make the version live again that the live one replaced, on all targets or none.",
        request=RollbackInput, run="app.adapters.versions:rollback", text=promotion_text, scope=RUN,
        route="POST /api/v1/adapters/rollback", tenants=True, heavy=True,
    ),
    "adapters delete-version": Operation(
        "Remove the files of a version that is not live; its number is never used again.",
        request=DeleteInput, run="app.adapters.versions:delete_version", text=deleted_text, scope=RUN,
        route="POST /api/v1/adapters/delete-version", tenants=True,
    ),
    "adapters merge": Operation(
        "Write a version, or a job's adapter, and its base as one model whose answers were compared.",
        request=MergeInput, run="app.adapters.versions:merge", text=merged_text, scope=RUN,
        example="trainyard adapters merge default/handbook/v3 merged/ --to safetensors",
        local="It writes a folder anywhere on this machine.",
    ),
    "adapters card": Operation(
        "The model card of a version: recipe, data, metrics with intervals, limits, and how to load it.",
        request=CardInput, run="app.adapters.versions:show_card", text=card_text, scope=READ,
        route="GET /api/v1/adapters/card", tenants=True,
    ),
    "adapters ask": Operation(
        "Ask a version and its base the same question; both answers come back side by side.",
        request=AskInput, run="app.chat:ask", text=answer_text, scope=RUN,
        example="trainyard adapters ask handbook 'How long does the battery last?'",
        route="POST /api/v1/adapters/ask", tenants=True, heavy=True, only_answers=True,
        stream="surfaces.streams:follow_answers",
    ),
    "adapters push": Operation(
        "Publish a version on the Hugging Face Hub, private unless asked, or in an object store; twice is once.",
        request=PushInput, run="app.adapters.versions:push", text=published_text, scope=RUN,
        example="trainyard adapters push default/handbook/v3 acme/handbook",
        local="It reads a token from this machine's environment and sends files to a server.",
    ),
    "adapters pull": Operation(
        "Fetch a published version, verify every file, and register it here as a new version.",
        request=PullInput, run="app.adapters.versions:pull", text=pulled_text, scope=RUN,
        example="trainyard adapters pull gs://weights/prod/adapters/acme/handbook",
        local="It reads a token from this machine's environment and fetches files from a server.",
    ),
    "adapters verify": Operation(
        "Verify a version: every file against its manifest, its signature and the ledger.",
        request=VersionInput, run="app.adapters.signing:verify", text=verified_text, scope=READ,
        route="GET /api/v1/adapters/verify", tenants=True, heavy=True,
    ),
    "adapters sign": Operation(
        "Sign a version: with this home's key, such as one of an earlier Trainyard.",
        request=VersionInput, run="app.adapters.signing:sign", text=verified_text, scope=ADMIN,
        local="It uses a private key of this machine.",
    ),
    "adapters keys": Operation(
        "Keys whose signatures are accepted: this home's first.",
        request=KeysInput, run="app.adapters.signing:list_keys", text=keys_text, scope=ADMIN,
        local="It makes this machine's key where there is none.",
    ),
    "adapters trust-key": Operation(
        "Accept what a key has signed: one of another home.",
        request=TrustKeyInput, run="app.adapters.signing:trust_key", text=keys_text, scope=ADMIN,
        example="trainyard adapters trust-key lab-two.pem --name lab-two",
        local="It decides which adapters this machine loads.",
    ),
    "adapters revoke-key": Operation(
        "Refuse what a key has signed from now on; for this home's own, the next signature is by a new one.",
        request=RevokeKeyInput, run="app.adapters.signing:revoke_key", text=keys_text, scope=ADMIN,
        local="It decides which adapters this machine loads.",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
