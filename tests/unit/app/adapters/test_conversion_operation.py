"""`trainyard adapters convert`: what it reads, where the base comes from and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.serve.conversion.adapter_files import make_adapter
from tests.unit.serve.fitting_adapter import fitting_adapter
from trainyard.app.adapters.registry import convert_adapter
from trainyard.app.context import Context
from trainyard.errors import InvalidInput, NotFound
from trainyard.operations.adapters import ConvertInput
from trainyard.serve.conversion.adapters import WEIGHTS_FILE
from trainyard.serve.conversion.architectures import Layout
from trainyard.settings import settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.surfaces.cli.command import render

pytestmark = pytest.mark.integration


@pytest.fixture
def context() -> Context:
    return Context(settings(), say=lambda _text: None)


def test_version_of_the_registry_becomes_a_file_and_a_folder_again(
    tmp_path: Path, tiny_model: Path, context: Context
) -> None:
    """The base of the first is the one that it names; a GGUF file names none."""
    fitting_adapter(tmp_path / "made", tiny_model)
    registry = AdapterRegistry(context.settings.adapters)
    registry.register("default", "assistant", tmp_path / "made", facts={"base_model": "starter"})
    to_gguf = ConvertInput(source="default/assistant/v1", target=tmp_path / "a.gguf", to=Layout.GGUF)
    there = convert_adapter(to_gguf, context)
    assert render("adapters convert", there) == f"{tmp_path / 'a.gguf'} (gguf, was peft)"
    back = ConvertInput(source=str(tmp_path / "a.gguf"), target=tmp_path / "back", to=Layout.PEFT)
    with pytest.raises(InvalidInput, match="E-CONVERT"):
        convert_adapter(back, context)
    conversion = convert_adapter(back.model_copy(update={"base": str(tiny_model)}), context)
    assert (conversion.was, conversion.to) == (Layout.GGUF, Layout.PEFT)
    assert (tmp_path / "back" / WEIGHTS_FILE).read_bytes() == (tmp_path / "made" / WEIGHTS_FILE).read_bytes()


def test_base_that_the_adapter_names_may_be_gone(tmp_path: Path, context: Context) -> None:
    make_adapter(tmp_path / "peft", base_model_name_or_path=str(tmp_path / "gone"))
    to_gguf = ConvertInput(source=str(tmp_path / "peft"), target=tmp_path / "a.gguf", to=Layout.GGUF)
    with pytest.raises(InvalidInput, match="E-CONVERT: The base of the adapter is not known"):
        convert_adapter(to_gguf, context)


def test_unknown_source_and_base_are_told(tmp_path: Path, context: Context) -> None:
    to_mlx = ConvertInput(source="default/assistant/v9", target=tmp_path / "out", to=Layout.MLX)
    with pytest.raises(NotFound, match="E-ADAPTER-NOT-FOUND: There is no adapter version default/assistant/v9"):
        convert_adapter(to_mlx, context)
    make_adapter(tmp_path / "peft")
    other = ConvertInput(source=str(tmp_path / "peft"), target=tmp_path / "out", to=Layout.MLX, base="/not/there")
    with pytest.raises(NotFound, match="E-MODEL-NOT-FOUND"):
        convert_adapter(other, context)
