"""A step service by the SDK of its own, in a child process: one line of JSON for each verb, one for each answer.

The SDKs of Fireworks and Together pin other packages than Trainyard, so each has an environment of its own
(`trainyard backends install fireworks_steps`). The other end is `workers/trainyard_worker/step_service.py`. The key is
in the child's environment alone, and the child is gone when its standard input is closed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import torch

from trainyard.backends import environments
from trainyard.backends.job import TrainingJob
from trainyard.backends.remote_steps.addresses import NO_KEY, ServiceAddress
from trainyard.backends.remote_steps.client import RESULT_FILES, trained_layers
from trainyard.backends.remote_steps.service import ServiceRow, StepSettings
from trainyard.errors import Conflict, Corrupt, Denied, InvalidInput, TrainyardError, Unavailable
from trainyard.inherited import child_environment
from trainyard.spec.axes.methods import LowRankSettings
from trainyard.train.contracts import Generated, Sampling, StopReason

WORKER_MODULE = "trainyard_worker.step_service"
ADDRESS, KEY = "TRAINYARD_STEP_ADDRESS", "TRAINYARD_STEP_KEY"
END_S = 90.0
"""Seconds that the child has to release paid resources, after its input is closed."""
QUIET = {"TINKER_TELEMETRY": "0", "TOGETHER_NO_ANALYTICS": "1"}
Answer = Any
"""A JSON value, whose form the verb decides."""


class ChildService:
    """One adapter at a service, as `service.StepService`, computed for by a child process."""

    def __init__(self, job: TrainingJob, address: ServiceAddress, tokenizer: Any, folder: Path) -> None:
        self.job, self.config, self.name = job.work_name, job.config, job.config.backend
        self.address, self.tokenizer, self.is_open = address, tokenizer, False
        python = environments.find_python(self.name)
        key = "" if address.key == NO_KEY else address.key
        variables = environments.clean_variables(child_environment(QUIET))
        self.process = subprocess.Popen(
            [str(python), "-P", "-m", WORKER_MODULE, self.name.value, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**variables, **environments.variables(), ADDRESS: address.base_url, KEY: key},
        )

    def ask(self, verb: str, **fields: Any) -> Answer:
        """Return the answer to a verb, or raise its error in our words."""
        assert self.process.stdin is not None, "opened as a pipe"
        assert self.process.stdout is not None, "opened as a pipe"
        try:
            self.process.stdin.write(orjson.dumps({"verb": verb, **fields}) + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            code = self.process.wait()
            raise Unavailable(
                f"The program of the {self.name.value} backend ended during {verb}, with exit code {code}.",
                do="Read the log of the training; start the run again: it continues from the last state.",
                code="E-SERVER-UNREACHABLE",
            )
        answer = orjson.loads(line)
        if "error" in answer:
            raise self._translate(**answer["error"])
        return answer["value"]

    def _translate(self, kind: str, why: str) -> TrainyardError:
        where = self.address.base_url or "its own address"
        if kind == "denied":
            return Denied(
                f"The service at {where} does not accept the key.", why=why,
                do="Set the key that the operator has for it.", code="E-API-KEY",
            )  # fmt: skip
        if kind == "refused":
            return InvalidInput(
                f"The {self.name.value} service refuses a request.", why=why,
                do="Correct what it names, and start again.", code="E-REQUEST-REFUSED",
            )  # fmt: skip
        if kind == "corrupt":
            return Corrupt(
                f"The {self.name.value} service answers without the requested values.", why=why,
                do="Look at the session in the service's console.", code="E-SERVER-RESPONSE",
            )  # fmt: skip
        return Unavailable(
            f"The service at {where} cannot be used.", why=why,
            do="Start the run again when it answers: it continues from the last state.", code="E-SERVER-UNREACHABLE",
        )  # fmt: skip

    # Steps

    def open(self, path: str | None = None) -> None:
        method = self.config.method
        assert isinstance(method, LowRankSettings), method
        attention, mlp = trained_layers(method.target_modules)
        adapter = {
            "rank": method.rank, "alpha": None if method.alpha is None else int(method.alpha),
            "dropout": method.dropout, "seed": self.config.hyperparameters.seed, "attention": attention, "mlp": mlp,
        }  # fmt: skip
        self.ask("open", model=self.address.model, job=self.job, adapter=adapter, path=path)
        self.is_open = True

    def forward(self, rows: Sequence[ServiceRow]) -> list[torch.Tensor]:
        return self._read(self.ask("forward", rows=rows), rows)

    def _read(self, answer: Answer, rows: Sequence[ServiceRow]) -> list[torch.Tensor]:
        """Return log-probabilities. Raises `Corrupt` (`E-SERVER-RESPONSE`) for other positions."""
        logprobs = [torch.tensor(values, dtype=torch.float32) for values in answer]
        if [len(values_T) for values_T in logprobs] != [len(row.targets) for row in rows]:
            raise self._translate("corrupt", "There are fewer or more log-probabilities than targets.")
        return logprobs

    def backward(
        self, rows: Sequence[ServiceRow], weights: Sequence[torch.Tensor], *, score: bool = True
    ) -> list[torch.Tensor]:
        values = [values_T.float().tolist() for values_T in weights]
        answer = self.ask("backward", rows=rows, weights=values, score=score)
        return self._read(answer, rows) if score else []

    def step(self, settings: StepSettings) -> float | None:
        norm = self.ask(
            "step", learning_rate=settings.learning_rate, beta1=settings.betas[0], beta2=settings.betas[1],
            eps=settings.eps, weight_decay=settings.weight_decay, grad_clip_norm=settings.max_grad_norm,
        )  # fmt: skip
        return None if norm is None else float(norm)

    def zero_grad(self) -> None:
        raise Conflict(
            "The service cannot clear gradients without a step.", why="Its wire has no verb for it.",
            do="Continue from the last saved state.", code="E-STEP",
        )  # fmt: skip

    # Samples and scores

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        """Sample with texts that end an answer: these services take no token ids for it."""
        stops = list(sampling.stop_texts) or [self.tokenizer.decode([token]) for token in sampling.stop_ids or ()]
        options = {
            "max_tokens": sampling.max_new_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
            "seed": sampling.seed, "stop": stops or None, **({"top_k": sampling.top_k} if sampling.top_k else {}),
        }  # fmt: skip
        answers = self.ask("generate", prompts=[list(prompt) for prompt in prompts], sampling=options)
        return [self._completion(answer, sampling) for answer in answers]

    def _completion(self, answer: Answer, sampling: Sampling) -> Generated:
        ids, logprobs = answer["tokens"], answer["logprobs"]
        reason = StopReason.END if answer["ended"] else StopReason.LENGTH
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
        return Generated(ids, text, logprobs if sampling.temperature else [0.0] * len(ids), logprobs, reason)

    def logprobs(self, rows: Sequence[Sequence[int]], *, base: bool = False) -> list[list[float | None]]:
        shifted = [ServiceRow(list(row[:-1]), list(row[1:])) for row in rows]
        scores = self._read(self.ask("base_logprobs" if base else "forward", rows=shifted), shifted)
        return [[None, *row_scores.tolist()] for row_scores in scores]

    # States

    def save(self, name: str) -> str:
        return str(self.ask("save", name=name))

    def load(self, path: str) -> None:
        """Continue from a saved state; the first load of a process opens its session there."""
        if self.is_open:
            self.ask("load", path=path)
        else:
            self.open(path)

    def remove(self, path: str) -> None:
        self.ask("remove", path=path)

    def export(self, name: str, folder: Path) -> None:
        """Fetch the adapter. Raises `Corrupt` (`E-ADAPTER-INVALID`) where a file is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        self.ask("export", name=name, folder=str(folder))
        missing = [file for file in RESULT_FILES if not (folder / file).is_file()]
        if missing:
            raise Corrupt(
                f"The service gives the weights without {missing[0]}.",
                why=f"It has {', '.join(sorted(path.name for path in folder.iterdir()))[:200]}.",
                do="Look at the checkpoint in the service's console.", code="E-ADAPTER-INVALID",
            )  # fmt: skip

    def close(self, status: str) -> None:
        """Let go of the session, and end the child."""
        try:
            if self.process.poll() is None:
                self.ask("close", status=status)
        finally:
            assert self.process.stdin is not None, "opened as a pipe"
            assert self.process.stdout is not None, "opened as a pipe"
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.stdout.close()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
