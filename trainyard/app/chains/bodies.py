"""What a chain file may contain, as one type: the schema of the bodies that programs send."""

from __future__ import annotations

from pydantic import Field

from trainyard.json_types import JsonObject
from trainyard.spec.axes.axis import Strict
from trainyard.spec.chain import ChainSpec
from trainyard.spec.job import JobSpec


class TemplateCall(Strict):
    """The call of a template with its parameters; the chain is built of it when it runs."""

    template: str = Field(description="Its name, such as qa-pipeline.")
    parameters: JsonObject = Field({}, description="As `trainyard templates NAME` lists them.")


ChainBody = ChainSpec | JobSpec | TemplateCall
