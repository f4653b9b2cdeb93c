"""Where an adapter version is made to answer: one row per kind of server, each the same six functions.

    check   what speaks against it, before anything is touched      load     bring the version in, beside the live one
    canary  it has to answer a prompt                               switch   let the alias mean it
    undo    take back whatever of this was done                     retire   drop the version that was live before

Every function takes the `Site`: the target, the version and what has been done there so far. A version is always
loaded under its own name, which is never used again, so no server can answer from another version's prefix cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from trainyard.errors import InvalidInput, Reason, TrainyardError, Unavailable
from trainyard.spec.axes import TargetType
from trainyard.spec.nodes import Target
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion

VLLM_MAX_LORA_RANK = 16
"""What vLLM starts with when `--max-lora-rank` is not given."""
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Candidate:
    """What a target has to know of an adapter before it is loaded."""

    kind: str
    """`adapter` or `model`."""
    base_model: str
    base_path: str
    base_sha256: str
    chat_template_sha256: str
    adapter_config: Mapping[str, Any]

    @property
    def rank(self) -> int:
        """The largest rank of any layer."""
        return max(
            [int(self.adapter_config.get("r") or 0), *dict(self.adapter_config.get("rank_pattern") or {}).values()]
        )

    @property
    def base_names(self) -> frozenset[str]:
        return frozenset(name for name in (self.base_model, self.base_path) if name)


@dataclass
class Site:
    """One target during one deployment."""

    target: Target
    candidate: Candidate
    registry: AdapterRegistry
    index: int = 0
    http: httpx.Client | None = None
    canary: str = ""
    canary_max_tokens: int = 32
    version: AdapterVersion | None = None
    previous: AdapterVersion | None = None
    loaded: bool = False
    switched: bool = False
    alias_before: str | None = None
    """What the alias meant on this server before the switch."""
    answer: str = ""
    """What the canary prompt was answered with."""

    @property
    def new(self) -> AdapterVersion:
        assert self.version is not None, "a version is registered before a target is touched"
        return self.version

    @property
    def where(self) -> str:
        return f"{self.target.type.value} at {self.http.base_url}" if self.http else self.target.type.value

    def reason(self, code: str, key: str, because: str, instead: str) -> Reason:
        return Reason(code, None, f"config.targets.{self.index}.{key}", because, instead)


class Actions(NamedTuple):
    """One row of the table."""

    check: Callable[[Site], list[Reason]]
    load: Callable[[Site], None]
    canary: Callable[[Site], None]
    switch: Callable[[Site], None]
    undo: Callable[[Site], None]
    retire: Callable[[Site], None]


def nothing(_site: Site) -> None:
    """For a step that a kind of target does not have."""


def no_objection(_site: Site) -> list[Reason]:
    return []


# The registry: its pointer says which version is live. Every deployment ends with it, listed or not.


def point_registry(site: Site) -> None:
    site.registry.point(site.new.tenant, site.new.role, site.new.version, "deploy")
    site.switched = True


def unpoint_registry(site: Site) -> None:
    if site.switched:
        before = site.previous.version if site.previous else None
        site.registry.point(site.new.tenant, site.new.role, before, "undo")
        site.switched = False


# Servers with OpenAI's endpoints and vLLM's two for adapters.


def check_embedded(site: Site) -> list[Reason]:
    return [*refuse_whole_model(site), *check_base(site)]


def check_vllm(site: Site) -> list[Reason]:
    reasons = [*refuse_whole_model(site), *check_servable(site), *check_base(site)]
    if site.target.path_prefix and not is_below(site.registry.root, site.target.path_prefix[0]):
        because = f"the registry {site.registry.root} is not below {site.target.path_prefix[0]!r}."
        reasons.append(
            site.reason("E-PATH-PREFIX", "path_prefix", because, "give the folder that both sides see, ours first.")
        )
    return reasons


def refuse_whole_model(site: Site) -> list[Reason]:
    if site.candidate.kind == "adapter":
        return []
    because = f"a {site.target.type.value} server loads adapters while it runs, and this is a whole model."
    return [
        site.reason(
            "R-MODEL-TARGET", "type", because, "use target `registry` and start a server with the model's folder."
        )
    ]


def check_servable(site: Site) -> list[Reason]:
    """What vLLM cannot serve, read from the adapter's own config."""
    config, reasons = site.candidate.adapter_config, []
    if config.get("use_dora"):
        because = "vLLM cannot serve DoRA adapters: it has no magnitude vector."
        reasons.append(
            site.reason("R-DORA-VLLM", "type", because, "train with method `lora`, or use target `embedded`.")
        )
    if config.get("modules_to_save"):
        because = f"vLLM serves no adapter with whole modules {', '.join(config['modules_to_save'])}."
        reasons.append(site.reason("R-MODULES-TO-SAVE", "type", because, "train without lora.modules_to_save."))
    limit = site.target.max_lora_rank or VLLM_MAX_LORA_RANK
    if site.candidate.rank > limit:
        because = f"the adapter has rank {site.candidate.rank} and the server takes at most {limit}."
        instead = f"start vLLM with --max-lora-rank {site.candidate.rank} and say max_lora_rank, or train a lower rank."
        reasons.append(site.reason("R-RANK-SERVER", "max_lora_rank", because, instead))
    return reasons


