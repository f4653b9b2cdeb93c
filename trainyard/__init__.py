"""Trainyard: LLM fine-tuning as typed DAGs on Prefect.

The names of the public API are imported when they are used, so that `import trainyard` costs nothing.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainyard.api.sdk.chains import AiGenerator, Chain, DataSource, Deployer, Evaluator, Trainer, Validator
    from trainyard.api.sdk.surface import here
    from trainyard.errors import TrainyardError

__version__ = "0.1.0"
__all__ = [
    "AiGenerator",
    "Chain",
    "DataSource",
    "Deployer",
    "Evaluator",
    "Trainer",
    "TrainyardError",
    "Validator",
    "here",
]
MODULES = {"here": "trainyard.api.sdk.surface", "TrainyardError": "trainyard.errors"}
"""Name -> the module that has it, for those that are not nodes and chains."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trainyard' has no attribute {name!r}", name=name)
    return pkgutil.resolve_name(f"{MODULES.get(name, 'trainyard.api.sdk.chains')}:{name}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
