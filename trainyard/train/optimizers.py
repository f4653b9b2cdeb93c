"""Ten optimizers behind one call: how each is built from a run's settings. Its facts are in `spec/axes/optimizers`.

An optimizer here is a `torch.optim.Optimizer` or a `CompositeOptimizer`, which has the part of it that training uses:
`step`, `zero_grad`, `param_groups`, `state_dict`, `load_state_dict`. A state that was saved in the middle of a run and
loaded again continues bit-identically, whatever the dtype of the weights. It contains only tensors and plain
values, so that a checkpoint never needs a pickle.

Adding one: a row in `spec/axes/optimizers`, a function in `OPTIMIZERS`, and the tests that run over the table.

Muon with a stated dtype: momentum, then an orthogonal step for whole matrices (Jordan 2024).

torch's `Muon` multiplies in bfloat16 on every device. A CPU without bf16 instructions does that in a scalar loop on one
thread: a step of the starter model took 12 s there, and 1.2 s in float32. So the dtype of the Newton-Schulz iteration
is a setting of each parameter group, chosen by the device and saved with the optimizer's state: a resumed training
continues in the dtype in which it began. In bfloat16 the results are torch's, bit for bit.

Source: https://kellerjordan.github.io/posts/muon/ (iteration, coefficients); arXiv 2502.16982, section 2.2 (a step as
large as AdamW's). Matrices are (R rows, C columns), with R ≤ C inside the iteration.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from trainyard.errors import InvalidInput, Unavailable
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.loading import load_object
from trainyard.spec.axes.optimizers import Optimizer, OptimizerFacts
from trainyard.spec.training import TrainerConfig
from trainyard.train.model.precision import Availability, native_bf16

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: its slope at zero is as large as it can be while singular values stay near one."""
ITERATIONS = 5
EPSILON = 1e-7
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
RMS_OF_ADAMW = 0.2
"""Root mean square of a typical AdamW step (arXiv 2502.16982)."""


def newton_schulz_dtype(device: str) -> str:
    """`bf16` where the device multiplies it natively, else `fp32`. `device` is `cpu`, `cuda` or `mps`."""
    return "bf16" if native_bf16(device) else "fp32"


def orthogonalize(matrix_RC: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return U·V' of the matrix's singular value decomposition, about: singular values end between 0.5 and 1.5.

    Takes and returns (R, C) in any order of sizes; the result is of `dtype`.
    """
    a, b, c = COEFFICIENTS
    tall = matrix_RC.size(0) > matrix_RC.size(1)
    result_RC = matrix_RC.to(dtype, copy=True)
    if tall:
        result_RC = result_RC.T
    result_RC.div_(result_RC.norm().clamp(min=EPSILON))
    for _ in range(ITERATIONS):
        gram_RR = result_RC @ result_RC.T
        update_RR = torch.addmm(gram_RR, gram_RR, gram_RR, beta=b, alpha=c)
        result_RC = torch.addmm(result_RC, update_RR, result_RC, beta=a)
    return result_RC.T if tall else result_RC


def scale_by_shape(rows: int, columns: int) -> float:
    """Factor of the learning rate that keeps the step's size over shapes: √(rows / columns), at least 1."""
    return math.sqrt(max(1, rows / columns))


def scale_to_adamw(rows: int, columns: int) -> float:
    """Factor of the learning rate with which a step is as large as AdamW's."""
    return RMS_OF_ADAMW * math.sqrt(max(rows, columns))


class Muon(torch.optim.Optimizer):
    """Muon for matrices, with Nesterov momentum and decoupled weight decay.

    `newton_schulz` is `bf16` or `fp32`, by default what the first parameter's device is fast in. `scale` gives the
    factor of the learning rate for (rows, columns). Raises `ValueError` for a parameter that is not a matrix.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        newton_schulz: str | None = None,
        scale: Callable[[int, int], float] = scale_to_adamw,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "newton_schulz": newton_schulz}
        super().__init__(params, defaults)
        self.scale = scale
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(f"Muon moves matrices; this parameter has the shape {tuple(parameter.shape)}.")
                group["newton_schulz"] = group["newton_schulz"] or newton_schulz_dtype(parameter.device.type)

    def load_state_dict(self, state_dict: JsonObject) -> None:
        """Continue in the dtype of the saved state; states without one were made by torch's Muon, in bf16."""
        groups = [
            {**group, "newton_schulz": group.get("newton_schulz", "bf16")} for group in state_dict["param_groups"]
        ]
        super().load_state_dict({**state_dict, "param_groups": groups})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter, group)

    def move(self, parameter: torch.Tensor, group: JsonObject) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average: torch.Tensor = state["momentum_buffer"]
        average.lerp_(gradient, 1 - group["momentum"])
        update = orthogonalize(gradient.lerp(average, group["momentum"]), DTYPES[group["newton_schulz"]])
        rate = float(group["lr"])
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.add_(update, alpha=-rate * self.scale(*parameter.shape))


