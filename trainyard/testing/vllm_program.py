"""A double of the program `vllm`: takes the arguments of `vllm serve` and answers like a small vLLM, without a GPU.

    vllm_program(home / "envs/vllm/bin")              # an executable `vllm` that serves
    vllm_program(folder_on_path, "die")               # … that fails as vLLM does when the memory is too small
    vllm_program(folder_on_path, "hang")              # … that never listens and ignores SIGTERM

Like vLLM it leaves the work to an engine process, which here even detaches itself; `engine.pid` in the folder of the
executable contains its process id. Answers come from `trainyard.testing.scripted_server`. Arguments that `vllm serve`
would refuse are refused.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

from trainyard.testing.scripted_server import ScriptedServer

ENGINE_FILE = "engine.pid"
NO_MEMORY = "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens in the KV cache."
ENGINE_S = 600


def vllm_program(folder: Path, play: str = "serve") -> Path:
    """Write the executable `vllm` into a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "vllm"
    line = f'exec "{sys.executable}" -m trainyard.testing.vllm_program "{folder}" {play} "$@"'
    program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("folder", type=Path)
    parser.add_argument("play", choices=("serve", "die", "hang"))
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
    serve.add_argument("--enable-lora", action="store_true")
    serve.add_argument("--max-lora-rank", type=int)
    serve.add_argument("--enable-sleep-mode", action="store_true")
    return parser


def start_engine(folder: Path) -> None:
    """A process that would outlive this one."""
    waiting = [sys.executable, "-c", f"import time; time.sleep({ENGINE_S})"]
    engine = subprocess.Popen(waiting, start_new_session=True)
    (folder / ENGINE_FILE).write_text(str(engine.pid), encoding="utf-8")


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
    with ScriptedServer(port=options.port, model=name) as server:
        print(f"INFO Serving at {server.url}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
