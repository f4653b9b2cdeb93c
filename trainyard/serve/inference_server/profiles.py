"""Server profiles for the phases of a night: which engine with which settings, started and given back how.

A profile is data: commands are lists of words that are started without a shell, addresses are addresses.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Release(StrEnum):
    """Release of the device's memory after the phase."""

    STOP = "stop"
    """End the process. Always right."""
    SLEEP_WEIGHTS_IN_RAM = "sleep1"
    """vLLM's sleep level 1: weights move to the host's memory, which must have room for them; wakes within seconds."""
    SLEEP_WITHOUT_WEIGHTS = "sleep2"
    """vLLM's sleep level 2: weights are dropped and read again."""
    AUTO = "auto"
    """Level 1 where the host's free memory is at least 1.5 times the weights, else stop."""


class ProfilePart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class VllmEngine(ProfilePart):
    """`vllm serve`; each field is the flag of the same name. Source: vLLM's documentation, "vllm serve"."""

    type: Literal["vllm"]
    model: str = Field(min_length=1, description="A folder or a Hub name.")
    served_name: str | None = Field(None, min_length=1, description="The server's name for it, where not the same.")
    quantization: str | None = Field(None, pattern=r"^[a-z0-9_-]+$", description="awq_marlin, gptq_marlin, fp8 …")
    max_model_len: int | None = Field(
        None, ge=512, description="Tokens of prompt and answer; the KV cache is cut to it."
    )
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    gpu_memory_utilization: float = Field(0.9, gt=0.1, le=0.98)
    max_num_seqs: int | None = Field(None, ge=1)
    prefix_caching: bool = True
    lora_rank: int | None = Field(None, ge=1, description="Serve adapters too, up to this rank.")
    reasoning_parser: str | None = Field(None, pattern=r"^[a-z0-9_-]+$")
    chat_template: str | None = Field(
        None, min_length=1, description="A Jinja file in place of the model's own template, next to the profile."
    )
    weights_mb: int | None = Field(None, ge=1, description="Size of the weights; decides whether level 1 fits.")
    program: str | None = Field(None, description="Path of the `vllm` program, when it is not where it usually is.")
    options: tuple[str, ...] = Field((), description="More arguments, as they are.")

    @property
    def context_tokens(self) -> int | None:
        return self.max_model_len


class LlamaServerEngine(ProfilePart):
    """llama.cpp's `llama-server` on a GGUF file."""

    type: Literal["llama_server"]
    model: str = Field(min_length=1, description="Path of a GGUF file.")
    context: int = Field(8192, ge=512, description="Tokens of one slot.")
    slots: int = Field(4, ge=1)
    gpu_layers: int = Field(999, ge=0)
    program: str = "llama-server"
    options: tuple[str, ...] = ()

    @property
    def context_tokens(self) -> int | None:
        return self.context


class EmbeddedEngine(ProfilePart):
    """The server of this package on the CPU. Model `rules` answers extraction prompts without any model."""

    type: Literal["embedded"] = "embedded"
    model: str = Field("rules", min_length=1)
    threads: int = Field(0, ge=0)
    context: int | None = Field(None, ge=512, description="Tokens of the model's context; rules have none.")

    @property
    def context_tokens(self) -> int | None:
        return self.context


Engine = Annotated[VllmEngine | LlamaServerEngine | EmbeddedEngine, Field(discriminator="type")]


class ServerProfile(ProfilePart):
    """A model server of one phase."""

    engine: Engine = EmbeddedEngine()
    boot_command: tuple[str, ...] = Field((), description="Started first, such as the command that starts a machine.")
    stop_command: tuple[str, ...] = Field((), description="Started last, such as the command that stops the machine.")
    url: str | None = Field(None, description="Where a server answers that the boot command starts; we start none.")
    gateway_url: str | None = Field(None, description="Takes the chat completions in the server's place.")
    gateway_model: str | None = Field(None, description="The gateway's name for the model.")
    api_key_env: str | None = None
    thinking_switch: str | None = Field(
        None,
        pattern=r"^[a-z_][a-z0-9_]*$",
        description="Variable of the chat template that switches reasoning, such as enable_thinking: "
        "each request sets it to the night's `serving.thinking`.",
    )
    ready_s: float = Field(5400.0, gt=0, description="From start to readiness, the boot included.")
    drain_s: float = Field(300.0, gt=0, description="For the requests that are under way.")
    stop_s: float = Field(60.0, gt=0, description="From the request to stop until the process tree is killed.")
    release: Release = Release.STOP

    @model_validator(mode="after")
    def release_fits_engine(self) -> ServerProfile:
        if self.release is not Release.STOP and self.engine.type != "vllm":
            raise ValueError(f"release {self.release.value} is of vLLM; {self.engine.type} can only be stopped")
        if self.gateway_model and not self.gateway_url:
            raise ValueError("gateway_model is given without gateway_url")
        return self
