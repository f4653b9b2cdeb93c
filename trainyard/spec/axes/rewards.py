"""Rewards: what a completion is worth to the stages that draw them. `train/rl` computes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError, SchemaError, SchemaValidator, core_schema

from trainyard.spec.axes.axis import Strict, omit_default


class RewardSource(Strict):
    """Reward of a completion; several are added, each times its weight."""

    weight: float = Field(1.0, ge=-100, le=100, description="Below 0 for what is unwanted; 0 only reports it.")

    @property
    def reads_answer(self) -> bool:
        """Whether it compares with the answer of the row: a row without one is left out then, and counted."""
        return False


class ExactMatchReward(RewardSource):
    """1 where the completion is the row's answer, spaces around both aside."""

    type: Literal["exact_match"] = "exact_match"
    ignore_case: bool = Field(False, description="Whether capital letters do not matter.")
    after: str | None = omit_default(
        None, min_length=1, max_length=64, description="Only what follows the last of this mark counts, such as ####."
    )

    @property
    def reads_answer(self) -> bool:
        return True


class ContainsReward(RewardSource):
    """1 where the completion contains a text: the row's answer, or the one that is named."""

    type: Literal["contains"] = "contains"
    text: str | None = Field(None, min_length=1, max_length=4096, description="Default: the answer of the row.")
    ignore_case: bool = Field(False, description="Whether capital letters do not matter.")

    @property
    def reads_answer(self) -> bool:
        return self.text is None


class RegexReward(RewardSource):
    """1 where a pattern is found, or where it is the whole completion. Its time is linear in the completion's length:
    there are no look-arounds and no back-references."""

    type: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=512, description="In the syntax of the Rust crate regex.")
    full: bool = Field(False, description="Whether the whole completion has to match.")

    @field_validator("pattern")
    @classmethod
    def that_compiles(cls, pattern: str) -> str:
        try:
            compile_pattern(pattern)
        except SchemaError as error:
            why = str(error).strip().splitlines()[-1].strip().removeprefix("error: ").removeprefix("SchemaError: ")
            args = {"pattern": pattern, "why": why.rstrip(".")}
            raise PydanticCustomError("no_pattern", "The pattern {pattern} cannot be used: {why}", args) from None
        return pattern


class LengthReward(RewardSource):
    """1 at the target or up to the most, and less in proportion to how far the tokens are from it; never below 0."""

    type: Literal["length"] = "length"
    target_tokens: int | None = Field(None, ge=1, le=1_048_576, description="The best length.")
    max_tokens: int | None = Field(None, ge=1, le=1_048_576, description="The greatest length that is worth 1.")

    @model_validator(mode="after")
    def one_bound(self) -> LengthReward:
        if (self.target_tokens is None) == (self.max_tokens is None):
            raise PydanticCustomError("one_bound", "A length reward takes either target_tokens or max_tokens")
        return self


class JsonSchemaReward(RewardSource):
    """1 where the completion, or its last block of code, is JSON that a schema accepts."""

    type: Literal["json_schema"] = "json_schema"
    definition: dict[str, JsonValue] = Field(description="JSON Schema, draft 2020-12, without remote references.")


class PythonReward(RewardSource):
    """1 where the completion's Python code runs, and after it the row's answer: its assertions. The operating system
    confines it, under limits."""

    type: Literal["python"] = "python"
    timeout_s: int = Field(5, ge=1, le=600, description="Seconds of a completion's process.")
    memory_mb: int = Field(512, ge=64, le=65_536, description="Its address space.")

    @property
    def reads_answer(self) -> bool:
        return True


class ModelReward(RewardSource):
    """The score of the reward model that a trainer before this one has made."""

    type: Literal["reward_model"] = "reward_model"


class JudgeReward(RewardSource):
    """0 to 1, as a model at an endpoint judges the completion by a rubric."""

    type: Literal["judge"] = "judge"
    endpoint: str | None = omit_default(
        None, min_length=1, max_length=256, description="Endpoint of trainyard.toml at which it answers, with its key."
    )
    base_url: str | None = omit_default(
        None, min_length=1, max_length=2048, description="OpenAI-compatible address, asked without a key."
    )
    model: str | None = omit_default(
        None, min_length=1, max_length=256, description="The server's name for the judge; default: the endpoint's."
    )
    rubric: str = Field(min_length=1, max_length=4096, description="What a good answer has.")

    @model_validator(mode="after")
    def one_address(self) -> JudgeReward:
        if (self.endpoint is None) == (self.base_url is None):
            raise PydanticCustomError("judge_address", "a judge takes either an endpoint or a base_url")
        if self.base_url is not None and self.model is None:
            raise PydanticCustomError("judge_model", "a judge at a base_url needs the server's name of its model")
        return self

    @property
    def server(self) -> str:
        """Return what its server is known by: its address, or its endpoint and the model there."""
        address = self.endpoint or self.base_url
        return f"{address} {self.model}" if self.model is not None else str(address)


class EnvironmentReward(RewardSource):
    """Reward that the environment of a conversation gives; needs `stage.environment`."""

    type: Literal["environment"] = "environment"


class EnvironmentSettings(Strict):
    """Environment that answers a completion, so that it becomes a conversation of several turns."""

    type: Literal["calculator", "python", "guessing", "function"] = Field(description="What answers.")
    name: str | None = omit_default(
        None, min_length=1, max_length=100, description="Of the function, in the setting `environments`."
    )
    max_turns: int = Field(4, ge=1, le=64, description="Turns of the model, after which a conversation ends.")

    @model_validator(mode="after")
    def one_function(self) -> EnvironmentSettings:
        if (self.type == "function") != (self.name is not None):
            raise PydanticCustomError("one_function", "An environment of type function, and no other, has a name")
        return self


class RolloutSettings(Strict):
    """Sampler of the completions: the engine that trains, or a vLLM server next to it on the same device."""

    engine: Literal["native", "vllm"] = Field("native", description="Engine that samples.")
    memory: float | None = omit_default(
        None, gt=0.1, lt=0.95, description="Share of the device's memory that vLLM takes while it draws; default 0.4."
    )

    @model_validator(mode="after")
    def memory_is_read(self) -> RolloutSettings:
        if self.engine == "native" and self.memory is not None:
            raise PydanticCustomError("memory_unread", "memory is read with engine vllm only")
        return self


Reward = Annotated[
    ExactMatchReward
    | ContainsReward
    | RegexReward
    | LengthReward
    | JsonSchemaReward
    | PythonReward
    | ModelReward
    | EnvironmentReward
    | JudgeReward,
    Field(discriminator="type"),
]


def compile_pattern(pattern: str, *, full: bool = False) -> SchemaValidator:
    """Return a pattern as an automaton of bounded size (Rust's regex, which pydantic brings):
    `isinstance_python(text)`.

    Raises `SchemaError` for what it does not know or what would be larger than 10 MB.
    """
    whole = rf"\A(?:{pattern})\z" if full else pattern
    return SchemaValidator(core_schema.str_schema(pattern=whole, regex_engine="rust-regex"))
