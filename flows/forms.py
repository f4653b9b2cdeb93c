"""Types of the fields that several forms share.

Each flow's parameters are the fields of its form in `spec/templates.py` (a test compares the two), so that the form in
Prefect, `prefect deployment run -p` and `trainyard run -p` speak one language.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.spec.nodes import Path
from trainyard.spec.templates import AlignmentForm, DeploySteps, EvaluateSteps, PublishForm, Steps, TrainingForm

Count = Annotated[int, Field(ge=1, le=10_000_000)]
MaxRows = Annotated[int, Field(ge=1, le=10**12)]
Wordings = Annotated[int, Field(ge=1, le=8)]
Share = Annotated[float, Field(ge=0, le=1)]
Model = Annotated[str, Field(min_length=1, max_length=256)]
BaseModelName = Annotated[str, Field(min_length=1, max_length=512)]

TRAINING, ALIGNMENT, PUBLISH = TrainingForm(), AlignmentForm(), PublishForm()
STEPS, EVALUATE_STEPS, DEPLOY_STEPS = Steps(), EvaluateSteps(), DeploySteps()

__all__ = [
    "ALIGNMENT",
    "DEPLOY_STEPS",
    "EVALUATE_STEPS",
    "PUBLISH",
    "STEPS",
    "TRAINING",
    "BaseModelName",
    "Count",
    "MaxRows",
    "Model",
    "Path",
    "Share",
    "Wordings",
]
