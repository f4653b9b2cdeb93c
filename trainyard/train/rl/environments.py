"""Environments: replies to a policy between its turns, and the reward of the whole conversation.

An environment is a plain function `step(messages, answer) -> (messages, reward, done)`: of the conversation so far,
whose last message is the policy's, and the answer of the row. What it says follows as tokens behind those that were
sampled, by the renderer's `bridge`, so a trajectory is trained on exactly the tokens that it was sampled with. To add
one: its word in `spec/axes/rewards.py`, a function and a row here, a test. One of an operator's own is a function in a
module that the setting `environments` names; it may leave out the answer.

A policy calls a tool by the tool calls of its template, or in text: `calc(12 * 7)`, a fenced block of Python.
"""

from __future__ import annotations

import ast
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.data.functions import ENVIRONMENT
from trainyard.data.renderers.contract import Turn
from trainyard.data.renderers.rendering import Renderer
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.rewards import EnvironmentSettings
from trainyard.train.rl.rewards import BLOCK, last_block, run_python

Step = Callable[[Sequence[Turn], str], tuple[list[Turn], float, bool]]
CALL = re.compile(r"calc\(([^\n]{1,200}?)\)(?=\s|$)")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
LARGEST = 10**15
OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def compute(expression: str) -> str:
    """Return the value of an arithmetic expression of numbers, or why it has none."""
    try:
        value = evaluate_expression(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return "error"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def evaluate_expression(node: ast.AST) -> float:
    """Return the value of a parsed expression. Raises `ValueError` for anything but small numbers and their
    operations.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        value: float = node.value
    elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](evaluate_expression(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](evaluate_expression(node.left), evaluate_expression(node.right))
    else:
        raise ValueError("not arithmetic")
    if abs(value) > LARGEST:
        raise ValueError("too large")
    return value


def read_turn_text(turn: Turn) -> str:
    return str(turn.get("content") or "")


def is_right(turn: Turn, answer: str) -> float:
    """Return whether a final message is the answer: the same text, or the same last number."""
    text, expected = read_turn_text(turn).strip(), answer.strip()
    numbers = NUMBER.findall(text)
    return float(text == expected or (bool(numbers) and numbers[-1] == expected))


def answer_call(call: JsonMapping) -> Turn:
    """Return the reply to one call of the calculator."""
    arguments = call["function"].get("arguments") or {}
    expression = arguments.get("expression", "") if isinstance(arguments, dict) else str(arguments)
    named = {"tool_call_id": call["id"]} if call.get("id") else {}
    return {"role": "tool", "name": "calculator", **named, "content": compute(str(expression))}


def calculator(messages: Sequence[Turn], answer: str) -> tuple[list[Turn], float, bool]:
    """Computes what it is called with; a message without a call is the final answer."""
    last = messages[-1]
    if calls := last.get("tool_calls"):
        return [answer_call(call) for call in calls], 0.0, False
    match = CALL.search(read_turn_text(last))
    if match:
        return [{"role": "user", "content": compute(match[1])}], 0.0, False
    return [], is_right(last, answer), True


def python(messages: Sequence[Turn], answer: str) -> tuple[list[Turn], float, bool]:
    """Runs the last block of code and says what it printed; a message without one is the final answer."""
    text = read_turn_text(messages[-1])
    if not BLOCK.search(text):
        return [], is_right(messages[-1], answer), True
    fine, printed = run_python(last_block(text), timeout_s=5, memory_mb=512)
    return [{"role": "user", "content": printed.strip() or ("done" if fine else "error")}], 0.0, False


def guessing(messages: Sequence[Turn], answer: str) -> tuple[list[Turn], float, bool]:
    """Return a text game: guess the number of the row's answer; the reply to a guess is `higher` or `lower`."""
    numbers = NUMBER.findall(read_turn_text(messages[-1]))
    if not numbers:
        return [], 0.0, True
    try:
        guess, hidden = float(numbers[-1]), float(answer)
    except ValueError:
        raise InvalidInput(
            f"The game guessing hides a number, and the answer of a row is {answer[:80]!r}.",
            do="Give it rows whose last message of the assistant is a number.",
            code="E-REWARD",
        ) from None
    if guess == hidden:
        return [], 1.0, True
    return [{"role": "user", "content": "higher" if hidden > guess else "lower"}], 0.0, False


ENVIRONMENTS: dict[str, Step] = {"calculator": calculator, "python": python, "guessing": guessing}


REPLIES = ("user", "tool")
"""Roles between two turns of the policy."""


@dataclass(frozen=True)
class OperatorStep:
    """A function of the operator's, and whether it wants to know the row's answer."""

    name: str
    function: Callable[..., Any]
    takes_answer: bool

    @classmethod
    def load(cls, name: str, reference: str) -> OperatorStep:
        """Import it. Raises `InvalidInput` (`E-REWARD`) for what is not a function of one or two arguments."""
        function = ENVIRONMENT.load(name, reference)
        for arguments in (("",), ()):  # an answer that has a default is given, too
            try:
                inspect.signature(function).bind([], *arguments)
            except (TypeError, ValueError):  # ValueError: a builtin that does not say what it takes
                continue
            return cls(name, function, bool(arguments))
        raise ENVIRONMENT.unusable(name, "It is called as step(messages) or step(messages, answer), and takes neither.")

    def __call__(self, messages: Sequence[Turn], answer: str) -> tuple[list[Turn], float, bool]:
        """Return what it returns, checked. Raises `InvalidInput` (`E-REWARD`)."""
        turns = [dict(message) for message in messages]
        try:
            outcome = self.function(turns, answer) if self.takes_answer else self.function(turns)
        except Exception as error:
            raise self.broken(f"It raised {type(error).__name__}: {error}"[:500]) from error
        if not isinstance(outcome, tuple) or len(outcome) != 3:
            raise self.broken(f"It returned {type(outcome).__name__}, and not (messages, reward, done).")
        replies, reward, done = outcome
        if not isinstance(replies, list | tuple) or not all(is_reply(reply) for reply in replies):
            raise self.broken(f"Its messages are a list of {{role: {' or '.join(REPLIES)}, content: text}}.")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise self.broken(f"Its reward is {reward!r}, and not a number.")
        if not done and not replies:
            raise self.broken("It said nothing, and that the conversation is not done.")
        return [dict(reply) for reply in replies], float(reward), bool(done)

    def broken(self, why: str) -> InvalidInput:
        return ENVIRONMENT.unusable(self.name, why)


def is_reply(message: Any) -> bool:
    """Return whether a message is one that may come between two turns of the policy."""
    return isinstance(message, Mapping) and message.get("role") in REPLIES and isinstance(message.get("content"), str)


@dataclass(frozen=True)
class Environment:
    """An environment with the renderer that continues conversations in its place."""

    step: Step
    renderer: Renderer

    @classmethod
    def of(cls, settings: EnvironmentSettings, tokenizer: Any, reference: str | None = None) -> Environment:
        """Return the environment of a stage's settings, by its word, or by the reference of an operator's function.

        Raises `InvalidInput`: `E-CHAT-TEMPLATE` for a template whose conversations cannot be continued, `E-REWARD`.
        """
        if settings.name is None:
            step = ENVIRONMENTS[settings.type]
        else:
            assert reference is not None, "a job of a function has its reference"
            step = OperatorStep.load(settings.name, reference)
        environment = cls(step, Renderer(tokenizer))
        environment.require_continued([], [{"role": "user", "content": "x"}])
        return environment

    def reply(self, messages: list[Turn], ids: Sequence[int], answer: str) -> tuple[list[Turn], float, bool]:
        """Read a sampled turn into `messages`, and return the environment's reply."""
        messages.append(dict(self.renderer.parse(ids).turn))
        return self.step(messages, answer)

    def following(self, prompt: Sequence[int], ids: Sequence[int], replies: list[Turn]) -> list[int] | None:
        """Return the ids that follow the sampled ones when the environment has spoken; None where the turn did not end.

        Raises `InvalidInput` (`E-CHAT-TEMPLATE`) where the template has no place for what it said.
        """
        whole = self.renderer.bridge(prompt, ids, replies)
        if whole is None and ids[-1] in self.renderer.stop_ids:
            self.require_continued(prompt, replies)
        return None if whole is None else whole[len(prompt) + len(ids) :]

    def require_continued(self, prompt: Sequence[int], replies: list[Turn]) -> None:
        """Raise `InvalidInput` (`E-CHAT-TEMPLATE`) where no turn of the policy could be followed by these messages."""
        if any(self.renderer.bridge(prompt, [stop], replies) for stop in self.renderer.stop_ids):
            return
        raise InvalidInput(
            f"The chat template cannot continue a conversation with a message of role {replies[0]['role']}.",
            why="What it writes after an answer depends on the answer, or it has no end of a turn; sampled tokens "
            "are never rendered again.",
            do="Use another engine.template, such as chatml.",
            code="E-CHAT-TEMPLATE",
        )
