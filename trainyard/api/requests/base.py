"""What all requests are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from trainyard.api.requests.fields import Option


class Request(BaseModel):
    """What an operation takes. A misspelt field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BodyRequest(Request):
    """A request whose other keys are those of one of its fields.

    So a program posts a chain or a job as its file has it, and not a field that contains one.
    """

    others: ClassVar[str]
    """The field, a mapping."""

    @model_validator(mode="before")
    @classmethod
    def gather_others(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        own = {key: value for key, value in given.items() if key in cls.model_fields}
        rest = {key: value for key, value in given.items() if key not in own}
        inner = own.get(cls.others) or {}
        return {**own, cls.others: {**inner, **rest}} if rest and isinstance(inner, Mapping) else given

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        written = handler(schema)
        handler.resolve_ref_schema(written)["additionalProperties"] = True
        return written


class Nothing(Request):
    """An operation without arguments."""


Parameters = Annotated[dict[str, Any], Option("-p", "--param")]
