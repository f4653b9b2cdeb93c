"""A causal language model and its adapters, answering one request after the other in a thread of its own.

Requests are never batched: a batch changes the rounding of its members, and with it what a seed means. The worker
thread is the only one that touches the model, so adapters come and go between two requests without a lock.

Shapes: V vocabulary.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llguidance.hf
import torch
from transformers import AutoTokenizer, DynamicCache

from trainyard.errors import InvalidInput, LimitExceeded, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.serve.guided import Constraint, Grammars
from trainyard.stores.models import check_adapter_folder
from trainyard.stores.tensors import find_nonfinite
from trainyard.train.latent.contract import LatentModule
from trainyard.train.latent.table import load_technique as load_latent
from trainyard.train.methods.adapters import probe_logits
from trainyard.train.methods.guarding import attach_adapter, base_digests, require_unchanged_base, using_adapter
from trainyard.train.methods.loading import ADAPTER_WEIGHTS, load_for_answers, require_memory
from trainyard.train.methods.reloading import SHAPE
from trainyard.train.model.positions import find_context
from trainyard.train.model.sampling import PlainReader, Reading

MAX_WAITING = 256
REPLACEMENT = "�"
"""What decoding gives for the first bytes of a character whose last bytes are not there yet."""


@dataclass(frozen=True)
class TokenLogprob:
    """Natural log probability by the model itself, before penalties, biases, temperature, top_p and grammar."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Step:
    """Result of one token: the text that is now certain (it may be empty)."""

    token: int
    text: str
    logprob: TokenLogprob | None


