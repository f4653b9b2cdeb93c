"""Every optimizer of the table: it minimises, it learns, it goes on to the same bits; a missing one is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trainyard.errors import InvalidInput, Unavailable
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.packages import Package
from trainyard.spec.training import Hyperparameters, TrainerConfig
from trainyard.train.checkpoint.state import Tensors, flatten, rebuild
from trainyard.train.optimizers import (
    OPTIMIZERS,
    CompositeOptimizer,
    Group,
    Muon,
    PagedAdamW8bit,
    ScheduleFree,
    availability,
    available,
    build,
    iterate_parameters,
    make_optimizer,
    split_blocks,
    switch_to_eval,
    switch_to_train,
)
from trainyard.train.schedules import LearningRate

HERE = [name for name in Optimizer if available(name).ok]
"""Those whose package is installed; the others' refusal is tested with a row that no machine can satisfy."""
STEPS = 240
QUADRATIC_RATES = {Optimizer.SGD: 0.02, Optimizer.MUON: 0.2, Optimizer.SCHEDULE_FREE_ADAMW: 0.2, Optimizer.GALORE: 0.3}
MODEL_RATES = {Optimizer.SGD: 0.3, Optimizer.LION: 4e-3}
OF_EIGHT_BITS = (Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT)

Named = dict[str, torch.nn.Parameter]


def config(name: Optimizer, schedule: Schedule = Schedule.LINEAR) -> TrainerConfig:
    if name is Optimizer.SCHEDULE_FREE_ADAMW:
        schedule = Schedule.CONSTANT
    return TrainerConfig(hyperparameters=Hyperparameters(optimizer=name, schedule=schedule, warmup_ratio=0.0))


def make_groups(named: Named, rate: float, weight_decay: float = 0.0) -> list[Group]:
    """Two groups, as the methods make them: matrices, and the rest without decay."""
    groups: list[Group] = []
    for matrices in (True, False):
        members = {name: value for name, value in named.items() if (value.ndim == 2) is matrices}
        decay = weight_decay if matrices else 0.0
        groups.append(
            {"params": list(members.values()), "names": list(members), "lr": rate, "weight_decay": decay}
        )  # fmt: skip
    return groups


def quadratic(dtype: torch.dtype = torch.float32) -> Named:
    """A matrix of a block, large enough for 8-bit states and for a projection, and two small tensors."""
    torch.manual_seed(0)
    shapes = {"model.layers.0.weight": (160, 144), "model.layers.0.bias": (64,), "model.embed.weight": (8, 16)}
    return {name: torch.nn.Parameter(torch.randn(shape).to(dtype)) for name, shape in shapes.items()}


def height(named: Named) -> torch.Tensor:
    """A convex bowl, its curvatures between 1/2 and 2."""
    total = torch.zeros(())
    for value in named.values():
        curvature = torch.linspace(0.5, 2.0, value.shape[0]).reshape(-1, *[1] * (value.ndim - 1))
        total = total + 0.5 * (curvature * value.float() ** 2).sum()
    return total


