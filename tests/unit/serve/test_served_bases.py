"""Which bases and adapters a server gets: each base once, all of them within memory, adapters on their own base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from trainyard.app.stack.stack import start_embedded
from trainyard.errors import InvalidInput, LimitExceeded, NotFound, TrainyardError
from trainyard.serve import embedded
from trainyard.serve.base_sources import (
    choose_base,
    estimate_bytes,
    find_adapter,
    find_bases,
    full_name,
    require_bases,
    require_room,
)
from trainyard.settings import Settings, load_settings
from trainyard.spec.estimate.memory import TOKENS, answering_bytes
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.models import SHIPPED_STARTER, ModelSource, resolve_model

SHAPE: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 3, "intermediate_size": 20, "vocab_size": 100, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 2,
}  # fmt: skip


@pytest.fixture
def here(home: Path) -> Settings:
    return load_settings()


def copy_of_starter(folder: Path, **config: Any) -> Path:
    """The starter's files; with `config`, another model by its digest."""
    shutil.copytree(SHIPPED_STARTER, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}) if config else path.read_text())
    return folder


def make_adapter(folder: Path, **training: Any) -> Path:
    """A LoRA adapter of the starter's first block, with a `training.json` of these facts."""
    folder.mkdir(parents=True)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    weights = {f"{name}A.weight": np.ones((2, 256), np.float32), f"{name}B.weight": np.ones((256, 2), np.float32)}
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "org/elsewhere"}))
    if training:
        (folder / "training.json").write_text(json.dumps(training))
    return folder


def test_memory_is_weights_cache_and_one_block() -> None:
    cache, temporaries = 2 * 3 * 2 * 2, 8 * 8 + 3 * 20
    assert answering_bytes(SHAPE, 1000, 4) == 4000 + (cache + temporaries) * 4 * TOKENS
    short = {**SHAPE, "max_position_embeddings": 128}
    assert answering_bytes(short, 1000, 2) == 2000 + (cache + temporaries) * 2 * 128
    assert answering_bytes({"text_config": short}, 1000, 2) == answering_bytes(short, 1000, 2)
    assert answering_bytes({"model_type": "mamba"}, 1000, 4) == 4000


def test_a_base_that_is_named_twice_is_served_once(here: Settings, tmp_path: Path) -> None:
    same, other = copy_of_starter(tmp_path / "same"), copy_of_starter(tmp_path / "other", pretraining_tp=2)
    served_bases = find_bases(["starter", str(same), "starter", str(other), str(SHIPPED_STARTER)], here)
    assert [base.name for base in served_bases.bases] == ["starter", str(other)]
    assert served_bases.aliases == {str(same): "starter"}
    assert served_bases.title == f"starter, {other}"
    assert find_bases(["starter"], here).sha256 == resolve_model("starter", here).sha256
    assert served_bases.sha256 not in {base.sha256 for base in served_bases.bases}


@pytest.mark.parametrize("download", [True, False])
def test_a_hub_name_that_is_not_here_is_refused_offline(here: Settings, download: bool) -> None:
    with pytest.raises(NotFound, match=r"E-MODEL-NOT-FOUND: The model 'org/model' is not on this machine.*`starter`"):
        find_bases(["starter", "org/model"], here, download=download)


