"""A vLLM server that draws completions for a training on the same device, and sleeps while that computes.

An adapter is loaded under a new name for each rollout, as vLLM never loads a name twice; level 1 of its sleep keeps the
base in the host's memory. Whole weights are written into the folder that it serves: level 2 drops them, and waking
reads the new ones (vLLM's documentation, "Sleep Mode": wake_up of the weights, reload_weights, wake_up of the cache).

Tokens are drawn from token ids and come back as token ids. The server says their log-probabilities after temperature;
the training computes its own, from which ratios are taken, and reports the mean distance as `sampling_gap`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
from transformers import AutoConfig

from trainyard.errors import Unavailable
from trainyard.json_types import JsonMapping
from trainyard.serve.inference_server import vllm
from trainyard.serve.inference_server.life import InferenceServer
from trainyard.serve.inference_server.profiles import Release, ServerProfile, VllmEngine
from trainyard.serve.targets.vllm import LOAD_PATH, UNLOAD_PATH, load_request
from trainyard.settings import Settings
from trainyard.spec.axes.methods import find_rank
from trainyard.spec.axes.rewards import RolloutSettings
from trainyard.spec.axes.stages import DrawnSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import CompletionWriter, Generated, Sampling, StopReason
from trainyard.train.model.positions import find_context
from trainyard.train.model.sampling import end_ids
from trainyard.train.rl.drawing import RolloutWriter

DEFAULT_MEMORY = 0.4
SERVED_NAME, SERVED_FOLDER = "policy", "served"
CALL_S = 1800.0
AT_ONCE = 64
"""Requests that wait for an answer at the same time; vLLM batches what it has."""
LEAST_CONTEXT = 512
"""What an engine's profile takes."""
LORA_RANKS = (8, 16, 32, 64, 128, 256)
"""What --max-lora-rank may be."""
SAMPLING_OPTIONS = ("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs")
"""No top-k and no penalty of the model's own, and log-probabilities of the distribution that is sampled."""


class SleepingServer(Protocol):
    """Interface of an `InferenceServer` that is used here."""

    @property
    def url(self) -> str: ...


@dataclass
class PolicyServer:
    """Draws with the weights that `save` writes; `folder` has those of each rollout."""

    server: SleepingServer
    save: Callable[[Path], None]
    folder: Path
    tokenizer: Any
    model: Any
    adapter: bool
    loaded: int = 0
    asleep: bool = True
    """As `serving_policy` hands it over: the policy computes first where a run is resumed inside a rollout."""

    @contextmanager
    def drawing(self, writer: RolloutWriter) -> Iterator[CompletionWriter]:
        """Wake the server with the present weights, and let it sleep again."""
        name = self.load_adapter() if self.adapter else self.load_weights()
        yield ServedWriter(self, writer, name)
        if self.adapter:
            self.post(UNLOAD_PATH, {"lora_name": name})
            shutil.rmtree(self.folder / name)
        self.post("/sleep", params={"level": 1 if self.adapter else 2})
        self.asleep = True

    def load_adapter(self) -> str:
        """Save the adapter, and load it under a name of its own."""
        self.loaded += 1
        name = f"{SERVED_NAME}-{self.loaded}"
        self.save(self.folder / name)
        self.wake()
        self.post(LOAD_PATH, load_request(name, self.folder / name))
        return name

    def load_weights(self) -> str:
        """Write the weights into the folder that is served, and let the server read them."""
        if not self.asleep:
            self.post("/sleep", params={"level": 2})
            self.asleep = True
        remove_weights(self.folder / SERVED_FOLDER)
        self.save(self.folder / SERVED_FOLDER)
        self.post("/wake_up", params={"tags": "weights"})
        self.post("/collective_rpc", {"method": "reload_weights"})
        self.post("/wake_up", params={"tags": "kv_cache"})
        self.asleep = False
        return SERVED_NAME

    def wake(self) -> None:
        if self.asleep:
            self.post("/wake_up")
            self.asleep = False

    def complete(self, name: str, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        """Continue each prompt; equal ones are one request, whose seed follows from the first of them."""
        indices_by_prompt: dict[tuple[int, ...], list[int]] = {}
        for at, prompt in enumerate(prompts):
            indices_by_prompt.setdefault(tuple(prompt), []).append(at)
        stops = sampling.stop_ids if sampling.stop_ids is not None else end_ids(self.model, self.tokenizer)
        completions: dict[int, Generated] = {}

        def ask(prompt: tuple[int, ...], indices: list[int]) -> None:
            body = {**build_request(prompt, sampling, stops, index=indices[0]), "model": name, "n": len(indices)}
            choices = self.post("/v1/completions", body)
            completions.update(
                zip(indices, (self.generated(choice, stops) for choice in choices["choices"]), strict=True)
            )

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(ask, indices_by_prompt, indices_by_prompt.values()))
        return [completions[at] for at in range(len(prompts))]

    def generated(self, choice: JsonMapping, stops: Sequence[int]) -> Generated:
        """Return a choice of the server as what a session generates."""
        ids, logprobs = list(choice["token_ids"]), list(choice["logprobs"]["token_logprobs"])
        ended = bool(ids) and ids[-1] in stops
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Generated(ids, text, logprobs, logprobs, StopReason.END if ended else StopReason.LENGTH)

    def post(self, path: str, body: Any = None, params: JsonMapping | None = None) -> Any:
        """Ask the server. Raises `Unavailable` (`E-SERVER-UNREACHABLE`) with its words."""
        try:
            reply = httpx.post(f"{self.server.url}{path}", json=body, params=params, timeout=CALL_S, trust_env=False)
            problem = "" if reply.is_success else f"{reply.status_code}: {reply.text[:300]}"
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            raise Unavailable(
                f"The vLLM server that draws completions did not do {path}.",
                why=problem,
                do="Look at its log in the work folder, then resume: the training continues from its last checkpoint.",
                code="E-SERVER-UNREACHABLE",
            )
        return reply.json() if reply.headers.get("content-type", "").startswith("application/json") else None