Group = dict[str, Any]
"""`params`, `lr`, `weight_decay`, and `names`: the name of each parameter."""
State = dict[str, Any]
Maker = Callable[[list[Group]], Any]
"""Builds an optimizer for groups of weights."""

CPU, CUDA = "cpu", "cuda"

SGD_MOMENTUM = 0.9
LION_BETAS = (0.9, 0.99)
MUON_MOMENTUM = 0.95
ADEMAMIX_BETAS, ADEMAMIX_ALPHA = (0.9, 0.999, 0.9999), 5.0
"""The paper's (arXiv 2409.03137). Its warm-ups of alpha and beta3 are for runs of 100 000 steps and left out."""
GALORE = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "projection_type": "std"}
"""The paper's (arXiv 2403.03507), and the defaults of transformers."""
PROJECTOR = ("ortho_matrix", "last_svd_step")
"""The state of one of its projections."""

BLOCK_MATRIX = re.compile(r"\.\d+\.")
"""In the name of a parameter that sits in a numbered block; embeddings, the output layer and the last norm do not."""


class CompositeOptimizer:
    """Optimizers that step as one, each with its own parameters. `inner` is the first of them."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts
        self.inner = next(iter(parts.values()))

    @property
    def param_groups(self) -> list[Group]:
        """Return the groups of all parts. Not kept: a part replaces its groups when it loads a state."""
        return [group for part in self.parts.values() for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts.values():
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts.values():
            part.zero_grad(set_to_none=set_to_none)

    def train(self) -> None:
        """Put back the weights that a step moves."""

    def eval(self) -> None:
        """Show the weights that are served, where those are others."""

    def state_dict(self) -> State:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: JsonMapping) -> None:
        """Raises `ValueError` for the state of another assembly, as torch does for other groups."""
        if state.keys() != self.parts.keys():
            raise ValueError(f"the state is of {sorted(state)}, this optimizer is made of {sorted(self.parts)}")
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


class ScheduleFree(CompositeOptimizer):
    """Schedule-free AdamW, which shows the averaged weights to a look and the weights it moves to a step.

    The package turns one into the other in place, which rounds. The training weights are copied during the evaluation,
    so that it leaves no trace; this costs their memory once more for that time.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__(schedule_free=optimizer)
        self._trained: list[torch.Tensor] = []
        optimizer.train()

    def train(self) -> None:
        self.inner.train()
        if self._trained:
            with torch.no_grad():
                for parameter, trainable in zip(iterate_parameters(self.param_groups), self._trained, strict=True):
                    parameter.copy_(trainable)
        self._trained = []

    def eval(self) -> None:
        if self.param_groups[0]["train_mode"]:
            self._trained = [parameter.detach().clone() for parameter in iterate_parameters(self.param_groups)]
            self.inner.eval()

    def load_state_dict(self, state: JsonMapping) -> None:
        """Drop the weights of the last evaluation: they belong to the old state."""
        super().load_state_dict(state)
        self._trained = []


class GaLoreOptimizer(CompositeOptimizer):
    """GaLore. Its projections are objects of the package; a state contains what they are built from."""

    def state_dict(self) -> State:
        saved = self.inner.state_dict()
        return {"galore": {**saved, "state": {key: flat(entry) for key, entry in saved["state"].items()}}}

    def load_state_dict(self, state: JsonMapping) -> None:
        super().load_state_dict(state)
        projector = load_object("pytorch_optimizer.optimizer.utils.galore:GaLoreProjector")
        for parameter in iterate_parameters(self.param_groups):
            entry = self.inner.state.get(parameter, {})
            if "projector" in entry:
                galore_projector = projector(**GALORE)
                for name, value in entry["projector"].items():
                    setattr(galore_projector, name, value)
                entry["projector"] = galore_projector


