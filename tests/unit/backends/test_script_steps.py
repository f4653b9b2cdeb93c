"""The script that `trainyard eject` writes takes the steps of the native engine: the same losses, rates and tokens."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.small_jobs import Jobs, train_here, write_base_without
from trainyard.backends.rows import to_chat_json
from trainyard.backends.script import files
from trainyard.backends.script.templates import BUILT_IN
from trainyard.data.renderers.choice import choose_template
from trainyard.data.rows import Message, PreferenceRow, SftRow
from trainyard.spec.axes.data import Port
from trainyard.train.losses.pairs import join_answer
from trainyard.train.rows.tokens import encode_preference, encode_sft, get_answer

pytestmark = pytest.mark.integration

STEPS = 10
CLOSE = 1e-5
"""The losses are about 6; the two sum float32 numbers in another order."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The script as a module; its handlers of signals and its working folder are put back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = Path.cwd()
    monkeypatch.setenv("TRAINYARD_EVENTS", str(tmp_path / "events.jsonl"))
    spec = importlib.util.spec_from_file_location("ejected", BUILT_IN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ejected", module)
    spec.loader.exec_module(module)
    yield module
    os.chdir(before)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def later(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


APART = {"type": "dpo", "shared_prompt": False}
"""The script computes each answer in a row of its own; a shared prompt would draw its dropout once."""


@pytest.mark.parametrize(
    ("port", "config"),
    [
        (Port.SFT, {}),
        (Port.SFT, {"method": {"type": "lora", "profile": "classic", "dropout": 0.2, "layers": [1]}}),
        (Port.SFT, {"method": "lora_plus", "engine": {"token_budget": 48, "too_long": "drop"}}),
        (Port.SFT, {"method": {"type": "freeze", "blocks": 1, "head": True}}),
        (Port.SFT, {"hyperparameters": {"optimizer": "sgd", "batch_size": 2, "gradient_accumulation": 3}}),
        (Port.TEXT, {"stage": "cpt", "method": "full", "hyperparameters": {"schedule": "cosine", "warmup_ratio": 0.3}}),
        (
            Port.PREFERENCE,
            {"stage": {"type": "dpo", "shared_prompt": False}, "method": {"type": "lora", "dropout": 0.2}},
        ),
        (Port.PREFERENCE, {"stage": "reward", "hyperparameters": {"optimizer": "adafactor", "weight_decay": 0.1}}),
        later(Port.SFT, {"engine": {"batching": "packed"}, "control": "shuffled_answers"}),
        later(
            Port.SFT, {"engine": {"batching": "padded"}, "method": {"type": "lora", "target_modules": "attention-only"}}
        ),
        later(Port.SFT, {"method": "dora", "hyperparameters": {"gradient_checkpointing": True}}),
        later(Port.SFT, {"method": "oft", "engine": {"template": "chatml"}}),
        later(Port.SFT, {"method": "full", "hyperparameters": {"max_steps": None, "epochs": 2.5}}),
        later(Port.PREFERENCE, {"stage": "sft"}),
        later(Port.PREFERENCE, {"method": "full", "preference": {"loss": "ipo"}}),
        later(Port.PREFERENCE, {"stage": "reward", "method": {"type": "freeze", "blocks": 1}}),
    ],
    ids=lambda value: value.value if isinstance(value, Port) else json.dumps(value),
)
def test_the_script_takes_the_steps_of_the_native_engine(
    *, port: Port, config: dict[str, Any], jobs: Jobs, script: ModuleType, tmp_path: Path, home: Path
) -> None:
    job_config = {**config, "hyperparameters": {"max_steps": STEPS, **config.get("hyperparameters", {})}}
    native = train_here(jobs(port, backend="native", **job_config), tmp_path / "native").record
    files.write(jobs(port, backend="script", **job_config), tmp_path / "mine", keep_work=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, as in `train_markers`
        script.main(str(tmp_path / "mine" / "spec.json"))
    report = json.loads((tmp_path / "mine" / "output" / "report.json").read_text())
    assert len(report["losses"]) == len(native["losses"]) >= STEPS
    for (step, loss, rate), expected in zip(report["losses"], native["losses"], strict=True):
        assert (step, rate) == (expected[0], pytest.approx(expected[2], rel=1e-9))
        assert loss == pytest.approx(expected[1], abs=CLOSE)
    assert report["tokens"] == native["tokens"]


def test_the_script_reads_a_reward_where_the_native_engine_does(
    jobs: Jobs, script: ModuleType, tmp_path: Path, home: Path
) -> None:
    """Where the end of text pads, too, every row ends with the padding token."""
    config = {"base": write_base_without(jobs.model, tmp_path / "base", "pad"), "stage": "reward"}
    config["hyperparameters"] = {"max_steps": STEPS}
    native = train_here(jobs(Port.PREFERENCE, backend="native", **config), tmp_path / "native").record
    files.write(jobs(Port.PREFERENCE, backend="script", **config), tmp_path / "mine", keep_work=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script.main(str(tmp_path / "mine" / "spec.json"))
    report = json.loads((tmp_path / "mine" / "output" / "report.json").read_text())
    assert [row[1] for row in report["losses"]] == pytest.approx([row[1] for row in native["losses"]], abs=CLOSE)


ROWS = [
    SftRow([Message("user", "One?"), Message("assistant", "First."), Message("user", "A <|im_end|> in it?"),
            Message("assistant", "Second.\n")]),
    SftRow([Message("user", "One?"), Message("assistant", "First."), Message("user", "and then?")]),
    SftRow([Message("assistant", "Hello."), Message("user", "One?"), Message("assistant", "First.")]),
]  # fmt: skip
PAIR = PreferenceRow([Message("user", "What?")], [Message("assistant", "A node.")], [Message("assistant", "No.")])


@pytest.mark.parametrize("template", ["auto", "chatml", "gemma", "llama3.1", "mistral", "role_colon", "qwen2.5"])
def test_the_script_reads_rows_as_the_native_engine(template: str, tiny_model: Path, script: ModuleType) -> None:
    """Where turns begin and end, what is learned, and control tokens that a user writes."""
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = choose_template(template, tokenizer.chat_template).text
    chat = script.Chat(tokenizer)
    expected = [encode_sft([row], tokenizer, 10_000)[0] for row in ROWS]
    assert [chat.sides(to_chat_json(row), False) for row in ROWS] == expected
    (pair,) = encode_preference([PAIR], tokenizer, 10_000)[0]
    sides = [join_answer(pair["prompt_ids"], get_answer(pair, side)) for side in ("chosen", "rejected")]
    assert chat.sides(to_chat_json(PAIR), True) == sides


def test_a_row_that_the_template_refuses_is_left_out(tiny_model: Path, script: ModuleType, tmp_path: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = choose_template("gemma").text
    row = SftRow([Message("system", "Be short."), Message("user", "One?"), Message("assistant", "First.")])
    assert encode_sft([row], tokenizer, 100)[0] == []
    chat = script.Chat(tokenizer)
    assert chat.sides(to_chat_json(row), False) == []
    script.require_accepted(chat.refused, 40, 0.05)
    assert "The chat template refuses 1 of 40 rows: " in (tmp_path / "events.jsonl").read_text()
    with pytest.raises(SystemExit, match=r"refuses 1 of 10 rows.*At most 5\.0% may be lost"):
        script.require_accepted(chat.refused, 10, 0.05)
