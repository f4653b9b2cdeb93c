"""Whether prompts are shared: asked for, possible in a model, worth it for the rows, and the same after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from tests.unit.train.losses.stage_rows import PAD, make_model
from tests.unit.train.session.engines import encode_examples, make_config
from trainyard.backends.frame import decide_precision
from trainyard.backends.native.assembly import keep_layout
from trainyard.backends.results import DECISIONS_FILE
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import Stage
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.training import LaunchSettings, TrainerConfig
from trainyard.train.contracts import Encoded
from trainyard.train.losses.table import STAGES
from trainyard.train.rows.batching import Cut, Feed, choose_cut, make_plan
from trainyard.train.rows.sharing import LEAST_GAIN, Operations, explain_unshared, gain_of_sharing, share_prompts

DPO, KTO = STAGES[Stage.DPO], STAGES[Stage.KTO]


def make_pair(prompt: int, answer: int, seed: int = 0) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    sizes = {"prompt_ids": prompt, "chosen_ids": answer, "rejected_ids": answer}
    return {name: torch.randint(4, 60, (size,), generator=generator).tolist() for name, size in sizes.items()}


def decide_sharing(examples: list[Encoded], shared_prompt: Any = "auto", model: Any = None, **fields: Any) -> Cut:
    config = make_config(Stage.DPO.settings(shared_prompt=shared_prompt))
    config = config.model_copy(update=fields)
    return share_prompts(choose_cut(config, DPO, "cpu"), config, DPO, model or make_model("causal"), examples)


@pytest.mark.parametrize(("prompt", "answer", "used"), [(60, 20, True), (30, 30, True), (2, 60, False)])
def test_auto_counts_the_operations_of_the_rows(prompt: int, answer: int, used: bool) -> None:
    cut = decide_sharing([make_pair(prompt, answer, seed) for seed in range(8)])
    assert cut.shared is used
    assert "times the operations" in cut.shared_why


def test_the_gain_is_the_ratio_of_the_operations() -> None:
    """With P and R tokens, a pair is 2 (P + R) positions apart and P + 2 R + 1 together."""
    prompt, answer = 60, 20
    cost, examples = Operations.of_model(make_model("causal")), [make_pair(prompt, answer, seed) for seed in range(8)]
    cut = choose_cut(make_config(Stage.DPO), DPO, "cpu")
    apart, together = cost.of_rows(2, prompt + answer, 2 * answer), cost.of_rows(1, prompt + 2 * answer + 1, 2 * answer)
    assert gain_of_sharing(cut, DPO, make_model("causal"), examples) == pytest.approx(apart / together)
    assert apart / together > LEAST_GAIN


def test_what_is_asked_for_is_taken_or_refused() -> None:
    examples = [make_pair(2, 60, seed) for seed in range(4)]
    assert decide_sharing(examples, True).shared
    assert (decide_sharing(examples, False).shared, decide_sharing(examples, False).shared_why) == (
        False,
        "not asked for",
    )
    with pytest.raises(InvalidInput, match=r"E-BATCH: The prompts cannot be shared: MambaForCausalLM has a state"):
        decide_sharing(examples, True, mamba())
    assert decide_sharing(examples, "auto", mamba()).shared_why.startswith("MambaForCausalLM has a state")


def test_processes_do_not_share_rows_that_have_several_sequences() -> None:
    launch = LaunchSettings(strategy=Strategy.DDP, processes=2)
    assert "distributed" in decide_sharing([make_pair(60, 20)], launch=launch).shared_why


def mamba() -> Any:
    return MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4)).eval()


def test_models_that_cannot_keep_answers_apart() -> None:
    torch.manual_seed(0)
    bloom = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2)).eval()
    assert explain_unshared(bloom, 40) == "BloomForCausalLM takes no positions of its caller"
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    mistral = MistralForCausalLM(MistralConfig(**shape, **heads, sliding_window=32)).eval()
    assert explain_unshared(mistral, 32) == ""
    assert "a window of 32 tokens, and the longest sequence has 33" in explain_unshared(mistral, 33)
    model: Any = make_model("causal")
    model.config._attn_implementation = "flash_attention_2"
    assert explain_unshared(model, 8) == "the attention kernel flash_attention_2 takes no mask of its caller"


def test_steps_have_the_same_rows_in_every_layout() -> None:
    config = make_config(Stage.DPO, batch_size=3)
    examples = encode_examples(config, 20)
    cut = choose_cut(config, DPO, "cpu")
    plans = [make_plan(examples, replace(cut, shared=shared), DPO) for shared in (False, True)]
    apart, together = ([sorted(row for micro in step for row in micro) for step in plan.steps(2)] for plan in plans)
    assert apart == together
    for plan in plans:
        feed = Feed(examples, plan, DPO, PAD)
        widest = max(feed.batch(micro)["input_ids"].numel() for step in plan.steps(0) for micro in step)
        assert widest <= cut.budget


def test_packed_pairs_keep_the_budget() -> None:
    config = make_config(Stage.DPO, engine={"batching": "packed", "token_budget": 120})
    examples, cut = encode_examples(config, 12), choose_cut(config, DPO, "cpu")
    for shared in (False, True):
        plan = make_plan(examples, replace(cut, shared=shared), DPO)
        feed = Feed(examples, plan, DPO, PAD)
        micros = [micro for step in plan.steps(0) for micro in step]
        sizes = [feed.batch(micro)["input_ids"].shape[1] for micro in micros]
        assert max(size for size, micro in zip(sizes, micros, strict=True) if len(micro) > 1) <= 120
        assert sum(sizes) == sum(plan.extents)
        assert plan.padding_ratio() == 0


# After a restart


def test_the_layout_of_the_first_start_is_kept(tmp_path: Path) -> None:
    cut = Cut("padded", "", 4, 4, 64, 0, shared=True, shared_why="it pays")
    assert keep_layout(tmp_path, cut) == cut
    assert keep_layout(tmp_path, replace(cut, shared=False, shared_why="another machine")) == cut
    other = Cut("padded", "", 4, 4, 64, 0)
    assert keep_layout(tmp_path / "sft", other) is other  # a stage that shares nothing
    assert not (tmp_path / "sft").exists()


def test_a_run_of_an_earlier_release_continues_without(tmp_path: Path) -> None:
    (tmp_path / DECISIONS_FILE).write_text('{"precision": "fp32", "why": "asked for"}')
    cut = keep_layout(tmp_path, Cut("padded", "", 4, 4, 64, 0, shared=True, shared_why="it pays"))
    assert (cut.shared, cut.shared_why) == (False, "an earlier release started it without")


def test_precision_and_layout_are_kept_together(tmp_path: Path) -> None:
    cut = keep_layout(tmp_path, Cut("padded", "", 4, 4, 64, 0, shared=True, shared_why="it pays"))
    config = TrainerConfig.model_validate({"hyperparameters": {"precision": "fp32"}})
    job: Any = type("Job", (), {"config": config, "choices": None, "base": ""})
    assert decide_precision(job, "cpu", tmp_path).precision == "fp32"
    assert keep_layout(tmp_path, cut) == cut