def build_request(prompt: Sequence[int], sampling: Sampling, stops: Sequence[int], *, index: int) -> dict[str, object]:
    """Return how a prompt is continued: every setting that a model's files could bring is given."""
    return {
        "prompt": list(prompt), "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "seed": (sampling.seed + index) % 2**31, "stop_token_ids": list(stops), "logprobs": 0,
        "return_token_ids": True, "skip_special_tokens": False,
    }  # fmt: skip


@dataclass(frozen=True)
class ServedWriter:
    """Completions by the server, and everything else by the session."""

    server: PolicyServer
    session: RolloutWriter
    name: str

    @property
    def context(self) -> int | None:
        return self.session.context

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None) -> list[Generated]:
        return self.server.complete(self.name, prompts, sampling or Sampling())

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        return self.session.generate_by_reference(prompts, sampling)


def rollout_settings(config: TrainerConfig) -> RolloutSettings | None:
    """Return the settings of who draws, where that is a server."""
    stage = config.stage
    rollouts = stage.rollouts if isinstance(stage, DrawnSettings) else RolloutSettings()
    return rollouts if rollouts.engine == "vllm" else None


@contextmanager
def serving_policy(
    base: str, config: TrainerConfig, folder: Path, settings: Settings
) -> Iterator[InferenceServer | None]:
    """A vLLM server with the base of a policy, ready, and ended with the block; None where the session draws.

    It is started before the policy takes memory of the device. Its log is in `folder`.

    Whole weights are served from a copy of the base's files, into which each rollout writes its own. Raises
    `Unavailable` (`E-SERVER-START`, `R-PACKAGE-MISSING`), `Conflict` (`E-DEVICE-OCCUPIED`).
    """
    if rollout_settings(config) is None:
        yield None
        return
    adapter = config.method.facts.adapter
    served = base if adapter else str(copy_model(base, folder / SERVED_FOLDER))
    rollouts = rollout_settings(config)
    assert rollouts is not None, "asked by `serving_policy`"
    engine = VllmEngine(
        type="vllm", model=served, served_name=SERVED_NAME, gpu_memory_utilization=rollouts.memory or DEFAULT_MEMORY,
        lora_rank=next(rank for rank in LORA_RANKS if rank >= find_rank(config.method)) if adapter else None,
        max_model_len=context_needed(base, config),
        options=(*settings.vllm_options, *SAMPLING_OPTIONS),
    )  # fmt: skip
    release = Release.SLEEP_WEIGHTS_IN_RAM if adapter else Release.SLEEP_WITHOUT_WEIGHTS
    profile = ServerProfile(engine=engine, ready_s=vllm.START_S, stop_s=vllm.STOP_S, release=release)
    with InferenceServer(profile, folder / "log", settings) as server:
        server.start()
        server.wait_ready()
        if not server.put_to_sleep():
            raise Unavailable(
                "The vLLM server that draws completions did not go to sleep.",
                why="While it is awake the policy has too little memory.",
                do="Look at its log in the work folder.", code="E-SERVER-START",
            )  # fmt: skip
        yield server


def context_needed(base: str, config: TrainerConfig) -> int | None:
    """Tokens of the longest prompt and completion; None leaves the model's own context.

    vLLM does not start where its cache has no room for one row of the whole context, and a model's is often 128k. It
    refuses more than the model has, and how long an environment's replies become nobody knows before.
    """
    context = find_context(AutoConfig.from_pretrained(base, trust_remote_code=False))
    length = max(LEAST_CONTEXT, config.hyperparameters.max_length + config.stage.drawn_tokens)
    in_turns = isinstance(config.stage, DrawnSettings) and config.stage.environment is not None
    return None if in_turns or (context is not None and length >= context) else length


def remove_weights(folder: Path) -> None:
    """Remove the weights that a folder has: of several files and an index, `save_pretrained` leaves the index."""
    for pattern in ("*.safetensors", "*.bin", "*.index.json"):
        for path in folder.glob(pattern):
            path.unlink()


def copy_model(base: str, folder: Path) -> Path:
    """Return a copy of a model's files, in place of an earlier one."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    shutil.copytree(base, folder)
    return folder
