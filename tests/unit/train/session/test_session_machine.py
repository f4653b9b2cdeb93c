"""The verbs in any order: what is allowed, and a twin that was spared every refused and every reading call.

Both must hold the same bits whatever is called: a refused verb changes nothing, a repeated `op_seq` is answered
and not carried out again, and generating or scoring draws nothing from the training's generators.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.train.session.engines import make_batch, make_config, make_session
from trainyard.errors import TrainyardError
from trainyard.train.contracts import Sampling
from trainyard.train.session.session import Session


def refusal(call: Callable[[], Any]) -> str | None:
    """The code with which a call was refused."""
    try:
        call()
    except TrainyardError as error:
        return error.code
    return None


class Verbs(RuleBasedStateMachine):
    """One session that is asked for everything, and its twin."""

    @initialize(accumulate=st.booleans())
    def begin(self, accumulate: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        config = make_config(gradient_accumulation=2 if accumulate else 1)
        self.session = self.opened("one", config)
        self.twin = self.opened("twin", config)
        self.pending: str | None = None
        self.spent: list[str] = []
        self.accumulated, self.stale, self.steps = 0, False, 0
        self.saved: dict[str, tuple[int, bool, int]] = {}
        self.op_seq = 0

    def opened(self, name: str, config: Any) -> Session:
        torch.manual_seed(7)
        session = make_session(Path(self.folder.name) / name, config)
        self.random = {**getattr(self, "random", {}), name: torch.get_rng_state()}
        return session

    def on(self, name: str, call: Callable[[Session], Any]) -> Any:
        """Call one of the two with the random numbers that it alone has drawn from."""
        torch.set_rng_state(self.random[name])
        try:
            return call(self.session if name == "one" else self.twin)
        finally:
            self.random[name] = torch.get_rng_state()

    def call_both(self, call: Callable[[Session], Any]) -> Any:
        self.on("twin", call)
        return self.on("one", call)

    @rule()
    def forward(self) -> None:
        if self.pending:
            self.spent.append(self.pending)
        self.pending = self.call_both(lambda session: session.forward(make_batch())).forward_id

    @rule()
    def backward(self) -> None:
        forward_id = self.pending or "forward-0"
        expected = "E-STEP" if self.stale else None if self.pending else "E-STEP"
        if expected:
            assert refusal(lambda: self.on("one", lambda session: session.backward(forward_id))) == expected
            return
        assert self.call_both(lambda session: session.backward(forward_id)).accumulated == self.accumulated + 1
        self.accumulated += 1
        self.spent.append(forward_id)
        self.pending = None

    @precondition(lambda self: self.spent and not self.stale)
    @rule()
    def backward_of_a_spent_graph(self) -> None:
        old = self.spent[-1]
        assert refusal(lambda: self.on("one", lambda session: session.backward(old))) == "E-STEP"

    @rule()
    def step(self) -> None:
        if not self.accumulated:
            assert refusal(lambda: self.on("one", lambda session: session.step())) == "E-STEP"
            return
        assert self.call_both(lambda session: session.step()).global_step == self.steps + 1
        self.accumulated, self.stale, self.steps = 0, True, self.steps + 1

    @precondition(lambda self: self.accumulated)
    @rule()
    def step_that_is_sent_twice(self) -> None:
        self.op_seq += 1
        first = self.on("one", lambda session: session.step(op_seq=self.op_seq))
        assert self.on("one", lambda session: session.step(op_seq=self.op_seq)) == first
        self.on("twin", lambda session: session.step())
        self.accumulated, self.stale, self.steps = 0, True, self.steps + 1

    @rule()
    def zero_grad(self) -> None:
        self.call_both(lambda session: session.zero_grad())
        if self.pending:
            self.spent.append(self.pending)
        self.pending, self.accumulated, self.stale = None, 0, False

    @rule()
    def generate(self) -> None:
        sampling = Sampling(max_new_tokens=3, temperature=1.0, seed=1)
        assert self.on("one", lambda session: session.generate([[40, 41]], sampling))

    @rule()
    def logprobs(self) -> None:
        assert self.on("one", lambda session: session.logprobs([[40, 41, 42]]))[0][0] is None

    @rule(name=st.sampled_from(["a", "b"]))
    def save(self, name: str) -> None:
        if name in self.saved:
            assert refusal(lambda: self.on("one", lambda session: session.save(name))) == "E-FILE-EXISTS"
            return
        self.call_both(lambda session: session.save(name))
        self.saved[name] = (self.accumulated, self.stale, self.steps)

    @rule(name=st.sampled_from(["a", "b"]))
    def load(self, name: str) -> None:
        if name not in self.saved:
            assert refusal(lambda: self.on("one", lambda session: session.load(name))) == "E-NOT-FOUND"
            return
        self.call_both(lambda session: session.load(name))
        if self.pending:
            self.spent.append(self.pending)
        self.pending = None
        self.accumulated, self.stale, self.steps = self.saved[name]

    @invariant()
    def the_twin_holds_the_same_bits(self) -> None:
        if not hasattr(self, "twin"):
            return
        assert (self.session.accumulated, self.session.stale) == (self.accumulated, self.stale)
        assert self.session.global_step == self.steps
        for parameter, twin_parameter in zip(self.session.parameters, self.twin.parameters, strict=True):
            assert torch.equal(parameter, twin_parameter)
            assert (parameter.grad is None) == (twin_parameter.grad is None)
            assert parameter.grad is None or torch.equal(parameter.grad, twin_parameter.grad)
        assert torch.equal(self.random["one"], self.random["twin"])

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestVerbs = Verbs.TestCase
TestVerbs.settings = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
