"""The whole table of strategies: stages, cuts, methods, optimizers and precisions, with two and four processes."""

from __future__ import annotations

import importlib.util
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.small_jobs import Jobs, write_data
from tests.unit.train.parallel.conftest import ONE, PROCESSES, STRATEGIES, Ask, Ran, case
from tests.unit.train.parallel.test_parallel import close
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.optimizers import Optimizer

pytestmark = pytest.mark.slow

PADDED = {"engine": {"batching": "padded"}}
CUTS: dict[str, dict[str, Any]] = {
    "buckets": {},
    "packed": {"engine": {"batching": "packed"}},
    "a last batch of three": {"rows": 11, **PADDED},
    "a last batch of one": {"rows": 9, **PADDED},
    "many micro-batches": {"gradient_accumulation": 3, "rows": 24, **PADDED},
    "clipped": {"max_grad_norm": 0.01},
    "chunked head": {"engine": {"head": "chunked"}},
}
LOSSES = ("sigmoid", "hinge", "ipo", "kto_pair", "orpo", "simpo")
STAGES: dict[str, dict[str, Any]] = {
    **{f"dpo {loss}": {"stage": "dpo", "preference": {"loss": loss}} for loss in LOSSES},
    "reward": {"stage": "reward"},
    "kto": {"stage": "kto"},
    "kto, rows left over": {"stage": "kto", "rows": 11},
}
FOUR = dict.fromkeys(STRATEGIES, 4)


def run_table(ask: Ask, rows: dict[str, dict[str, Any]], processes: dict[str, int], batch: int) -> dict[str, Ran]:
    """Each row in one process and in each strategy, at the same rows a step."""
    cases = {}
    for (name, arguments), strategy in product(rows.items(), (ONE, *processes)):
        count = processes.get(strategy, 1)
        cases[f"{name}/{strategy}"] = case("whole_run", strategy, count, **{"batch": batch, **arguments})
    return ask(cases)


@pytest.fixture(scope="module")
def cuts(ask: Ask) -> dict[str, Ran]:
    return run_table(ask, CUTS, {strategy: PROCESSES[strategy] for strategy in STRATEGIES}, 4)


@pytest.fixture(scope="module")
def stages(ask: Ask) -> dict[str, Ran]:
    return run_table(ask, STAGES, FOUR, 8)


@pytest.mark.parametrize(("name", "strategy"), list(product(CUTS, STRATEGIES)))
def test_every_cut_of_a_step(name: str, strategy: str, cuts: dict[str, Ran]) -> None:
    assert close(cuts[f"{name}/{strategy}"], cuts[f"{name}/{ONE}"])


@pytest.mark.parametrize(("name", "strategy"), list(product(STAGES, STRATEGIES)))
def test_every_stage_in_four_processes(name: str, strategy: str, stages: dict[str, Ran]) -> None:
    assert close(stages[f"{name}/{strategy}"], stages[f"{name}/{ONE}"])


