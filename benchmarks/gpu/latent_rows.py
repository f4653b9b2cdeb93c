"""Rows of two published tasks in symbols: graphs as in ProsQA, and products of numbers with their reasoning.

Graphs follow appendix A of arXiv 2412.06769: nodes come one by one, each with a few earlier nodes as parents; what can
be reached from the root, and not from a second root, may be the target, and a node of the second root alone is the
other choice. An edge is one token. Products are written as in arXiv 2405.14838: lowest digit first, each partial
product followed by the sum so far.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass

from trainyard.train.contracts import Encoded

NODES, PARENTS = 23, 1.5
SHORTEST, LONGEST = 3, 6
FROM, HENCE, SO, EITHER, END = range(1 + NODES, 6 + NODES)
FIRST_EDGE = 6 + NODES
GRAPH_WORDS = FIRST_EDGE + NODES * NODES
GRAPH_POSITIONS = 160
TIMES, EQUALS, PLUS, OPEN, CLOSE, STOP = range(11, 17)
"""Tokens 1 to 10 are the digits."""
PRODUCT_WORDS = 17


@dataclass(frozen=True)
class Graph:
    """Edges from parents to children, and the two roots."""

    edges: list[tuple[int, int]]
    paths: dict[int, list[int]]
    """Nodes that the root reaches and the other one does not -> a shortest path."""
    unreached: list[int]
    """Nodes that only the second root reaches."""


def draw_graph(dice: random.Random) -> Graph:
    """A random graph without cycles. Nodes 0 and 1 are the roots."""
    edges = [
        (parent, node)
        for node in range(2, NODES)
        for parent in dice.sample(range(node), min(node, 1 + (dice.random() < PARENTS - 1)))
    ]
    root_paths, other = (shortest_paths(edges, root) for root in (0, 1))
    return Graph(
        edges,
        {node: path for node, path in root_paths.items() if node not in other},
        [node for node in other if node not in root_paths],
    )


def shortest_paths(edges: list[tuple[int, int]], root: int) -> dict[int, list[int]]:
    """Every node that a root reaches, with the nodes on the way."""
    children: dict[int, list[int]] = {}
    for parent, node in edges:
        children.setdefault(parent, []).append(node)
    paths, waiting = {root: [root]}, deque([root])
    while waiting:
        node = waiting.popleft()
        for child in children.get(node, []):
            if child not in paths:
                paths[child] = [*paths[node], child]
                waiting.append(child)
    return paths


def graph_row(dice: random.Random) -> Encoded:
    """Edges, two choices and a root; the path as sentences "b from a, hence b"; the node that can be reached."""
    while True:
        graph = draw_graph(dice)
        targets = [node for node, path in graph.paths.items() if SHORTEST <= len(path) - 1 <= LONGEST]
        candidates = [node for node in graph.unreached if node != 1]
        if targets and candidates:
            break
    names = dice.sample(range(NODES), NODES)
    target = dice.choice(targets)
    path = [names[node] for node in graph.paths[target]]
    choices = [path[-1], names[dice.choice(candidates)]]
    dice.shuffle(choices)
    table = [FIRST_EDGE + names[start] * NODES + names[end] for start, end in graph.edges]
    dice.shuffle(table)
    steps = [[1 + end, FROM, 1 + start, HENCE, 1 + end] for start, end in itertools.pairwise(path)]
    return {
        "prompt_ids": [*table, EITHER, 1 + choices[0], 1 + choices[1], 1 + path[0]],
        "step_ids": [token for step in steps for token in step],
        "step_lengths": [len(step) for step in steps],
        "answer_ids": [SO, 1 + path[-1], END],
    }


def digits(number: int, width: int) -> list[int]:
    """Tokens of a number, the lowest digit first."""
    return [1 + number // 10**position % 10 for position in range(width)]


def product_row(first: int, second: int, width: int) -> Encoded:
    """Two numbers; partial products with the sum so far behind each but the first and the last; the product."""
    steps: list[int] = []
    total = 0
    for position in range(width):
        part = first * (second // 10**position % 10) * 10**position
        total += part
        steps += [PLUS] * bool(position) + digits(part, width + 1 + position)
        if 0 < position < width - 1:
            steps += [OPEN, *digits(total, width + 1 + position), CLOSE]
    return {
        "prompt_ids": [*digits(first, width), TIMES, *digits(second, width), EQUALS],
        "step_ids": steps,
        "step_lengths": [len(steps)],
        "answer_ids": [EQUALS, *digits(total, 2 * width), STOP],
    }


def draw_product(dice: random.Random, width: int, *, held_out: bool = False) -> Encoded:
    """A pair of factors; a hundredth of all pairs is held out."""
    while True:
        first, second = dice.randrange(10**width), dice.randrange(10**width)
        if ((first * 7919 + second * 104729) % 101 == 0) is held_out:
            return product_row(first, second, width)