def flat(entry: JsonMapping) -> State:
    """Return a parameter's GaLore state with plain values for the projector."""
    if "projector" not in entry:
        return dict(entry)
    return {**entry, "projector": {name: getattr(entry["projector"], name) for name in PROJECTOR}}


class PagedAdamW8bit(CompositeOptimizer):
    """8-bit AdamW with states in memory that CUDA pages. Loading brings them back as ordinary memory of the device."""

    def load_state_dict(self, state: JsonMapping) -> None:
        super().load_state_dict(state)
        for parameter in iterate_parameters(self.param_groups):
            entry = self.inner.state.get(parameter, {})
            for name in entry.keys() & {"state1", "state2"}:
                buffer = self.inner.get_state_buffer(parameter, dtype=entry[name].dtype)
                entry[name] = buffer.copy_(entry[name])


class AdafactorOptimizer(CompositeOptimizer):
    """Adafactor of transformers. Its float32 states of bf16 weights would be rounded to bf16 by torch's loading."""

    def load_state_dict(self, state: JsonMapping) -> None:
        super().load_state_dict(state)
        saved = state["adafactor"]
        indices = (index for group in saved["param_groups"] for index in group["params"])
        for index, parameter in zip(indices, iterate_parameters(self.param_groups), strict=True):
            for name, value in saved["state"].get(index, {}).items():
                if isinstance(value, torch.Tensor):
                    self.inner.state[parameter][name] = value.to(parameter.device, copy=True)


def iterate_parameters(groups: Iterable[Group]) -> Iterator[torch.nn.Parameter]:
    return (parameter for group in groups for parameter in group["params"])


def drop_names(groups: Iterable[Group]) -> list[Group]:
    return [{key: value for key, value in group.items() if key != "names"} for group in groups]


def split_blocks(groups: Iterable[Group]) -> tuple[list[Group], list[Group]]:
    """Return the groups' matrices inside numbered blocks, and everything else; empty groups are left out, names too."""
    parts: tuple[list[Group], list[Group]] = ([], [])
    for group, (rest,) in ((group, drop_names([group])) for group in groups):
        named = list(zip(group["names"], group["params"], strict=True))
        for part, inside in zip(parts, (True, False), strict=True):
            members = [
                parameter
                for name, parameter in named
                if (parameter.ndim == 2 and bool(BLOCK_MATRIX.search(name))) is inside
            ]
            part += [{**rest, "params": members}] if members else []
    return parts


def paged_adamw_8bit(groups: list[Group]) -> Any:
    on_cpu = next(iterate_parameters(groups)).device.type == CPU
    make = load_object(f"bitsandbytes.optim:{'' if on_cpu else 'Paged'}AdamW8bit")
    return PagedAdamW8bit(paged=make(drop_names(groups)))


def adafactor(groups: list[Group]) -> Any:
    """With the learning rate as given: relative steps would fight the schedule, and scaling by the weights' size would
    never move the zeros that an adapter starts from."""
    make = load_object("transformers.optimization:Adafactor")
    return AdafactorOptimizer(adafactor=make(drop_names(groups), scale_parameter=False, relative_step=False))


def muon(groups: list[Group]) -> Any:
    """Muon for the matrices of the blocks, with steps as large as AdamW's, and AdamW for the rest."""
    matrices, vectors = split_blocks(groups)
    parts: JsonObject = {}
    if matrices:
        parts["muon"] = Muon(matrices, momentum=MUON_MOMENTUM)
    if vectors:
        parts["adamw"] = torch.optim.AdamW(vectors, fused=True)
    return CompositeOptimizer(**parts)


def galore(groups: list[Group]) -> Any:
    matrices, vectors = split_blocks(groups)
    projected = [{**group, **GALORE} for group in matrices]
    return GaLoreOptimizer(galore=load_object("pytorch_optimizer:GaLore")(projected + vectors))