def check_base(site: Site) -> list[Reason]:
    """The server has to hold the base that the adapter was trained on, with the same chat template.

    A digest that the server tells decides; else its name or folder; else what the operator declared.
    """
    card = base_card(site)
    known, reasons = site.candidate, []
    held = str(card.get("root") or card.get("id"))
    digest, template = card.get("sha256"), card.get("chat_template_sha256")
    names = {str(card.get("id")), held, unmapped(site, held)}
    if site.target.base_model:
        same = site.target.base_model in known.base_names
        held = site.target.base_model
    elif digest and known.base_sha256:
        same = digest == known.base_sha256
    else:
        same = bool(names & known.base_names)
    if not same:
        because = f"{site.where} holds the base {held!r}; the adapter was trained on {known.base_model!r}."
        instead = "use a server with that base, or declare `base_model` if it is the same one under another name."
        reasons.append(site.reason("R-BASE-MISMATCH", "base_model", because, instead))
    if template and known.chat_template_sha256 and template != known.chat_template_sha256:
        because = f"{site.where} renders prompts with another chat template than the training did."
        instead = "start the server with the chat template in the adapter's tokenizer folder."
        reasons.append(site.reason("R-TEMPLATE-MISMATCH", "url", because, instead))
    return reasons


def base_card(site: Site) -> Mapping[str, Any]:
    """The served base: the first model without a parent."""
    cards = models(site)
    base = next((card for card in cards if not card.get("parent")), None)
    if base is None:
        raise garbage(site, "its /v1/models lists no base model")
    return base


def models(site: Site) -> list[Mapping[str, Any]]:
    answer = call(site, "GET", "/v1/models")
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
        raise garbage(site, "its /v1/models is no list of models")
    return cards


def load_adapter(site: Site) -> None:
    """Load under the version's name. A server that has this very version already (a retry) is left as it is."""
    path = server_path(site)
    held = next((card for card in models(site) if card.get("id") == site.new.name), None)
    if held is None:
        site.loaded = True  # from here on an undo has to try: the answer may be lost after the server has acted
        call(site, "POST", "/v1/load_lora_adapter", {"lora_name": site.new.name, "lora_path": path})
    elif held.get("root") not in (None, path):
        raise TrainyardError(
            f"{site.where} already serves {site.new.name}, from {held.get('root')!r}.",
            why="A version's name is never used for other files.",
            do="Unload it there, or point the target at a server of this registry.",
            code="E-TARGET-TAKEN",
        )


def unload_adapter(site: Site, name: str) -> None:
    if any(card.get("id") == name for card in models(site)):
        call(site, "POST", "/v1/unload_lora_adapter", {"lora_name": name})


def ask_canary(site: Site) -> None:
    """The new version has to answer the canary prompt with some text; raises `E-CANARY` otherwise."""
    body = {
        "model": site.new.name,
        "messages": [{"role": "user", "content": site.canary}],
        "max_tokens": site.canary_max_tokens,
        "temperature": 0,
    }
    answer = call(site, "POST", "/v1/chat/completions", body)
    try:
        said = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise garbage(site, "its chat completion has no message") from error
    if not isinstance(said, str) or not said.strip():
        raise TrainyardError(
            f"{site.where} answered the canary prompt with nothing.",
            why=f"{site.new.name} was asked {site.canary!r} for at most {site.canary_max_tokens} tokens.",
            do="Look at the adapter's samples in the evaluation report; a longer canary_max_tokens may help.",
            code="E-CANARY",
        )
    site.answer = said.strip()


def switch_alias(site: Site) -> None:
    site.alias_before = alias_target(site)
    site.switched = True
    call(site, "POST", "/v1/aliases", {"alias": site.new.alias, "model": site.new.name})


def alias_target(site: Site) -> str | None:
    """The version that the alias means on this server now."""
    card = next((card for card in models(site) if card.get("id") == site.new.alias), {})
    return str(card["alias_of"]) if card.get("alias_of") else None


def undo_embedded(site: Site) -> None:
    if site.switched and site.alias_before != alias_target(site):
        call(site, "POST", "/v1/aliases", {"alias": site.new.alias, "model": site.alias_before})
    site.switched = False
    undo_load(site)


def undo_load(site: Site) -> None:
    if site.loaded:
        unload_adapter(site, site.new.name)
        site.loaded = False


def retire_previous(site: Site) -> None:
    if site.previous and site.previous.name != site.new.name:
        unload_adapter(site, site.previous.name)


# Servers whose adapters are fixed when they start; they come with their backends.


def not_yet(site: Site) -> list[Reason]:
    because = (
        f"target `{site.target.type.value}` takes another file format, and its converter is not part of this release."
    )
    return [site.reason("R-TARGET-UNSUPPORTED", "type", because, "use registry, embedded or vllm.")]


