"""Environments: what answers a policy between its turns, and what the conversation is worth in the end.

An environment is a plain function `step(messages, answer) -> (messages, reward, done)`: of the conversation so far,
whose last message is the policy's, and the answer of the row. What it says follows as tokens behind those that were
sampled, by the renderer's `bridge`, so a trajectory is trained on exactly the tokens that it was sampled with. To add
one: its word in `spec/axes/rewards.py`, a function and a row here, a test.

A policy calls a tool by the tool calls of its template, or in text: `calc(12 * 7)`, a fenced block of Python.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.data.renderers.contract import Turn
from trainyard.data.renderers.rendering import Renderer
from trainyard.spec.axes.rewards import EnvironmentSettings
from trainyard.train.rollouts.python_checker import BLOCK, last_block, run_python

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
    """The value of an arithmetic expression of numbers, or why it has none."""
    try:
        value = value_of(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return "error"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def value_of(node: ast.AST) -> float:
    """The value of a parsed expression. Raises `ValueError` for anything but small numbers and their operations."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        value: float = node.value
    elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](value_of(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](value_of(node.left), value_of(node.right))
    else:
        raise ValueError("not arithmetic")
    if abs(value) > LARGEST:
        raise ValueError("too large")
    return value


def text_of(turn: Turn) -> str:
    return str(turn.get("content") or "")


def is_right(turn: Turn, answer: str) -> float:
    """Whether a final message is the answer: the same text, or the same last number."""
    said, wanted = text_of(turn).strip(), answer.strip()
    numbers = NUMBER.findall(said)
    return float(said == wanted or (bool(numbers) and numbers[-1] == wanted))


def calculator(messages: Sequence[Turn], answer: str) -> tuple[list[Turn], float, bool]:
    """Computes what it is called with; a message without a call is the final answer."""
    last = messages[-1]
    for one in last.get("tool_calls") or ():
        given = one["function"].get("arguments") or {}
        expression = given.get("expression", "") if isinstance(given, dict) else str(given)
        return [{"role": "tool", "name": "calculator", "content": compute(str(expression))}], 0.0, False
    found = CALL.search(text_of(last))
    if found:
        return [{"role": "user", "content": compute(found[1])}], 0.0, False
    return [], is_right(last, answer), True


def python(messages: Sequence[Turn], answer: str) -> tuple[list[Turn], float, bool]:
    """Runs the last block of code and says what it printed; a message without one is the final answer."""
    said = text_of(messages[-1])
    if not BLOCK.search(said):
        return [], is_right(messages[-1], answer), True
    fine, printed = run_python(last_block(said), timeout_s=5, memory_mb=512)
    return [{"role": "user", "content": printed.strip() or ("done" if fine else "error")}], 0.0, False


def guessing(messages: Sequence[Turn], answer: str) -> tuple[list[Turn], float, bool]:
    """A text game: guess the number of the row's answer; the reply to a guess is `higher` or `lower`."""
    numbers = NUMBER.findall(text_of(messages[-1]))
    if not numbers:
        return [], 0.0, True
    guess, hidden = float(numbers[-1]), float(answer)
    if guess == hidden:
        return [], 1.0, True
    return [{"role": "user", "content": "higher" if hidden > guess else "lower"}], 0.0, False


ENVIRONMENTS: dict[str, Step] = {"calculator": calculator, "python": python, "guessing": guessing}


@dataclass(frozen=True)
class Environment:
    """An environment with the renderer that continues conversations in its place."""

    settings: EnvironmentSettings
    renderer: Any

    @classmethod
    def of(cls, settings: EnvironmentSettings, tokenizer: Any) -> Environment:
        """The environment of a stage's settings, by its word."""
        return cls(settings, Renderer(tokenizer))

    def reply(self, messages: list[Turn], ids: Sequence[int], answer: str) -> tuple[list[Turn], float, bool]:
        """Read a sampled turn into `messages`, and return what the environment says to it."""
        messages.append(dict(self.renderer.parse(ids).turn))
        return ENVIRONMENTS[self.settings.type](messages, answer)

    def following(self, prompt: Sequence[int], ids: Sequence[int], said: list[Turn]) -> list[int] | None:
        """The ids that follow the sampled ones when the environment has spoken; None where the turn did not end."""
        whole = self.renderer.bridge(prompt, ids, said)
        return None if whole is None else whole[len(prompt) + len(ids) :]
