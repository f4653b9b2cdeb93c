"""Trainyard: LLM fine-tuning as typed DAGs on Prefect.

The names of the public API are imported when they are used, so that `import trainyard` costs nothing. Their types are
in `__init__.pyi`. A place with a colon names an attribute that has another name there.
"""

import pkgutil

__version__ = "0.1.0"
EXPORTS = {
    "AdapterMethod": "trainyard.spec.programs",
    "AiGenerator": "trainyard.surfaces.sdk.chains",
    "AlignmentMethod": "trainyard.spec.programs",
    "Chain": "trainyard.surfaces.sdk.chains",
    "CloudFineTuneConfig": "trainyard.spec.programs",
    "ComputeDevice": "trainyard.spec.programs",
    "DataSource": "trainyard.surfaces.sdk.chains",
    "Deployer": "trainyard.surfaces.sdk.chains",
    "Evaluator": "trainyard.surfaces.sdk.chains",
    "FineTuneProviderFactory": "trainyard.backends.cloud.direct",
    "InstructDataset": "trainyard.app.training_manager",
    "LocalTrainingConfig": "trainyard.spec.programs",
    "LoraConfig": "trainyard.spec.programs",
    "LrScheduler": "trainyard.spec.programs",
    "PreferenceDataset": "trainyard.app.training_manager",
    "Trainer": "trainyard.surfaces.sdk.chains",
    "TrainingHyperparams": "trainyard.spec.programs",
    "TrainingJobStatus": "trainyard.spec.states:JobState",
    "TrainingManager": "trainyard.app.training_manager",
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