def descend(optimizer: Any, rate: LearningRate, loss: Callable[[], torch.Tensor], steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        rate.step()


def pass_checkpoint(state: dict[str, Any]) -> Any:
    """As tensors and plain values, the way a checkpoint holds it: no object of a package survives this."""
    tensors: Tensors = {}
    values = flatten(state, "optimizer", tensors)
    return rebuild(copy.deepcopy(values), {name: tensor.clone() for name, tensor in tensors.items()})


@pytest.mark.parametrize("name", HERE)
def test_it_finds_the_bottom_of_a_bowl(name: Optimizer) -> None:
    named = quadratic()
    start = height(named).item()
    optimizer = make_optimizer(make_groups(named, QUADRATIC_RATES.get(name, 0.05)), config(name))
    descend(optimizer, LearningRate(optimizer, config(name), STEPS), lambda: height(named), STEPS)
    switch_to_eval(optimizer)
    assert height(named).item() < 1e-3 * start


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", HERE)
def test_a_saved_state_goes_on_to_the_same_bits(name: Optimizer, dtype: torch.dtype) -> None:
    rate = QUADRATIC_RATES.get(name, 0.05)
    straight = quadratic(dtype)
    optimizer = make_optimizer(make_groups(straight, rate, 0.1), config(name))
    schedule = LearningRate(optimizer, config(name), STEPS)
    # GaLore takes a new projection at step 200.
    descend(optimizer, schedule, lambda: height(straight), 195 if name is Optimizer.GALORE else 15)
    weights = {key: value.detach().clone() for key, value in straight.items()}
    state, curve = pass_checkpoint(optimizer.state_dict()), schedule.state_dict()
    descend(optimizer, schedule, lambda: height(straight), 15)

    resumed = {key: torch.nn.Parameter(value) for key, value in weights.items()}
    second = make_optimizer(make_groups(resumed, rate, 0.1), config(name))
    again = LearningRate(second, config(name), STEPS)
    second.load_state_dict(state)
    again.load_state_dict(curve)
    descend(second, again, lambda: height(resumed), 15)
    assert all(torch.equal(resumed[key], straight[key]) for key in straight)


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=32,
        )
    )


def measure_losses(name: Optimizer) -> tuple[float, float]:
    """(first, last) loss of 30 steps on one batch."""
    model = tiny_llama()
    ids_BT = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(1))
    named = dict(model.named_parameters())
    optimizer = make_optimizer(make_groups(named, MODEL_RATES.get(name, 3e-3)), config(name))

    def loss() -> torch.Tensor:
        return model(input_ids=ids_BT, labels=ids_BT).loss

    first = loss().item()
    descend(optimizer, LearningRate(optimizer, config(name), 30), loss, 30)
    switch_to_eval(optimizer)
    return first, loss().item()


@pytest.fixture(scope="module")
def adamw_loss() -> float:
    return measure_losses(Optimizer.ADAMW)[1]


@pytest.mark.parametrize("name", HERE)
def test_a_tiny_model_learns(name: Optimizer, adamw_loss: float) -> None:
    first, last = measure_losses(name)
    assert last < 0.5 * first
    assert last < 1.3 * max(adamw_loss, 1.0)


def test_adamw_is_torchs() -> None:
    parameters, reference_parameters = quadratic(), quadratic()
    optimizer = make_optimizer(make_groups(parameters, 0.01, 0.1), config(Optimizer.ADAMW))
    plain = [{k: v for k, v in group.items() if k != "names"} for group in make_groups(reference_parameters, 0.01, 0.1)]
    reference = torch.optim.AdamW(plain, fused=False, foreach=False)
    for each, named in ((optimizer, parameters), (reference, reference_parameters)):
        for _ in range(20):
            each.zero_grad()
            height(named).backward()
            each.step()
    for name in parameters:
        torch.testing.assert_close(parameters[name], reference_parameters[name], atol=1e-6, rtol=1e-5)


def test_muon_moves_the_matrices_of_blocks_and_adamw_the_rest() -> None:
    named, reference = quadratic(), quadratic()
    optimizer = make_optimizer(make_groups(named, 0.01, 0.1), config(Optimizer.MUON))
    matrix = reference["model.layers.0.weight"]
    rest = [
        {"params": [reference["model.embed.weight"]], "weight_decay": 0.1},
        {"params": [reference["model.layers.0.bias"]], "weight_decay": 0.0},
    ]
    muon = Muon([matrix], lr=0.01, weight_decay=0.1)
    adamw = torch.optim.AdamW(rest, lr=0.01, fused=True)
    for _ in range(5):
        optimizer.zero_grad()
        height(named).backward()
        optimizer.step()
        muon.zero_grad()
        adamw.zero_grad()
        height(reference).backward()
        muon.step()
        adamw.step()
    assert all(torch.equal(named[name], reference[name]) for name in named)


