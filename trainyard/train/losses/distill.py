"""Distillation: the student takes over a teacher's distribution over the next token.

p is the teacher's distribution and q the student's, both of logits divided by the temperature. The divergence of a
token (Agarwal et al. 2023, arXiv 2306.13649, equation 1, as TRL's GKD computes it):

    beta 0          KL(p || q)          forward: q covers what p does
    beta 1          KL(q || p)          reverse: q keeps to what p does most
    between         beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q
    loss            sum over labelled tokens of the divergence, plus label_weight times their cross-entropy

On-policy (GKD, algorithm 1): each row is continued by the student itself with the probability `lmbda`, otherwise it
keeps its answer, or with `seq_kd` gets one of the teacher. The paper throws one coin a step; one a row has the same
share and less variance. No gradient goes through the drawing, and what the student wrote has no labels. What is drawn
follows from the weights, the seed and the place in the run: a resumed run draws it again.

A teacher behind a server says the probabilities of its likeliest tokens only. They are compared one by one, and all
others as one bucket (as TRL's server distillation does): a lower bound of the divergence, and the divergence itself
where the likeliest are the whole vocabulary.

Where the output layers differ in size, as padded ones do, only the tokens that both know are compared.

Shapes: B rows, T positions, N labelled tokens, C of them in a chunk, V vocabulary, K likeliest tokens.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainyard.spec.axes.stages import DistillSettings, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import (
    IGNORED,
    Batch,
    CompletionWriter,
    Encoded,
    Head,
    Metrics,
    Sampling,
    Scores,
    StageSpec,
)
from trainyard.train.losses import sft
from trainyard.train.losses.served_teacher import FILL, ServedTeacher
from trainyard.train.model.head import CHUNK_LOGITS, hidden_states
from trainyard.train.rows.batching import pad

LARGEST_COVERED = -1e-7
"""Logarithm of the largest share of the likeliest tokens: something is left for all others."""
DRAWN = "drawn_B"
"""Of a batch with completions: whether the student wrote the row's."""


def score(model: Any, batch: Batch, _head: Head) -> Scores:
    """`logits_NV` of every labelled token, in float32; of a teacher behind a server what it says of its likeliest."""
    if isinstance(model, ServedTeacher):
        return model.scores(batch)
    hidden_BTD, output = hidden_states(model, batch)
    return {"logits_NV": output(hidden_BTD[batch["labels"][:, 1:].ne(IGNORED).nonzero(as_tuple=True)])}


def loss(batch: Batch, policy: Scores, reference: Scores | None, config: TrainerConfig) -> tuple[torch.Tensor, Metrics]:
    """Divergence from the teacher and weighted cross-entropy, summed over the labelled tokens."""
    settings = config.stage
    assert isinstance(settings, DistillSettings), settings
    assert reference is not None, "a stage with a teacher"
    student_NV = policy["logits_NV"]
    labels_BT = batch["labels"][:, 1:]
    rows_N, positions_N = (labels_BT != IGNORED).nonzero(as_tuple=True)
    target_N, drawn_N = labels_BT[rows_N, positions_N], find_drawn_rows(batch)[rows_N]
    served = "teacher_ids_NK" in reference
    if served:
        divergence_N = by_chunk_of_likeliest(student_NV, reference, settings)
    else:
        divergence_N = divergence_by_chunk(student_NV, reference["logits_NV"], settings)
    total, metrics = divergence_N.sum(), {"divergence": divergence_N.detach().sum()}
    if settings.label_weight:
        nll = functional.cross_entropy(student_NV[~drawn_N], target_N[~drawn_N], reduction="sum")
        total, metrics = total + settings.label_weight * nll, {**metrics, "label_loss": nll.detach()}
    best_N = reference["teacher_ids_NK"][:, 0] if served else reference["logits_NV"].argmax(-1)
    same_N = student_NV.detach().argmax(-1) == best_N
    return total, {**metrics, "teacher_agreement": same_N.float().sum(), "drawn": drawn_N.float().sum()}


def find_drawn_rows(batch: Batch) -> torch.Tensor:
    """Return which rows the student wrote: (B,)."""
    none_B = torch.zeros(len(batch["labels"]), dtype=torch.bool, device=batch["labels"].device)
    return batch.get(DRAWN, none_B)


