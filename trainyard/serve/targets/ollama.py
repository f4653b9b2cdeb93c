"""ollama: a model made of the base's and the adapter's GGUF files, under the version's name.

Files go up as blobs that are named by their digest, so a base goes up once. `/api/create` joins them to
`<tenant>/<role>:v<N>`; `/api/copy` makes `<tenant>/<role>:latest` mean it, which is the switch. ollama runs Go
templates, not Jinja: only a template whose Go form is known to write the same text is deployed.
source: ollama docs/api.md (create, blobs, copy, delete, chat), docs/modelfile.md (TEMPLATE)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2.exceptions import TemplateError

from trainyard.data.renderers.limited import LimitedTemplate, open_limited
from trainyard.errors import Reason, Unavailable
from trainyard.serve.conversion.files import find_tools
from trainyard.serve.targets.calling import ask_canary, call, make_refusal, send
from trainyard.serve.targets.contract import Actions, TargetDeployment
from trainyard.serve.targets.llama_server import ADAPTER_FILE, BACKEND, gguf_files
from trainyard.serve.targets.started import check_base_folder, check_layout, tool_folder
from trainyard.stores.whole import file_sha256

Turns = Sequence[Mapping[str, str]]
PROBES: tuple[Turns, ...] = (
    [{"role": "user", "content": "kiwi"}],
    [{"role": "system", "content": "plum"}, {"role": "user", "content": "kiwi"}],
    [{"role": "user", "content": "kiwi"}, {"role": "assistant", "content": "fig"}, {"role": "user", "content": "pear"}],
)


@dataclass(frozen=True)
class GoTemplate:
    """A template in ollama's language, and what it writes for some turns when the assistant is to answer."""

    text: str
    writes: Callable[[Turns], str]
    stop: tuple[str, ...]


def chatml(turns: Turns) -> str:
    text = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)
    return f"{text}<|im_start|>assistant\n"


def role_colon(turns: Turns) -> str:
    return "".join(f"{turn['role']}: {turn['content']}\n" for turn in turns) + "assistant:"


TEMPLATES: dict[str, GoTemplate] = {
    "chatml": GoTemplate(
        "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n",
        chatml,
        ("<|im_end|>",),
    ),
    "role_colon": GoTemplate(
        "{{- range .Messages }}{{ .Role }}: {{ .Content }}\n{{ end }}assistant:", role_colon, ("\nuser:",)
    ),
}
"""Chat templates whose text ollama can write too. To add one: a row; the probes decide whether it is the same."""


def check(site: TargetDeployment) -> list[Reason]:
    """ollama answers, the converter is here, and both sides write the same prompt."""
    reasons = check_layout(site)
    tools = find_tools(tool_folder(site, BACKEND))
    if not (tools / "convert_hf_to_gguf.py").is_file():
        because = f"ollama takes GGUF files, and the converter of llama.cpp is not installed at {tools}."
        instead = f"call `trainyard backends install {BACKEND}`."
        reasons.append(site.reason("R-PACKAGE-MISSING", "type", because, instead))
    reasons += check_base_folder(site, "its files go to ollama")
    if site.candidate.template and go_template(site.candidate.template) is None:
        because = f"ollama runs no Jinja, and of its templates ({', '.join(TEMPLATES)}) none writes this one's text."
        instead = "use target llama_server, which runs Jinja."
        reasons.append(site.reason("R-TEMPLATE-MISMATCH", "type", because, instead))
    if not reasons and not isinstance(call(site, "GET", "/api/version"), dict):
        message = f"{site.where} is not an ollama server."
        raise Unavailable(message, do="Correct the target's url.", code="E-SERVER-RESPONSE")
    return reasons


def go_template(text: str) -> GoTemplate | None:
    """Return the row that writes what a Jinja template writes, for every probe."""
    child = open_limited(text)
    for row in TEMPLATES.values():
        if all(render_turns(child, turns) == row.writes(turns) for turns in PROBES):
            return row
    return None


def render_turns(child: LimitedTemplate, turns: Turns) -> str | None:
    """Return what a chat template writes; None if it refuses the turns."""
    context = {"messages": turns, "add_generation_prompt": True, "eos_token": "", "bos_token": "", "tools": None}
    try:
        return child.render(json.dumps(context))
    except TemplateError:
        return None


def model_name(name: str) -> str:
    """`acme/bot/v3` as ollama writes it: `acme/bot:v3`; the alias `acme/bot` is its `latest`."""
    tenant, role, *version = name.split("/")
    return f"{tenant}/{role}:{version[0] if version else 'latest'}"


def load_version(site: TargetDeployment) -> None:
    """Bring the files up and join them. Doing it twice gives the same model."""
    model, adapter = gguf_files(site)
    body: dict[str, object] = {"model": model_name(site.new.name), "stream": False, "parameters": {"temperature": 0}}
    body["files"] = {"base.gguf": upload(site, model)}
    if adapter:
        body["adapters"] = {ADAPTER_FILE: upload(site, adapter)}
    if site.candidate.template and (row := go_template(site.candidate.template)):
        body |= {"template": row.text, "parameters": {"temperature": 0, "stop": list(row.stop)}}
    site.loaded = True
    call(site, "POST", "/api/create", body)


def upload(site: TargetDeployment, path: Path) -> str:
    """Send a file unless ollama has it; returns its digest."""
    name = f"sha256:{file_sha256(path)}"
    if send(site, "HEAD", f"/api/blobs/{name}").status_code == 200:
        return name
    with path.open("rb") as stream:
        response = send(site, "POST", f"/api/blobs/{name}", content=stream)
    if not response.is_success:
        raise make_refusal(site, "/api/blobs", response)
    return name


def canary(site: TargetDeployment) -> None:
    ask_canary(site, model_name(site.new.name))


def list_models(site: TargetDeployment) -> dict[str, str]:
    """Return name -> digest of the models that ollama has."""
    answer = call(site, "GET", "/api/tags")
    return {str(entry["name"]): str(entry.get("digest")) for entry in answer.get("models") or []}


def switch(site: TargetDeployment) -> None:
    """Let `latest` mean the new version, remembering what it meant."""
    alias, models = model_name(site.new.alias), list_models(site)
    site.alias_before = next(
        (name for name, digest in models.items() if digest == models.get(alias) and name != alias), None
    )
    site.switched = True
    call(site, "POST", "/api/copy", {"source": model_name(site.new.name), "destination": alias})


def undo(site: TargetDeployment) -> None:
    alias = model_name(site.new.alias)
    if site.switched and site.alias_before:
        call(site, "POST", "/api/copy", {"source": site.alias_before, "destination": alias})
    elif site.switched:
        remove(site, alias)
    site.switched = False
    if site.loaded:
        remove(site, model_name(site.new.name))
        site.loaded = False


def retire(site: TargetDeployment) -> None:
    if site.previous and site.previous.name != site.new.name:
        remove(site, model_name(site.previous.name))


def remove(site: TargetDeployment, name: str) -> None:
    if name in list_models(site):
        call(site, "DELETE", "/api/delete", {"model": name})


ACTIONS = Actions(check, load_version, canary, switch, undo, retire)
