"""A double of the program `vllm`: takes the arguments of `vllm serve` and answers like a small vLLM, without a GPU.

    vllm_program(home / "envs/vllm/bin")              # an executable `vllm` that serves
    vllm_program(folder_on_path, "die")               # … that fails as vLLM does when the memory is too small
    vllm_program(folder_on_path, "hang")              # … that never listens and ignores SIGTERM
    vllm_program(home / "envs/vllm/bin", "think")     # … that serves a model which reasons, as OLMo 3 Think does
    vllm_program(home / "envs/vllm/bin", "draw")      # … that draws tokens, loads adapters and sleeps, as for rollouts

Like vLLM it leaves the work to an engine process, which here even detaches itself; `engine.pid` in the folder of the
executable contains its process id. Answers come from `trainyard.testing.scripted_server`. Arguments that `vllm serve`
would refuse are refused.

`ThinkingModel` follows vLLM's sources (reasoning/olmo3_reasoning_parser.py; v1/structured_output): without a reasoning
parser a schema binds from the first token; with one, from the moment that `</think>` is in the prompt or the answer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainyard.testing.scripted_server import Behaviour, Exchange, ScriptedServer, completion, ok
from trainyard.testing.vllm_server import vllm_server

ENGINE_FILE, REQUESTS_FILE = "engine.pid", "requests.json"
NO_MEMORY = "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens in the KV cache."
ENGINE_S = 600
OPEN, CLOSE = "<think>", "</think>"
OWN_TEMPLATE = (
    "{% for one in messages %}<|im_start|>{{ one.role }}\n{{ one.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>"
)
"""What OLMo 3 Think is released with opens the reasoning in every prompt."""
REASONING = re.compile(rf"^(?:{OPEN})?(?P<reasoning>.*?){CLOSE}(?P<content>.*)$", re.DOTALL)
"""How vLLM's olmo3 parser divides an answer."""
KNOWN = {"entities": [{"kind": "person", "name": "Ada Byron"}], "relations": []}
PROSE = "Sure! The document names Ada Byron, who is a person."
THOUGHT = "Hmm,"


@dataclass(frozen=True)
class ThinkingModel:
    """A model that reasons whenever its prompt lets it, and answers in JSON only where it has to. Tokens are words."""

    template: str = OWN_TEMPLATE
    parser: str | None = None
    thought_tokens: int = 3_000
    context_tokens: int | None = None

    def __call__(self, exchange: Exchange) -> None:
        body = exchange.body
        options = body.get("chat_template_kwargs") or {}
        template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(self.template)
        prompt = template.render(messages=body["messages"], add_generation_prompt=True, **options)
        most, used = int(body.get("max_tokens", 16)), len(prompt.split())
        if self.context_tokens is not None and used + most > self.context_tokens:
            exchange.error(400, describe_too_long(self.context_tokens, used, most))
            return
        tokens = self.answer(prompt, schema="json_schema" in (body.get("response_format") or {})).split(" ")
        text = " ".join(tokens[:most])
        reasoning, content = self.divide(text)
        reply = completion(body, content, finish_reason="length" if len(tokens) > most else "stop")
        reply["choices"][0]["message"]["reasoning"] = reasoning
        exchange.reply(200, reply)

    def answer(self, prompt: str, *, schema: bool) -> str:
        reply = json.dumps(KNOWN) if schema else PROSE
        if schema and (self.parser is None or CLOSE in prompt):
            return reply  # the grammar forbids everything else, from the first token
        thinking = prompt.rstrip().endswith(OPEN)
        return f"{(THOUGHT + ' ') * self.thought_tokens}{CLOSE}\n\n{reply}" if thinking else reply

    def divide(self, text: str) -> tuple[str | None, object]:
        """(reasoning, content) as the parser finds them; without an end everything is content."""
        match = REASONING.match(text) if self.parser else None
        return (match["reasoning"] or None, match["content"] or None) if match else (None, text)


