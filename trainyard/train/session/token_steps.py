"""Rows of tokens with explicit targets, scored and differentiated by a loss that the caller names (`token_losses`).

A row is independent of every other: its log-probabilities and its loss are sums over its own positions. Rows are cut
into micro-batches in their order, and gradients add up, so that the size of a call changes memory and not meaning.

Shapes: B rows, T positions, K targets of a position, N positions of all rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from trainyard.errors import InvalidInput, TrainyardError
from trainyard.train.contracts import Batch
from trainyard.train.history import require_finite_loss
from trainyard.train.losses.token_losses import complete_settings, find_token_loss
from trainyard.train.model.head import CHUNK_LOGITS, Output, hidden_states, token_logprobs
from trainyard.train.session.determinism import strict_kernels
from trainyard.train.session.session import Session

RowLoss = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], torch.Tensor]
"""(log-probabilities of the targets of a row, inputs) -> loss"""
POSITIONS_AT_ONCE = 8192
"""Most positions of a micro-batch, padding included; a longer row is a micro-batch of its own."""


@dataclass(frozen=True)
class TokenRow:
    """A row: its tokens, its targets, and the inputs of the loss by name."""

    input_ids: torch.Tensor
    """(T,)"""
    targets: torch.Tensor
    """(T,) or (T, K)"""
    inputs: Mapping[str, torch.Tensor]
    """Float tensors of the shape of the targets."""


@dataclass(frozen=True)
class TokenStep:
    """Result of a call: the loss summed over its rows, and the log-probabilities of each row's targets."""

    loss: float
    logprobs: list[torch.Tensor]


def run_token_step(
    session: Session, rows: Sequence[TokenRow], loss: str, settings: Mapping[str, object], *, backward: bool
) -> TokenStep:
    """Score rows, and with `backward` add the gradients of their loss to the session's.

    Raises `InvalidInput` (`E-STEP`) for missing inputs, and `Conflict` (`E-STEP`) after a step without `zero_grad`;
    then nothing has changed. Raises `TrainyardError` (`E-NON-FINITE`), after which the gradients are cleared.
    """
    facts, values = find_token_loss(loss), complete_settings(loss, settings)
    for index, row in enumerate(rows):
        require_inputs(row, index, loss)
    if not backward:
        return score_parts(session, rows, partial(facts.loss, settings=values), backward=False)
    session.require_fresh_gradients()
    try:
        return score_parts(session, rows, partial(facts.loss, settings=values), backward=True)
    except TrainyardError:
        session.zero_grad()  # of the parts before: a step without all of its rows is not taken
        raise


def score_parts(session: Session, rows: Sequence[TokenRow], loss: RowLoss, *, backward: bool) -> TokenStep:
    """Score rows part by part. Raises `TrainyardError` (`E-NON-FINITE`) before such a loss reaches the gradients."""
    total, logprobs = 0.0, list[torch.Tensor]()
    for part in cut_rows(rows):
        with training(session) if backward else session.quiet():
            scores = score_rows(session, part)
            part_loss = torch.stack(
                [
                    loss(row_scores, {name: value.to(row_scores.device) for name, value in row.inputs.items()})
                    for row, row_scores in zip(part, scores, strict=True)
                ]
            ).sum()
        require_finite_loss(session.global_step + 1, float(part_loss.detach()))
        total += float(part_loss.detach())
        logprobs += [row_scores.detach().float().cpu() for row_scores in scores]
        if backward:
            session.backward(session.keep_graph(part_loss), measure=False)
    return TokenStep(total, logprobs)


@contextmanager
def training(session: Session) -> Iterator[None]:
    """The surroundings of a forward pass that keeps its graph: the session's generators, kernels and precision."""
    with session.generators.used(), strict_kernels(session.engine.strict), session.autocast():
        yield


def require_inputs(row: TokenRow, index: int, loss: str) -> None:
    """Raise `InvalidInput` (`E-STEP`) for a row that lacks an input of the loss, or has one that it does not read."""
    facts = find_token_loss(loss)
    missing = [name for name in facts.required if name not in row.inputs]
    unread = sorted(row.inputs.keys() - {*facts.required, *facts.optional})
    if missing or unread:
        names = ", ".join((*facts.required, *facts.optional)) or "none"
        text = f"has no {missing[0]}" if missing else f"has {unread[0]}, which it does not read"
        raise InvalidInput(
            f"Row {index} of the loss {loss} {text}.", do=f"Give target_tokens and: {names}.", code="E-STEP"
        )
    for name, value in row.inputs.items():
        if value.shape != row.targets.shape or not bool(torch.isfinite(value).all()):
            raise InvalidInput(
                f"The {name} of row {index} are not {tuple(row.targets.shape)} finite numbers.",
                why=f"Their shape is {tuple(value.shape)}.",
                do="Give one finite number for each target token.", code="E-STEP",
            )  # fmt: skip
    if "sequence_ratio_mask" in row.inputs and not bool((row.inputs["sequence_ratio_mask"] != 0).any()):
        raise InvalidInput(
            f"The sequence_ratio_mask of row {index} marks no token.", do="Mark the sampled tokens.", code="E-STEP"
        )


def cut_rows(rows: Sequence[TokenRow]) -> Iterator[list[TokenRow]]:
    """Return the rows in their order, in micro-batches of a limited size."""
    part: list[TokenRow] = []
    for row in rows:
        longest = max((len(other.input_ids) for other in [*part, row]), default=0)
        other_width = part and part[0].targets.shape[1:] != row.targets.shape[1:]
        if part and (other_width or longest * (len(part) + 1) > POSITIONS_AT_ONCE):
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def score_rows(session: Session, rows: Sequence[TokenRow]) -> list[torch.Tensor]:
    """Return the log-probabilities of the targets of each row, each in the shape of its targets."""
    engine = session.engine
    lengths = [len(row.input_ids) for row in rows]
    batch = pad_rows(rows, session.pad_id, engine.device)
    hidden_BTD, output = hidden_states(engine.model, batch)
    real_BT = batch["attention_mask"].bool()
    hidden_ND = hidden_BTD[real_BT]
    target = torch.cat([row.targets for row in rows]).to(engine.device)
    if target.dim() == 1:
        return list(token_logprobs(hidden_ND, target, output, engine.head).split(lengths))
    return list(candidate_logprobs(hidden_ND, target, output).split(lengths))


def pad_rows(rows: Sequence[TokenRow], pad_id: int, device: str) -> Batch:
    """Return the tokens filled up on the right, and their mask (B, T)."""
    ids = [row.input_ids for row in rows]
    masks = [torch.ones_like(row) for row in ids]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad_id).to(device),
        "attention_mask": pad_sequence(masks, batch_first=True).to(device),
    }


def candidate_logprobs(hidden_ND: torch.Tensor, target_NK: torch.Tensor, output: Output) -> torch.Tensor:
    """Log-probability of each of the K targets of a position, in float32: (N, K).

    Chunks are computed again in the backward pass.
    """
    rows = max(1, CHUNK_LOGITS // max(1, output.layer.weight.shape[0]))
    parts = [
        checkpoint(gather_logprobs, hidden_CD, target_CK, output, use_reentrant=False)
        for hidden_CD, target_CK in zip(hidden_ND.split(rows), target_NK.split(rows), strict=True)
    ]
    return torch.cat(parts)


def gather_logprobs(hidden_CD: torch.Tensor, target_CK: torch.Tensor, output: Output) -> torch.Tensor:
    return output(hidden_CD).log_softmax(dim=-1).gather(1, target_CK)
