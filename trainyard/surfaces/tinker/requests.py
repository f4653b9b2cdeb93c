"""JSON requests of the wire, as the SDK from 0.19 to 0.38 sends them. What none of them reads is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=256)]
Metadata = dict[str, Any] | None
Seq = Annotated[int, Field(ge=0, le=2**62)]
Seconds = Annotated[int, Field(ge=1, le=10 * 366 * 86_400)]


class WireBody(BaseModel):
    """A request; every key is known."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    type: str | None = None


class TensorData(WireBody):
    data: list[int] | list[float]
    dtype: Literal["float32", "int64"]
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None


class Chunk(BaseModel):
    """A part of a prompt; one that is not text is refused with its type."""

    model_config = ConfigDict(extra="ignore")
    type: str = "encoded_text"
    tokens: list[int] = []


class ModelInput(WireBody):
    chunks: list[Chunk]


class Datum(WireBody):
    model_input: ModelInput
    loss_fn_inputs: dict[str, TensorData]


class StepInput(WireBody):
    data: list[Datum]
    loss_fn: str
    loss_fn_config: dict[str, float | str] | None = None


class ForwardBackwardBody(WireBody):
    model_id: Name
    seq_id: Seq | None = None
    forward_backward_input: StepInput | None = None
    forward_input: StepInput | None = None


class OptimizerConfig(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: str = "adamw"


class LoraConfig(WireBody):
    rank: int = Field(32, ge=1, le=256)
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class CreateSession(WireBody):
    tags: list[str] = []
    user_metadata: Metadata = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class FinishSession(WireBody):
    reason: dict[str, Any] | None = None
    detail: str | None = None


class SessionBody(WireBody):
    session_id: Name


class CreateModel(WireBody):
    session_id: Name
    model_seq_id: Seq
    base_model: Annotated[str, Field(min_length=1, max_length=512)]
    user_metadata: Metadata = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig | None = None


class ModelBody(WireBody):
    model_id: Name


class AdamParams(WireBody):
    learning_rate: float = Field(1e-4, ge=0, le=1)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-12, ge=0, le=1)
    weight_decay: float = Field(0.0, ge=0, le=1)
    grad_clip_norm: float = Field(0.0, ge=0, allow_inf_nan=False)


class OptimStep(WireBody):
    model_id: Name
    seq_id: Seq | None = None
    adam_params: AdamParams | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(WireBody):
    model_id: Name
    seq_id: Seq | None = None
    path: str | None = None
    ttl_seconds: Seconds | None = None
    overwrite: bool = False
    user_metadata: Metadata = None


class SaveForSampler(WireBody):
    model_id: Name
    seq_id: Seq | None = None
    path: str | None = None
    sampling_session_seq_id: Seq | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: Seconds | None = None
    user_metadata: Metadata = None


class SaveExternal(WireBody):
    model_id: Name
    seq_id: Seq | None = None
    path: Annotated[str, Field(max_length=128)]
    ttl_seconds: Seconds | None = None
    user_metadata: Metadata = None
    age_encryption_recipients: list[str] | None = None


class LoadWeights(WireBody):
    path: Annotated[str, Field(max_length=512)]
    optimizer: bool = False
    model_id: Name | None = None
    seq_id: Seq | None = None
    session_id: Name | None = None
    model_seq_id: Seq | None = None
    base_model: str | None = None
    user_metadata: Metadata = None
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None
    lora_config: LoraConfig | None = None


class CreateSampler(WireBody):
    session_id: Name
    sampling_session_seq_id: Seq
    base_model: Annotated[str, Field(max_length=512)] | None = None
    model_path: Annotated[str, Field(max_length=512)] | None = None


class SamplingParams(WireBody):
    max_tokens: int | None = Field(None, ge=1, le=32_768)
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = Field(1.0, ge=0, le=100)
    top_k: int = Field(-1, ge=-1)
    top_p: float = Field(1.0, gt=0, le=1)


class Sample(WireBody):
    prompt: ModelInput
    sampling_params: SamplingParams
    num_samples: int = Field(1, ge=1, le=512)
    base_model: Annotated[str, Field(max_length=512)] | None = None
    model_path: Annotated[str, Field(max_length=512)] | None = None
    sampling_session_id: Name | None = None
    seq_id: Seq | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(0, ge=0, le=1024)
    topk_sample_logprobs: int = Field(0, ge=0, le=1024)
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: int = Field(0, ge=0, le=1024)
    prompt_logprobs_last_n: int | None = Field(None, ge=1)
    record_stability_info: bool | None = None


class Retrieve(WireBody):
    request_id: Name
    model_id: str | None = None
    allow_metadata_only: bool = False


class WeightsInfo(WireBody):
    tinker_path: Annotated[str, Field(max_length=512)]


class Lifetime(WireBody):
    ttl_seconds: Seconds | None = None