@pytest.fixture(scope="module")
def restarted(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    checkpoints, cases = tmp_path_factory.mktemp("checkpoints"), {}
    for strategy, count in FOUR.items():
        arguments = {"batch": 4, "gradient_accumulation": 3, **PADDED}
        for name, more in (("straight", {}), ("stopped", {"stop_after": 4}), ("resumed", {"resumed": True})):
            at = str(checkpoints / (name if name == "straight" else strategy))
            cases[f"{name} {strategy}"] = case("part_of_run", strategy, count, **arguments, root=at, **more)
    return ask(cases)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_goes_on_to_the_same_bits_in_four_processes(strategy: str, restarted: dict[str, Ran]) -> None:
    straight, resumed = (restarted[f"{name} {strategy}"].ranks for name in ("straight", "resumed"))
    assert len(restarted[f"stopped {strategy}"].ranks[0]["losses"]) == 1
    assert resumed == straight


# Optimizers


def sharable() -> list[tuple[str, str]]:
    installed = [name for name in Optimizer if importlib.util.find_spec(name.facts.package.name)]
    whole = [(name.value, strategy) for name, strategy in product(installed, ("zero1", "zero2"))]
    return whole + [(name.value, "fsdp_hybrid") for name in installed if not name.facts.whole_tensors]


@pytest.fixture(scope="module")
def optimized(ask: Ask) -> dict[str, Ran]:
    cases = {}
    for name, strategy in [*{(name, ONE) for name, _ in sharable()}, *sharable()]:
        schedule = {"schedule": "constant"} if name == "schedule_free_adamw" else {}
        cases[f"{name}/{strategy}"] = case("whole_run", strategy, optimizer=name, **schedule)
        cases[f"verbs {name}/{strategy}"] = case("verbs", strategy, optimizer=name, **schedule, **PADDED)
    return ask(cases)


@pytest.mark.parametrize(("name", "strategy"), sharable())
def test_every_optimizer_moves_what_it_owns_as_it_would_move_everything(
    name: str, strategy: str, optimized: dict[str, Ran]
) -> None:
    shared, alone = optimized[f"{name}/{strategy}"], optimized[f"{name}/{ONE}"]
    assert [point[1] for point in shared.ranks[0]["losses"]] == pytest.approx(
        [point[1] for point in alone.ranks[0]["losses"]], abs=2e-3 if "8bit" in name else 1e-4
    )


@pytest.mark.parametrize(("name", "strategy"), sharable())
def test_every_optimizer_goes_on_from_a_saved_state(name: str, strategy: str, optimized: dict[str, Ran]) -> None:
    first, again = optimized[f"verbs {name}/{strategy}"].ranks[0]["ends"]
    assert first == again


# Half precision


@pytest.fixture(scope="module")
def halves(ask: Ask) -> dict[str, Ran]:
    arguments = {"precision": "fp16", "scale": 2.0**40}
    return ask({strategy: case("whole_run", strategy, **arguments) for strategy in PROCESSES})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_that_overflows_is_skipped_by_all(strategy: str, halves: dict[str, Ran]) -> None:
    shared, alone = halves[strategy].ranks, halves[ONE].ranks[0]
    assert alone["skipped"] == 4
    assert {(rank["steps"], rank["skipped"]) for rank in shared} == {(alone["steps"], alone["skipped"])}


# The backend's own program


METHODS = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "dora": {"method": "dora"},
    "lora_plus": {"method": "lora_plus"},
    "oft": {"method": {"type": "oft", "block_size": 16}},
    "freeze": {"method": {"type": "freeze", "blocks": 1}},
    "dpo lora": {"method": "lora", "stage": "dpo"},
    "kto lora": {"method": "lora", "stage": "kto"},
}
LAUNCHES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "processes": 2},
    "zero2": {"strategy": "zero2", "processes": 2},
    "fsdp_hybrid": {"strategy": "fsdp_hybrid", "processes": 4},
}
PORTS = {"dpo": Port.PREFERENCE, "kto": Port.LABELLED}


@pytest.fixture(scope="module")
def trained(ask: Ask, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Records of trainings by the native program, in one process and in several."""
    root = tmp_path_factory.mktemp("jobs")
    jobs = Jobs(tiny_model, write_data(root / "data"), root / "locks")
    cases, folders = {}, {}
    for (name, config), (strategy, launch) in product(METHODS.items(), [(ONE, {}), *LAUNCHES.items()]):
        size = launch.get("processes", 1)
        hyper = {"batch_size": 8 // size, "max_steps": 4, "epochs": None}
        engine = {"batching": "padded", **config.get("engine", {})}
        fields = {**config, "backend": "native", "hyperparameters": hyper, "engine": engine, "launch": launch}
        job = jobs(PORTS.get(config.get("stage", ""), Port.SFT), **fields)
        folder = folders[f"{name}/{strategy}"] = root / name.replace(" ", "-") / strategy
        folder.mkdir(parents=True)
        (folder / "ranks").mkdir()
        (folder / "spec.json").write_text(job.model_dump_json())
        target = "trainyard.backends.native." + ("ranks:train" if launch else "program:train")
        cases[f"{name}/{strategy}"] = {
            "run": "program", "processes": size, "given": {"target": target, "root": str(folder)},
        }  # fmt: skip
    ran = ask(cases)
    for name, run in ran.items():
        assert [rank["status"] for rank in run.ranks] == ["done"] * cases[name]["processes"], name
    paths = {name: next((folder / "result").glob("*/training.json")) for name, folder in folders.items()}
    return {name: json.loads(path.read_text()) for name, path in paths.items()}


@pytest.mark.parametrize(("name", "strategy"), list(product(METHODS, LAUNCHES)))
def test_every_method_trains_in_several_processes(name: str, strategy: str, trained: dict[str, dict[str, Any]]) -> None:
    """With dropout off, as it is by default: the same curve, and a result that is written whole."""
    shared, alone = trained[f"{name}/{strategy}"], trained[f"{name}/{ONE}"]
    assert [point[1] for point in shared["losses"]] == pytest.approx([point[1] for point in alone["losses"]], abs=1e-4)
    assert shared["launch"]["strategy"] == strategy
    assert shared["tokens"] == alone["tokens"]
