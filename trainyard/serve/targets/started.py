"""Shared steps of the targets that start their own server: switch, undo, retire, and the checks before."""

from __future__ import annotations

from pathlib import Path

from trainyard.compute.services import end_service, find_service, write_record
from trainyard.errors import InvalidInput, Reason
from trainyard.serve.conversion.architectures import Base, base_config, make_refusal, require_plain
from trainyard.serve.targets import local
from trainyard.serve.targets.calling import http_client
from trainyard.serve.targets.contract import TargetDeployment
from trainyard.settings import Settings
from trainyard.spec.axes.methods import Method


def get_settings(site: TargetDeployment) -> Settings:
    assert site.settings is not None, "the deployer gives its settings to every target"
    return site.settings


def ready_path(site: TargetDeployment) -> Path:
    """Return the ready file of this kind of server for the role."""
    return local.ready_file(get_settings(site), site.target.type.value, site.new.tenant, site.new.role)


def convert_version(site: TargetDeployment) -> Path:
    """Folder for this version's files in the server's own layout; a version itself is never changed."""
    return get_settings(site).services / "converted" / site.new.name


def tool_folder(site: TargetDeployment, backend: str) -> Path:
    """Return the environment that has the server's program: the operator's own, or the one that is installed here."""
    settings = get_settings(site)
    return settings.backend_envs.get(backend) or settings.home / "envs" / backend


def check_started(site: TargetDeployment, program: Path, backend: str) -> list[Reason]:
    """No address of another server, the program is here, and so is the base."""
    reasons = []
    kind = site.target.type.value
    if site.target.url:
        because = f"{kind} loads its adapters when it starts, so the deployer starts one itself for each version."
        reasons.append(site.reason("R-TARGET", "url", because, "leave `url` out, or use target vllm."))
    if not program.is_file():
        because = f"{program.name} is not installed: there is none at {program}."
        instead = f"call `trainyard backends install {backend}`."
        reasons.append(site.reason("R-PACKAGE-MISSING", "type", because, instead))
    return [*reasons, *check_base_folder(site, "the server reads its files")]


def check_base_folder(site: TargetDeployment, why: str) -> list[Reason]:
    """An adapter's base is a folder of this machine."""
    if site.candidate.kind != "adapter" or (Path(site.candidate.base_path) / "config.json").is_file():
        return []
    because = f"the base {site.candidate.base_model!r} is not a folder on this machine, and {why}."
    return [site.reason("R-BASE-MISMATCH", "type", because, "download the base and train on its folder.")]


def template_file(version: Path) -> Path | None:
    """Return the chat template that the version was trained with."""
    files = (folder / "chat_template.jinja" for folder in (version / "tokenizer", version))
    return next((path for path in files if path.is_file()), None)


def bring_up(site: TargetDeployment, argv: list[str], port: int, variables: dict[str, str] | None = None) -> None:
    """Start the version's server next to the one that answers now."""
    log = get_settings(site).services / f"{site.target.type.value}-{site.new.tenant}-{site.new.role}.log"
    old, before = find_service(ready_path(site)), local.read_recipe(ready_path(site))
    recipe = local.ServerRecipe(argv, port, str(log), site.new.name, variables or {})
    site.server, site.loaded = local.Replacement(recipe.start(), old, recipe, before), True
    site.http = http_client(site.target, site.server.new.url, get_settings(site))


def switch(site: TargetDeployment) -> None:
    assert site.server is not None, "the canary has answered"
    write_record(ready_path(site), site.server.new)
    local.remember_server(ready_path(site), site.server.recipe)
    site.switched = True


def undo(site: TargetDeployment) -> None:
    if site.server is None:
        return
    if site.switched:
        write_record(ready_path(site), site.server.old)
        local.remember_server(ready_path(site), site.server.before)
        site.switched = False
    close(site)
    end_service(site.server.new)
    site.server, site.loaded = None, False


def retire(site: TargetDeployment) -> None:
    """The old server ends after the switch; its address is no longer read."""
    close(site)
    if site.server is not None and site.server.old is not None:
        end_service(site.server.old)


def close(site: TargetDeployment) -> None:
    if site.http is not None:
        site.http.close()


def check_layout(site: TargetDeployment) -> list[Reason]:
    """What the server's own layout has no words for, read from the adapter's config before anything is touched."""
    config, facts = site.candidate.adapter_config, site.target.type.facts
    if site.candidate.kind != "adapter" or site.target.merged is not None:
        return []
    try:
        require_plain(config)
        if config.get("use_dora") and Method.DORA not in facts.methods:
            raise make_refusal(f"It is a DoRA adapter, and {facts.converts_to} has no magnitudes.")
        if facts.converts_to == "GGUF" and (Path(site.candidate.base_path) / "config.json").is_file():
            Base.of(base_config(Path(site.candidate.base_path)))
    except InvalidInput as error:
        instead = "train with method lora and without method.modules_to_save, or use target embedded."
        return [site.reason("R-TARGET", "type", f"{error.what} {error.why}", instead)]
    return []