def describe_too_long(context: int, used: int, output_tokens: int) -> str:
    return (
        f"This model's maximum context length is {context} tokens. However, you requested {output_tokens} output "
        f"tokens and your prompt contains {used} input tokens, for a total of {used + output_tokens} tokens."
    )


def vllm_program(folder: Path, play: str = "serve") -> Path:
    """Write the executable `vllm` into a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "vllm"
    line = f'exec "{sys.executable}" -P -m trainyard.testing.vllm_program "{folder}" {play} "$@"'
    program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("folder", type=Path)
    parser.add_argument("play", choices=("serve", "die", "hang", "think", "draw"))
    serve = parser.add_subparsers(dest="command", required=True).add_parser("serve")
    serve.add_argument("model")
    serve.add_argument("--host", default="0.0.0.0")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--served-model-name", nargs="+")
    serve.add_argument("--load-format", default="auto", choices=("auto", "safetensors", "dummy"))
    serve.add_argument("--max-model-len", type=int)
    serve.add_argument("--kv-cache-dtype", default="auto", choices=("auto", "fp8"))
    serve.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    serve.add_argument("--enable-prefix-caching", "--no-enable-prefix-caching", action="store_true")
    serve.add_argument("--max-num-seqs", type=int)
    serve.add_argument("--quantization")
    serve.add_argument("--reasoning-parser")
    serve.add_argument("--chat-template", type=Path)
    serve.add_argument("--compilation-config", type=json.loads)
    serve.add_argument("--enable-lora", action="store_true")
    serve.add_argument("--max-lora-rank", type=int)
    serve.add_argument("--enable-sleep-mode", action="store_true")
    serve.add_argument("--generation-config", default="auto")
    serve.add_argument("--logprobs-mode", default="raw_logprobs", choices=("raw_logprobs", "processed_logprobs"))
    return parser


def start_engine(folder: Path) -> None:
    """A process that would outlive this one."""
    waiting = [sys.executable, "-P", "-c", f"import time; time.sleep({ENGINE_S})"]
    engine = subprocess.Popen(waiting, start_new_session=True)
    (folder / ENGINE_FILE).write_text(str(engine.pid), encoding="utf-8")


def choose_behaviour(options: argparse.Namespace) -> Behaviour:
    """Return what answers chat requests: a model that reasons, or an example of the schema."""
    if options.play != "think":
        return ok()
    template = options.chat_template.read_text(encoding="utf-8") if options.chat_template else OWN_TEMPLATE
    return ThinkingModel(template, options.reasoning_parser, context_tokens=options.max_model_len)


def draw(options: argparse.Namespace, name: str) -> None:
    """Serve token ids that are drawn evenly, with the endpoints that the arguments and the environment open."""
    vocabulary = json.loads((Path(options.model) / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    even = [-math.log(vocabulary)] * vocabulary
    development = os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
    updating = options.enable_lora and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "True"
    with vllm_server(
        name, options.model, port=options.port, logprobs=lambda ids: [even] * len(ids), runtime_updating=updating,
        max_lora_rank=options.max_lora_rank or 16, sleep_mode=options.enable_sleep_mode and development,
    ) as server:  # fmt: skip
        print(f"INFO Serving at {server.url}", flush=True)
        try:
            signal.pause()
        finally:
            log = [{"path": path, "body": body} for path, body in server.requests]
            (options.folder / REQUESTS_FILE).write_text(json.dumps(log), encoding="utf-8")


def main() -> None:
    options = parser().parse_args()
    print(f"INFO Starting vLLM with {options.model}, max_model_len {options.max_model_len}", flush=True)
    start_engine(options.folder)
    if options.play == "die":
        raise SystemExit(NO_MEMORY)
    if options.play == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("INFO Loading weights", flush=True)
        time.sleep(ENGINE_S)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    name = options.served_model_name[0] if options.served_model_name else options.model
    if options.play == "draw":
        draw(options, name)
        return
    with ScriptedServer(port=options.port, model=name, then=choose_behaviour(options)) as server:
        print(f"INFO Serving at {server.url}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
