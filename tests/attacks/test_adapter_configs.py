"""Adapters whose config takes orders: inits that rewrite the base, patterns that never end."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from trainyard.errors import InvalidInput, TrainyardError
from trainyard.evals.job import Participant
from trainyard.evals.model import attach, load_network
from trainyard.serve.inference import Generation, ModelRunner
from trainyard.stores.models import check_adapter_folder
from trainyard.train.methods.adapters import NEW, load_adapter, read_config
from trainyard.train.methods.guarding import base_digests, require_unchanged_base

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:peft"),
]
REWRITING = ("pissa", "pissa_niter_4", "PiSSA", "olora", "corda", "loftq", "lora_ga", "mica", 7, ["pissa"])
SLOW = r"(([a-z._0-9])+)+!"
PATTERNS: dict[str, dict[str, Any]] = {
    "unfinished group": {"target_modules": "("},
    "catastrophic target": {"target_modules": SLOW},
    "catastrophic exclusion": {"exclude_modules": SLOW},
    "unfinished exclusion": {"exclude_modules": "("},
    "layers": {"layers_pattern": SLOW, "layers_to_transform": [0]},
    "whole modules": {"modules_to_save": [SLOW]},
    "rank": {"rank_pattern": {SLOW: 4}},
    "alpha": {"alpha_pattern": {"(": 4}},
    "deep": {"target_modules": "(" * 5000 + ")" * 5000},
    "large number": {"target_modules": "a{99999999999}"},
}
QUICK_PATTERNS = ("unfinished group", "catastrophic target")


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain LoRA adapter of the tiny model whose B is not zero."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager")
    peft_model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    folder = tmp_path_factory.mktemp("adapters") / "plain"
    peft_model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> ModelRunner:
    return ModelRunner(tiny_model)


@pytest.fixture
def loaded(engine: ModelRunner) -> Iterator[ModelRunner]:
    yield engine
    for name in list(engine.adapters):
        engine.unload_adapter(name)


def copy_changed(adapter: Path, folder: Path, **fields: Any) -> Path:
    """A copy of the adapter with other fields in its config."""
    target = folder / "changed"
    shutil.copytree(adapter, target)
    config = json.loads((target / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps({**config, **fields}))
    return target


def generate_tokens(engine: ModelRunner, adapter: str | None) -> list[int]:
    generation = Generation(list(range(5, 15)), 12, adapter=adapter, temperature=0)
    return [step.token for step in engine.generate(generation)]


@pytest.mark.parametrize("init", REWRITING)
def test_an_adapter_that_rewrites_the_base_is_refused(adapter: Path, tmp_path: Path, init: Any) -> None:
    with pytest.raises(InvalidInput, match="E-ADAPTER-INVALID: The adapter in changed was started with"):
        check_adapter_folder(copy_changed(adapter, tmp_path, init_lora_weights=init))


def test_pissa_leaves_the_model_server_as_it_was(loaded: ModelRunner, adapter: Path, tmp_path: Path) -> None:
    before = generate_tokens(loaded, None)
    with pytest.raises(InvalidInput, match="E-ADAPTER-INVALID"):
        loaded.load_adapter("evil", copy_changed(adapter, tmp_path, init_lora_weights="pissa"))
    loaded.load_adapter("good", adapter)
    assert generate_tokens(loaded, None) == before
    require_unchanged_base(loaded.weights, loaded.model, "good")
    assert generate_tokens(loaded, "good") != before
    loaded.unload_adapter("good")
    assert generate_tokens(loaded, None) == before


@pytest.mark.parametrize(
    "init", ["eva", *(pytest.param(init, marks=pytest.mark.faults) for init in ("gaussian", "orthogonal", False))]
)
def test_a_neutral_init_is_loaded_with_the_weights_of_the_file(
    loaded: ModelRunner, adapter: Path, tmp_path: Path, init: Any
) -> None:
    loaded.load_adapter("plain", adapter)
    loaded.load_adapter("other", copy_changed(adapter, tmp_path, init_lora_weights=init))
    assert generate_tokens(loaded, "plain") == generate_tokens(loaded, "other")


def test_a_base_that_changes_in_memory_is_noticed_and_read_again(
    loaded: ModelRunner, adapter: Path, tmp_path: Path
) -> None:
    """What the config check does not know yet: here the weights are changed by hand between two loads."""
    loaded.load_adapter("first", adapter)
    before = generate_tokens(loaded, None), generate_tokens(loaded, "first")
    with torch.no_grad():
        next(value for name, value in loaded.model.named_parameters() if "q_proj.base_layer" in name)[0, 0] += 1
    with pytest.raises(TrainyardError, match=r"E-BASE-CHANGED: .* model.layers.0.self_attn.q_proj.weight"):
        loaded.load_adapter("second", copy_changed(adapter, tmp_path))
    assert list(loaded.adapters) == ["first"]
    assert (generate_tokens(loaded, None), generate_tokens(loaded, "first")) == before


def test_a_trainer_notices_a_base_that_loading_changes(adapter: Path, tiny_model: Path) -> None:
    """Past the check of the config, as a new way to start an adapter would be."""
    config = read_config(adapter, "causal", trainable=True)
    config.init_lora_weights = "pissa"
    with pytest.raises(TrainyardError, match="E-BASE-CHANGED"):
        load_adapter(load_network(str(tiny_model), "cpu"), adapter, config, "default", "cpu")


def test_the_digest_sees_one_bit_and_no_adapter(tiny_model: Path) -> None:
    model = load_network(str(tiny_model), "cpu")
    digests = base_digests(model)
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["norm"]))
    assert {name: base_digests(wrapped).get(name) for name in digests} == digests
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        weight.view(torch.int32)[-1, -1] ^= 1
    with pytest.raises(TrainyardError, match="embed_tokens"):
        require_unchanged_base(digests, wrapped, "x")


def pattern_cases() -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK_PATTERNS else pytest.mark.faults) for name in PATTERNS]


@pytest.mark.parametrize("name", pattern_cases())
def test_a_pattern_that_cannot_be_matched_is_refused_in_time(
    loaded: ModelRunner, adapter: Path, tmp_path: Path, name: str
) -> None:
    started = time.process_time()
    with pytest.raises(InvalidInput, match="E-ADAPTER-INVALID: A pattern in the adapter's config of changed"):
        loaded.load_adapter("evil", copy_changed(adapter, tmp_path, **PATTERNS[name]))
    assert time.process_time() - started < 2  # the child's second is its own


def test_a_pattern_that_means_something_is_used(loaded: ModelRunner, adapter: Path, tmp_path: Path) -> None:
    loaded.load_adapter("plain", adapter)
    loaded.load_adapter("pattern", copy_changed(adapter, tmp_path, target_modules=r".*\.(q_proj|v_proj)"))
    assert generate_tokens(loaded, "pattern") == generate_tokens(loaded, "plain")


@pytest.mark.parametrize("fields", [{"init_lora_weights": "olora"}, {"target_modules": SLOW}])
def test_trainer_and_evaluator_refuse_them_too(
    tiny_model: Path, adapter: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    folder = copy_changed(adapter, tmp_path, **fields)
    model = load_network(str(tiny_model), "cpu")
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID"):
        attach(model, Participant(kind="adapter", name="x", path=str(folder)), "candidate")
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID"):
        load_adapter(model, folder, read_config(folder, "causal", trainable=True), NEW, "cpu")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"auto_mapping": [1]}, "E-MODEL-UNSAFE"),
        ({"auto_mapping": {"parent_library": "evil.module"}}, "E-MODEL-UNSAFE"),
        ({"rank_pattern": 3}, "E-ADAPTER-INVALID"),
        ({"modules_to_save": [1]}, "E-ADAPTER-INVALID"),
        ({"r": -1}, "E-ADAPTER-MISMATCH"),
        ({"r": 10**9}, "E-ADAPTER-MISMATCH"),
        ({"peft_type": "NOTHING"}, "E-ADAPTER-MISMATCH"),
        ({"target_modules": 5}, "E-ADAPTER-MISMATCH"),
        ({"layer_replication": [[0, 9]]}, "E-ADAPTER-MISMATCH"),
    ],
)
def test_other_odd_configs_end_in_a_code(
    loaded: ModelRunner, adapter: Path, tmp_path: Path, fields: dict[str, Any], code: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        loaded.load_adapter("evil", copy_changed(adapter, tmp_path, **fields))
    assert raised.value.code == code
