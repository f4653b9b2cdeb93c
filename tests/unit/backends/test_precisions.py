"""A precision that was measured counts for every later training of the same base on the same machine."""

from __future__ import annotations

from pathlib import Path

from trainyard.backends.precisions import choice_file, describe_choice, keep_choice, read_choice
from trainyard.settings import Settings
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.training import Hyperparameters, TrainerConfig
from trainyard.train.precision import PrecisionChoice, cpu_bf16

BF16 = PrecisionChoice(Precision.BF16, "1.50 times as fast as fp32 here (amx_bf16)")
FP32 = PrecisionChoice(Precision.FP32, "bf16 was only 0.94 times as fast here (amx_bf16)")


def test_the_first_measurement_counts(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert read_choice("/models/base", settings) is None
    assert keep_choice("/models/base", BF16, settings) == BF16
    later = keep_choice("/models/base", FP32, settings)
    assert later.precision is Precision.BF16
    assert later == read_choice("/models/base", settings)
    assert later.why == f"{BF16.why}, measured at its first training"
    assert keep_choice("/models/other", FP32, settings) == FP32
    assert len(list(choice_file("/models/base", settings).parent.iterdir())) == 2


def test_a_plan_reports_it_where_it_is_measured(tmp_path: Path) -> None:
    settings, base = Settings(home=tmp_path), Path("/models/base")
    auto, fixed = TrainerConfig(), TrainerConfig(hyperparameters=Hyperparameters(precision=Precision.FP32))
    measures = cpu_bf16() is not None
    assert len(describe_choice(auto, base, Device.CPU, settings)) == measures
    keep_choice(str(base), FP32, settings)
    said = describe_choice(auto, base, Device.CPU, settings)
    assert said == [f"Precision auto is fp32 on this CPU: {FP32.why}, measured at its first training."] * measures
    assert (
        describe_choice(fixed, base, Device.CPU, settings) == describe_choice(auto, base, Device.CUDA, settings) == []
    )
