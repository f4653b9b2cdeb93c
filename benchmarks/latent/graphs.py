"""ProsQA-like graphs: which of two nodes can be reached from a root? Rows as ProsQA has them (arXiv 2412.06769,
section 4), in symbols: edges in any order, two candidates, a root; the reasoning is the path, a sentence of five tokens
for each hop of three or four ("b from a, hence b"), which begins and ends with its node; then the answer.

Ways, each with the same number of optimizer steps:

    coconut         one thought for each hop, with the curriculum
    not_fed_back    the same curriculum and positions, where thoughts are a learned vector (pause as thought)
    cot             the path in words
    no_cot          the answer alone

After each stage the probabilities of the next node are looked at: how much of them is on nodes that are that many hops
away (a search in breadth), and how much on the node of the path (a single way).
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch

from benchmarks.latent.toys import Task, answer, toy_model, train, with_technique
from trainyard.train.contracts import Encoded

NODES, HOPS = 12, 4
FROM, HENCE, SO, EITHER = range(1 + NODES, 5 + NODES)
FIRST_EDGE = 5 + NODES
WORD_STEPS, STAGE_STEPS, LAST_STEPS = 2500, 750, 500
COCONUT: dict[str, Any] = {"type": "coconut", "max_stage": HOPS, "epochs_per_stage": 1, "markers": False}
SIZES: dict[str, int] = {"layers": 2, "hidden": 64, "heads": 4}
LOOKED_AT = 96


def grow(dice: random.Random, nodes: list[int], hops: int) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """Edges of a graph whose first node reaches another one in `hops`, and the depth of each node."""
    edges = list(itertools.pairwise(nodes[: hops + 1]))
    depth = {node: index for index, node in enumerate(nodes[: hops + 1])}
    for node in nodes[hops + 1 :]:
        parent = dice.choice([node for node in depth if depth[node] < hops])
        edges.append((parent, node))
        depth[node] = depth[parent] + 1
    return edges, depth


def make(dice: random.Random) -> tuple[Encoded, dict[int, int]]:
    """A row, and the depth of every node that the root reaches."""
    hops = dice.choice((HOPS - 1, HOPS))
    nodes = dice.sample(range(NODES), NODES)
    half = NODES // 2
    edges, depth = grow(dice, nodes[:half], hops)
    other_edges, other_depth = grow(dice, nodes[half:], hops)
    path, target = nodes[: hops + 1], nodes[hops]
    wrong = dice.choice([node for node, value in other_depth.items() if value == hops])
    choices = [target, wrong]
    dice.shuffle(choices)
    table = [FIRST_EDGE + start * NODES + end for start, end in edges + other_edges]
    dice.shuffle(table)
    sentences = [[1 + end, FROM, 1 + start, HENCE, 1 + end] for start, end in itertools.pairwise(path)]
    row = {
        "prompt_ids": [*table, EITHER, 1 + choices[0], 1 + choices[1], 1 + path[0]],
        "step_ids": [token for sentence in sentences for token in sentence],
        "step_lengths": [5] * hops,
        "answer_ids": [SO, 1 + target],
    }
    return row, depth


def draw(dice: random.Random) -> Encoded:
    return make(dice)[0]


TASK = Task(draw, vocabulary=FIRST_EDGE + NODES * NODES, positions=64)
MOST_TOKENS = 5 * HOPS + 2


def probabilities(model: Any, seed: int, thoughts: int) -> dict[str, float]:
    """Of the next node after so many thoughts: on all nodes one hop further away, and on the one of the path."""
    dice, sums = random.Random(f"evaluate:{seed}"), {"frontier": 0.0, "path": 0.0, "nodes": 0.0}
    samples = [make(dice) for _ in range(LOOKED_AT)]
    rows = [(row, depth) for row, depth in samples if len(row["step_lengths"]) > thoughts]
    model.eval()
    for row, depth in rows:
        prompt_BT = torch.tensor([row["prompt_ids"]])
        with torch.no_grad():
            technique = model.trainyard_latent
            logits_BV = technique.open_after(model, prompt_BT, torch.ones_like(prompt_BT), thoughts)[1]
        chances_V = logits_BV[0].softmax(-1)
        frontier = [1 + node for node, value in depth.items() if value == thoughts + 1]
        sums["frontier"] += float(chances_V[frontier].sum())
        sums["path"] += float(chances_V[row["step_ids"][5 * thoughts]])
        sums["nodes"] += len(frontier)
    return {name: round(value / len(rows), 4) for name, value in sums.items()}


def curriculum(seed: int, share: float, *, feedback: bool) -> dict[str, Any]:
    model, latent = toy_model(TASK, seed, **SIZES), {**COCONUT, "feedback": feedback}
    with_technique(model, latent, seed)
    losses, looks = [], []
    for epoch, count in enumerate([WORD_STEPS, *[STAGE_STEPS] * HOPS, LAST_STEPS]):
        losses.append(round(train(model, TASK, latent, round(share * count), seed=seed, epoch=epoch), 4))
        if epoch < HOPS:
            looks.append(probabilities(model, seed, epoch))
    evaluation = answer(model, TASK, seed=seed, max_tokens=2, thoughts=HOPS)
    return {"accuracy": evaluation.accuracy, "tokens": evaluation.tokens, "losses": losses, "next_node": looks}


def in_words(seed: int, share: float, *, steps: bool) -> dict[str, Any]:
    model = toy_model(TASK, seed, **SIZES)
    total = WORD_STEPS + HOPS * STAGE_STEPS + LAST_STEPS
    loss = train(model, TASK, None, round(share * total), seed=seed, steps_in_words=steps)
    right, tokens = 0, 0.0
    for hops in (HOPS - 1, HOPS) if steps else (HOPS,):
        length = 5 * hops * steps + 2
        task = Task(lambda dice, hops=hops: of_hops(dice, hops if steps else None), TASK.vocabulary, TASK.positions)
        evaluation = answer(model, task, seed=seed, max_tokens=length, latent=False)
        right, tokens = right + evaluation.accuracy, tokens + evaluation.tokens
    ways = 2 if steps else 1
    return {"accuracy": right / ways, "tokens": tokens / ways, "losses": [round(loss, 4)]}


def of_hops(dice: random.Random, hops: int | None) -> Encoded:
    """A row whose path has so many hops."""
    while True:
        row = draw(dice)
        if hops is None or len(row["step_lengths"]) == hops:
            return row


WAYS: dict[str, Any] = {
    "coconut": lambda seed, share: curriculum(seed, share, feedback=True),
    "not_fed_back": lambda seed, share: curriculum(seed, share, feedback=False),
    "cot": lambda seed, share: in_words(seed, share, steps=True),
    "no_cot": lambda seed, share: in_words(seed, share, steps=False),
}


def measure(seed: int, *, share: float = 1.0, way: str = "coconut") -> dict[str, Any]:
    return {"task": f"graphs by {way}", "seed": seed, **WAYS[way](seed, share)}
