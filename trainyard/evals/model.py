"""A Hugging Face model under evaluation (torch; imported only in the evaluating child).

One base is kept in memory; adapters are attached to it by PEFT and switched per call, so a comparison of base,
candidate and control costs one model. Prompts and answers are rendered and cut by the same code as in training. Padding
is on the right, scores are computed in float32.

Shape suffixes: B rows, T tokens, V vocabulary, N answer tokens of the batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.tokenizer import choose_for_tokenizer
from trainyard.errors import InvalidInput
from trainyard.evals.cases import AnswerScore, Case, TimedAnswer, Turn
from trainyard.evals.job import EvaluationJob, Participant
from trainyard.spec.axes.devices import Device
from trainyard.stores.models import check_adapter_folder
from trainyard.train.contracts import Sampling
from trainyard.train.latent.contract import LatentModule
from trainyard.train.latent.table import load_technique as load_latent
from trainyard.train.methods.guarding import attach_adapter, base_digests, require_unchanged_base, using_adapter
from trainyard.train.methods.loading import load_for_answers, require_memory
from trainyard.train.model.sampling import find_pad_id, sample

LOGITS_AT_ONCE = 1 << 27
"""Largest number of logits of a batch: 512 MiB in float32."""
MOST_ROWS = 32
TOKENIZER_FOLDER = "tokenizer"


@dataclass
class Tokens:
    """One sequence; the tokens from `start` on are scored."""

    ids: list[int]
    start: int


@dataclass
class HuggingFaceModel:
    """One participant: a network, and the name of the adapter that is switched on (None: none)."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    adapter: str | None = None
    base: HuggingFaceModel | None = None
    latent: LatentModule | None = None
    """The technique that thinks before its answers; it is read with every prompt."""
    refused: dict[str, str] = field(default_factory=dict)
    """Id of a case that the chat template refuses -> the template's words."""
    _score_cache: dict[tuple[int, ...], AnswerScore] = field(default_factory=dict)
    _timed: dict[tuple[str, int], TimedAnswer | None] = field(default_factory=dict)

    @property
    def reference(self) -> HuggingFaceModel:
        return self.base or self

    def network(self) -> AbstractContextManager[Any]:
        """Return the network with exactly this participant's adapter switched on."""
        return using_adapter(self.model, self.adapter)

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.tokenizer)

    @property
    def context(self) -> int:
        """Tokens that the model can see at once; thoughts take some of its context."""
        whole = int(getattr(self.model.config, "max_position_embeddings", 0) or self.tokenizer.model_max_length)
        return whole - (self.latent.positions if self.latent is not None else 0)

    def answers(self, cases: Sequence[tuple[Case, Turn]]) -> list[AnswerScore | None]:
        return self._score([self._conversation(case, answer) for case, answer in cases])

    def texts(self, texts: Sequence[str]) -> list[AnswerScore | None]:
        return self._score([self._text(text) for text in texts])

    def generate(self, cases: Sequence[Case], max_tokens: int) -> list[str | None]:
        answers = (self._answer(case, max(max_tokens, self.count_gold(case))) for case in cases)
        return [None if answer is None else answer[0] for answer in answers]

    def count_gold(self, case: Case) -> int:
        """Return the tokens of the longest accepted answer and of its end: an answer that is cut could not match it."""
        lengths = [len(self.tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for text in case.gold]
        return min(max(lengths, default=0), self.context // 2)

    def _text(self, text: str) -> Tokens | None:
        """Plain text, cut to the context; the first token is given, not scored."""
        ids = self.tokenizer(text, add_special_tokens=True)["input_ids"][: self.context]
        return Tokens(ids, 1) if len(ids) > 1 else None

    def _conversation(self, case: Case, answer: Turn) -> Tokens | None:
        """Prompt and answer as ids, cut as in training; None when the template refuses the row or it does not fit."""
        try:
            prompt, (reply,) = self.renderer.answered([*case.prompt], [[answer]], case.tools)
        except TemplateError as error:
            self.refused[case.id] = str(error)
            return None
        prompt_ids, learned = self.renderer.ids(prompt), self.renderer.encode_answer(reply)
        if not learned or len(prompt_ids) + len(learned) > self.context:
            return None
        return Tokens([*prompt_ids, *learned], len(prompt_ids))

    def _score(self, rows: list[Tokens | None]) -> list[AnswerScore | None]:
        """Score rows in batches of similar length; loss and accuracy share the scores."""
        todo = {(*row.ids, row.start): row for row in rows if row and (*row.ids, row.start) not in self._score_cache}
        if self.latent is not None:
            return [self._score_after_thoughts(row) if row else None for row in rows]
        with self.network() as network, torch.inference_mode():
            for batch in batches(list(todo.values()), int(network.config.vocab_size)):
                for row, score in zip(batch, score_batch(network, batch), strict=True):
                    self._score_cache[(*row.ids, row.start)] = score
        return [self._score_cache[(*row.ids, row.start)] if row else None for row in rows]

    def _score_after_thoughts(self, row: Tokens) -> AnswerScore:
        """Score an answer token by token, each after the thoughts and the tokens before it."""
        assert self.latent is not None
        prompt_ids, answer_ids = row.ids[: row.start], row.ids[row.start :]
        nll, hits = 0.0, 0
        with self.network() as network, torch.inference_mode():
            prompt_BT = torch.tensor([prompt_ids], device=network.device)
            reading, logits_BV = self.latent.open(network, prompt_BT, torch.ones_like(prompt_BT))
            for index, token in enumerate(answer_ids):
                nll -= float(torch.log_softmax(logits_BV[0].float(), -1)[token])
                hits += int(logits_BV[0].argmax()) == token
                if index + 1 < len(answer_ids):
                    token_B = torch.tensor([token], device=network.device)
                    reading, logits_BV = self.latent.step(network, reading, token_B)
        return AnswerScore(nll=nll, tokens=len(answer_ids), correct=hits)

    def timed(self, cases: Sequence[Case], max_tokens: int) -> list[TimedAnswer | None]:
        """Return answers with their tokens and seconds; several benchmarks share them."""
        todo = [case for case in cases if (case.id, max_tokens) not in self._timed]
        for case in todo:
            started = time.perf_counter()
            answer = self._answer(case, max_tokens)
            seconds = time.perf_counter() - started
            self._timed[case.id, max_tokens] = None if answer is None else TimedAnswer(*answer, seconds)
        return [self._timed[case.id, max_tokens] for case in cases]

    def _answer(self, case: Case, max_tokens: int) -> tuple[str, int] | None:
        """The answer, and the positions that it took after the prompt; None if the template refuses the prompt."""
        try:
            prompt = self.renderer.text([*case.prompt], case.tools, ask=True)
        except TemplateError as error:
            self.refused[case.id] = str(error)
            return None
        ids = self.renderer.ids(prompt)[-max(1, self.context - max_tokens) :]
        tokenizer = self.tokenizer
        if self.latent is not None:
            with self.network() as network, torch.inference_mode():
                asked_for = Sampling(max_new_tokens=max_tokens, temperature=0)
                completion = sample(network, tokenizer, [ids], asked_for, reader=self.latent)[0]
            return completion.text.strip(), self.latent.num_read(len(completion.ids))
        with self.network() as network, torch.inference_mode():
            prompt_BT = torch.tensor([ids], device=network.device)
            said_BT = network.generate(
                input_ids=prompt_BT,
                attention_mask=torch.ones_like(prompt_BT),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=find_pad_id(tokenizer),
            )
        answer_ids = said_BT[0, len(ids) :]
        return str(tokenizer.decode(answer_ids, skip_special_tokens=True)).strip(), len(answer_ids)


def batches(rows: list[Tokens], vocabulary: int) -> Iterator[list[Tokens]]:
    """Rows of similar length together, so that padding stays small and the logits fit `LOGITS_AT_ONCE`."""
    batch: list[Tokens] = []
    for row in sorted(rows, key=lambda row: (len(row.ids), row.ids)):
        if batch and (len(batch) == MOST_ROWS or (len(batch) + 1) * len(row.ids) * vocabulary > LOGITS_AT_ONCE):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def score_batch(network: Any, batch: list[Tokens]) -> list[AnswerScore]:
    """Negative log-likelihood and argmax hits of each row's scored tokens, in one forward pass."""
    length = max(len(row.ids) for row in batch)
    ids_BT = torch.zeros(len(batch), length, dtype=torch.long)
    seen_BT, scored_BT = torch.zeros_like(ids_BT), torch.zeros_like(ids_BT, dtype=torch.bool)
    for index, row in enumerate(batch):
        ids_BT[index, : len(row.ids)] = torch.tensor(row.ids)
        seen_BT[index, : len(row.ids)] = 1
        scored_BT[index, max(row.start, 1) : len(row.ids)] = True
    logits_BTV = network(
        input_ids=ids_BT.to(network.device), attention_mask=seen_BT.to(network.device), use_cache=False
    ).logits
    logits_NV = logits_BTV[:, :-1][scored_BT[:, 1:].to(network.device)].float()
    target_N = ids_BT[scored_BT].to(network.device)
    nll_N = torch.nn.functional.cross_entropy(logits_NV, target_N, reduction="none").cpu().double()
    hit_N = (logits_NV.argmax(-1) == target_N).cpu()
    row_N = scored_BT.nonzero()[:, 0]
    nll_B = torch.zeros(len(batch), dtype=torch.float64).index_add_(0, row_N, nll_N)
    hit_B = torch.zeros(len(batch), dtype=torch.long).index_add_(0, row_N, hit_N.long())
    count_B = scored_BT.sum(1)
    return [
        AnswerScore(nll=float(nll), tokens=int(count), correct=int(hits))
        for nll, count, hits in zip(nll_B, count_B, hit_B, strict=True)
    ]


def load_participants(job: EvaluationJob) -> dict[str, HuggingFaceModel]:
    """Return every participant, ready to be scored, under `baseline`, `candidate`, `control` and `live`.

    All are prompted with the candidate's tokenizer and chat template, which are what it will be served with.
    """
    device = pick_device(job.device)
    tokenizer = load_tokenizer(job)
    network = load_network(job.base_path, device)
    roles = {"baseline": job.baseline, "candidate": job.candidate, "control": job.control, "live": job.live}
    participants = {role: participant for role, participant in roles.items() if participant is not None}
    for role, participant in participants.items():
        if participant.kind == "adapter":
            network = attach(network, participant, role)
    base = HuggingFaceModel(network, tokenizer, latent=load_latent(Path(job.base_path), network, tokenizer))
    return {role: one_participant(participant, role, base, device) for role, participant in participants.items()}


def one_participant(participant: Participant, role: str, base: HuggingFaceModel, device: str) -> HuggingFaceModel:
    if participant.kind == "base":
        return base
    folder = Path(participant.path or "")
    adapter = participant.kind == "adapter"
    network = base.model if adapter else load_network(str(folder), device)
    latent = load_latent(folder, network, base.tokenizer)
    return HuggingFaceModel(network, base.tokenizer, role if adapter else None, base, latent)


def attach(network: Any, participant: Participant, role: str) -> Any:
    """Return the network with one more adapter, named after its role."""
    folder = Path(participant.path or "")
    check_adapter_folder(folder, [module for module, _ in network.named_modules()])
    weights = base_digests(network)
    try:
        network = attach_adapter(network, folder, role)
    except Exception as error:  # PEFT has no error class of its own
        raise InvalidInput(
            f"The {role}'s adapter does not fit the base model.",
            why=" ".join(str(error).split())[:500],
            do="Evaluate it with the base it was trained on (base_path in its training.json).",
            code="E-ADAPTER-INVALID",
        ) from error
    require_unchanged_base(weights, network, folder.name)
    return network.eval()


def load_network(path: str, device: str) -> object:
    """A causal language model from safetensors, without remote code; float32 on the CPU, else its own precision."""
    dtype = torch.float32 if device == "cpu" else "auto"
    if device == "cpu":
        require_memory(path, torch.float32)
    return load_for_answers(path, dtype).to(device)


def load_tokenizer(job: EvaluationJob) -> PreTrainedTokenizerBase:
    """Return the candidate's own tokenizer where it has one, else the base's."""
    folders = [Path(job.candidate.path or "") / TOKENIZER_FOLDER, Path(job.candidate.path or "")]
    folder = next((str(path) for path in folders if (path / "tokenizer_config.json").is_file()), job.base_path)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.chat_template = choose_for_tokenizer(tokenizer).text
    return tokenizer


def pick_device(requested: Device) -> str:
    if requested is not Device.AUTO:
        return requested.facts.torch_type
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