def divergence_by_chunk(
    student_NV: torch.Tensor, teacher_NV: torch.Tensor, settings: DistillSettings, *, chunk_logits: int = CHUNK_LOGITS
) -> torch.Tensor:
    """Return the divergence of each token: (N,). A chunk's intermediate results are computed again in the backward
    pass.
    """
    size = max(1, chunk_logits // student_NV.shape[1])

    def compare(student_CV: torch.Tensor, teacher_CV: torch.Tensor) -> torch.Tensor:
        common = min(student_CV.shape[1], teacher_CV.shape[1])
        pair = (given_CV[:, :common] / settings.temperature for given_CV in (student_CV, teacher_CV))
        return divergence(*(given_CV.log_softmax(-1) for given_CV in pair), beta=settings.beta)

    parts = zip(student_NV.split(size), teacher_NV.split(size), strict=True)
    if not student_NV.requires_grad or len(student_NV) <= size:
        return torch.cat([compare(*part) for part in parts])
    return torch.cat([checkpoint(compare, *part, use_reentrant=False) for part in parts])


def by_chunk_of_likeliest(
    student_NV: torch.Tensor, teacher: Scores, settings: DistillSettings, *, chunk_logits: int = CHUNK_LOGITS
) -> torch.Tensor:
    """Return the divergence of each token over the teacher's likeliest tokens and one bucket of all others: (N,)."""
    size = max(1, chunk_logits // student_NV.shape[1])

    def compare(student_CV: torch.Tensor, ids_CK: torch.Tensor, log_p_CK: torch.Tensor) -> torch.Tensor:
        known_CK = (log_p_CK > FILL) & (ids_CK < student_CV.shape[1])
        log_q_CK = student_CV.log_softmax(-1).gather(-1, ids_CK.clamp(max=student_CV.shape[1] - 1))
        pair = [torch.where(known_CK, given_CK, FILL) for given_CK in (log_q_CK, log_p_CK)]
        whole = bool((known_CK.sum(-1) >= student_CV.shape[1]).all())
        return divergence(*(pair if whole else map(with_rest, pair)), beta=settings.beta)

    parts = zip(
        *(tensor.split(size) for tensor in (student_NV, teacher["teacher_ids_NK"], teacher["teacher_logprobs_NK"])),
        strict=True,
    )
    if not student_NV.requires_grad or len(student_NV) <= size:
        return torch.cat([compare(*part) for part in parts])
    return torch.cat([checkpoint(compare, *part, use_reentrant=False) for part in parts])


def with_rest(log_CK: torch.Tensor) -> torch.Tensor:
    """Log-probabilities with that of all other tokens as one more: (C, K + 1). TRL's `_add_tail_bucket`."""
    covered_C1 = torch.logsumexp(log_CK, -1, keepdim=True).clamp(max=LARGEST_COVERED)
    return torch.cat([log_CK, torch.log(-torch.expm1(covered_C1))], -1)


def divergence(log_q_CV: torch.Tensor, log_p_CV: torch.Tensor, *, beta: float) -> torch.Tensor:
    """Return the generalized Jensen-Shannon divergence of each row of log-probabilities, q the student's: (C,)."""
    if beta == 0:
        return kl(log_p_CV, log_q_CV)
    if beta == 1:
        return kl(log_q_CV, log_p_CV)
    log_m_CV = torch.logaddexp(log_p_CV + math.log(beta), log_q_CV + math.log1p(-beta))
    return beta * kl(log_p_CV, log_m_CV) + (1 - beta) * kl(log_q_CV, log_m_CV)


def kl(log_a_CV: torch.Tensor, log_b_CV: torch.Tensor) -> torch.Tensor:
    """KL(a || b) of each row: (C,)."""
    return (log_a_CV.exp() * (log_a_CV - log_b_CV)).sum(-1)


# Completions


def draw(writer: CompletionWriter, batch: Batch, config: TrainerConfig, pad_id: int, position: str) -> Batch:
    """Return the batch with the completions that student and teacher write; `position` in the run decides what is "
    "drawn."

    A row whose prompt fills the model's context keeps its answer.
    """
    settings = config.stage
    assert isinstance(settings, DistillSettings), settings
    if not settings.draws:
        return batch
    dice = random.Random(f"{config.hyperparameters.seed}:{position}")
    by_student = [dice.random() < settings.lmbda for _ in batch["input_ids"]]
    seed, rows = dice.getrandbits(31), unpad_rows(batch)
    room = writer.context - 1 if writer.context else None
    fits = [room is None or len(cut_prompt(row)) <= room for row in rows]
    student_rows = [at for at, student in enumerate(by_student) if student and fits[at]]
    teacher_rows = [at for at, student in enumerate(by_student) if settings.seq_kd and not student and fits[at]]
    for generate, row_indices in ((writer.generate, student_rows), (writer.generate_by_reference, teacher_rows)):
        prompts = [cut_prompt(rows[at]) for at in row_indices]
        if not prompts:
            continue
        most = settings.max_completion_length
        if writer.context:
            most = min(most, writer.context - max(map(len, prompts)))
        sampling = Sampling(max_new_tokens=most, temperature=settings.sampling_temperature, seed=seed)
        for at, prompt, completion in zip(row_indices, prompts, generate(prompts, sampling), strict=True):
            rows[at] = {"input_ids": prompt + completion.ids, "labels": [IGNORED] * len(prompt) + completion.ids}
    drawn_B = torch.tensor([student and fit for student, fit in zip(by_student, fits, strict=True)])
    return {**pad(rows, pad_id), DRAWN: drawn_B}


def unpad_rows(batch: Batch) -> list[Encoded]:
    """Return the rows of a batch without their padding."""
    lengths = batch["attention_mask"].sum(1).tolist()
    return [
        {name: batch[name][at, :length].tolist() for name in ("input_ids", "labels")}
        for at, length in enumerate(lengths)
    ]


def cut_prompt(row: Encoded) -> list[int]:
    """Return the tokens before the last answer of a row; at least its first one."""
    labels = row["labels"]
    end = max(at for at, label in enumerate(labels) if label != IGNORED)
    start = next((at + 1 for at in range(end, -1, -1) if labels[at] == IGNORED), 0)
    return row["input_ids"][: max(1, start)]


DISTILL = StageSpec(
    Stage.DISTILL.facts, sft.encode, sft.width, pad, sft.units, score, loss, draw=draw
)  # fmt: skip