def test_muon_steps_are_as_large_as_adamws() -> None:
    """So that a learning rate means the same for both."""
    sizes = []
    for name in (Optimizer.MUON, Optimizer.ADAMW):
        named = quadratic()
        before = named["model.layers.0.weight"].detach().clone()
        optimizer = make_optimizer(make_groups(named, 0.01), config(name))
        height(named).backward()
        optimizer.step()
        sizes.append((named["model.layers.0.weight"] - before).square().mean().sqrt().item())
    assert 0.1 < sizes[0] / sizes[1] < 1.0


def test_blocks_are_told_by_their_number() -> None:
    names = [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "base_model.model.model.layers.11.mlp.up_proj.lora_A.default.weight",
        "transformer.h.3.attn.c_attn.weight",
        "model.layers.0.input_layernorm.weight",
        "lm_head.weight",
        "score.weight",
    ]
    named = {name: torch.nn.Parameter(torch.zeros(2) if "norm" in name else torch.zeros(2, 2)) for name in names}
    group: Group = {"params": list(named.values()), "names": names, "lr": 0.1, "weight_decay": 0.0}
    matrices, vectors = split_blocks([group])
    assert [id(value) for value in iterate_parameters(matrices)] == [id(named[name]) for name in names[1:4]]
    assert len(list(iterate_parameters(vectors))) == 4
    assert matrices[0]["lr"] == 0.1
    assert split_blocks([{**group, "params": [named[names[0]]], "names": names[:1]}])[0] == []


def test_muon_without_a_matrix_is_adamw_alone() -> None:
    named = {"lm_head.weight": torch.nn.Parameter(torch.ones(4, 4))}
    optimizer = make_optimizer(make_groups(named, 0.1)[:1], config(Optimizer.MUON))
    assert list(optimizer.parts) == ["adamw"]


@pytest.mark.parametrize("name", OF_EIGHT_BITS)
def test_eight_bit_states_are_for_large_tensors(name: Optimizer) -> None:
    named = quadratic()
    optimizer = make_optimizer(make_groups(named, 0.01), config(name))
    height(named).backward()
    optimizer.step()
    inner = optimizer.inner if isinstance(optimizer, PagedAdamW8bit) else optimizer
    kinds = {key: inner.state[value]["state1"].dtype for key, value in named.items()}
    assert kinds == {
        "model.layers.0.weight": torch.uint8,
        "model.layers.0.bias": torch.float32,
        "model.embed.weight": torch.float32,
    }


def test_eight_bit_adamw_follows_adamw() -> None:
    results = []
    for name in (Optimizer.ADAMW, Optimizer.ADAMW_8BIT):
        named = quadratic()
        optimizer = make_optimizer(make_groups(named, 0.01), config(name))
        descend(optimizer, LearningRate(optimizer, config(name), 20), partial(height, named), 20)
        results.append(named["model.layers.0.weight"].detach())
    start = quadratic()["model.layers.0.weight"].detach()
    moved = (results[0] - start).norm()
    assert (results[1] - results[0]).norm() < 0.05 * moved


@pytest.mark.parametrize("name", [name for name in HERE if name is not Optimizer.GALORE])
def test_a_plan_counts_the_memory_of_the_states(name: Optimizer) -> None:
    """GaLore's depends on the shape: 1.5 bytes per weight of a 1024 x 1024 matrix, more for smaller ones."""
    named = {"layers.0.weight": torch.nn.Parameter(torch.zeros(512, 512))}
    optimizer = make_optimizer(make_groups(named, 0.01)[:1], config(name))
    named["layers.0.weight"].sum().backward()
    optimizer.step()
    tensors: Tensors = {}
    flatten(optimizer.state_dict(), "optimizer", tensors)
    stored = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert stored / 2**18 == pytest.approx(name.facts.state_bytes, abs=0.05)


