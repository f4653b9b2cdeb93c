"""Sweeps before a server is needed: what is refused, what is written, what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trainyard.app.chains.stored import create_chain
from trainyard.app.context import Context
from trainyard.app.plan.check import check
from trainyard.app.sweep_start import build_sweep, find_or_build_record, sweep
from trainyard.app.sweeps import list_sweeps, show_sweep
from trainyard.errors import Conflict, InvalidInput, NotFound, Refused, Unavailable
from trainyard.operations.base import Nothing
from trainyard.operations.chains import CHAIN_CHARS, CheckInput, ShowChainInput, StoreChainInput
from trainyard.operations.sweeps import ShowSweepInput, SweepInput, sweep_text, sweeps_text
from trainyard.settings import Settings
from trainyard.spec.axes.stages import EvalMetric
from trainyard.surfaces.cli.main import app
from trainyard.sweeps.asha import TrialState
from trainyard.sweeps.study import SweepRecord, SweepStudy, dump_spec, write_record

CHAIN = """
name: guide
nodes:
- type: data_source
  config: {path: data.jsonl}
- type: trainer
  config:
    hyperparameters: {max_steps: 36}
"""
RATE = {"trainer": {"learning_rate": "loguniform(1e-5, 1e-3)"}}


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def context(tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch) -> Context:
    rows = [{"instruction": f"question {number}", "output": f"answer {number}"} for number in range(40)]
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "chain.yaml").write_text(CHAIN)
    monkeypatch.chdir(tmp_path)
    return Context(Settings(home=tmp_path / "home", working_folder=tmp_path, min_free_mb=0), messages.append)


def sweep_input(**fields: Any) -> SweepInput:
    return SweepInput.model_validate({"file": "chain.yaml", "parameters": RATE, **fields})


def test_a_sweep_holds_rows_out_and_says_so(context: Context, messages: list[str]) -> None:
    spec = build_sweep(sweep_input(), context)
    config = spec.chain.nodes[1].config
    assert (config.eval.steps, config.eval.metric) == (4, EvalMetric.LOSS)
    assert (spec.levels, spec.direction, spec.trainer) == ((4, 12, 36), "min", "trainer")
    assert messages == ["trainer: 5% of its rows are held out to compare the trials"]
    assert spec.name.startswith("guide-")
    assert build_sweep(sweep_input(), context).name == spec.name
    assert build_sweep(sweep_input(seed=1), context).name != spec.name


def test_rungs_are_where_the_trainer_is_evaluated(context: Context) -> None:
    parameters = {"trainer": {**RATE["trainer"], "eval": {"steps": 5}}}
    assert build_sweep(sweep_input(parameters=parameters), context).levels == (5, 15, 36)


def test_the_first_rung_is_behind_the_warm_up(context: Context, messages: list[str]) -> None:
    warm = {"trainer": {**RATE["trainer"], "warmup_steps": 10}}
    assert build_sweep(sweep_input(parameters=warm), context).levels == (11, 33, 36)
    assert messages[-1] == "trainer: the first rung is step 11, behind the warm-up"
    with pytest.raises(InvalidInput, match="E-PARAMETER: The first rung is step 4, inside the warm-up of 10 steps"):
        build_sweep(sweep_input(parameters=warm, first_rung=4), context)
    evaluated = {"trainer": {**warm["trainer"], "eval": {"steps": 5}}}
    assert build_sweep(sweep_input(parameters=evaluated), context).levels == (15, 36)


def test_one_value_is_that_of_every_trial(context: Context) -> None:
    spec = build_sweep(sweep_input(parameters={"trainer": {**RATE["trainer"], "max_steps": 90}}), context)
    assert spec.steps == 90
    assert list(spec.parameters) == ["trainer.learning_rate"]


def test_a_grid_has_at_most_its_combinations(context: Context) -> None:
    parameters = {"trainer": {"method": {"rank": "choice(8, 16, 32)"}, "optimizer": "choice(adamw, lion)"}}
    assert build_sweep(sweep_input(parameters=parameters, sampler="grid"), context).trials == 6
    with pytest.raises(
        InvalidInput, match=r"E-PARAMETER: .*a grid needs finite ranges: give trainer\.learning_rate a step"
    ):
        build_sweep(sweep_input(sampler="grid"), context)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({}, InvalidInput, "E-PARAMETER: No setting is varied"),
        ({"trainr": {"x": "int(1, 2)"}}, InvalidInput, r"E-PARAMETER: trainr\.x: .*data-source, trainer.*'trainer'"),
        ({"trainer": {"lerning_rate": "uniform(0.1, 0.2)"}}, Refused, r"E-SPEC-KEY: .*trainer\.lerning_rate=0\.1"),
        ({"trainer": {"method": {"rank": "choice(8, 400)"}}}, Refused, r"E-SPEC-VALUE: .*trainer\.method\.rank=400 "),
        ({"trainer": {"max_steps": "int(10, 20)"}}, InvalidInput, r"E-PARAMETER: trainer\.max_steps cannot be varied"),
        ({"trainer": {"learning_rate": "loguniform(1, 0)"}}, InvalidInput, r"E-PARAMETER: trainer\.learning_rate: "),
        ({"trainer": {"optimizer": "choice(adamw, galore)"}}, Refused, r"R-OPTIMIZER: .*trainer\.optimizer=galore"),
        ({"trainer": {"backend": "choice(native, trl)"}}, Refused, r"trainer\.backend=trl"),
    ],
)  # fmt: skip
def test_what_no_trial_could_be_is_refused_with_its_path(
    context: Context, parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_sweep(sweep_input(parameters=parameters), context)


def test_values_that_do_not_go_together_are_refused_together(context: Context) -> None:
    parameters = {"trainer": {"method": "choice(lora, full)", "optimizer": "choice(adamw, galore)"}}
    with pytest.raises(Refused, match=r"R-OPTIMIZER: .*trainer\.optimizer=galore"):
        build_sweep(sweep_input(parameters=parameters), context)


def test_a_chain_of_epochs_needs_a_number_of_steps(context: Context, tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN.replace("max_steps: 36", "epochs: 2"))
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: .*Add -p trainer\.max_steps=N, or --scheduler none"):
        build_sweep(sweep_input(), context)
    assert build_sweep(sweep_input(scheduler="none"), context).levels == ()


def test_a_chain_without_a_trainer_is_refused(context: Context, tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN.partition("- type: trainer")[0])
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: .*The chain has no trainer"):
        build_sweep(sweep_input(), context)


def test_a_stored_chain_is_swept_like_its_file(context: Context) -> None:
    create_chain(StoreChainInput(file=Path("chain.yaml")), context)
    spec = build_sweep(sweep_input(file=None, chain="guide"), context)
    assert dump_spec(spec) == dump_spec(build_sweep(sweep_input(), context))
    with pytest.raises(NotFound, match="nobody"):
        build_sweep(sweep_input(file=None, chain="nobody"), context)


def test_a_chain_is_named_as_long_as_elsewhere(context: Context) -> None:
    """A request that is accepted is one that the verbs it uses accept."""
    with pytest.raises(NotFound):
        build_sweep(sweep_input(file=None, chain="n" * CHAIN_CHARS), context)
    for model in (SweepInput, ShowChainInput):
        with pytest.raises(ValidationError, match=f"at most {CHAIN_CHARS} characters"):
            model.model_validate({"chain": "n" * (CHAIN_CHARS + 1)})


@pytest.mark.parametrize("fields", [{"file": None}, {"continued": "x"}, {"chain": "guide"}])
def test_a_sweep_has_a_file_or_a_name(context: Context, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="E-PARAMETER: A sweep is begun from a file or a stored chain, or continued"):
        find_or_build_record(sweep_input(**fields), context)


def test_without_a_server_a_checked_sweep_says_what_to_start(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)  # that of the flow tests, in the same process
    with pytest.raises(Unavailable, match="E-NO-SERVER"):
        sweep(sweep_input(), context)


def test_a_name_belongs_to_one_sweep(context: Context) -> None:
    spec = build_sweep(sweep_input(name="mine"), context)
    write_record(context.settings, SweepRecord(spec=spec, run_id="1", created=1.0))
    assert find_or_build_record(sweep_input(name="mine"), context).run_id == "1"
    with pytest.raises(Conflict, match=r"E-PARAMETER: There is another sweep 'mine'.*--continue mine"):
        find_or_build_record(sweep_input(name="mine", trials=3), context)


@pytest.fixture
def study(context: Context) -> SweepStudy:
    """A sweep of five trials, of which one has finished."""
    parameters = {"trainer": {**RATE["trainer"], "method": {"rank": "choice(8, 16)"}}}
    spec = build_sweep(sweep_input(parameters=parameters, trials=5, name="mine", sampler="random"), context)
    write_record(context.settings, SweepRecord(spec=spec, run_id="1", created=1.0))
    study = SweepStudy(context.settings.sweeps / "mine", spec)
    for number in range(4):
        study.add(4)
        study.pause(number, 4, 2.0 - 0.1 * number)
    study.aim(1, 12)
    study.complete(1, 36, 1.25)
    study.end(2, TrialState.FAILED, "E-CRASH", "it crashed")
    return study


def test_trials_are_shown_as_a_table_and_a_picture(context: Context, study: SweepStudy) -> None:
    report = show_sweep(ShowSweepInput(name="mine", plot=True), context)
    text = sweep_text(report)
    assert text.splitlines()[0].split() == ["trial", "learning_rate", "rank", "rung", "steps", "loss", "state"]
    assert "completed *" in text
    assert "failed: E-CRASH" in text
    assert "step" in text
    assert text.splitlines()[-1] == (
        "mine: not running, 4 of 5 trials, 48 steps (33% of whole trainings), best loss 1.2500 (trial 1)"
    )
    assert sweeps_text(list_sweeps(Nothing(), context)) == text.splitlines()[-1]


def test_the_best_is_a_chain_that_check_accepts(context: Context, study: SweepStudy, tmp_path: Path) -> None:
    text = sweep_text(show_sweep(ShowSweepInput(name="mine", best=True), context))
    assert text.startswith("# Best of 4 trials of the sweep mine: trial 1, loss 1.25 at step 36.\n")
    best = study.trials()[1].params
    assert f"learning_rate: {best['trainer.learning_rate']}" in text
    assert f"rank: {best['trainer.method.rank']}" in text
    (tmp_path / "best.yaml").write_text(text)
    assert check(CheckInput(files=(tmp_path / "best.yaml",)), context).files[0].ok


def test_a_sweep_that_is_not_there_names_those_that_are(context: Context, study: SweepStudy) -> None:
    with pytest.raises(NotFound, match=r"There is no sweep 'other'.*There are: mine"):
        show_sweep(ShowSweepInput(name="other"), context)


def test_a_word_with_commands_takes_a_file_and_options_in_any_order() -> None:
    group = app.get_command(app.make_context("trainyard", ["sweep", "list"]), "sweep")
    assert group is not None
    read = group.make_context("sweep", ["chain.yaml", "-p", "a.b=int(1,2)", "--trials", "3"])
    assert (read.params["file"], read.params["parameters"], read.params["trials"]) == (
        "chain.yaml", {"a": {"b": "int(1,2)"}}, "3",
    )  # fmt: skip
