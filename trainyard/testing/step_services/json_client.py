"""An adapter at Trainyard's Tinker wire by plain JSON requests: no SDK, no thread of its own, no second process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx
import torch

from trainyard.backends.remote_steps.service import ServiceRow, StepSettings
from trainyard.train.contracts import Generated, Sampling, StopReason

Json: TypeAlias = Any
PENDING = 408
TIMEOUT_S = 120.0
RESULT_FILES = ("adapter_config.json", "adapter_model.safetensors")


class JsonStepClient:
    """One adapter in a session of its own, as `remote_steps.service.StepService`."""

    def __init__(self, url: str, key: str, model: str, rank: int, seed: int, *, tokenizer: Any) -> None:
        self.model, self.rank, self.seed, self.tokenizer = model, rank, seed, tokenizer
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-Key": key}, timeout=TIMEOUT_S)
        self.numbers, self.samplers = itertools.count(1), itertools.count(1)
        self.session = self.model_id = self.sampler = ""

    def ask(self, path: str, /, **body: Json) -> Json:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, path: str, /, **body: Json) -> Json:
        """Return the result of a request that is a future."""
        request = self.ask(path, **body)["request_id"]
        while True:
            answer = self.http.post("/retrieve_future", json={"request_id": request})
            if answer.status_code == PENDING or answer.json().get("type") == "try_again":
                continue
            assert answer.status_code == 200, answer.text
            return answer.json()

    def turn(self, path: str, /, **body: Json) -> Json:
        return self.wait(path, model_id=self.model_id, seq_id=next(self.numbers), **body)

    def open(self) -> None:
        self.session = self.ask("/create_session", tags=[], sdk_version="0.23.0")["session_id"]
        lora = {"rank": self.rank, "seed": self.seed, "train_unembed": False}
        model = self.wait(
            "/create_model", session_id=self.session, model_seq_id=0, base_model=self.model, lora_config=lora
        )
        self.model_id = model["model_id"]

    # Steps

    def forward(self, rows: Sequence[ServiceRow]) -> list[torch.Tensor]:
        data = [make_datum(row, torch.zeros(len(row.targets))) for row in rows]
        return read_logprobs(self.turn("/forward", forward_input={"data": data, "loss_fn": "cross_entropy"}))

    def backward(
        self, rows: Sequence[ServiceRow], weights: Sequence[torch.Tensor], *, score: bool = True
    ) -> list[torch.Tensor]:
        del score
        data = [make_datum(row, values_T) for row, values_T in zip(rows, weights, strict=True)]
        body = {"data": data, "loss_fn": "cross_entropy"}
        return read_logprobs(self.turn("/forward_backward", forward_backward_input=body))

    def step(self, settings: StepSettings) -> float | None:
        self.sampler = ""
        params = {
            "learning_rate": settings.learning_rate, "beta1": settings.betas[0], "beta2": settings.betas[1],
            "eps": settings.eps, "weight_decay": settings.weight_decay, "grad_clip_norm": settings.max_grad_norm,
        }  # fmt: skip
        metrics = self.turn("/optim_step", adam_params=params).get("metrics") or {}
        return metrics.get("grad_norm:mean")

    def zero_grad(self) -> None:
        """Do nothing: a step has cleared the gradients."""

    # Samples and scores

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        if not self.sampler:
            saved = self.turn("/save_weights_for_sampler", sampling_session_seq_id=next(self.samplers))
            self.sampler = saved["sampling_session_id"]
        params = {
            "max_tokens": sampling.max_new_tokens, "seed": sampling.seed, "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1, "top_p": sampling.top_p, "stop": list(sampling.stop_texts) or None,
        }  # fmt: skip
        samples = []
        for prompt in prompts:
            chunks = [{"type": "encoded_text", "tokens": list(prompt)}]
            answer = self.wait(
                "/asample", prompt={"chunks": chunks}, sampling_params=params, sampling_session_id=self.sampler,
                seq_id=next(self.samplers),
            )  # fmt: skip
            for sequence in answer["sequences"]:
                ids, logprobs = sequence["tokens"], sequence["logprobs"]
                reason = StopReason.END if sequence["stop_reason"] == "stop" else StopReason.LENGTH
                text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
                samples.append(Generated(ids, text, logprobs, logprobs, reason))
        return samples

    def logprobs(self, rows: Sequence[Sequence[int]], *, base: bool = False) -> list[list[float | None]]:
        assert not base, "an adapter that is never trained is the base"
        scores = self.forward([ServiceRow(list(row[:-1]), list(row[1:])) for row in rows])
        return [[None, *values_T.tolist()] for values_T in scores]

    # States

    def save(self, name: str) -> str:
        return str(self.turn("/save_weights", path=name)["path"])

    def load(self, path: str) -> None:
        self.sampler = ""
        self.turn("/load_weights", path=path, optimizer=True)

    def remove(self, path: str) -> None:
        """Keep a state: no double has a verb for its deletion."""

    def export(self, name: str, folder: Path) -> None:
        run, _, rest = self.turn("/save_weights_external", path=name)["path"].removeprefix("tinker://").partition("/")
        answer = self.http.get(f"/training_runs/{run}/checkpoints/{rest}/external_weights_urls")
        assert answer.status_code == 200, answer.text
        folder.mkdir(parents=True, exist_ok=True)
        for file in RESULT_FILES:
            link = urlsplit(answer.json()["urls"][file])
            (folder / file).write_bytes(self.http.get(link.geturl()).raise_for_status().content)

    def close(self, status: str) -> None:
        self.http.post(f"/sessions/{self.session}/finish", json={"reason": {"type": status}})
        self.http.close()


def make_datum(row: ServiceRow, weights_T: torch.Tensor) -> Json:
    """Return a row of the wire."""
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": row.tokens}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": row.targets, "dtype": "int64"},
            "weights": {"data": weights_T.float().tolist(), "dtype": "float32"},
        },
    }


def read_logprobs(output: Json) -> list[torch.Tensor]:
    return [torch.tensor(record["logprobs"]["data"], dtype=torch.float32) for record in output["loss_fn_outputs"]]
