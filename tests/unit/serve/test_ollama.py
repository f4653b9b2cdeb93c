"""ollama: what is sent to it, what is known before, and that a failure leaves it as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.serve.conversion.adapter_files import make_adapter, make_base
from tests.unit.serve.test_deploy import Yard, reference
from trainyard.errors import Refused, TrainyardError, Unavailable
from trainyard.serve.conversion.files import find_kept
from trainyard.serve.targets.ollama import PROBES, TEMPLATES, go_template, model_name
from trainyard.settings import load_settings
from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import Reference
from trainyard.testing.ollama_server import SAID, OllamaDouble, ollama_server
from trainyard.testing.tiny import CHAT_TEMPLATE

pytestmark = pytest.mark.integration

BASE_BYTES = b"the base as a GGUF file"


@pytest.fixture
def ollama() -> Iterator[OllamaDouble]:
    with ollama_server() as double:
        yield double


@pytest.fixture
def yard(tmp_path: Path, home: Path) -> Yard:
    """An adapter on a base that was converted before, and an environment that has the converter."""
    environment = home / "envs" / "llamacpp"
    (environment / "llama.cpp").mkdir(parents=True)
    (environment / "llama.cpp" / "convert_hf_to_gguf.py").touch()
    yard = Yard(tmp_path, load_settings())
    base_path = find_kept(make_base(tmp_path / "base"), yard.settings, environment)
    base_path.parent.mkdir(parents=True)
    base_path.write_bytes(BASE_BYTES)
    yard.adapter, yard.report = write_trained(tmp_path / "trained", tmp_path / "base"), None
    return yard


def write_trained(folder: Path, base: Path, template: str = CHAT_TEMPLATE, **fields: Any) -> Reference:
    make_adapter(folder, **fields)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "chat_template.jinja").write_text(template)
    (folder / "training.json").write_text(json.dumps({"base_model": "org/base", "base_path": str(base)}))
    return reference(folder, Port.ADAPTER)


def make_target(ollama: OllamaDouble) -> dict[str, Any]:
    return {"type": "ollama", "url": ollama.url}


def list_names(ollama: OllamaDouble) -> list[str]:
    return sorted(ollama.models)


def test_a_version_becomes_a_model_of_base_and_adapter(yard: Yard, ollama: OllamaDouble) -> None:
    produced = yard.deploy(make_target(ollama), unevaluated=True)
    assert produced.facts["targets"][0]["answer"] == SAID
    assert list_names(ollama) == ["acme/bot:latest", "acme/bot:v1"]
    model = ollama.models["acme/bot:v1"]
    assert model == ollama.models["acme/bot:latest"]
    assert ollama.blobs[model["files"]["base.gguf"]] == BASE_BYTES
    assert ollama.blobs[model["adapters"]["adapter.gguf"]].startswith(b"GGUF")
    assert model["template"] == TEMPLATES["chatml"].text
    assert model["parameters"]["stop"] == ["<|im_end|>"]
    assert yard.live() == 1


def test_the_base_goes_up_once_and_the_previous_version_is_removed(yard: Yard, ollama: OllamaDouble) -> None:
    yard.deploy(make_target(ollama), unevaluated=True)
    yard.adapter = write_trained(yard.folder / "better", yard.folder / "base", seed=1)
    yard.deploy(make_target(ollama), unevaluated=True)
    assert list_names(ollama) == ["acme/bot:latest", "acme/bot:v2"]
    assert ollama.models["acme/bot:latest"] == ollama.models["acme/bot:v2"]
    sent = [path for method, path, _ in ollama.requests if method == "POST" and path.startswith("/api/blobs")]
    assert len(sent) == len(set(sent)) == 3


def test_a_model_that_answers_nothing_is_removed_and_the_old_one_stays(yard: Yard, ollama: OllamaDouble) -> None:
    yard.deploy(make_target(ollama), unevaluated=True)
    before = dict(ollama.models)
    ollama.mute.add("acme/bot:v2")
    yard.adapter = write_trained(yard.folder / "worse", yard.folder / "base", seed=2)
    with pytest.raises(TrainyardError, match=r"E-CANARY: ollama at .* answered the canary prompt with nothing"):
        yard.deploy(make_target(ollama), unevaluated=True)
    assert ollama.models == before
    assert yard.live() == 1


def test_a_failure_after_the_switch_gives_the_name_back(yard: Yard, ollama: OllamaDouble) -> None:
    yard.deploy(make_target(ollama), unevaluated=True)
    first = ollama.models["acme/bot:latest"]
    yard.adapter = write_trained(yard.folder / "next", yard.folder / "base", seed=3)
    with ollama_server() as other:
        other.broken["/api/copy"] = (500, {"error": "no space left on device"})
        with pytest.raises(TrainyardError, match=r"E-SERVER-REFUSED: .* no space left on device.*v1 stays live"):
            yard.deploy(make_target(ollama), make_target(other), unevaluated=True)
    assert list_names(ollama) == ["acme/bot:latest", "acme/bot:v1"]
    assert ollama.models["acme/bot:latest"] == first


def test_a_first_deployment_that_fails_leaves_no_name(yard: Yard, ollama: OllamaDouble) -> None:
    with ollama_server() as other:
        other.broken["/api/copy"] = (500, {"error": "no"})
        with pytest.raises(TrainyardError, match="E-SERVER-REFUSED"):
            yard.deploy(make_target(ollama), make_target(other), unevaluated=True)
    assert list_names(ollama) == []
    assert yard.live() is None


def test_what_ollama_refuses_is_told_in_its_words(yard: Yard, ollama: OllamaDouble) -> None:
    ollama.broken["/api/create"] = (400, {"error": "invalid file magic"})
    with pytest.raises(TrainyardError, match=r"E-SERVER-REFUSED: .*invalid file magic"):
        yard.deploy(make_target(ollama), unevaluated=True)


def test_a_template_that_ollama_cannot_write_is_refused_before_anything_is_sent(
    yard: Yard, ollama: OllamaDouble
) -> None:
    odd = "{% for message in messages %}[{{ message.role | upper }}] {{ message.content }}{% endfor %}"
    yard.adapter = write_trained(yard.folder / "odd", yard.folder / "base", odd)
    with pytest.raises(Refused, match=r"R-TEMPLATE-MISMATCH config\.targets\.0\.type: ollama runs no Jinja"):
        yard.deploy(make_target(ollama), unevaluated=True)
    assert ollama.requests == []


def test_without_the_converter_or_the_base_it_is_refused(yard: Yard, ollama: OllamaDouble) -> None:
    (yard.settings.home / "envs" / "llamacpp" / "llama.cpp" / "convert_hf_to_gguf.py").unlink()
    yard.adapter = write_trained(yard.folder / "far", Path("org/base"))
    with pytest.raises(Refused) as refused:
        yard.deploy(make_target(ollama), unevaluated=True)
    assert [reason.code for reason in refused.value.reasons] == ["R-PACKAGE-MISSING", "R-BASE-MISMATCH"]
    assert "trainyard backends install llamacpp" in refused.value.reasons[0].instead


def test_a_server_that_is_not_there_or_another_is_told(yard: Yard) -> None:
    with pytest.raises(Unavailable, match=r"E-SERVER-UNREACHABLE: ollama at http://127\.0\.0\.1:9 did not answer"):
        yard.deploy({"type": "ollama", "url": "http://127.0.0.1:9"}, unevaluated=True)
    with ollama_server() as other:
        other.broken["/api/version"] = (200, "<html>")
        with pytest.raises(Unavailable, match=r"E-SERVER-RESPONSE: .* is not an ollama server"):
            yard.deploy(make_target(other), unevaluated=True)


def test_versions_are_tags() -> None:
    assert model_name("acme/bot/v3") == "acme/bot:v3"
    assert model_name("acme/bot") == "acme/bot:latest"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_known_by_what_it_writes(name: str) -> None:
    jinja = {
        "chatml": CHAT_TEMPLATE,
        "role_colon": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
    }[name]
    assert go_template(jinja) is TEMPLATES[name]
    assert go_template("{{ bos_token }}" + jinja) is TEMPLATES[name], "ollama puts BOS first itself"
    assert go_template(jinja.replace("role", "content")) is None
    assert all(TEMPLATES[name].writes(turns) for turns in PROBES)


def test_the_double_refuses_what_ollama_refuses(ollama: OllamaDouble) -> None:
    assert httpx.post(f"{ollama.url}/api/create", json={"model": "x"}).status_code == 400
    assert httpx.post(f"{ollama.url}/api/blobs/sha256:0", content=b"other").status_code == 400
    assert httpx.post(f"{ollama.url}/api/copy", json={"source": "x", "destination": "y"}).status_code == 404
    assert httpx.request("DELETE", f"{ollama.url}/api/delete", json={"model": "x"}).status_code == 404
    assert httpx.get(f"{ollama.url}/api/nothing").status_code == 404
