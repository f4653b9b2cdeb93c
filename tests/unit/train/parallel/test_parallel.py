"""Several processes train as one: the same losses and weights, each holding what its strategy says.

The processes are real and talk over gloo; those of all cases are forked off one program, which imports torch once.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.unit.train.parallel.conftest import ONE, PROCESSES, STRATEGIES, Ask, Ran, case

ROUNDING = {"abs": 1e-5}
STEPS = {"gradient_accumulation": 2, "rows": 16, "engine": {"batching": "padded"}, "max_grad_norm": 0.5}
"""Two micro-batches a step, clipped: what is divided, summed and clipped has to be the whole step's."""
STAGED = {"ddp": "kto", "fsdp_hybrid": "reward"}
RESUMED = ("zero2",)
ASKED = ("ddp", "zero2", "fsdp_hybrid")
"""Those whose verbs are tried here; zero1's are in the table, which is slow."""
PART = {"batch": 4, "gradient_accumulation": 3, "engine": {"batching": "padded"}}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    checkpoints = tmp_path_factory.mktemp("checkpoints")
    cases = {f"steps {strategy}": case("whole_run", strategy, **STEPS) for strategy in PROCESSES}
    for strategy, stage in STAGED.items():
        cases[f"stage {strategy}"] = case("whole_run", strategy, stage=stage, batch=8)
        cases[f"stage {strategy} alone"] = case("whole_run", stage=stage, batch=8)
    cases |= {f"held {strategy}": case("measure_after_backward", strategy) for strategy in STRATEGIES}
    cases |= {f"verbs {strategy}": case("verbs", strategy, engine={"batching": "padded"}) for strategy in (ONE, *ASKED)}
    for strategy in RESUMED:
        at = {**PART, "root": str(checkpoints / strategy)}
        cases[f"straight {strategy}"] = case("part_of_run", strategy, **{**at, "root": str(checkpoints / "straight")})
        cases[f"stopped {strategy}"] = case("part_of_run", strategy, **at, stop_after=4)
        cases[f"resumed {strategy}"] = case("part_of_run", strategy, **at, resumed=True)
    runs = ask(cases)
    saved = str(runs["verbs zero2"].folder / "files-0")
    return runs | ask({"other world": case("take_up", "ddp", root=saved)})


