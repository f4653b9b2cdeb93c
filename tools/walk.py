"""Trace how checking a chain passes through the modules: `python -m tools.walk [check|plan|run] FILE`.

A *stay* is a stretch of calls within one module; a *climb* is a call into a module that is on the call stack already
and is not the direct caller: a reader who follows the code goes back up. Climbs are counted once for each pair of
functions, as a reader meets each call once. `run` is what `flows.walker.run_chain` does with a chain before its first
node starts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("trainyard", "flows", "nodes", "tasks")
INLINE = frozenset({"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<module>"})
"""Frames that are part of the text of the function around them, or of an import."""


@dataclass
class Walk:
    """The module changes along the calls of one function."""

    stack: list[tuple[str, str]] = field(default_factory=list)
    """(module, function) of every call of ours that has not returned."""
    stays: int = 0
    modules: set[str] = field(default_factory=set)
    climbs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(caller, called function), each as `module:function` -> number of calls."""

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call or a return; the profile function of `sys.setprofile`."""
        if event not in ("call", "return") or frame.f_code.co_name in INLINE:
            return
        module = module_of(frame.f_code.co_filename)
        if not module:
            return
        if event == "return":
            if self.stack:  # the frame that began the trace is not on it
                self.stack.pop()
            return
        caller = self.stack[-1] if self.stack else ("", "")
        self.modules.add(module)
        if module != caller[0]:
            self.stays += 1
            if any(module == other for other, _ in self.stack):
                self.climbs[":".join(caller), f"{module}:{frame.f_code.co_qualname}"] += 1
        self.stack.append((module, frame.f_code.co_qualname))

    def lines(self) -> list[str]:
        """Return the totals, and each climb with its number of calls."""
        total = f"{self.stays} stays, {len(self.modules)} modules, {len(self.climbs)} climbs"
        return [total, *(f"  {caller} -> {callee}  × {count}" for (caller, callee), count in self.climbs.items())]


def module_of(filename: str) -> str:
    """Return the path of a module of ours below the repository; empty for any other code."""
    path = filename.removeprefix(f"{REPOSITORY}/")
    return path.removesuffix(".py") if path != filename and path.partition("/")[0] in PACKAGES else ""


def trace(call: Callable[[], object]) -> Walk:
    """Run a function twice and return the walk of the second time: imports and caches are not part of it."""
    call()
    walk = Walk()
    sys.setprofile(walk.watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def run_journey(journey: str, file: Path) -> object:
    """Check a chain file, plan it, or decide whether it may run, as its flow does."""
    # Imported here: the trace names modules by their files, and needs none of them.
    from trainyard.app.context import Context
    from trainyard.app.plan.check import check
    from trainyard.app.plan.parse import parse_request
    from trainyard.app.plan.plan import plan
    from trainyard.app.plan.refusals import refuse_or_wait
    from trainyard.app.plan.resolve import resolve_chain
    from trainyard.callbacks import ignore
    from trainyard.operations.chains import CheckInput, PlanInput
    from trainyard.settings import settings

    context = Context(settings(), say=ignore)
    match journey:
        case "check":
            return check(CheckInput(files=(file,)), context)
        case "plan":
            return plan(PlanInput(target=str(file)), context)
        case "run":
            chain = resolve_chain(parse_request(str(file)).spec, context.settings)
            return refuse_or_wait(chain, context.settings, is_job=False, allows=lambda shortages: True)
        case _:
            raise SystemExit(f"There is no journey {journey!r}. Use check, plan or run.")


def main() -> None:
    journey, file = sys.argv[1:3] if len(sys.argv) > 2 else ("run", sys.argv[1])
    print("\n".join(trace(lambda: run_journey(journey, Path(file))).lines()))


if __name__ == "__main__":
    main()
