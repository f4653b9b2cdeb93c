"""Processes that train together, for tests: one program imports everything once and forks the processes of each case.

    python -m tests.unit.train.parallel.world FOLDER < cases.json

Each case names a function of `cases.py`, a number of processes and settings; every process leaves what the function
returned in `FOLDER/<case>/<rank>.json`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from tests.unit.train.parallel import cases
from trainyard.train.parallel.islands import join_islands
from trainyard.train.parallel.team import join_team

LIMIT_S = 100


def rank_of_case(case: dict[str, Any], rank: int, folder: Path) -> None:
    """One process of a case; its words go to a file of its own."""
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        if case["run"] == "program":  # it joins the others by itself, as after a launcher
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case["processes"]))
            result = cases.program(**case["given"])
        else:
            islands = case["given"].get("diloco", {}).get("num_islands", 1)
            with join_team(rank, case["processes"], folder / "meeting", "cpu") as everyone:
                team = join_islands(everyone, islands) if islands > 1 else everyone
                result = getattr(cases, case["run"])(team, folder, **case["given"])
        (folder / f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    except BaseException:
        traceback.print_exc()
        raise


def run_case(case: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_of_case, args=(case, rank, folder)) for rank in range(case["processes"])]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(LIMIT_S)
    for process in ranks:
        if process.is_alive():
            process.kill()


def main(root: Path) -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    for name, case in json.load(sys.stdin).items():
        run_case(case, root / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
