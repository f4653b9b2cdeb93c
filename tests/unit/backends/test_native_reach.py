"""What the refusals let through to the native engine, the engine has; what they keep back, it lacks."""

from __future__ import annotations

import pytest

from trainyard.errors import InvalidInput
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.compat.engine import COMPARING_STAGES, PACKABLE_STAGES
from trainyard.spec.compat.training import BACKENDS, SUMMED_METHODS, WHOLE_METHODS
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.batching import choose_cut
from trainyard.train.methods.table import METHODS
from trainyard.train.schedules import SCHEDULES
from trainyard.train.stages.dpo import LOSSES
from trainyard.train.stages.table import STAGES

REACH = BACKENDS[BackendName.NATIVE]


def test_the_engine_has_every_stage_and_method_that_it_is_given() -> None:
    assert set(STAGES) == set(REACH.stages) == set(Stage) - {Stage.PPO, Stage.GRPO}
    assert set(METHODS) == set(REACH.methods) == set(Method)
    assert set(LOSSES) == set(PreferenceLoss)
    assert set(SCHEDULES) == set(Schedule)


def test_the_engine_tells_whole_weights_and_sums_apart_as_the_refusals_do() -> None:
    assert {name for name, spec in METHODS.items() if spec.choose is not None} == set(WHOLE_METHODS)
    assert {name for name, spec in METHODS.items() if spec.adapter_config is not None} > SUMMED_METHODS


@pytest.mark.parametrize("stage", STAGES)
def test_rows_are_packed_where_the_refusals_allow_it(stage: Stage) -> None:
    asked = TrainerConfig.model_validate({"stage": stage, "engine": {"batching": "packed"}})
    config = resolve_trainer(asked, "base")
    if stage in PACKABLE_STAGES:
        assert choose_cut(config, STAGES[stage], "cpu").mode == "packed"
    else:
        with pytest.raises(InvalidInput, match="E-BATCHING"):
            choose_cut(config, STAGES[stage], "cpu")


def test_the_stages_that_compare_rows_are_those_that_need_two() -> None:
    assert {name for name, spec in STAGES.items() if spec.smallest_batch > 1} == set(COMPARING_STAGES)