@pytest.mark.gpu
def test_paged_states_are_paged_again_after_loading() -> None:
    named = {"layers.0.weight": torch.nn.Parameter(torch.randn(512, 512, device="cuda"))}
    optimizer = make_optimizer(make_groups(named, 0.01)[:1], config(Optimizer.PAGED_ADAMW_8BIT))
    named["layers.0.weight"].sum().backward()
    optimizer.step()
    torch.cuda.synchronize()
    state = pass_checkpoint(optimizer.state_dict())
    second = make_optimizer(make_groups(named, 0.01)[:1], config(Optimizer.PAGED_ADAMW_8BIT))
    second.load_state_dict(state)
    before, after = (each.inner.state[named["layers.0.weight"]]["state1"] for each in (optimizer, second))
    assert before.is_paged
    assert after.is_paged
    assert torch.equal(before, after)


def test_adafactor_moves_the_zeros_an_adapter_starts_from() -> None:
    named = {"layers.0.lora_B.weight": torch.nn.Parameter(torch.zeros(8, 4))}
    optimizer = make_optimizer(make_groups(named, 1e-2)[:1], config(Optimizer.ADAFACTOR))
    (named["layers.0.lora_B.weight"] - 1.0).square().sum().backward()
    optimizer.step()
    assert named["layers.0.lora_B.weight"].mean().item() == pytest.approx(1e-2, rel=0.01)


@pytest.mark.skipif(Optimizer.SCHEDULE_FREE_ADAMW not in HERE, reason="schedulefree is not installed")
def test_a_look_at_schedule_free_weights_leaves_no_trace() -> None:
    looked, straight = quadratic(), quadratic()
    settings = config(Optimizer.SCHEDULE_FREE_ADAMW)
    for named in (looked, straight):
        optimizer = make_optimizer(make_groups(named, 0.05), settings)
        schedule = LearningRate(optimizer, settings, 30)
        for _ in range(3):
            descend(optimizer, schedule, partial(height, named), 10)
            if named is looked:
                trainable = {key: value.detach().clone() for key, value in named.items()}
                switch_to_eval(optimizer)
                switch_to_eval(optimizer)
                assert all(not torch.equal(named[key], trainable[key]) for key in named)
                switch_to_train(optimizer)
                switch_to_train(optimizer)
    assert all(torch.equal(looked[key], straight[key]) for key in straight)


@pytest.mark.skipif(Optimizer.SCHEDULE_FREE_ADAMW not in HERE, reason="schedulefree is not installed")
def test_a_schedule_free_state_saved_during_a_look_trains_on() -> None:
    named = quadratic()
    settings = config(Optimizer.SCHEDULE_FREE_ADAMW)
    optimizer = make_optimizer(make_groups(named, 0.05), settings)
    descend(optimizer, LearningRate(optimizer, settings, 30), lambda: height(named), 5)
    switch_to_eval(optimizer)
    state = pass_checkpoint(optimizer.state_dict())
    resumed = {key: torch.nn.Parameter(value.detach().clone()) for key, value in named.items()}
    second = make_optimizer(make_groups(resumed, 0.05), settings)
    second.load_state_dict(state)
    switch_to_eval(second)
    switch_to_train(second)
    switch_to_train(optimizer)
    for key in named:
        torch.testing.assert_close(resumed[key], named[key])
    height(resumed).backward()
    second.step()


@pytest.mark.skipif(Optimizer.SCHEDULE_FREE_ADAMW not in HERE, reason="schedulefree is not installed")
def test_schedule_free_starts_from_a_rate_of_zero() -> None:
    named = quadratic()
    settings = TrainerConfig(
        hyperparameters=Hyperparameters(
            optimizer=Optimizer.SCHEDULE_FREE_ADAMW, schedule=Schedule.CONSTANT_WITH_WARMUP, warmup_ratio=0.2
        )
    )
    optimizer = make_optimizer(make_groups(named, 0.05), settings)
    start = height(named).item()
    descend(optimizer, LearningRate(optimizer, settings, 50), lambda: height(named), 50)
    assert isinstance(optimizer, ScheduleFree)
    assert height(named).item() < 0.5 * start


