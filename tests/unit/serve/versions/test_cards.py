"""A model card loads an adapter with the chat template of its training, in every tool."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.serve.conversion.adapter_files import make_adapter, make_base
from trainyard.data.renderers.choice import choose_template
from trainyard.serve.card import write_card
from trainyard.stores.adapters import AdapterRegistry


def card(folder: Path, template: str) -> str:
    """The card of an adapter that was trained with a template."""
    adapter = make_adapter(folder / "made")
    (adapter / "tokenizer").mkdir()
    (adapter / "tokenizer" / "chat_template.jinja").write_text(template)
    base = make_base(folder / "base")
    (adapter / "training.json").write_text(json.dumps({"base_model": "org/base", "base_path": str(base)}))
    registry = AdapterRegistry(folder / "adapters")
    version = registry.register("acme", "bot", adapter, facts={"base_model": "org/base"})
    return write_card(version, registry.path(version))


def test_a_template_that_ollama_writes_is_in_its_modelfile(tmp_path: Path) -> None:
    text = card(tmp_path, "{{ bos_token }}" + choose_template("role_colon").text)
    assert 'TEMPLATE """{{- range .Messages }}{{ .Role }}: {{ .Content }}\n{{ end }}assistant:"""' in text
    assert 'PARAMETER stop """\nuser:"""' in text
    assert '--adapter-path bot-mlx --chat-template "$(cat tokenizer/chat_template.jinja)"' in text
    assert "--chat-template-file tokenizer/chat_template.jinja" in text
    assert "--chat-template tokenizer/chat_template.jinja" in text
    assert 'subfolder="tokenizer"' in text


def test_a_template_that_ollama_has_not_is_not_offered_there(tmp_path: Path) -> None:
    text = card(tmp_path, choose_template("llama3").text)
    assert "### Ollama" not in text
    assert "### llama.cpp" in text