ABSENT = Actions(not_yet, nothing, nothing, nothing, nothing, nothing)
TARGETS: dict[TargetType, Actions] = {
    TargetType.REGISTRY: Actions(no_objection, nothing, nothing, point_registry, unpoint_registry, nothing),
    TargetType.EMBEDDED: Actions(
        check_embedded, load_adapter, ask_canary, switch_alias, undo_embedded, retire_previous
    ),
    TargetType.VLLM: Actions(check_vllm, load_adapter, ask_canary, nothing, undo_load, retire_previous),
    TargetType.LLAMA_SERVER: ABSENT,
    TargetType.OLLAMA: ABSENT,
    TargetType.MLX: ABSENT,
}
SERVERS = frozenset({TargetType.EMBEDDED, TargetType.VLLM})
"""Targets that are spoken to over HTTP."""


def http_client(target: Target, url: str) -> httpx.Client:
    """A client of a server's root address; `url` may end with `/v1`. The key comes from the target's variable.

    Raises `InvalidInput` (`E-API-KEY`) when the variable is not set.
    """
    headers = {}
    if target.api_key_env:
        key = os.environ.get(target.api_key_env)
        if not key:
            raise InvalidInput(
                f"The variable {target.api_key_env} is not set.",
                why=f"The {target.type.value} target names it as its API key.",
                do=f"Set {target.api_key_env} where the chain runs.",
                code="E-API-KEY",
            )
        headers["Authorization"] = f"Bearer {key}"
    root = url.rstrip("/").removesuffix("/v1")
    return httpx.Client(base_url=root, headers=headers, timeout=httpx.Timeout(TIMEOUT_S, connect=5.0))


def call(site: Site, method: str, path: str, body: Any = None) -> Any:
    """One request; returns the JSON answer, or the text of an answer that is no JSON.

    Raises `Unavailable` (`E-TARGET-UNREACHABLE`, `E-TARGET-AUTH`, `R-TARGET-LORA-OFF`) or `TrainyardError`
    (`E-TARGET-REFUSED`) with the server's own words.
    """
    assert site.http is not None, "only servers are called"
    try:
        response = site.http.request(method, path, json=body)
    except httpx.HTTPError as error:
        raise Unavailable(
            f"{site.where} did not answer {path}.",
            why=f"{type(error).__name__}: {error}",
            do="Start the server (`trainyard up` starts the embedded one), or correct the target's url.",
            code="E-TARGET-UNREACHABLE",
        ) from error
    if not response.is_success:
        raise refused(site, path, response)
    if "json" not in response.headers.get("content-type", ""):
        return response.text
    try:
        return response.json()
    except ValueError as error:
        raise garbage(site, f"its answer to {path} is no JSON") from error


def refused(site: Site, path: str, response: httpx.Response) -> TrainyardError:
    """The error of an answer of 400 or more."""
    said = server_message(response)
    if response.status_code in (401, 403):
        return Unavailable(
            f"{site.where} refused the API key.", why=said, do="Set the target's api_key_env.", code="E-TARGET-AUTH"
        )
    if response.status_code == 404 and said == "Not Found" and "lora" in path:
        return Unavailable(
            f"{site.where} does not load adapters while it runs.",
            why=f"It has no {path}.",
            do="Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.",
            code="R-TARGET-LORA-OFF",
        )
    return TrainyardError(
        f"{site.where} answered {path} with status {response.status_code}.",
        why=said,
        do="Correct what the server names, and run the deployment again.",
        code="E-TARGET-REFUSED",
    )


def server_message(response: httpx.Response) -> str:
    """The message inside an error answer: OpenAI's, FastAPI's or plain text, at most 500 characters."""
    try:
        value = response.json()
    except ValueError:
        return response.text[:500]
    if isinstance(value, dict):
        error = value.get("error", value)
        value = error.get("message") or error.get("detail") or error if isinstance(error, dict) else error
    return str(value)[:500]


def garbage(site: Site, what: str) -> TrainyardError:
    return Unavailable(
        f"{site.where} is no OpenAI-compatible server: {what}.", do="Correct the target's url.", code="E-TARGET-GARBAGE"
    )


def server_path(site: Site) -> str:
    """The version's folder as the server sees it."""
    path = site.registry.path(site.new)
    if not site.target.path_prefix:
        return str(path)
    ours, theirs = site.target.path_prefix
    return str(Path(theirs) / path.resolve().relative_to(Path(ours).resolve()))


def unmapped(site: Site, path: str) -> str:
    """A folder that the server names, as we see it."""
    if not site.target.path_prefix or not path.startswith("/"):
        return path
    ours, theirs = site.target.path_prefix
    return str(Path(ours) / Path(path).relative_to(theirs)) if is_below(Path(path), theirs) else path


def is_below(path: Path, folder: str) -> bool:
    return path.resolve().is_relative_to(Path(folder).resolve())
