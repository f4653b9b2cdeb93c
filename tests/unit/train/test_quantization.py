"""Every format: what its row says, how it is refused, what it loses, and that an adapter trains through it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.conftest import REPOSITORY
from trainyard.errors import InvalidInput, Unavailable
from trainyard.spec.axes.quantization import Quantization
from trainyard.train.model.precision import convert_to_fp8
from trainyard.train.quantization import (
    CPU,
    align_train_eval,
    convert,
    load_config,
    probe,
    read_stored_config,
    require,
    require_fitting_base,
)
from trainyard.train.quantization_roundtrip import NOT_RUN, build_line, build_table, round_trip

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers
HERE = [Quantization.NF4, Quantization.FP4, Quantization.INT8]
"""What runs wherever the product is installed; the others are extras."""
TABLE_ROW = re.compile(r"^\| `\w+` \| \w+ \|.*$", re.MULTILINE)


def load_in(format: Quantization, folder: Path) -> Any:
    config = load_config(format, CPU, read_stored_config(str(folder)))
    options = {"quantization_config": config, "dtype": torch.float32, "device_map": {"": CPU}}
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, **options)
    convert(model, format, CPU)
    return model


# The table


def test_the_manual_carries_the_table_of_this_run() -> None:
    """Rows that cannot run here are compared in their facts only: another machine may have measured them."""
    written = TABLE_ROW.findall((REPOSITORY / "docs" / "quantization.md").read_text(encoding="utf-8"))
    assert len(written) == len(Quantization)
    for row, format in zip(written, Quantization, strict=True):
        if round_trip(format) is None:
            facts = build_line(format).partition(NOT_RUN)[0]
            assert row.startswith(facts), f"run trainyard.train.quantization_roundtrip and take {format.value}"
        else:
            assert row == build_line(format), (
                f"run python -m trainyard.train.quantization_roundtrip and take {format.value}"
            )


def test_the_table_has_a_line_for_each_format() -> None:
    assert len(build_table()) == 2 + len(Quantization)


# Refusals


@pytest.mark.parametrize("format", Quantization)
def test_a_missing_package_is_refused_with_its_install_line(format: Quantization) -> None:
    standing = probe(format, CPU)
    if standing.ok:
        pytest.skip(f"{format.facts.package.name} is installed")
    assert standing.why.startswith(f"{format.value} needs {format.facts.package.name}")
    with pytest.raises(Unavailable, match=f"The format {format.value} cannot be used on cpu here") as caught:
        require(format, CPU)
    assert caught.value.code == "E-PACKAGE-MISSING"
    assert caught.value.do == f"pip install '{format.facts.package.install}'"


@pytest.mark.parametrize("format", HERE)
def test_a_device_without_the_format_is_refused(format: Quantization) -> None:
    with pytest.raises(Unavailable, match=f"has no {format.value} on mps") as caught:
        load_config(format, "mps")
    assert caught.value.do == "Train on cpu, cuda or rocm, or use lora without quantization."


@pytest.mark.parametrize("format", [Quantization.FP8, Quantization.GGUF])
def test_no_base_is_loaded_in_a_format_for_something_else(format: Quantization) -> None:
    with pytest.raises(InvalidInput, match=f"cannot be in {format.value}") as caught:
        load_config(format, CPU)
    assert caught.value.code == "E-QUANTIZATION"


@pytest.mark.parametrize(
    ("format", "stored", "why"),
    [
        (Quantization.GPTQ, None, "stored in full precision, and gptq is made from sample texts, not here"),
        (Quantization.AWQ, {"quant_method": "gptq"}, "stored in gptq, and awq is made from sample texts, not here"),
        (Quantization.NF4, {"quant_method": "awq"}, r"The base is stored in awq\."),
        (Quantization.INT8, {"bits": 3}, "stored in another format"),
    ],
)
def test_a_base_that_does_not_fit_the_format_is_refused(
    format: Quantization, stored: dict[str, Any] | None, why: str
) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        require_fitting_base(format, stored)
    assert caught.value.code == "E-QUANTIZATION"


def test_a_base_that_somebody_quantised_goes_with_its_own_format_only() -> None:
    require_fitting_base(Quantization.GPTQ, {"quant_method": "gptq"})
    require_fitting_base(Quantization.AWQ, {"quant_method": "QuantizationMethod.AWQ"})
    require_fitting_base(Quantization.NF4, None)


def test_a_base_that_was_saved_quantised_is_not_quantised_again(tiny_model: Path, tmp_path: Path) -> None:
    assert read_stored_config(str(tiny_model)) is None
    load_in(Quantization.NF4, tiny_model).save_pretrained(tmp_path)
    stored = read_stored_config(str(tmp_path))
    assert stored is not None
    with pytest.raises(InvalidInput, match="stored in bitsandbytes"):
        load_config(Quantization.NF4, CPU, stored)


# What is lost


def test_errors_on_normal_weights() -> None:
    trips = {format: round_trip(format) for format in HERE}
    errors = {format.value: row.error for format, row in trips.items() if row is not None}
    assert errors == pytest.approx({"nf4": 0.0921, "fp4": 0.1221, "int8": 0.0075}, abs=2e-4)
    assert errors["int8"] < errors["nf4"] < errors["fp4"]


@pytest.mark.parametrize(
    ("format", "bits"),
    [(Quantization.NF4, 4 + 8 / 64 + 32 / 16384), (Quantization.FP4, 4 + 8 / 64 + 32 / 16384),
     (Quantization.INT8, 8 + 32 / 512), (Quantization.HQQ_INT4, 5.0), (Quantization.TORCHAO_INT8, 8 + 32 / 512),
     (Quantization.GGUF, 8.5)],
)  # fmt: skip
def test_bytes_are_exact(format: Quantization, bits: float) -> None:
    trip = round_trip(format)
    if trip is None:
        pytest.skip(f"{format.facts.package.name} is not installed")
    assert trip.bits == bits
    if format.facts.use == "base":
        assert trip.bits == pytest.approx(format.facts.bits, abs=0.07)


def test_a_loaded_layer_is_the_one_that_is_measured(tiny_model: Path) -> None:
    """A model's own weight comes back with the error of normal weights, and its output layer is untouched."""
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    loaded = load_in(Quantization.NF4, tiny_model)
    layer, weight = loaded.model.layers[0].mlp.up_proj, plain.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        back = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        error = ((back - weight).square().mean() / weight.square().mean()).sqrt()
    assert float(error) == pytest.approx(0.0921, abs=0.005)
    assert torch.equal(loaded.lm_head.weight, plain.lm_head.weight)


