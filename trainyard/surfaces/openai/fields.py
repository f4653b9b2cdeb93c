"""Every field that OpenAI's SDK sends in a completion or a fine-tuning job, and what becomes of it here.

A field without an effect is refused by its name, with what to write instead. docs/reference/openai.md is built from
these tables, and a test compares them with the parameters of the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.surfaces.openai.errors import WireError

CHAT, COMPLETIONS, JOBS = "/chat/completions", "/completions", "/fine_tuning/jobs"
NO_SOUND = "No model here hears or speaks; leave it out."
NO_CACHE = "Prompts are not cached here; leave it out."

REFUSED: Mapping[str, Mapping[str, str]] = {
    CHAT: {
        "audio": NO_SOUND,
        "function_call": "Send 'tool_choice', which replaces it.",
        "functions": "Send 'tools', which replaces it.",
        "moderation": "No model here judges requests; leave it out.",
        "prediction": "Answers are not made faster by a prediction here; leave it out.",
        "prompt_cache_options": NO_CACHE,
        "prompt_cache_retention": NO_CACHE,
        "reasoning_effort": "A model thinks as its chat template says; leave it out.",
        "verbosity": "Ask for it in the messages, or bound 'max_completion_tokens'.",
        "web_search_options": "Nothing is searched here; leave it out.",
    },
    COMPLETIONS: {"suffix": "A text is only continued, not filled in; leave it out."},
    JOBS: {
        "integrations": "Set trackers of the engine in a job of `trainyard run`; their project is that of the machine.",
    },
}
"""Path -> field -> what to do instead."""

TAKEN: Mapping[str, Mapping[str, str]] = {
    CHAT: {
        "messages": "texts and text parts; roles system, developer, user, assistant and tool; a field that the chat "
        "template does not write is refused with its path",
        "model": "a base that is served, `ft:…`, `TENANT/ROLE`, `TENANT/ROLE/vN`",
        "frequency_penalty": "-2 to 2, on the tokens of the answer",
        "presence_penalty": "-2 to 2, on the tokens of the answer",
        "logit_bias": "token -> -100 to 100; the ids are those of the model's own tokenizer",
        "logprobs": "true or false; the model's own, before penalties and temperature",
        "top_logprobs": "0 to 20, with `logprobs`",
        "max_completion_tokens": "at most 4096",
        "max_tokens": "the same; not next to the former",
        "metadata": "empty: nothing is stored",
        "store": "false",
        "modalities": '["text"]',
        "n": "1 to 8; choice k has the seed `seed + k`",
        "parallel_tool_calls": "false: of several calls in an answer, the first is returned",
        "response_format": "text, json_object, json_schema: enforced token by token",
        "seed": "the same seed, prompt and model give the same answer",
        "service_tier": "auto, default",
        "stop": "a text or up to 16",
        "stream": "true or false",
        "stream_options": "`include_usage`; `include_obfuscation: false`",
        "temperature": "0 to 2",
        "tool_choice": "auto, none: nothing forces a call",
        "tools": "functions, where the chat template has a place for them; `strict` false",
        "top_p": "above 0, to 1",
        "user": "any; a name for the caller changes no answer",
        "safety_identifier": "any, as `user`",
        "prompt_cache_key": "any, as `user`",
    },
    COMPLETIONS: {
        "model": "as in chat",
        "prompt": "a text, token ids, or up to 256 of them",
        "best_of": "1",
        "echo": "true or false; not with `stream`",
        "frequency_penalty": "as in chat",
        "presence_penalty": "as in chat",
        "logit_bias": "as in chat",
        "logprobs": "0 to 20",
        "max_tokens": "at most 4096; default 16",
        "n": "as in chat",
        "seed": "as in chat",
        "stop": "as in chat",
        "stream": "true or false; one prompt",
        "stream_options": "as in chat",
        "temperature": "0 to 2",
        "top_p": "above 0, to 1",
        "user": "any",
    },
    JOBS: {
        "model": "a base: `starter`, a folder, a Hub name",
        "training_file": "a file with the purpose fine-tune",
        "validation_file": "the same; `valid_loss` in events, checkpoints and result file; of reinforcement, "
        "`valid_reward` in events and checkpoints",
        "hyperparameters": "n_epochs, batch_size, learning_rate_multiplier; not next to `method`",
        "method": "supervised, dpo, reinforcement, with their hyperparameters; of reinforcement, compute_multiplier, "
        "eval_samples, reasoning_effort and response_format in neutral values only, eval_interval next to "
        "validation_file only",
        "seed": "any; 42 by default",
        "suffix": "1 to 64 characters",
        "metadata": "16 pairs; jobs are listed by them",
    },
}
"""Path -> field -> which values are taken."""


def refuse_fields(path: str, body: Mapping[str, object]) -> None:
    """Raise `WireError` 400 for the first field of a body that has no effect here. Null says that it is not sent."""
    for name, instead in REFUSED.get(path, {}).items():
        if body.get(name) is not None:
            text = f"Unsupported parameter: '{name}' is not supported here. {instead}"
            raise WireError(400, text, param=name, code="unsupported_parameter")


def write_fields(path: str) -> list[str]:
    """Return the lines of the table of a path's fields."""
    rows = {name: f"| `{name}` | {text} |" for name, text in TAKEN[path].items()}
    rows |= {name: f"| `{name}` | refused: {text} |" for name, text in REFUSED[path].items()}
    return [f"| field of POST {path} | values |", "|---|---|", *(rows[name] for name in sorted(rows))]
