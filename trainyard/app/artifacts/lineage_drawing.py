"""The picture of a lineage: one SVG without scripts, fonts or references, from left (data) to right (deployments).

A lineage with more nodes than a reader can follow is folded: nodes of one kind that lead to the same ones become one
("940 documents"), then the oldest steps. The typed graph is always whole.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape

from trainyard.app.artifacts.lineage import LineageGraph, LineageKind, LineageNode

MOST_DRAWN = 60
"""Nodes of a picture."""
FAR = 25
"""Nodes of a picture in which only the nearest ones are drawn."""
FOLD_FROM = 7
"""So many nodes of one kind with the same successors are drawn as one."""
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN, HEAD = 190, 54, 70, 16, 16, 34
LABEL_CHARACTERS, DETAIL_CHARACTERS = 25, 30
COLOURS: dict[LineageKind, str] = {
    LineageKind.DOCUMENT: "#8a6d1f", LineageKind.COMMIT: "#8a4b1f", LineageKind.ROWS: "#1f6f8a",
    LineageKind.BASE: "#5b5b66", LineageKind.ADAPTER: "#3b4cc0", LineageKind.EVALUATION: "#7a3b9c",
    LineageKind.VERSION: "#2d7a46", LineageKind.DEPLOYMENT: "#14532d",
}  # fmt: skip
PLURALS: dict[LineageKind, str] = {LineageKind.ROWS: "sets of rows"}
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c1c22}.kind{font-size:10px;font-weight:600}.detail{font-size:10.5px;"
    "fill:#55555f}.box{fill:#fff}.edge{fill:none;stroke:#9a9aa6;stroke-width:1.2}.step{font-size:9.5px;fill:#6a6a75}"
)


@dataclass(frozen=True)
class Drawing:
    """What is drawn: nodes and (source, target, step), each once."""

    nodes: Mapping[str, LineageNode]
    edges: Mapping[tuple[str, str], str]


def draw_lineage(graph: LineageGraph, most: int = MOST_DRAWN) -> str:
    """Return the picture of a lineage as SVG text; folded where it has more than `most` nodes."""
    drawing = fold(graph, most)
    columns = place_columns(drawing)
    places, height = place_rows(drawing, columns)
    width = 2 * MARGIN + (max(columns.values()) + 1) * (WIDTH + GAP_X) - GAP_X
    title = f"Lineage of {graph.adapter}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><style>{STYLE}</style>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#9a9aa6"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fafafc"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 8}" font-weight="600">{escape(title)}</text>',
        *draw_edges(drawing, places),
        *(draw_node(node, *places[node.id], is_root=node.id == graph.root) for node in drawing.nodes.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


# Folding


def fold(graph: LineageGraph, most: int) -> Drawing:
    """Return what is drawn of a graph: all of it, else nodes that are alike as one, else the nearest nodes."""
    edges = {(edge.source, edge.target): edge.step for edge in graph.edges}
    drawing = Drawing({node.id: node for node in graph.nodes}, edges)
    if len(drawing.nodes) > most:
        drawing = fold_alike(drawing, graph.root)
    if len(drawing.nodes) > most:
        drawing = fold_far(drawing, graph.root, most)
    return drawing


def fold_alike(drawing: Drawing, root: str) -> Drawing:
    """Return the same with nodes of one kind between the same neighbours as one node."""
    before, after = neighbours(drawing.edges)
    alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for node in drawing.nodes.values():
        alike[node.kind, tuple(sorted(before[node.id])), tuple(sorted(after[node.id]))].append(node.id)
    merged = {
        member: members[0]
        for members in alike.values()
        if len(members) >= FOLD_FROM and root not in members
        for member in members
    }
    counts = {members[0]: len(members) for members in alike.values() if members[0] in merged}
    nodes = {}
    for node in drawing.nodes.values():
        if merged.get(node.id, node.id) == node.id:
            nodes[node.id] = describe_folded(node, counts[node.id]) if node.id in counts else node
    return Drawing(nodes, redirect(drawing.edges, merged))


def describe_folded(node: LineageNode, count: int) -> LineageNode:
    word = PLURALS.get(node.kind, f"{node.kind}s")
    return node.model_copy(update={"label": f"{count:,} {word}", "sha256": "", "detail": f"such as {node.label}"})


def fold_far(drawing: Drawing, root: str, most: int) -> Drawing:
    """Return the nodes nearest to the adapter, and one node for all others."""
    before, after = neighbours(drawing.edges)
    order = [root]
    for links in (after, before):  # what became of it first; never from a base to its other uses
        waiting, reached = deque([root]), {root}
        while waiting:
            for other in sorted(links[waiting.popleft()] - reached):
                reached.add(other)
                waiting.append(other)
                order += [other] if other not in order else []
    reached = set(order)
    order += [name for name in drawing.nodes if name not in reached]
    most = min(most, FAR)
    drawn = set(order[: most - 1])
    far = order[most - 1 :]
    count = len(far)
    rest = LineageNode(
        id="earlier", kind=LineageKind.ADAPTER, label=f"{count:,} earlier nodes", detail="all of them: --json"
    )
    nodes = {rest.id: rest, **{name: node for name, node in drawing.nodes.items() if name in drawn}}
    edges = redirect(drawing.edges, dict.fromkeys(far, rest.id))
    return Drawing(nodes, edges)


def redirect(edges: Mapping[tuple[str, str], str], names: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return the edges between the nodes that others were folded into; an edge inside one is left out."""
    moved = ((names.get(a, a), names.get(b, b), a, b, step) for (a, b), step in edges.items())
    return {(a, b): step for a, b, source, target, step in moved if a != b or source == target}