def test_bases_that_do_not_fit_together_are_refused_with_both_numbers(here: Settings, tmp_path: Path) -> None:
    other = str(copy_of_starter(tmp_path / "other", pretraining_tp=2))
    bases = find_bases(["starter", other], here).bases
    need = estimate_bytes(bases[0], "float32")
    assert need == estimate_bytes(bases[1], "float32") > 2 * estimate_bytes(bases[0], "bfloat16") - 8
    limited = load_settings(serve_memory_mb=(need + need // 2) >> 20)
    require_room(bases[:1], "float32", limited)
    require_room(bases, "bfloat16", limited)
    numbers = rf"The base '{other}' needs {need / 2**30:.3g} GiB of memory, and 0\.\d+ GiB are left"
    with pytest.raises(LimitExceeded, match=rf"E-MEMORY-FIT: {numbers}.*serve_memory_mb is .*'starter' takes"):
        require_room(bases, "float32", limited)


def test_a_base_larger_than_the_machine_is_refused(here: Settings) -> None:
    huge = ModelSource("huge", SHIPPED_STARTER, "0" * 64, parameters=10**15)
    with pytest.raises(
        LimitExceeded, match=r"E-MEMORY-FIT: The base 'huge' needs 3\.73e\+06 GiB .*Free on this machine"
    ):
        require_room([huge], "float32", here)


def test_the_embedded_server_is_not_started_where_its_bases_do_not_fit(here: Settings) -> None:
    with pytest.raises(LimitExceeded, match="E-MEMORY-FIT: The base 'starter' needs"):
        embedded.start(load_settings(serve_memory_mb=1), "starter")
    assert embedded.instance(here) is None
    assert not (here.services / "embedded.log").exists()


def test_up_serves_the_default_base_unless_others_are_listed(here: Settings) -> None:
    assert here.served_models == ("starter",)
    assert load_settings(serve_models=("a", "b")).served_models == ("a", "b")
    messages: list[str] = []
    assert start_embedded(load_settings(serve_models=()), messages.append) is None
    assert messages == []
    assert start_embedded(load_settings(serve_models=("org/model",)), messages.append) is None
    assert messages[0].startswith(
        "no embedded model server for org/model yet: The model 'org/model' is not on this machine."
    )


def test_an_adapter_belongs_to_the_base_that_its_training_names(here: Settings, tmp_path: Path) -> None:
    other = copy_of_starter(tmp_path / "other", pretraining_tp=2)
    first, second = bases = find_bases(["starter", str(other)], here).bases
    assert choose_base(make_adapter(tmp_path / "a", base_sha256=first.sha256), bases) is first
    assert choose_base(make_adapter(tmp_path / "b", base_sha256=second.sha256), bases) is second
    stranger = make_adapter(tmp_path / "c", base_sha256="0" * 64)
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-MISMATCH: .*another base than those .*starter \("):
        choose_base(stranger, bases)
    template = make_adapter(tmp_path / "d", base_sha256=second.sha256, chat_template_sha256="0" * 64)
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-MISMATCH: .*another chat template"):
        choose_base(template, bases)


def test_an_adapter_made_elsewhere_names_its_base_in_its_config(here: Settings, tmp_path: Path) -> None:
    other = copy_of_starter(tmp_path / "other", pretraining_tp=2)
    bases = find_bases(["starter", str(other)], here).bases
    folder = make_adapter(tmp_path / "adapter")
    assert choose_base(folder, bases[:1]) is bases[0]  # a single base takes it, as before
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-MISMATCH: .*names 'org/elsewhere'"):
        choose_base(folder, bases)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(other)}))
    assert choose_base(folder, bases) is bases[1]


def test_roles_are_found_by_their_short_names(here: Settings, tmp_path: Path) -> None:
    registry = AdapterRegistry(here.adapters)
    sha256 = resolve_model("starter", here).sha256
    for number in (1, 2):
        registry.register("default", "bot", make_adapter(tmp_path / str(number), base_sha256=sha256, number=number))
    registry.promote("default/bot/v1")
    assert full_name("bot", here) == "default/bot"
    assert full_name("bot/v2", here) == "default/bot/v2"
    assert full_name("acme/bot", here) == "acme/bot"
    bases = find_bases(["starter"], here).bases
    adapters = [find_adapter(name, here) for name in ("bot", "default/bot/v2")]
    require_bases(adapters, bases)
    assert [(adapter.name, adapter.alias) for adapter in adapters] == [
        ("default/bot/v1", "default/bot"),
        ("default/bot/v2", None),
    ]
    assert all(adapter.folder.is_dir() for adapter in adapters)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("nobody", "E-ADAPTER-NOT-FOUND: No version of 'default/nobody' is live"),
        ("idle", "E-ADAPTER-NOT-FOUND: No version of 'default/idle' is live"),
        ("default/idle/v7", "E-ADAPTER-NOT-FOUND"),
        ("../idle", "E-NAME"),
        ("Bot", "E-NAME"),
        ("merged", "E-ADAPTER-INVALID: default/merged/v1 is a whole model"),
        ("stranger", "E-ADAPTER-MISMATCH: default/stranger/v1 cannot be served: .*another base than 'starter'"),
    ],
)
def test_a_role_that_cannot_be_served_is_refused(here: Settings, tmp_path: Path, name: str, code: str) -> None:
    registry = AdapterRegistry(here.adapters)
    registry.register("default", "idle", make_adapter(tmp_path / "idle"))
    registry.register("default", "merged", make_adapter(tmp_path / "merged"), kind="model")
    registry.register("default", "stranger", make_adapter(tmp_path / "stranger", base_sha256="0" * 64))
    for role in ("merged", "stranger"):
        registry.promote(f"default/{role}/v1")
    with pytest.raises(TrainyardError, match=code):
        require_bases([find_adapter(name, here)], find_bases(["starter"], here).bases)
