"""What a test finds on the canvas of the chain editor."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page

LINE = ("data_source", "ai_generator", "validator", "trainer", "evaluator")


def node(page: Page, name: str) -> Locator:
    return page.locator(f'.react-flow__node[data-id="{name}"]')


def centre(locator: Locator) -> tuple[float, float]:
    box = locator.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def status(page: Page) -> Locator:
    return page.get_by_role("status", name="State of the draft")


def wide_chain(lines: int) -> dict[str, Any]:
    """Independent lines of five nodes each."""
    nodes = []
    for at in range(lines):
        before = None
        for kind in LINE:
            config = {"path": "depot"} if kind == "data_source" else {}
            name = f"line-{at}-{kind.replace('_', '-')}"
            nodes.append({"id": name, "type": kind, "needs": [before] if before else [], "config": config})
            before = name
    return {"name": "wide", "nodes": nodes}
