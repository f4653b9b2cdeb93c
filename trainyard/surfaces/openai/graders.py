"""Graders of reinforcement as rewards of grpo; one that no reward can be is refused by its name.

string_check eq              exact_match; with a fixed reference, regex
string_check like, ilike     contains
text_similarity              text_similarity; cosine needs an embedding model, meteor a thesaurus: refused
multi                        each of its graders, times its weight in `calculate_output`
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

from trainyard.json_types import JsonObject
from trainyard.spec.axes.rewards import SimilarityMetric
from trainyard.surfaces.openai.errors import WireError, missing_parameter, unknown_parameter

OUTPUT = re.compile(r"\s*\{\{\s*sample\.output_text\s*\}\}\s*")
ITEM = re.compile(r"\s*\{\{\s*item\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}\s*")
METRICS = get_args(SimilarityMetric)
SUPPORTED = "string_check (eq, like, ilike), text_similarity and multi"
REFUSED = {
    "python": "code of a request is not run here: only code of completions is, confined by the operating system",
    "score_model": "no other model is asked: the reward `judge` of `trainyard run` asks an endpoint of the operator's",
    "label_model": "no other model is asked: the reward `judge` of `trainyard run` asks an endpoint of the operator's",
    "endpoint": "no address of a request is asked",
}
"""Types of OpenAI's graders that no reward is, and why."""
INSTEAD = "Write it as string_check or text_similarity, or use `trainyard run`, whose rewards docs/training.md lists."


@dataclass(frozen=True)
class GradedRewards:
    """The rewards of a grader, and the field of an example with the reference."""

    rewards: tuple[JsonObject, ...]
    answer: str | None


def read_grader(grader: JsonObject) -> GradedRewards:
    """Return a grader's rewards. Raises `WireError` 400 for one that no reward can be."""
    weighted = read_multi(grader) if grader.get("type") == "multi" else [(grader, 1.0, "method.reinforcement.grader")]
    rewards, answers = [], dict[str, None]()
    for part, weight, path in weighted:
        reward, answer = read_reward(part, path)
        rewards.append({**reward, "weight": weight})
        answers |= {answer: None} if answer is not None else {}
    if len(answers) > 1:
        names = ", ".join(answers)
        raise refuse(f"the graders compare with several fields of an example ({names}), and a row has one answer")
    return GradedRewards(tuple(rewards), next(iter(answers), None))


def read_reward(grader: JsonObject, path: str) -> tuple[JsonObject, str | None]:
    """Return the reward of a single grader, and the field with its reference. Raises `WireError` 400."""
    kind = grader.get("type")
    if not isinstance(kind, str) or kind not in SETTINGS:
        because = REFUSED.get(str(kind)) or f"{SUPPORTED} are supported"
        raise refuse(f"a grader of type {kind!r:.40} is not supported: {because}", f"{path}.type")
    keys = ("name", "input", "reference", SETTINGS[kind])
    for key in keys:
        if not isinstance(grader.get(key), str):
            name = f"{path}.{key}"
            raise missing_parameter(name)
    if unknown := sorted(grader.keys() - {"type", *keys}):
        raise unknown_parameter(f"{path}.{unknown[0]}")
    if not OUTPUT.fullmatch(grader["input"]):
        raise refuse("the input of a grader has to be {{sample.output_text}}", f"{path}.input")
    reference = grader["reference"]
    item = ITEM.fullmatch(reference)
    if item is None and "{{" in reference:
        raise refuse("a reference is one field, {{item.FIELD}}, or a text without fields", f"{path}.reference")
    field = item[1] if item else None
    return READERS[kind](grader, path, None if field is not None else reference), field


def read_text_similarity(grader: JsonObject, path: str, reference: str | None) -> JsonObject:
    """Return the reward of a text_similarity with a fixed reference, or with None, a field of the row."""
    metric = grader["evaluation_metric"]
    if metric not in METRICS:
        because = f"the metric {metric!r:.40} is not supported: {', '.join(METRICS)} are"
        raise refuse(because, f"{path}.evaluation_metric")
    return {"type": "text_similarity", "metric": metric, **({} if reference is None else {"text": reference})}


def read_string_check(grader: JsonObject, path: str, reference: str | None) -> JsonObject:
    """Return the reward of a string_check with a fixed reference, or with None, a field of the row."""
    operation = grader["operation"]
    if operation == "eq":
        if reference is None:
            return {"type": "exact_match"}
        return {"type": "regex", "pattern": re.escape(reference.strip()), "full": True}
    if operation in ("like", "ilike"):
        text = {} if reference is None else {"text": reference}
        return {"type": "contains", "ignore_case": operation == "ilike", **text}
    raise refuse(f"the operation {operation!r:.40} is not supported: eq, like and ilike are", f"{path}.operation")


SETTINGS = {"string_check": "operation", "text_similarity": "evaluation_metric"}
"""Type of a grader -> the key that it has besides name, input and reference."""
READERS: Mapping[str, Callable[[JsonObject, str, str | None], JsonObject]] = {
    "string_check": read_string_check,
    "text_similarity": read_text_similarity,
}


def read_multi(grader: JsonObject) -> list[tuple[JsonObject, float, str]]:
    """Return each grader of a multi with its weight and its path. Raises `WireError` 400."""
    path, graders, formula = "method.reinforcement.grader", grader.get("graders"), grader.get("calculate_output")
    if not isinstance(graders, Mapping) or not graders or not isinstance(formula, str):
        name = f"{path}.graders" if not isinstance(graders, Mapping) or not graders else f"{path}.calculate_output"
        raise missing_parameter(name)
    try:
        weights = read_sum(ast.parse(formula.strip(), mode="eval").body, 1.0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        because = "calculate_output has to be a weighted sum, such as 0.8 * correct + 0.2 * short"
        raise refuse(because, f"{path}.calculate_output") from error
    if unknown := sorted(weights.keys() - graders.keys()) or sorted(graders.keys() - weights.keys()):
        raise refuse(f"calculate_output and graders disagree about {unknown[0]!r:.60}", f"{path}.calculate_output")
    parts = [(graders[name], weight, f"{path}.graders.{name}") for name, weight in weights.items()]
    for part, _, name in parts:
        if not isinstance(part, dict):
            raise WireError(400, f"Invalid type for '{name}': expected an object.", param=name, code="invalid_type")
    return parts


def read_sum(node: ast.expr, factor: float) -> dict[str, float]:
    """Return name -> weight of a weighted sum. Raises `ValueError` for another formula."""
    if isinstance(node, ast.Name):
        return {node.id: factor}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return read_sum(node.operand, -factor if isinstance(node.op, ast.USub) else factor)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        left = read_sum(node.left, factor)
        right = read_sum(node.right, factor if isinstance(node.op, ast.Add) else -factor)
        if left.keys() & right.keys():
            raise ValueError("a grader occurs twice")
        return left | right
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = (node.left, node.right)
        for number, other in (sides, sides[::-1]):
            if isinstance(number, ast.Constant) and isinstance(number.value, int | float):
                return read_sum(other, factor * number.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
        value = node.right.value
        if isinstance(value, int | float) and value:
            return read_sum(node.left, factor / value)
    raise ValueError("not a weighted sum")


def refuse(because: str, param: str = "method.reinforcement.grader") -> WireError:
    text = f"Unsupported grader: {because}. {INSTEAD}"
    return WireError(400, text, param=param, code="unsupported_grader")
