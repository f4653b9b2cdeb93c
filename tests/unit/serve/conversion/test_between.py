"""Any layout into any other by one function: the same bits, nothing overwritten, nothing half written."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.unit.serve.conversion.adapter_files import make_adapter, make_base
from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.serve.conversion.adapters import CONFIG_FILE, WEIGHTS_FILE
from trainyard.serve.conversion.architectures import require_words_only
from trainyard.serve.conversion.between import Layout, convert, detect_layout
from trainyard.serve.conversion.mlx import MLX_FILE
from trainyard.spec.axes.latent import LATENT_FILE

NAMES = {Layout.PEFT: "peft", Layout.MLX: "mlx", Layout.GGUF: "adapter.gguf"}


@pytest.mark.parametrize(("layout", "other"), list(itertools.permutations(Layout, 2)))
def test_every_way_and_back_gives_the_same_bytes(layout: Layout, other: Layout, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    peft = make_adapter(tmp_path / "trained", base_model_name_or_path=str(base))
    first, second, last = tmp_path / "1" / NAMES[layout], tmp_path / "2" / NAMES[other], tmp_path / "3" / "peft"
    assert convert(peft, first, layout, base) is Layout.PEFT
    assert convert(first, second, other, base) is layout
    assert convert(second, last, Layout.PEFT, base) is other
    assert (last / WEIGHTS_FILE).read_bytes() == (peft / WEIGHTS_FILE).read_bytes()
    assert json.loads((last / CONFIG_FILE).read_text()) == json.loads((peft / CONFIG_FILE).read_text())
    assert [detect_layout(path) for path in (first, second, last)] == [layout, other, Layout.PEFT]


def test_the_trained_chat_template_travels_with_a_folder(tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "peft")
    (source / "tokenizer").mkdir()
    (source / "tokenizer" / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    convert(source, tmp_path / "mlx", Layout.MLX)
    convert(tmp_path / "mlx", tmp_path / "back", Layout.PEFT)
    template = (tmp_path / "back" / "tokenizer" / "chat_template.jinja").read_text()
    assert template == "{{ bos_token }}{{ messages[0].content }}"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source, target = make_adapter(tmp_path / "peft"), tmp_path / "mlx"
    target.mkdir()
    with pytest.raises(Conflict, match=r"E-FILE-EXISTS: .*mlx exists already\..*nothing is overwritten"):
        convert(source, target, Layout.MLX)
    assert list(target.iterdir()) == []


def test_gguf_asks_for_the_base(tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "peft")
    with pytest.raises(InvalidInput, match=r"E-CONVERT: The base of the adapter is not known\. .*--base"):
        convert(source, tmp_path / "adapter.gguf", Layout.GGUF)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peft"]


@pytest.mark.parametrize("left_out", [CONFIG_FILE, MLX_FILE])
def test_half_an_adapter_is_none(left_out: str, tmp_path: Path) -> None:
    convert(make_adapter(tmp_path / "peft"), tmp_path / "mlx", Layout.MLX)
    (tmp_path / "mlx" / left_out).unlink()
    with pytest.raises(NotFound, match="E-ADAPTER-NOT-FOUND: There is no adapter in"):
        convert(tmp_path / "mlx", tmp_path / "back", Layout.PEFT)


def test_what_a_layout_has_no_words_for_leaves_nothing(tmp_path: Path) -> None:
    source, base = make_adapter(tmp_path / "peft", dora=True), make_base(tmp_path / "base")
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID: .*DoRA adapter"):
        convert(source, tmp_path / "adapter.gguf", Layout.GGUF, base)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "peft"]


def test_an_adapter_that_thinks_has_no_other_layout(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter")
    (adapter / LATENT_FILE).write_text("{}")
    with pytest.raises(InvalidInput, match="latent technique"):
        convert(adapter, tmp_path / "mlx", Layout.MLX)
    assert not (tmp_path / "mlx").exists()
    with pytest.raises(InvalidInput, match="hidden_cot"):
        require_words_only(adapter)