def neighbours(edges: Iterable[tuple[str, str]]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    before: dict[str, set[str]] = defaultdict(set)
    after: dict[str, set[str]] = defaultdict(set)
    for source, target in edges:
        before[target].add(source)
        after[source].add(target)
    return before, after


# Places


def place_columns(drawing: Drawing) -> dict[str, int]:
    """Return the column of each node: one more than the last of those before it. Edges that close a cycle do not
    count."""
    before, after = neighbours(drawing.edges)
    open_edges = {name: len(before[name] - {name}) for name in drawing.nodes}
    columns = dict.fromkeys(drawing.nodes, 0)
    done: set[str] = set()
    ready = deque(name for name, count in open_edges.items() if count == 0)
    while len(done) < len(drawing.nodes):
        if not ready:  # a cycle: begin at its node with the fewest open edges
            ready.append(min((name for name in drawing.nodes if name not in done), key=lambda n: (open_edges[n], n)))
        name = ready.popleft()
        if name in done:
            continue
        done.add(name)
        for other in sorted(after[name] - done):
            columns[other] = max(columns[other], columns[name] + 1)
            open_edges[other] -= 1
            if open_edges[other] == 0:
                ready.append(other)
    return pull_right(columns, after)


def pull_right(columns: dict[str, int], after: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the columns with what has nothing before it next to what it leads to."""
    targets = {name: {columns[other] for other in after[name] if columns[other] > columns[name]} for name in columns}
    into = {other for others in after.values() for other in others}
    return {
        name: min(targets[name]) - 1 if name not in into and targets[name] else column
        for name, column in columns.items()
    }


def place_rows(drawing: Drawing, columns: Mapping[str, int]) -> tuple[dict[str, tuple[int, int]], int]:
    """Return the corner of each node, ordered by the middle of what it comes from, and the height of all."""
    before, _ = neighbours(drawing.edges)
    kinds = list(LineageKind)
    ranks: dict[str, float] = {}
    places: dict[str, tuple[int, int]] = {}
    tallest = 0
    for column in range(max(columns.values()) + 1):
        members = [name for name in drawing.nodes if columns[name] == column]
        for name in members:
            known = [ranks[other] for other in before[name] if other in ranks]
            ranks[name] = sum(known) / len(known) if known else 0.0
        members.sort(key=lambda name: (ranks[name], kinds.index(drawing.nodes[name].kind), drawing.nodes[name].label))
        for row, name in enumerate(members):
            ranks[name] = float(row)
            places[name] = (MARGIN + column * (WIDTH + GAP_X), HEAD + MARGIN + row * (HEIGHT + GAP_Y))
        tallest = max(tallest, len(members))
    return places, HEAD + 2 * MARGIN + tallest * (HEIGHT + GAP_Y)


# Drawing


def draw_node(node: LineageNode, x: int, y: int, *, is_root: bool) -> str:
    colour, dash = COLOURS[node.kind], ' stroke-dasharray="4 3"' if node.missing else ""
    entry = f" · entry {node.entry}" if node.entry is not None else ""
    lost = " (deleted)" if node.missing else ""
    detail = shorten(f"{node.detail}{lost}".strip(), DETAIL_CHARACTERS)
    hint = " ".join(filter(None, (f"{node.kind}: {node.label}", node.detail, node.sha256, lost)))
    return (
        f"<g><title>{escape(hint)}</title>"
        f'<rect class="box" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" stroke="{colour}" '
        f'stroke-width="{2.5 if is_root else 1.2}"{dash}/>'
        f'<text class="kind" x="{x + 9}" y="{y + 14}" style="fill:{colour}">{escape(f"{node.kind}{entry}")}</text>'
        f'<text x="{x + 9}" y="{y + 30}">{escape(shorten(node.label, LABEL_CHARACTERS))}</text>'
        f'<text class="detail" x="{x + 9}" y="{y + 45}">{escape(detail)}</text></g>'
    )


def draw_edges(drawing: Drawing, places: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """Yield the edges: those into one node arrive one below the other, and each of its steps is named once."""
    into: dict[str, list[str]] = defaultdict(list)
    for source, target in drawing.edges:
        into[target].append(source)
    for target, sources in into.items():
        labelled: set[str] = set()
        sources.sort(key=lambda name: (places[name][1], -places[name][0]))
        x, y = places[target]
        for number, source in enumerate(sources):
            step = drawing.edges[source, target]
            end = (x, y + HEIGHT * (number + 1) // (len(sources) + 1))
            yield draw_edge(places[source], end, "" if step in labelled else step)
            labelled.add(step)


def draw_edge(source: tuple[int, int], end: tuple[int, int], step: str) -> str:
    """Return a curve from the right side of a node to a point on the left side of another, with its step."""
    (x1, y1), (x2, y2) = (source[0] + WIDTH, source[1] + HEIGHT // 2), end
    if x2 <= source[0]:  # it closes a cycle: below both
        low = max(y1, y2) + HEIGHT
        path = f"M{x1} {y1}C{x1 + 40} {low} {x2 - 40} {low} {x2} {y2}"
    elif x2 - x1 > GAP_X:  # past other columns: in the gap below its row, so that no node is crossed
        low, turn = source[1] + HEIGHT + GAP_Y // 2, GAP_X // 2
        path = (
            f"M{x1} {y1}C{x1 + turn} {y1} {x1 + turn // 2} {low} {x1 + turn} {low}"
            f"L{x2 - GAP_X} {low}C{x2 - turn} {low} {x2 - turn} {y2} {x2} {y2}"
        )
    else:
        bend = max(24, (x2 - x1) // 2)
        path = f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    label = f'<text class="step" x="{x2 - 8}" y="{y2 - 3}" text-anchor="end">{escape(step)}</text>' if step else ""
    return f'<path class="edge" marker-end="url(#tip)" d="{path}"/>{label}'


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
