"""The contract of the verbs: what each needs, changes, gives back and refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.train.losses.stage_rows import PAD, TOKENIZER
from tests.unit.train.session.engines import (
    accumulate,
    copy_gradients,
    copy_weights,
    encode_examples,
    make_batch,
    make_config,
    make_session,
    same,
    train_step,
)
from trainyard.errors import Conflict, InvalidInput, TrainyardError
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.stages import Stage
from trainyard.stores.whole import file_sha256
from trainyard.train.contracts import IGNORED, Sampling
from trainyard.train.losses.table import STAGES
from trainyard.train.model.sampling import token_logprobs
from trainyard.train.optimizers import switch_to_eval, switch_to_train
from trainyard.train.session.replies import INLINE_BYTES, KEPT_REPLIES
from trainyard.train.session.session import Session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return make_session(tmp_path)


# Forward and backward


def test_forward_gives_the_mean_over_its_units_and_backward_the_gradient_of_it(tmp_path: Path) -> None:
    session, batch = make_session(tmp_path, dropout=0.0), make_batch()
    model = session.engine.model
    expected = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]
    ).loss  # transformers' own mean over the labelled tokens
    expected_gradients = torch.autograd.grad(expected, session.parameters)
    forward = session.forward(batch)
    assert float(forward.loss) == pytest.approx(expected.item(), abs=1e-6)
    assert not forward.loss.requires_grad
    assert forward.units == int((batch["labels"][:, 1:] != IGNORED).sum())
    backward = session.backward(forward.forward_id)
    for actual, gradient in zip(copy_gradients(session), expected_gradients, strict=True):
        torch.testing.assert_close(actual, gradient, atol=1e-6, rtol=1e-5)
    norm = float(
        torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in expected_gradients]))
    )
    assert backward.grad_norm == pytest.approx(norm, rel=1e-5)
    assert (backward.accumulated, backward.overflow) == (1, False)


def test_a_norm_is_measured_only_when_it_is_asked_for(session: Session) -> None:
    backward = session.backward(session.forward(make_batch()).forward_id, measure=False)
    assert (backward.grad_norm, backward.overflow) == (None, None)


def test_gradients_accumulate_and_scale(tmp_path: Path) -> None:
    batch, (once, twice) = make_batch(), (make_session(tmp_path, dropout=0.0) for _ in range(2))
    once.backward(once.forward(batch).forward_id)
    for _ in range(2):
        last = twice.backward(twice.forward(batch).forward_id, scale=0.5)
    assert last.accumulated == 2
    assert same(copy_gradients(once), copy_gradients(twice))


def test_a_graph_is_good_for_one_backward(session: Session) -> None:
    used = session.forward(make_batch())
    session.backward(used.forward_id)
    with pytest.raises(Conflict, match=r"E-STEP: The graph of 'forward-1' is not there any more\..*one backward"):
        session.backward(used.forward_id)
    replaced, last = session.forward(make_batch()), session.forward(make_batch())
    with pytest.raises(Conflict, match="E-STEP"):
        session.backward(replaced.forward_id)
    assert session.backward(last.forward_id).accumulated == 2
    with pytest.raises(Conflict, match="E-STEP"):
        session.backward("forward-99")


def test_a_batch_without_targets_is_refused_and_the_pending_graph_stays(session: Session) -> None:
    pending = session.forward(make_batch())
    batch = make_batch()
    batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    with pytest.raises(InvalidInput, match="E-DATA-EMPTY: The batch has nothing to learn"):
        session.forward(batch)
    assert session.backward(pending.forward_id).accumulated == 1


@pytest.mark.parametrize("stage", [Stage.DPO, Stage.KTO, Stage.REWARD])
def test_every_kind_of_stage_goes_through_the_same_verbs(stage: Stage, tmp_path: Path) -> None:
    session, batch = make_session(tmp_path, make_config(stage, warmup_ratio=0.0), dropout=0.0), make_batch(stage)
    first = session.forward(batch)
    session.backward(first.forward_id)
    assert session.step().grad_norm > 0
    session.zero_grad()
    assert session.forward(batch).loss < first.loss
    assert first.metrics
    assert not any(value.requires_grad for value in first.metrics.values())


def test_the_reference_draws_no_random_number_and_gets_no_gradient(tmp_path: Path) -> None:
    session, batch = make_session(tmp_path, make_config(Stage.DPO)), make_batch(Stage.DPO)
    scores = session.reference_scores(batch)
    assert not any(value.requires_grad for value in scores.values())
    before = session.generators.states
    assert same(list(scores.values()), list(session.reference_scores(batch).values()))
    assert torch.equal(before.torch, session.generators.states.torch)
    reference = {f"reference/{name}": value for name, value in scores.items()}
    computed = session.forward(batch)
    session.generators.states = before
    assert torch.equal(session.forward({**batch, **reference}).loss, computed.loss)


# Outputs


def test_outputs_go_by_file_and_are_those_of_the_pass(session: Session) -> None:
    batch = make_batch()
    reply = session.forward(batch, outputs=("logits", "hidden_states"))
    outputs = {name: load_file(entry["file"])[name] for name, entry in reply.outputs.items()}
    for name, entry in reply.outputs.items():
        assert entry["shape"] == list(outputs[name].shape)
        assert entry["sha256"] == file_sha256(Path(entry["file"]))
    B, T = batch["input_ids"].shape
    assert outputs["hidden_states"].shape[:3] == (session.engine.model.config.num_hidden_layers + 1, B, T)
    # With dropout, so this holds only if the second pass drew what the first one did.
    loss = torch.nn.functional.cross_entropy(outputs["logits"][:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    assert float(reply.loss) == pytest.approx(float(loss), abs=1e-6)


def test_asking_for_outputs_changes_nothing_else(tmp_path: Path) -> None:
    batch, results = make_batch(), []
    for outputs in ((), ("logits",)):
        session = make_session(tmp_path)
        reply = session.forward(batch, outputs=outputs, inline=True)
        session.backward(reply.forward_id)
        results.append([reply.loss, *copy_gradients(session), session.forward(batch).loss])
    assert same(*results)
    shape = [*batch["input_ids"].shape, session.engine.model.config.vocab_size]
    assert reply.outputs["logits"]["shape"] == shape
    assert len(reply.outputs["logits"]["values"]) == torch.Size(shape).numel()


def test_outputs_that_cannot_be_given_are_refused_before_anything_happens(session: Session) -> None:
    pending, before = session.forward(make_batch()), session.generators.states.torch
    with pytest.raises(InvalidInput, match=r"E-NAME: forward has no output 'attentions'.*logits or hidden_states"):
        session.forward(make_batch(), outputs=["attentions"])
    rows = INLINE_BYTES // (session.engine.model.config.vocab_size * 4 * make_batch()["input_ids"].shape[1]) + 1
    large = STAGES[Stage.SFT].collate([encode_examples(make_config())[0]] * (4 * rows), PAD)
    with pytest.raises(InvalidInput, match=r"E-STEP: logits takes [\d,]+ bytes, .* at most 8,388,608\..*a file"):
        session.forward(large, outputs=["logits"], inline=True)
    assert torch.equal(before, session.generators.states.torch)
    assert session.backward(pending.forward_id).accumulated == 1


def test_without_labels_the_reply_has_the_logits_and_a_pending_graph_stays(tmp_path: Path) -> None:
    session, batch = make_session(tmp_path, dropout=0.0), make_batch()
    pending = session.forward(batch)
    unlabelled = {name: value for name, value in batch.items() if name != "labels"}
    reply = session.forward(unlabelled)
    assert (reply.forward_id, reply.units, reply.loss.isnan().item()) == ("", 0, True)
    logits = load_file(reply.outputs["logits"]["file"])["logits"]
    with torch.no_grad():
        expected = session.engine.model(**unlabelled).logits
    torch.testing.assert_close(logits, expected)
    again = session.forward(unlabelled, outputs=("hidden_states", "logits")).outputs
    assert again.keys() == {"hidden_states", "logits"}
    assert again["logits"]["file"] != reply.outputs["logits"]["file"]
    with pytest.raises(Conflict, match="E-STEP"):
        session.backward(reply.forward_id)
    assert session.backward(pending.forward_id).accumulated == 1


# Step and zero_grad


def test_step_moves_the_weights_and_leaves_stale_gradients(session: Session) -> None:
    before = copy_weights(session)
    accumulate(session, make_batch())
    first = session.step()
    assert (first.skipped, first.global_step, session.accumulated) == (False, 1, 0)
    assert first.learning_rate == 1e-3 / 2  # a warm-up of one step is half of the way
    assert copy_gradients(session)
    session.zero_grad()
    assert not copy_gradients(session)
    accumulate(session, make_batch())
    assert session.step().learning_rate == 1e-3
    assert not same(before, copy_weights(session))


def test_backward_after_step_needs_zero_grad(session: Session) -> None:
    accumulate(session, make_batch())
    session.step()
    early = session.forward(make_batch())
    with pytest.raises(Conflict, match=r"E-STEP: The gradients belong to a step that is done.*Call zero_grad first"):
        session.backward(early.forward_id)
    session.zero_grad()
    with pytest.raises(Conflict, match="E-STEP"):  # zero_grad drops a pending graph
        session.backward(early.forward_id)
    assert session.backward(session.forward(make_batch()).forward_id).accumulated == 1


def test_step_needs_gradients(session: Session) -> None:
    with pytest.raises(Conflict, match=r"E-STEP: There is no gradient to step with.*forward and backward"):
        session.step()
    session.forward(make_batch())
    with pytest.raises(Conflict, match="E-STEP"):
        session.step()
    accumulate(session, make_batch())
    session.step()
    with pytest.raises(Conflict, match="E-STEP"):  # once
        session.step()
    assert session.global_step == 1


def test_step_clips_to_the_norm_that_it_is_given(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    accumulate(session, make_batch())
    before = float(torch.nn.utils.get_total_norm(copy_gradients(session)))
    assert before > 1e-2
    assert float(session.step(max_grad_norm=1e-2).grad_norm) == pytest.approx(before)
    assert float(torch.nn.utils.get_total_norm(copy_gradients(session))) == pytest.approx(1e-2, rel=1e-3)


def test_a_rate_of_its_own_is_for_one_step_and_keeps_the_groups_proportion(tmp_path: Path) -> None:
    session = make_session(tmp_path, make_config(optimizer=Optimizer.SGD), dropout=0.0)
    groups = session.engine.optimizer.param_groups
    groups[1]["initial_lr"] *= 16  # as LoRA+ has it
    session.engine.rate.step()
    assert [group["lr"] for group in groups] == [1e-3, 16e-3]
    accumulate(session, make_batch())
    before = [[value.detach().clone() for value in group["params"]] for group in groups]
    assert session.step(learning_rate=0.5, max_grad_norm=1e6).learning_rate == 0.5
    for group, values, rate in zip(groups, before, (0.5, 8.0), strict=True):
        for value, old in zip(group["params"], values, strict=True):  # the first step of SGD is rate times gradient
            torch.testing.assert_close(value.detach(), old - rate * value.grad, atol=1e-6, rtol=1e-5)
    assert [group["lr"] for group in groups] == [pytest.approx(8e-4), pytest.approx(16 * 8e-4)]  # the schedule again


def test_gradients_that_are_not_finite_never_reach_the_weights(session: Session) -> None:
    train_step(session, [make_batch()])
    before = copy_weights(session)
    accumulate(session, make_batch())
    assert session.parameters[0].grad is not None
    session.parameters[0].grad[0, 0] = torch.nan
    with pytest.raises(TrainyardError, match=r"E-NON-FINITE: The gradients of step 2 have the norm nan\.") as error:
        session.step()
    assert "learning_rate" in error.value.do
    assert same(before, copy_weights(session))
    assert session.global_step == 1
    session.zero_grad()
    train_step(session, [make_batch()])
    assert session.global_step == 2


def test_a_plateau_is_fed_by_the_metric(tmp_path: Path) -> None:
    config = make_config(schedule="reduce_on_plateau", warmup_ratio=0.0)
    session = make_session(tmp_path, config, total_steps=20)
    for _ in range(14):
        accumulate(session, make_batch(count=1))
        rate = session.step(metric=1.0).learning_rate
        session.zero_grad()
    assert rate == pytest.approx(1e-4)


# Repeated calls


def test_a_repeated_number_returns_the_first_reply(tmp_path: Path) -> None:
    batch, results = make_batch(), []
    for times in (1, 2):
        session = make_session(tmp_path / str(times))
        for _ in range(times):
            forward = session.forward(batch, op_seq=0)
        for _ in range(times):
            backward = session.backward(forward.forward_id, op_seq=1)
        for _ in range(times):
            stepped = session.step(op_seq=2)
        for _ in range(times):
            session.zero_grad(op_seq=3)
        for _ in range(times):
            saved = session.save("here", op_seq=4)
        for _ in range(times):
            answers = session.generate([[5, 6]], Sampling(max_new_tokens=2), op_seq=5)
        assert (backward.accumulated, stepped.global_step, saved["name"], len(answers)) == (1, 1, "here", 1)
        results.append([*copy_weights(session), session.forward(batch).loss])
    assert same(*results)


def test_a_repeated_number_of_another_verb_is_refused(session: Session) -> None:
    session.forward(make_batch(), op_seq=7)
    with pytest.raises(Conflict, match="E-STEP: op_seq 7 was a forward and comes again as a step"):
        session.step(op_seq=7)


def test_a_call_that_failed_is_carried_out_when_it_comes_again(session: Session) -> None:
    with pytest.raises(Conflict, match="E-STEP"):
        session.step(op_seq=1)
    accumulate(session, make_batch())
    assert session.step(op_seq=1).global_step == 1


def test_a_number_whose_reply_is_forgotten_is_not_carried_out_again(session: Session) -> None:
    for number in range(KEPT_REPLIES + 1):
        session.zero_grad(op_seq=number)
    with pytest.raises(Conflict, match=re.escape("E-STEP: op_seq 0 is too old: the last 1024 replies are kept.")):
        session.zero_grad(op_seq=0)
    session.zero_grad(op_seq=1)


# Looking


@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.SCHEDULE_FREE_ADAMW])
def test_looking_leaves_no_trace_in_training(optimizer: Optimizer, tmp_path: Path) -> None:
    """Also between a forward and its backward, where a schedule-free optimizer swaps the weights under the graph."""
    config = make_config(optimizer=optimizer, schedule="constant", warmup_ratio=0.0)
    batch, (plain, looking) = make_batch(), (make_session(tmp_path, config) for _ in range(2))

    def look() -> None:
        before = torch.get_rng_state()
        looking.generate([[5, 6, 7], [8]], Sampling(max_new_tokens=3, temperature=1.3, seed=5))
        looking.logprobs([[5, 6, 7]])
        assert torch.equal(before, torch.get_rng_state())

    for session in (plain, looking):
        torch.manual_seed(1)
        for _ in range(2):
            forward = session.forward(batch)
            if session is looking:
                look()
            session.backward(forward.forward_id)
            accumulate(session, batch)
            if session is looking:
                look()
            session.step()
            session.zero_grad()
    assert same(copy_weights(plain), copy_weights(looking))
    assert looking.engine.model.training


def test_a_look_is_at_the_averaged_weights_of_a_schedule_free_optimizer(tmp_path: Path) -> None:
    config = make_config(optimizer=Optimizer.SCHEDULE_FREE_ADAMW, schedule="constant", warmup_ratio=0.0)
    session = make_session(tmp_path, config)
    for _ in range(3):
        train_step(session, [make_batch()])
    logprobs = session.logprobs([[5, 6, 7, 8]])
    switch_to_eval(session.engine.optimizer)
    averaged = token_logprobs(session.engine.model.eval(), TOKENIZER, [[5, 6, 7, 8]])
    switch_to_train(session.engine.optimizer)
    trainable = token_logprobs(session.engine.model, TOKENIZER, [[5, 6, 7, 8]])
    assert logprobs == averaged
    assert logprobs != trainable