def ademamix(groups: list[Group]) -> Any:
    make = load_object("bitsandbytes.optim:AdEMAMix")
    return make(drop_names(groups), betas=ADEMAMIX_BETAS, alpha=ADEMAMIX_ALPHA)


OPTIMIZERS: dict[Optimizer, Maker] = {
    Optimizer.ADAMW: lambda groups: torch.optim.AdamW(drop_names(groups), fused=True),
    Optimizer.SGD: lambda groups: torch.optim.SGD(drop_names(groups), momentum=SGD_MOMENTUM),
    Optimizer.ADAMW_8BIT: lambda groups: load_object("bitsandbytes.optim:AdamW8bit")(drop_names(groups)),
    Optimizer.PAGED_ADAMW_8BIT: paged_adamw_8bit,
    Optimizer.ADAFACTOR: adafactor,
    Optimizer.LION: lambda groups: load_object("bitsandbytes.optim:Lion")(drop_names(groups), betas=LION_BETAS),
    Optimizer.MUON: muon,
    Optimizer.SCHEDULE_FREE_ADAMW: lambda groups: ScheduleFree(
        load_object("schedulefree:AdamWScheduleFree")(drop_names(groups))
    ),
    Optimizer.GALORE: galore,
    Optimizer.ADEMAMIX: ademamix,
}


def available(name: Optimizer, device: str = CPU) -> Availability:
    """Return whether the optimizer can be used on a device (`cpu`, `cuda`, `mps`); imports nothing."""
    return availability(name.facts, device)


def availability(row: OptimizerFacts, device: str) -> Availability:
    package = row.package.name
    if importlib.util.find_spec(package) is None:
        return Availability(False, f"The package {package} is not installed.", f"pip install '{row.package.install}'")
    if device not in row.devices:
        fix = f"Train on {' or '.join(row.devices)}, or use optimizer adamw."
        return Availability(False, f"{package} does not run on {device}.", fix)
    return Availability(True)


def make_optimizer(groups: list[Group], config: TrainerConfig) -> Any:
    """Return the optimizer that `config.hyperparameters.optimizer` names, for groups of {params, lr, weight_decay,
    names}.

    Another one is never taken in its place; `spec/compat/advice` says where one differs on a CPU. Raises `Unavailable`:
    `E-PACKAGE-MISSING` when its package is not installed or does not load, `E-DEVICE` when it does not run
    where the parameters are; `InvalidInput` (`E-TRAINABLE`) when there are none.
    """
    name = config.hyperparameters.optimizer
    return build(name, name.facts, OPTIMIZERS[name], groups)


def build(name: Optimizer, row: OptimizerFacts, make: Maker, groups: list[Group]) -> Any:
    first = next(iterate_parameters(groups), None)
    if first is None:
        raise InvalidInput(
            "No weight would move.",
            why="The method left no trainable parameter in this model.",
            do="Name modules or layers that the model has.",
            code="E-TRAINABLE",
        )
    state = availability(row, first.device.type)
    if not state.ok:
        code = "E-DEVICE" if importlib.util.find_spec(row.package.name) else "E-PACKAGE-MISSING"
        raise Unavailable(f"Optimizer {name} cannot be used here.", why=state.why, do=state.fix, code=code)
    try:
        return make(groups)
    except ImportError as error:
        raise Unavailable(
            f"Optimizer {name} cannot be used here.",
            why=f"The package {row.package.name} does not load: {error}.",
            do=f"pip install --force-reinstall '{row.package.install}'",
            code="E-PACKAGE-MISSING",
        ) from error


def optimizer_facts(optimizer: Any) -> dict[str, str]:
    """Return what an optimizer chose for this device, for the record of a training: Muon's dtype."""
    dtype = next((group["newton_schulz"] for group in optimizer.param_groups if "newton_schulz" in group), None)
    return {"newton_schulz": dtype} if dtype else {}


def switch_to_train(optimizer: Any) -> None:
    """Before steps: a schedule-free optimizer puts back the weights that it moves. Nothing for the others."""
    if isinstance(optimizer, CompositeOptimizer):
        optimizer.train()


def switch_to_eval(optimizer: Any) -> None:
    """Before a look at the weights, or their export: a schedule-free optimizer shows its average. Nothing otherwise."""
    if isinstance(optimizer, CompositeOptimizer):
        optimizer.eval()
