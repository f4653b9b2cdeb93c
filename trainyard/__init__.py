"""Trainyard: LLM fine-tuning as typed DAGs on Prefect.

The names of the public API are imported when they are used, so that `import trainyard` costs nothing. Their types are
in `__init__.pyi`.
"""

__version__ = "0.1.0"
EXPORTS = (
    "AiGenerator", "Chain", "DataSource", "Deployer", "Evaluator", "Trainer", "TrainyardError", "Validator", "adapters",
    "aio", "check", "connect", "connect_async", "here", "jobs", "plan", "run",
)  # fmt: skip
__all__ = list(EXPORTS)


def __getattr__(name: str) -> object:
    # Imports are here, so that `import trainyard` costs nothing.
    if name == "TrainyardError":
        from trainyard.errors import TrainyardError

        return TrainyardError
    if name == "connect":
        from trainyard.surfaces.sdk.remote import connect

        return connect
    if name in ("aio", "connect_async"):
        from trainyard.surfaces.sdk import asynchronous

        return getattr(asynchronous, name)
    if name in ("adapters", "check", "here", "jobs", "plan", "run"):
        from trainyard.surfaces.sdk.surface import here

        return here if name == "here" else getattr(here, name)
    if name in EXPORTS:
        from trainyard.surfaces.sdk import chains

        return getattr(chains, name)
    raise AttributeError(f"module 'trainyard' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return [*EXPORTS, "__version__"]