def close(run: Ran, other: Ran) -> bool:
    """The same losses, and weights that differ by rounding."""
    losses = [[point[1] for point in run.ranks[0]["losses"]] for run in (run, other)]
    weights, expected = run.weights, other.weights
    return losses[0] == pytest.approx(losses[1], **ROUNDING) and all(
        float((weights[name] - expected[name]).abs().max()) <= ROUNDING["abs"] for name in expected
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_trains_as_one_process_with_the_same_rows_does(strategy: str, ran: dict[str, Ran]) -> None:
    shared, alone = ran[f"steps {strategy}"], ran[f"steps {ONE}"]
    assert len(shared.ranks) == PROCESSES[strategy]
    assert close(shared, alone)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2"])
def test_all_processes_end_with_the_same_weights_to_the_bit(strategy: str, ran: dict[str, Ran]) -> None:
    first, other = ran[f"steps {strategy}"].ranks
    assert first["digest"] == other["digest"]


def test_replicas_end_with_the_same_parts(ran: dict[str, Ran]) -> None:
    digests = [rank["digest"] for rank in ran["steps fsdp_hybrid"].ranks]
    assert digests[:2] == digests[2:]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("strategy", STAGED)
def test_losses_that_compare_rows_or_sides_are_those_of_the_whole_batch(strategy: str, ran: dict[str, Ran]) -> None:
    """KTO's reference point is a mean over the batch; pairs are chosen rows and, further down, rejected ones."""
    assert close(ran[f"stage {strategy}"], ran[f"stage {strategy} alone"])


# What each process holds


def test_ddp_holds_everything_everywhere(ran: dict[str, Ran]) -> None:
    held = [rank["held"] for rank in ran["steps ddp"].ranks]
    assert held[0] == held[1] == ran[f"steps {ONE}"].ranks[0]["held"]


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_optimizer_states_are_dealt_out(strategy: str, ran: dict[str, Ran]) -> None:
    whole = ran[f"steps {ONE}"].ranks[0]["held"]
    held = [rank["held"] for rank in ran[f"steps {strategy}"].ranks]
    assert sum(rank["states"] for rank in held) == whole["states"]
    assert all(rank["states"] == pytest.approx(whole["states"] / 2, rel=0.01) for rank in held)
    assert all(rank["weights"] == whole["weights"] for rank in held)


def test_gradients_are_with_their_owner_from_zero2_on(ran: dict[str, Ran]) -> None:
    held = {strategy: ran[f"held {strategy}"].ranks for strategy in STRATEGIES}
    whole = held["ddp"][0]["weights"]
    assert [rank["gradients"] for rank in held["ddp"] + held["zero1"]] == [whole] * 4
    assert sum(rank["gradients"] for rank in held["zero2"]) == whole
    assert all(rank["gradients"] == pytest.approx(whole / 2, rel=0.01) for rank in held["zero2"])


def test_a_hybrid_holds_half_of_everything_in_each_of_two_processes(ran: dict[str, Ran]) -> None:
    whole = ran[f"steps {ONE}"].ranks[0]["held"]
    held = [rank["held"] for rank in ran["steps fsdp_hybrid"].ranks]
    for name in ("weights", "states"):
        assert held[0][name] + held[1][name] == held[2][name] + held[3][name] == pytest.approx(whole[name], rel=0.01)
    gradients = [rank["gradients"] for rank in ran["held fsdp_hybrid"].ranks]
    assert gradients[0] + gradients[1] == gradients[2] + gradients[3] == whole["weights"]


# The verbs


@pytest.mark.parametrize("strategy", ASKED)
def test_every_verb_answers_as_in_one_process(strategy: str, ran: dict[str, Ran]) -> None:
    """With dropout, which each process draws for itself: what it does not touch is equal, the rest is near."""
    shared, alone = ran[f"verbs {strategy}"].ranks, ran[f"verbs {ONE}"].ranks[0]
    leader = shared[0]
    for name in ("same_reply", "units", "logits", "refusals", "saved"):
        assert leader[name] == alone[name], name
    assert leader["loss"] == pytest.approx(alone["loss"], rel=0.01)
    assert leader["norm"] == pytest.approx(alone["norm"], rel=0.05)
    assert [len(ids) for ids in leader["generated"]] == [6, 6]
    assert [[logprob is None for logprob in row] for row in leader["logprobs"]] == [[True, False, False], [True, False]]
    assert all(math.isfinite(logprob) for row in leader["logprobs"] for logprob in row if logprob is not None)


@pytest.mark.parametrize("strategy", [ONE, *ASKED])
def test_a_state_that_is_saved_inside_an_accumulation_goes_on_to_the_same_bits(
    strategy: str, ran: dict[str, Ran]
) -> None:
    first, again = ran[f"verbs {strategy}"].ranks[0]["ends"]
    assert first == again


@pytest.mark.parametrize("strategy", ASKED)
def test_only_the_process_that_leads_writes_files(strategy: str, ran: dict[str, Ran]) -> None:
    leader, *followers = ran[f"verbs {strategy}"].ranks
    assert leader["written"] == ran[f"verbs {ONE}"].ranks[0]["written"]
    assert [other["written"] for other in followers] == [[]] * len(followers)


@pytest.mark.parametrize("strategy", RESUMED)
def test_a_stop_inside_a_step_and_a_new_start_end_in_the_same_bits(strategy: str, ran: dict[str, Ran]) -> None:
    straight, stopped, resumed = (ran[f"{name} {strategy}"].ranks for name in ("straight", "stopped", "resumed"))
    assert len(stopped[0]["losses"]) == 1
    assert resumed[0]["losses"] == straight[0]["losses"]
    assert resumed[0]["state"] == straight[0]["state"]
    assert [rank["digest"] for rank in resumed] == [rank["digest"] for rank in straight]


def test_a_state_of_other_processes_is_refused_and_its_weights_are_taken(ran: dict[str, Ran]) -> None:
    refusal: dict[str, Any] = ran["other world"].ranks[0]
    assert refusal["refused"].startswith(
        "E-CHECKPOINT-MISMATCH: The checkpoint was made by 2 processes (zero2), and this run has 2 processes (ddp)."
    )
    assert refusal["unchanged"]
    served = Path(ran["verbs zero2"].ranks[0]["file"])
    assert served.is_dir()
    assert len({rank["digest"] for rank in ran["other world"].ranks}) == 1
    assert ran["other world"].ranks[0]["digest"] == ran["verbs zero2"].ranks[0]["digest"]
