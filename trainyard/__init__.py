"""Trainyard: LLM fine-tuning as typed DAGs on Prefect.

The names of the public API are imported when they are used, so that `import trainyard` costs nothing. Their types are
in `__init__.pyi`. A place with a colon names an attribute that has another name there.
"""

import pkgutil

__version__ = "0.1.0"
EXPORTS = {
    "AiGenerator": "trainyard.surfaces.sdk.chains",
    "Chain": "trainyard.surfaces.sdk.chains",
    "DataSource": "trainyard.surfaces.sdk.chains",
    "Deployer": "trainyard.surfaces.sdk.chains",
    "Evaluator": "trainyard.surfaces.sdk.chains",
    "Trainer": "trainyard.surfaces.sdk.chains",
    "TrainyardError": "trainyard.errors",
    "Validator": "trainyard.surfaces.sdk.chains",
    "adapters": "trainyard.surfaces.sdk.surface:here.adapters",
    "aio": "trainyard.surfaces.sdk.asynchronous",
    "check": "trainyard.surfaces.sdk.surface:here.check",
    "connect": "trainyard.surfaces.sdk.remote",
    "connect_async": "trainyard.surfaces.sdk.asynchronous",
    "here": "trainyard.surfaces.sdk.surface",
    "jobs": "trainyard.surfaces.sdk.surface:here.jobs",
    "plan": "trainyard.surfaces.sdk.surface:here.plan",
    "run": "trainyard.surfaces.sdk.surface:here.run",
}
__all__ = list(EXPORTS)


def __getattr__(name: str) -> object:
    if name not in EXPORTS:
        raise AttributeError(f"module 'trainyard' has no attribute {name!r}", name=name)
    target = EXPORTS[name]
    return pkgutil.resolve_name(target if ":" in target else f"{target}:{name}")


def __dir__() -> list[str]:
    return [*EXPORTS, "__version__"]
