"""Tiny bases of many types, from the configs of transformers: dense, mixtures of experts, hybrids, state spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

IDS: dict[str, Any] = {"vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES: dict[str, Any] = {
    **IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip
PLAIN: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
GROUPED: dict[str, Any] = {**PLAIN, "head_dim": 8}
EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_topk": 2,
    "n_routed_experts": 4, "shared_expert_intermediate_size": 24, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "zero_expert_num": 0, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 1,
    "kv_channels": 8,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "mamba_d_state": 4, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_n_groups": 1, "mamba_chunk_size": 8, "mamba_d_ssm": 64, "mamba_dt_rank": 4, "use_mamba_kernels": False,
}  # fmt: skip
GPT: dict[str, Any] = {**IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
STATES: dict[str, Any] = {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
ZAMBA: dict[str, Any] = {**PLAIN, "num_hidden_layers": 6, "attention_head_dim": 16, "adapter_rank": 4}
LINED_UP = ["mamba", "mamba", "hybrid", "mamba", "hybrid", "mamba"]

GROUPED_TYPES = (
    "llama", "qwen2", "qwen3", "gemma", "mistral", "olmo", "olmo2", "cohere", "granite", "glm", "glm4", "starcoder2",
    "phi3", "nemotron", "smollm3", "seed_oss", "helium", "apertus", "arcee", "internlm3", "hunyuan_v1_dense", "bitnet",
)  # fmt: skip
DENSE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(GROUPED_TYPES, GROUPED),
    **{name: {**GROUPED, "sliding_window": 8} for name in ("gemma2", "gemma3_text", "cohere2", "olmo3", "exaone4")},
    **dict.fromkeys(("stablelm", "phi"), PLAIN),
    **dict.fromkeys(("gpt_neox", "biogpt", "persimmon"), SIZES),
    **{name: {**GPT, "rotary_dim": 4} for name in ("gpt2", "gptj", "gpt_bigcode", "codegen")},
    "gpt_neo": {
        **SIZES, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8,
    },
    "opt": {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {**IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "mpt": {**IDS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
}  # fmt: skip
LATENT_TYPES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash")
MIXTURES: dict[str, dict[str, Any]] = {
    **{name: {**GROUPED, **EXPERTS} for name in (
        "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "granitemoe", "granitemoeshared", "phimoe", "dots1",
        "ernie4_5_moe", "glm4_moe", "hunyuan_v1_moe", "flex_olmo", "minimax", "minimax_m2", "afmoe", "solar_open",
        "llama4_text",
    )},
    "jetmoe": {**PLAIN, **EXPERTS},
    **{name: {**GROUPED, **EXPERTS, **LATENT} for name in LATENT_TYPES},
    "dbrx": {
        **IDS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
}  # fmt: skip
HYBRIDS: dict[str, dict[str, Any]] = {
    "jamba": {
        **PLAIN, **EXPERTS, **MAMBA, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1,
    },
    "bamba": {**PLAIN, **MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        **PLAIN, **EXPERTS, **MAMBA, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 24,
    },
    "falcon_h1": {**GROUPED, **MAMBA},
    "zamba": {**ZAMBA, **MAMBA, "layers_block_type": LINED_UP, "n_mamba_heads": 2, "attention_hidden_size": 64},
    "zamba2": {
        **ZAMBA, **MAMBA, "layers_block_type": LINED_UP, "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 16,
        "chunk_size": 8, "num_mem_blocks": 1, "use_mem_rope": False,
    },
    "qwen3_next": {**GROUPED, **EXPERTS, **DELTA, "decoder_sparse_step": 1},
    "qwen3_5_moe_text": {**GROUPED, **EXPERTS, **DELTA, "decoder_sparse_step": 1},
    "qwen3_5_text": {**GROUPED, **DELTA},
    "lfm2": {**PLAIN, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {**PLAIN, **EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "nemotron_h": {
        **GROUPED, **EXPERTS, "num_hidden_layers": 3, "layers_block_type": ["mamba", "moe", "attention"],
        "ssm_state_size": 4, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "chunk_size": 8,
        "moe_shared_expert_intermediate_size": 24, "use_mamba_kernels": False,
    },
    "recurrent_gemma": {**PLAIN, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8},
}  # fmt: skip
STATE_SPACES: dict[str, dict[str, Any]] = {
    "mamba": STATES,
    "mamba2": {**STATES, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "falcon_mamba": STATES,
    "rwkv": {**IDS, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "context_length": 128},
    "xlstm": {
        **IDS, "hidden_size": 32, "num_hidden_layers": 2, "num_blocks": 2, "num_heads": 4, "embedding_dim": 32,
        "chunkwise_kernel": "chunkwise--native_autograd", "sequence_kernel": "native_sequence__native",
        "step_kernel": "native",
    },
}  # fmt: skip
ARCHITECTURES: dict[str, dict[str, Any]] = {**DENSE, **MIXTURES, **HYBRIDS, **STATE_SPACES}


def build_base(model_type: str, folder: Path, **changes: Any) -> Path:
    """Write a random base of a type; returns its folder."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](**{**ARCHITECTURES[model_type], **changes})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