@pytest.mark.parametrize("name", HERE)
def test_a_scaler_skips_a_step_that_overflowed(name: Optimizer) -> None:
    named = quadratic()
    optimizer = make_optimizer(make_groups(named, 0.01), config(name))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for overflow in (False, True):
        before = {key: value.detach().clone() for key, value in named.items()}
        optimizer.zero_grad()
        scaler.scale(height(named)).backward()
        if overflow:
            gradient = named["model.embed.weight"].grad
            assert gradient is not None
            gradient[0, 0] = torch.inf
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert all(torch.equal(named[key], before[key]) is overflow for key in named)
    assert scaler.get_scale() == 512.0


def test_every_optimizer_is_built_by_a_function() -> None:
    assert list(OPTIMIZERS) == list(Optimizer)


def test_a_missing_package_is_refused_with_its_install_line() -> None:
    facts = Optimizer.GALORE.facts
    row = replace(facts, package=Package(("no_such_module",), facts.package.install))
    assert availability(row, "cpu").fix == "pip install 'pytorch_optimizer==4.1.0'"
    with pytest.raises(Unavailable, match="The package no_such_module is not installed") as caught:
        build(Optimizer.GALORE, row, OPTIMIZERS[Optimizer.GALORE], make_groups(quadratic(), 0.1))
    assert caught.value.code == "E-PACKAGE-MISSING"
    assert caught.value.do == "pip install 'pytorch_optimizer==4.1.0'"


def test_a_package_that_does_not_load_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_optimizer.py").write_text("raise ImportError('libfoo.so.1 is not there')\n")
    monkeypatch.syspath_prepend(tmp_path)

    def make(groups: list[Group]) -> Any:
        return __import__("broken_optimizer").Broken(groups)

    facts = Optimizer.LION.facts
    row = replace(facts, package=Package(("broken_optimizer",), facts.package.install))
    with pytest.raises(Unavailable, match=r"does not load: libfoo.so.1 is not there") as caught:
        build(Optimizer.LION, row, make, make_groups(quadratic(), 0.1))
    assert caught.value.code == "E-PACKAGE-MISSING"
    assert caught.value.do == "pip install --force-reinstall 'bitsandbytes>=0.50'"


def test_a_device_without_the_optimizer_is_refused() -> None:
    state = available(Optimizer.LION, "mps")
    assert (state.ok, state.why) == (False, "bitsandbytes does not run on mps.")
    row = replace(Optimizer.LION.facts, devices=(Device.CUDA,))
    with pytest.raises(Unavailable, match="bitsandbytes does not run on cpu") as caught:
        build(Optimizer.LION, row, OPTIMIZERS[Optimizer.LION], make_groups(quadratic(), 0.1))
    assert caught.value.code == "E-DEVICE"
    assert caught.value.do == "Train on cuda, or use optimizer adamw."


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(InvalidInput, match="No weight would move") as caught:
        make_optimizer([{"params": [], "names": [], "lr": 0.1, "weight_decay": 0.0}], config(Optimizer.ADAMW))
    assert caught.value.code == "E-TRAINABLE"


def test_the_state_of_another_assembly_is_refused() -> None:
    optimizer = make_optimizer(make_groups(quadratic(), 0.1), config(Optimizer.MUON))
    assert isinstance(optimizer, CompositeOptimizer)
    with pytest.raises(ValueError, match=r"the state is of \['adamw'\], this optimizer is made of \['adamw', 'muon'\]"):
        optimizer.load_state_dict({"adamw": {}})