# Training through it


def trains_here() -> list[Quantization]:
    return [format for format in Quantization if suits(format) and probe(format, CPU).ok]


def suits(format: Quantization) -> bool:
    return format.facts.trains and not format.facts.calibrates


def loss_and_gradients(model: Any, ids: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss = model(ids, labels=ids).loss
    return float(loss.detach()), list(torch.autograd.grad(loss, trainable))


@pytest.mark.parametrize("format", trains_here())
def test_an_evaluation_changes_nothing_of_the_training(format: Quantization, tiny_model: Path) -> None:
    """Logits and gradients are the same before and after an evaluation, and equal in both modes."""
    torch.manual_seed(0)
    model = load_in(format, tiny_model)
    assert align_train_eval(model) == (14 if format in HERE else 0)
    targets = ["q_proj", "v_proj", "down_proj"]
    policy: Any = get_peft_model(model, LoraConfig(r=4, target_modules=targets, init_lora_weights=False))
    ids = torch.arange(24).reshape(2, 12) + 5
    policy.train()
    before, gradients = loss_and_gradients(policy, ids)
    policy.eval()
    with torch.no_grad():
        assert float(policy(ids, labels=ids).loss) == before
    policy.train()
    after, again = loss_and_gradients(policy, ids)
    assert after == before
    assert all(torch.equal(gradient, two) for gradient, two in zip(gradients, again, strict=True))
    assert all(float(gradient.abs().sum()) > 0 for gradient in gradients)


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
def test_gradient_is_that_of_the_weight_that_comes_back(kind: str) -> None:
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(3))
    layer: Any
    if kind == "int8":
        layer = Linear8bitLt(128, 64, bias=False, has_fp16_weights=False)
    else:
        layer = Linear4bit(128, 64, bias=False, quant_type=kind)
    layer.load_state_dict({"weight": weight})
    layer = layer.to(CPU)
    align_train_eval(layer)
    inputs = torch.randn(5, 128, generator=torch.Generator().manual_seed(4), requires_grad=True)
    outputs = layer.train()(inputs)
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs)
    with torch.no_grad():
        back = layer(torch.eye(128)).T
    assert torch.allclose(outputs, inputs @ back.T, atol=1e-4)
    assert torch.allclose(gradient, back.sum(0).expand(5, -1), atol=1e-4)
    assert not torch.allclose(gradient, weight.sum(0).expand(5, -1), atol=1e-4)


def test_without_settling_an_evaluation_changes_a_4_bit_model(tiny_model: Path) -> None:
    """Why `align_train_eval` exists; should this fail with a newer bitsandbytes, it may have become idle."""
    model = load_in(Quantization.NF4, tiny_model)
    if not model.model.layers[0].mlp.up_proj.support_avx512bf16_for_cpu:
        pytest.skip("this processor does not multiply bfloat16, so bitsandbytes repacks nothing")
    ids = torch.arange(12)[None] + 5
    with torch.no_grad():
        before = model.train()(ids).logits
        model.eval()(ids)
        assert not torch.equal(model.train()(ids).logits, before)


@pytest.mark.skipif(not probe(Quantization.FP8, CPU).ok, reason="torchao is not installed")
def test_float8_spares_the_output_layer_and_odd_sizes(tiny_model: Path) -> None:
    model = convert_to_fp8(AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32), emulate=True)
    assert sum(type(module).__name__ == "Float8Linear" for module in model.modules()) == 14
    assert type(model.lm_head) is torch.nn.Linear
    odd = convert_to_fp8(torch.nn.Sequential(torch.nn.Linear(32, 24), torch.nn.Linear(32, 48)), emulate=True)
    assert [type(module).__name__ for module in odd] == ["Linear", "Float8Linear"]
