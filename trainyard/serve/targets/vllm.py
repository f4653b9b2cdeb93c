"""vLLM: a server that loads adapters while it runs, by two endpoints next to those of OpenAI.

The embedded server has the same two (`embedded.py`). Each version is loaded under a name of its own, so both sides of a
switch answer; vLLM has no alias, and clients name the version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from trainyard.callbacks import ignore
from trainyard.errors import Reason, TrainyardError
from trainyard.serve.targets.calling import ask_canary, call, make_response_error
from trainyard.serve.targets.contract import Actions, TargetDeployment
from trainyard.settings import settings_file
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.compat.evaluator_deployer import list_unserved

LOAD_PATH, UNLOAD_PATH = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def load_request(name: str, folder: object) -> dict[str, str]:
    """Return the body of a request to `LOAD_PATH`, as vLLM and the embedded server take it."""
    return {"lora_name": name, "lora_path": str(folder)}


def check(site: TargetDeployment) -> list[Reason]:
    reasons = [*refuse_whole_model(site), *check_servable(site), *check_base(site)]
    if site.target.path_prefix and not is_under(site.registry.root, site.target.path_prefix[0]):
        because = f"the registry {site.registry.root} is not below {site.target.path_prefix[0]!r}."
        instead = "give the folder that both sides see, ours first."
        reasons.append(site.reason("E-ENDPOINT", "path_prefix", because, instead))
    return reasons


def refuse_whole_model(site: TargetDeployment) -> list[Reason]:
    if site.candidate.kind == "adapter":
        return []
    because = f"a {site.target.type.value} server loads adapters while it runs, and this is a whole model."
    instead = "use target `registry` and start a server with the model's folder."
    return [site.reason("R-TARGET", "type", because, instead)]


def check_servable(site: TargetDeployment) -> list[Reason]:
    """Return what vLLM cannot serve, read from the adapter's own config."""
    config, facts = site.candidate.adapter_config, site.target.type.facts
    method = Method.DORA if config.get("use_dora") else Method.OFT if config.get("peft_type") == "OFT" else Method.LORA
    instead = "train with method lora and without method.modules_to_save, or use target embedded."
    reasons = [
        site.reason("R-TARGET", "type", f"A server of type {site.target.type} does not serve {feature}.", instead)
        for feature in list_unserved(site.target.type, method, config.get("modules_to_save") or ())
    ]
    limit = site.target.max_lora_rank or facts.max_lora_rank
    if limit is not None and site.candidate.rank > limit:
        because = f"the adapter has rank {site.candidate.rank} and the server takes at most {limit}."
        instead = f"start vLLM with --max-lora-rank {site.candidate.rank} and say max_lora_rank, or train a lower rank."
        reasons.append(site.reason("R-TARGET", "max_lora_rank", because, instead))
    return reasons


def check_base(site: TargetDeployment) -> list[Reason]:
    """Check that the server has the base that the adapter was trained on, with the same chat template.

    A digest from the server decides; else its name or folder; else what the operator declared.
    """
    card = find_base_card(site)
    candidate, reasons = site.candidate, []
    served = str(card.get("root") or card.get("id"))
    digest, template = card.get("sha256"), card.get("chat_template_sha256")
    names = {str(card.get("id")), served, map_to_local(site, served)}
    if site.target.base_model:
        same = site.target.base_model in candidate.base_names
        served = site.target.base_model
    elif digest and candidate.base_sha256:
        same = digest == candidate.base_sha256
    else:
        same = bool(names & candidate.base_names)
    if not same:
        because = f"{site.where} serves the base {served!r}, and the adapter belongs to {candidate.base_model!r}."
        reasons.append(site.reason("R-BASE-MISMATCH", "base_model", because, suggest_base(site, str(card.get("id")))))
    elif template and candidate.chat_template_sha256 not in ("", template):
        because = f"{site.where} renders prompts with another chat template than the training does."
        instead = "remove engine.template, or use a server that is started with the adapter's chat template (vllm)."
        reasons.append(site.reason("R-TEMPLATE-MISMATCH", "url", because, instead))
    return reasons


def suggest_base(site: TargetDeployment, served: str) -> str:
    """Return what to do about another base: serve the adapter's, train on the server's, or only register."""
    base = site.candidate.base_model
    advice = f"start a server with {base!r}, or declare `base_model` if it is the same base under another name"
    if site.target.type is TargetType.EMBEDDED:
        models = site.settings.served_models if site.settings is not None else (served,)
        line = f"serve_models = {json.dumps([*dict.fromkeys((*models, base))])}"
        advice = f"write `{line}` into {settings_file()} and call `trainyard down` and `trainyard up`"
    return f"{advice}; or train on {served!r}; or use target registry."


def find_base_card(site: TargetDeployment) -> Mapping[str, object]:
    """Return the served base of the candidate: the model without a parent that has its digest, else the first one."""
    bases = [card for card in list_models(site) if not card.get("parent")]
    if not bases:
        raise make_response_error(site, "its /v1/models lists no base model")
    digest = site.candidate.base_sha256
    return next((card for card in bases if digest and card.get("sha256") == digest), bases[0])


def list_models(site: TargetDeployment) -> list[Mapping[str, object]]:
    """Return the entries of `/v1/models`. Raises `Unavailable` (`E-SERVER-RESPONSE`)."""
    answer = call(site, "GET", "/v1/models")
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
        raise make_response_error(site, "its /v1/models is not a list of models")
    return cards


def load_adapter(site: TargetDeployment) -> None:
    """Load under the version's name. A server that has this very version already (a retry) is left as it is."""
    path = map_to_server(site)
    card = next((card for card in list_models(site) if card.get("id") == site.new.name), None)
    if card is None:
        site.loaded = True  # from here on an undo has to try: the answer may be lost after the server has acted
        call(site, "POST", LOAD_PATH, load_request(site.new.name, path))
    elif card.get("root") not in (None, path):
        raise TrainyardError(
            f"{site.where} already serves {site.new.name}, from {card.get('root')!r}.",
            why="A version's name is never used for other files.",
            do="Unload it there, or point the target at a server of this registry.",
            code="E-CONFLICT",
        )


def unload_adapter(site: TargetDeployment, name: str) -> None:
    """Unload an adapter, if the server has it."""
    if any(card.get("id") == name for card in list_models(site)):
        call(site, "POST", UNLOAD_PATH, {"lora_name": name})


def undo_load(site: TargetDeployment) -> None:
    if site.loaded:
        unload_adapter(site, site.new.name)
        site.loaded = False


def retire_previous(site: TargetDeployment) -> None:
    if site.previous and site.previous.name != site.new.name:
        unload_adapter(site, site.previous.name)


def map_to_server(site: TargetDeployment) -> str:
    """Return the version's folder as the server sees it."""
    path = site.registry.path(site.new)
    if not site.target.path_prefix:
        return str(path)
    local, remote = site.target.path_prefix
    return str(Path(remote) / path.resolve().relative_to(Path(local).resolve()))


def map_to_local(site: TargetDeployment, path: str) -> str:
    """Return a folder that the server names as this process sees it."""
    if not site.target.path_prefix or not path.startswith("/"):
        return path
    local, remote = site.target.path_prefix
    return str(Path(local) / Path(path).relative_to(remote)) if is_under(Path(path), remote) else path


def is_under(path: Path, folder: str) -> bool:
    return path.resolve().is_relative_to(Path(folder).resolve())


ACTIONS = Actions(check, load_adapter, ask_canary, ignore, undo_load, retire_previous)
