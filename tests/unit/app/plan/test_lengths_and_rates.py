"""What `check` and `plan` say of the rates and the lengths of a run before it starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.small_jobs import Jobs, Ran, conversation, train_here
from trainyard.app.context import Context
from trainyard.app.plan.check import FileCheck, check
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.plan import plan_chain
from trainyard.app.plan.resolve import resolve_chain
from trainyard.data.rows import write_rows
from trainyard.errors import Refused
from trainyard.operations.chains import CheckInput
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.estimate.shape import ContextFacts
from trainyard.testing.tiny import TEXT, build_tokenizer

POSITIONS = 64


def small_base(folder: Path, kind: str) -> Path:
    """A random model with 64 learned or rotary positions."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer([TEXT * 20])
    ids: dict[str, Any] = {
        "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    learned = GPT2Config(**ids, n_positions=POSITIONS, n_embd=32, n_layer=1, n_head=2)
    rotary = LlamaConfig(
        **ids, max_position_embeddings=POSITIONS, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(learned) if kind == "gpt2" else LlamaForCausalLM(rotary)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    return {kind: small_base(folder / kind, kind) for kind in ("gpt2", "llama")}


@pytest.fixture
def here(tmp_path: Path, bases: dict[str, Path]) -> Settings:
    rows = ({"instruction": f"q {n}", "output": "a"} for n in range(8))
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    roots = (tmp_path, bases["gpt2"].parent)
    return Settings(home=tmp_path / "home", working_folder=tmp_path, data_roots=roots, min_free_mb=0)


def make_chain(base: Path, **config: Any) -> dict[str, Any]:
    trainer = {"base_model": str(base), "device": "cpu", **config}
    return {
        "nodes": [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "trainer", "config": trainer}]
    }


def check_chain(here: Settings, chain: dict[str, Any]) -> FileCheck:
    path = here.working_folder / "chain.yaml"
    path.write_text(yaml.safe_dump(chain))
    (file,) = check(CheckInput(files=(path,)), Context(here)).files
    return file


def test_a_warm_up_longer_than_the_run_is_refused(here: Settings, bases: dict[str, Path]) -> None:
    file = check_chain(here, make_chain(bases["llama"], hyperparameters={"max_steps": 10, "warmup_steps": 1000}))
    assert [reason["code"] for reason in file.reasons] == ["R-SCHEDULE"]
    assert "the highest rate would be 1.00% of learning_rate" in file.reasons[0]["line"]


def test_the_default_length_is_that_of_a_base_with_fewer_positions(here: Settings, bases: dict[str, Path]) -> None:
    """A run is given the chain with every default written out, and resolves it in the same way."""
    spec = parse_request(make_chain(bases["gpt2"], hyperparameters={"max_steps": 2})).spec
    chain = resolve_chain(spec, here)
    assert chain.node("trainer").config.hyperparameters.max_length == POSITIONS
    written = type(spec).model_validate(spec.model_dump(mode="json"))
    assert resolve_chain(written, here).digest == chain.digest
    line = "max_length is 64: the base has 64 positions."
    assert f"trainer: {line}" in check_chain(here, make_chain(bases["gpt2"])).notes
    assert line in plan_chain(spec, here).nodes[1].advice
    grpo = {"type": "grpo", "rewards": [{"type": "exact_match"}], "max_completion_length": 24}
    grpo_chain = resolve_chain(parse_request(make_chain(bases["gpt2"], stage=grpo)).spec, here)
    assert grpo_chain.node("trainer").config.hyperparameters.max_length == POSITIONS - 24


def test_a_length_beyond_learned_positions_is_refused(here: Settings, bases: dict[str, Path]) -> None:
    file = check_chain(here, make_chain(bases["gpt2"], hyperparameters={"max_length": 65}))
    assert [(reason["code"], reason["row"]) for reason in file.reasons] == [("R-LENGTH", "base-positions")]
    assert check_chain(here, make_chain(bases["gpt2"], hyperparameters={"max_length": 64})).ok
    grpo = {"type": "grpo", "rewards": [{"type": "exact_match"}], "max_completion_length": 60}
    file = check_chain(here, make_chain(bases["gpt2"], stage=grpo))
    assert "completions of up to 60" in file.reasons[0]["line"]


def test_a_length_beyond_rotary_positions_is_reported(here: Settings, bases: dict[str, Path]) -> None:
    file = check_chain(here, make_chain(bases["llama"]))
    assert file.ok
    assert any("longer than the 64 positions of the base" in note for note in file.notes)
    scaled = make_chain(bases["llama"], method="full", rope={"factor": 8})
    assert not any("positions" in note for note in check_chain(here, scaled).notes)
    wrong = make_chain(bases["llama"], method="full", rope={"factor": 8, "original_length": 128})
    assert [reason["row"] for reason in check_chain(here, wrong).reasons] == ["rope-original"]


def test_long_rows_of_a_base_with_few_positions_are_cut_and_trained(bases: dict[str, Path], tmp_path: Path) -> None:
    rows = [conversation("Say", "the node reads pairs and " * 12) for _ in range(4)]
    write_rows(tmp_path / "rows" / "rows.arrow", Port.SFT, rows)
    jobs = Jobs(bases["gpt2"], {Port.SFT: tmp_path / "rows"}, tmp_path)

    def run(length: int) -> Ran:
        job = jobs(backend="native", hyperparameters={"max_steps": 1, "max_length": length})
        return train_here(job, tmp_path / str(length))

    assert run(POSITIONS).record["steps"] == 1
    with pytest.raises(Refused, match="R-LENGTH"):
        run(POSITIONS + 6)


LLAMA = {"model_type": "llama", "max_position_embeddings": 4096}
SLIDING = {"max_position_embeddings": 32_768, "sliding_window": 4096}
MIXED = {**SLIDING, "model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS: list[tuple[dict[str, Any], ContextFacts]] = [
    ({"model_type": "gpt2", "n_positions": 1024}, ContextFacts(1024, True)),
    ({"model_type": "opt", "max_position_embeddings": 2048}, ContextFacts(2048, True)),
    (LLAMA, ContextFacts(4096)),
    ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}}, ContextFacts(16_384)),
    ({**LLAMA, "rope_parameters": {"rope_type": "yarn", "factor": 4}}, ContextFacts(4096)),
    ({**SLIDING, "model_type": "mistral"}, ContextFacts(32_768, window=4096)),
    ({**SLIDING, "model_type": "qwen2", "use_sliding_window": False}, ContextFacts(32_768)),
    ({"model_type": "gemma3", "text_config": MIXED}, ContextFacts(32_768)),
    ({"model_type": "bloom"}, ContextFacts()),
]


@pytest.mark.parametrize(("config", "expected"), CONFIGS)
def test_the_context_of_a_base_is_read_from_its_config(config: dict[str, Any], expected: ContextFacts) -> None:
    assert ContextFacts.from_config(config) == expected


def test_the_defaults_of_grpo_agree(here: Settings, bases: dict[str, Path]) -> None:
    stage = {"type": "grpo", "rewards": [{"type": "exact_match"}]}
    chain = resolve_chain(parse_request(make_chain(bases["llama"], stage=stage)).spec, here)
    assert chain.node("trainer").config.hyperparameters.batch_size == 8
    file = check_chain(here, make_chain(bases["llama"], stage=stage, hyperparameters={"batch_size": 6}))
    assert [reason["code"] for reason in file.reasons] == ["R-BATCH"]


def test_an_interval_above_the_run_is_reported_by_check(here: Settings, bases: dict[str, Path]) -> None:
    chain = make_chain(bases["llama"], hyperparameters={"max_steps": 10, "save_steps": 500, "max_length": 64})
    note = "trainer: save_steps is 500 and the run has 10 steps: no checkpoint is made before its end."
    assert note in check_chain(here, chain).notes
