"""Trainyard: LLM fine-tuning as typed DAGs on Prefect.

The names of the public API are imported when they are used, so that `import trainyard` costs nothing. Their types are
in `__init__.pyi`. A place with a colon names an attribute that has another name there.
"""

import pkgutil

__version__ = "0.1.0"
EXPORTS = {
    "AiGenerator": "trainyard.api.sdk.chains",
    "Chain": "trainyard.api.sdk.chains",
    "DataSource": "trainyard.api.sdk.chains",
    "Deployer": "trainyard.api.sdk.chains",
    "Evaluator": "trainyard.api.sdk.chains",
    "Trainer": "trainyard.api.sdk.chains",
    "TrainyardError": "trainyard.errors",
    "Validator": "trainyard.api.sdk.chains",
    "adapters": "trainyard.api.sdk.surface:here.adapters",
    "aio": "trainyard.api.sdk.asynchronous",
    "check": "trainyard.api.sdk.surface:here.check",
    "connect": "trainyard.api.sdk.remote",
    "connect_async": "trainyard.api.sdk.asynchronous",
    "here": "trainyard.api.sdk.surface",
    "jobs": "trainyard.api.sdk.surface:here.jobs",
    "plan": "trainyard.api.sdk.surface:here.plan",
    "run": "trainyard.api.sdk.surface:here.run",
}
__all__ = list(EXPORTS)


def __getattr__(name: str) -> object:
    if name not in EXPORTS:
        raise AttributeError(f"module 'trainyard' has no attribute {name!r}", name=name)
    place = EXPORTS[name]
    return pkgutil.resolve_name(place if ":" in place else f"{place}:{name}")


def __dir__() -> list[str]:
    return [*EXPORTS, "__version__"]
