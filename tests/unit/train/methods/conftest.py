"""What the tests of methods share: requests on the tiny model, a few steps, and a trained adapter of each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.spec.axes.methods import METHOD_SETTINGS, Method
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.methods.contract import Policy, PolicyRequest
from trainyard.train.methods.table import build, parameter_groups, save

IDS_BT = torch.arange(2 * 16).view(2, 16) + 40

Request = Callable[..., PolicyRequest]
Trained = Callable[[str], Path]


def steps(policy: Policy, request: PolicyRequest, count: int = 2, *, rate: float = 1e-2) -> None:
    """A few steps on one batch, at a rate that makes every change visible."""
    groups = parameter_groups(policy, request.config)
    optimizer = torch.optim.AdamW([{**group, "lr": rate} for group in groups])
    for _ in range(count):
        policy.model(input_ids=IDS_BT, labels=IDS_BT).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def logits(model: Any) -> torch.Tensor:
    """Logits in evaluation mode; the mode is put back."""
    mode = model.training
    model.eval()
    with torch.no_grad():
        logits_BTV: torch.Tensor = model(input_ids=IDS_BT).logits.float()
    model.train(mode)
    return logits_BTV


@pytest.fixture(scope="session")
def request_of(tiny_model: Path) -> Request:
    """`request_of(Method.LORA, adapter=…, head=…, settings={…}, …)`: a resolved request on the tiny model.

    Of the settings those apply that the method has.
    """

    def make(
        method: Method | str,
        *,
        base: Path = tiny_model,
        adapter: Path | None = None,
        head: Any = "causal",
        how: str = "continue",
        settings: dict[str, Any] | None = None,
        **fields: Any,
    ) -> PolicyRequest:
        field_names = METHOD_SETTINGS[Method(method)].model_fields
        method_settings = {name: value for name, value in (settings or {}).items() if name in field_names}
        config = TrainerConfig.model_validate({"method": {"type": method, **method_settings}, "adapter": how, **fields})
        return PolicyRequest(resolve_trainer(config, str(base)), str(base), head, "cpu", adapter=adapter)

    return make


@pytest.fixture(scope="session")
def trained(request_of: Request, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Folder of an adapter of a method after a few steps, trained once a session."""
    folders: dict[str, Path] = {}

    def make(method: str) -> Path:
        if method not in folders:
            request = request_of(method, settings={"rank": 8})
            policy = build(request, with_reference=False)
            steps(policy, request)
            folders[method] = tmp_path_factory.mktemp("adapters") / method
            save(policy, request, folders[method])
        return folders[method]

    return make
