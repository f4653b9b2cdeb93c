"""Muon with a stated dtype: momentum, then an orthogonal step for whole matrices (Jordan 2024).

torch's `Muon` multiplies in bfloat16 on every device. A CPU without bf16 instructions does that in a scalar loop on one
thread: a step of the starter model took 12 s there, and 1.2 s in float32. So the dtype of the Newton-Schulz iteration
is a setting of each parameter group, chosen by the device and saved with the optimizer's state: a resumed training
continues in the dtype in which it began. In bfloat16 the results are torch's, bit for bit.

Source: https://kellerjordan.github.io/posts/muon/ (iteration, coefficients); arXiv 2502.16982, section 2.2 (a step as
large as AdamW's). Matrices are (R rows, C columns), with R ≤ C inside the iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainyard.json_types import JsonObject
from trainyard.train.model.precision import native_bf16

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