@dataclass
class Generation:
    """Request to the model. `adapter` None is the base."""

    prompt: list[int]
    max_tokens: int
    adapter: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stops: list[str] = field(default_factory=list)
    schema: JsonObject | None = None
    top_logprobs: int | None = None
    """None: no logprobs at all; 0: only those of the chosen tokens."""
    frequency_penalty: float = 0.0
    """What each occurrence of a token in the answer so far takes off its logit."""
    presence_penalty: float = 0.0
    """Subtracted from the logit at the first occurrence."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token -> bias of its logit."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    finish_reason: str = "length"


class ModelRunner:
    """A base model, its tokenizer and the adapters on it. Only the worker thread calls the methods that compute."""

    def __init__(self, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.tokenizer = tokenizer
        self.folder, self.dtype = folder, dtype
        require_memory(folder, dtype)
        self.model: Any = self.read_base()
        self.weights = base_digests(self.model)
        """Digest of the base's weights, which no adapter may change."""
        self.vocabulary: int = self.model.get_output_embeddings().weight.shape[0]
        self.context: int = find_context(self.model.config) or 2048
        self.adapters: dict[str, str] = {}
        """Public name (slashes and dots allowed) -> the name that PEFT knows it by."""
        self.folders: dict[str, Path] = {}
        self.latent: dict[str | None, LatentModule | None] = {None: load_latent(folder, self.model, tokenizer)}
        """Adapter (None: the base) -> the technique that thinks before its answers; its thoughts are not shown."""
        self.loaded = 0
        eos = self.model.generation_config.eos_token_id or self.tokenizer.eos_token_id
        self.eos_ids: list[int] = [eos] if isinstance(eos, int) else list(eos or [])
        guide = llguidance.hf.from_tokenizer(tokenizer, n_vocab=self.vocabulary, eos_token=self.eos_ids)
        special = {*self.tokenizer.all_special_ids, *range(len(self.tokenizer), self.vocabulary)}
        self.token_bytes = [b"" if i in special else guide.decode_bytes([i]) for i in range(self.vocabulary)]
        self.grammars = Grammars(guide, self.token_bytes, self.eos_ids)

    def read_base(self) -> Any:
        return load_for_answers(str(self.folder), self.dtype)

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a PEFT adapter in addition to the others.

        Raises `InvalidInput` when it was made for another base or must not be loaded, and `TrainyardError`
        (`E-BASE-CHANGED`) when the base has other weights afterwards; then the base is read again, with the adapters
        that were there.
        """
        check_adapter_folder(folder, [module for module, _ in self.model.named_modules()])
        technique = load_latent(folder, self.model, self.tokenizer)
        self.loaded += 1
        inner = f"adapter{self.loaded}"
        try:
            self.model = attach_adapter(self.model, folder, inner)
            self.require_finite(inner, folder)
        except Exception as error:  # PEFT has no error class of its own
            self.forget(inner)
            self.keep_base(folder.name)
            raise InvalidInput(
                f"The adapter in {folder.name} does not fit this base model.",
                why=" ".join(str(error).split())[:300],
                do="Load it on the base model that it was trained on.",
                code="E-ADAPTER-MISMATCH",
            ) from error
        self.model.eval()
        self.keep_base(folder.name)
        self.latent[name] = technique
        self.adapters[name], self.folders[name] = inner, folder

    def require_finite(self, inner: str, folder: Path) -> None:
        """Run an adapter once, on a few tokens. Raises `ValueError` where its weights or logits are not finite.

        torch's attention takes scores of NaN for masked ones, so that logits alone do not show all of them.
        """
        if name := find_nonfinite(folder / ADAPTER_WEIGHTS):
            raise ValueError(f"its weight {name} contains NaN or infinity")
        with using_adapter(self.model, inner):
            if not probe_logits(self.model, SHAPE).isfinite().all():
                raise ValueError("with it the base answers with NaN or infinity")

    def unload_adapter(self, name: str) -> None:
        """Take an adapter off. Raises as `load_adapter` when the base is not what it was."""
        del self.folders[name]
        del self.latent[name]
        self.forget(self.adapters.pop(name))
        self.keep_base(name)

    def forget(self, inner: str) -> None:
        """Take an adapter off. Without any left the base is read again: it then certainly has no trace of one."""
        if not self.adapters:
            self.model = self.read_base()
        elif inner in self.model.peft_config:
            self.model.delete_adapter(inner)

    def keep_base(self, adapter: str) -> None:
        """Compare the base with what it was; one that an adapter changed is read again, with the other adapters."""
        try:
            require_unchanged_base(self.weights, self.model, adapter)
        except TrainyardError:
            folders, self.folders, self.adapters = self.folders, {}, {}
            self.latent = {None: self.latent[None]}
            self.model = self.read_base()
            for name, folder in folders.items():
                self.load_adapter(name, folder)
            raise

    def find_context(self, adapter: str | None) -> int:
        """Tokens of a prompt and its answer that the model can see at once; thoughts take some of its context."""
        technique = self.latent.get(adapter)
        return self.context - (technique.positions if technique is not None else 0)

    def using(self, adapter: str | None) -> AbstractContextManager[Any]:
        """Return the base with one adapter, or with none."""
        return using_adapter(self.model, adapter and self.adapters[adapter])

    @torch.inference_mode()
    def generate(self, generation: Generation) -> Iterator[Step]:
        """Tokens one by one, until an end token, a stop text, the budget or a cancellation.

        Sets `generation.finish_reason` to stop, length or cancelled.
        """
        constraint = (
            self.grammars.constraint(generation.schema, generation.max_tokens)
            if generation.schema is not None
            else None
        )
        random = torch.Generator().manual_seed(generation.seed) if generation.seed is not None else torch.Generator()
        if generation.seed is None:
            random.seed()
        writer = TextWriter(self.tokenizer, generation.stops)
        with self.using(generation.adapter):
            reader, counts = self.latent[generation.adapter] or SingleReader(), Counter[int]()
            prompt_BT = torch.tensor([generation.prompt])
            token, reading = -1, Reading(None, torch.ones_like(prompt_BT))
            for index in range(generation.max_tokens):
                if generation.cancelled.is_set():
                    generation.finish_reason = "cancelled"
                    return
                if index:
                    reading, logits_BV = reader.step(self.model, reading, torch.tensor([token]))
                else:
                    reading, logits_BV = reader.open(self.model, prompt_BT, reading.mask_BT)
                logits_V = logits_BV[0]
                token = choose(shift_logits(logits_V, generation, counts), generation, constraint, random)
                counts[token] += 1
                if token in self.eos_ids:
                    generation.finish_reason = "stop"
                    break
                text = writer.add(token)
                yield Step(token, text, self.build_logprob(logits_V, token, generation.top_logprobs))
                if writer.stopped or (constraint is not None and constraint.finished):
                    generation.finish_reason = "stop"
                    break
            else:
                generation.finish_reason = "stop" if constraint is not None and constraint.complete else "length"
        if rest := writer.finish():
            yield Step(-1, rest, None)

    @torch.inference_mode()
    def score(self, generation: Generation, top: int = 0) -> list[TokenLogprob | None]:
        """Log probability of each prompt token given those before it, and of the `top` likeliest; None for the first.

        Stops early, with what it has, when the client hangs up.
        """
        with self.using(generation.adapter):
            logits = self.model(input_ids=torch.tensor([generation.prompt]), use_cache=False).logits[0].float()
        scored: list[TokenLogprob | None] = [None]
        for position, token in enumerate(generation.prompt[1:]):
            if generation.cancelled.is_set():
                break
            scored.append(self.build_logprob(logits[position], token, top))
        return scored

    def build_logprob(self, logits_V: torch.Tensor, token: int, top: int | None) -> TokenLogprob | None:
        if top is None:
            return None
        logprobs_V = torch.log_softmax(logits_V, dim=-1)
        values, indices = torch.topk(logprobs_V, min(top, self.vocabulary))
        pairs = tuple(zip(indices.tolist(), values.tolist(), strict=True))
        return TokenLogprob(token, float(logprobs_V[token]), pairs)


class SingleReader(PlainReader):
    """Reads one row, which has no padding and so needs no mask."""

    def read(self, model: Any, reading: Reading, fed_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        cache = reading.cache if reading.cache is not None else DynamicCache(config=model.config)
        output = model(input_ids=fed_BT, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return Reading(cache, reading.mask_BT), output.logits[:, -1].float()


def shift_logits(logits_V: torch.Tensor, generation: Generation, counts: Mapping[int, int]) -> torch.Tensor:
    """Return the logits with OpenAI's penalties for tokens of the answer so far, and with the request's biases.

    source: OpenAI API, "frequency and presence penalties": logit − count · frequency − [count > 0] · presence
    """
    shifts = dict(generation.logit_bias)
    if generation.frequency_penalty or generation.presence_penalty:
        for token, count in counts.items():
            penalty = count * generation.frequency_penalty + generation.presence_penalty
            shifts[token] = shifts.get(token, 0.0) - penalty
    if not shifts:
        return logits_V
    tokens, values = torch.tensor(list(shifts)), torch.tensor(list(shifts.values()), dtype=logits_V.dtype)
    return logits_V.index_add(0, tokens, values)


def choose(
    logits_V: torch.Tensor, generation: Generation, constraint: Constraint | None, random: torch.Generator
) -> int:
    """Return the next token: the likeliest at temperature 0, else one drawn from the nucleus of mass `top_p`."""
    if constraint is not None:
        logits_V = logits_V.masked_fill(~torch.from_numpy(constraint.allowed()), -torch.inf)
    if generation.temperature == 0:
        token = int(torch.argmax(logits_V))
    else:
        probabilities_V = torch.softmax(logits_V / generation.temperature, dim=-1)
        if generation.top_p < 1:
            values, order = torch.sort(probabilities_V, descending=True, stable=True)
            values[torch.cumsum(values, dim=0) - values >= generation.top_p] = 0
            probabilities_V = torch.zeros_like(probabilities_V).scatter(0, order, values)
        token = int(torch.multinomial(probabilities_V, 1, generator=random))
    return token if constraint is None else constraint.accept(token)


class TextWriter:
    """Turns tokens into text as they come: half characters wait, and so does what may become a stop text."""

    def __init__(self, tokenizer: Any, stops: list[str], *, skips_special: bool = True) -> None:
        self.tokenizer, self.stops, self.skips_special = tokenizer, stops, skips_special
        self.tokens: list[int] = []
        self.start = self.end = 0
        self.pending = ""
        self.stopped = False

    def add(self, token: int) -> str:
        self.tokens.append(token)
        # A token's text can depend on the one before it (spaces), so both are decoded and the known part is cut off.
        before = self.decode(self.start, self.end)
        now = self.decode(self.start, len(self.tokens))
        if now.endswith(REPLACEMENT) and len(self.tokens) - self.end < 4:
            return ""
        self.start, self.end = self.end, len(self.tokens)
        return self.release(now[len(before) :])

    def decode(self, start: int, end: int) -> str:
        text: str = self.tokenizer.decode(self.tokens[start:end], skip_special_tokens=self.skips_special)
        return text

    def release(self, fresh: str) -> str:
        self.pending += fresh
        positions = [position for stop in self.stops if (position := self.pending.find(stop)) >= 0]
        if positions:
            self.stopped = True
            certain, self.pending = self.pending[: min(positions)], ""
            return certain
        keep = max((overlap(self.pending, stop) for stop in self.stops), default=0)
        certain, self.pending = self.pending[: len(self.pending) - keep], self.pending[len(self.pending) - keep :]
        return certain

    def finish(self) -> str:
        """Return the text that was still pending when the generation ended."""
        if self.stopped:
            return ""
        rest = self.decode(self.start, len(self.tokens))[len(self.decode(self.start, self.end)) :]
        return self.pending + rest


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)


class Worker:
    """The thread that owns the engine. What is submitted runs in order; at most `MAX_WAITING` wait."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue(MAX_WAITING)
        self.busy = False
        self.thread = threading.Thread(target=self.run, name="inference", daemon=True)
        self.thread.start()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Raises `LimitExceeded` (`E-SERVER-FULL`) when too many wait."""
        future: Future[Any] = Future()
        try:
            self.waiting.put_nowait((work, future))
        except queue.Full as error:
            raise LimitExceeded(
                f"{MAX_WAITING} requests are already waiting.", do="Ask again later.", code="E-SERVER-FULL"
            ) from error
        return future

    def run(self) -> None:
        while (entry := self.waiting.get()) is not None:
            work, future = entry
            if not future.set_running_or_notify_cancel():
                continue
            self.busy = True
            try:
                future.set_result(work())
            except Exception as error:  # it belongs to the caller that waits for the future
                future.set_exception(error)
            self.busy = False

    def stop(self) -> None:
        """End the thread after what it computes now; what waits is dropped."""
        while not self.waiting.empty():
            self.waiting.get_nowait()
        self.waiting.put_nowait(None)
        self.thread.join(timeout=5)
