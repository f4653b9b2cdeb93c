"""Do islands learn as much as a synchronous training, and do they send and wait what the simulator says?

A next-token model of 12 k weights on Markov chains, a domain of states of its own for each island (so that one who
never hears of the others is worse), 2,000 steps, one thread a process, gloo:

    loss     synchronous, islands with H = 10 and H = 50, and islands that never meet, on all domains
    bytes    counted in code, against the formula
    time     200 steps over a link of 2 Mbit/s and 20 ms, made in `SlowLink`, against `diloco simulate`
    killed   torchft: an island gets SIGKILL after a third of the steps, and is started again

    python -m benchmarks.diloco
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Row, finish, size
from trainyard.spec.axes.strategies import DILOCO_SETTINGS, DilocoEngine, Strategy
from trainyard.spec.estimate.islands import IslandLink, count_exchange_bytes, simulate_islands
from trainyard.spec.training import LaunchSettings
from trainyard.train.parallel.ddp import Ddp
from trainyard.train.parallel.diloco import Diloco, Outer
from trainyard.train.parallel.islands import join_islands
from trainyard.train.parallel.session import make_strategy
from trainyard.train.parallel.team import join_team

STATES, WIDTH, BATCH, RATE = 24, 48, 32, 3e-3
STEPS, TIMED_STEPS = size(2000, 60), size(200, 40)
STEP_S, LINK = 0.02, IslandLink(mbit_per_s=2.0, latency_ms=20.0)
PERIODS = {10: 1.02, 50: 1.05}
"""H -> most of the synchronous loss."""
TEAMS = (2, 4)[: size(2, 1)]
KILLS = (False, True)[size(0, 1) :]
"""The short form trains torchft once, with the kill."""
Results = list[dict[str, Any]]


def make_model(islands: int) -> torch.nn.Module:
    torch.manual_seed(0)
    vocabulary = STATES * islands
    return torch.nn.Sequential(
        torch.nn.Embedding(vocabulary, WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, vocabulary),
    )  # fmt: skip


def draw_rows(domain: int, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states of a domain and their successors: each has four, with the probabilities 8, 4, 2 and 1 of 15."""
    chain = torch.Generator().manual_seed(100 + domain)
    successors_SK = torch.randint(0, STATES, (STATES, 4), generator=chain)
    generator = torch.Generator().manual_seed(seed)
    state_B = torch.randint(0, STATES, (count,), generator=generator)
    choice_B = torch.multinomial(torch.tensor([8.0, 4.0, 2.0, 1.0]), count, replacement=True, generator=generator)
    return state_B + domain * STATES, successors_SK[state_B, choice_B] + domain * STATES


def loss_of(model: torch.nn.Module, rows: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(rows[0]), rows[1])


def evaluate(model: torch.nn.Module, islands: int) -> float:
    """Return the mean loss over the domains of all islands."""
    with torch.no_grad():
        return sum(float(loss_of(model, draw_rows(domain, 4000, 7))) for domain in range(islands)) / islands


class SlowLink:
    """The exchanges of an island, which take as long as its link would."""

    def __init__(self, outer: Outer, link: IslandLink) -> None:
        self.outer, self.link = outer, link
        self.send, self.gather = outer.all_to_all, outer.all_gather

    def __enter__(self) -> None:
        self.outer.all_to_all = self.wait_for(self.send)  # type: ignore[method-assign]
        self.outer.all_gather = self.wait_for(self.gather)  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self.outer.all_to_all, self.outer.all_gather = self.send, self.gather  # type: ignore[method-assign]

    def wait_for(self, exchange: Callable[[torch.Tensor, torch.Tensor], None]) -> Callable[..., None]:
        def run(received: torch.Tensor, sent: torch.Tensor) -> None:
            before, started = self.outer.bytes_sent, time.perf_counter()
            exchange(received, sent)
            seconds = self.link.seconds(self.outer.bytes_sent - before, 1)
            time.sleep(max(0.0, started + seconds - time.perf_counter()))

        return run


def train_rank(rank: int, islands: int, folder: Path, task: str, period: int) -> None:
    """One process of a task, which writes what it came to."""
    torch.set_num_threads(1)
    with join_team(rank, islands, folder / "meeting", "cpu") as team:
        model = make_model(islands)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        diloco = {"num_islands": islands, "inner_steps": period}
        launch = LaunchSettings(strategy=Strategy.DDP, processes=islands, diloco=diloco if period else None)
        crew = join_islands(team, islands) if period else team
        strategy = make_strategy(crew, model, launch)
        parameters, seconds = list(model.parameters()), 0.0
        if task == "time":
            assert isinstance(strategy, Diloco)
            with SlowLink(strategy.outer, LINK):
                seconds = run_steps(model, optimizer, strategy, rank, TIMED_STEPS, paced=True)
        else:
            steps = run_steps if task != "sync" else run_synchronous
            steps(model, optimizer, strategy if task != "apart" else None, rank, STEPS)
        digest = hash(tuple(float(value.detach().double().sum()) for value in parameters))
        result = {"loss": evaluate(model, islands), "digest": digest, "seconds": seconds, **strategy.facts()}
        (folder / f"{rank}.json").write_text(json.dumps({**result, "parameters": count(model)}))
        crew.close()


def count(model: torch.nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


def lower_rate(optimizer: Any, step: int, steps: int) -> None:
    """Let the learning rate fall to 0 in a line, as trainings do."""
    for group in optimizer.param_groups:
        group["lr"] = RATE * (1 - step / steps)


def run_steps(
    model: torch.nn.Module, optimizer: Any, strategy: Any, rank: int, steps: int, *, paced: bool = False
) -> float:
    """Take steps on an island's domain, with an exchange where the strategy makes one; returns the seconds."""
    started = time.perf_counter()
    for step in range(1, steps + 1):
        began = time.perf_counter()
        loss_of(model, draw_rows(rank, BATCH, 10_000 * rank + step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        lower_rate(optimizer, step, steps)
        if paced:
            time.sleep(max(0.0, began + STEP_S - time.perf_counter()))
        if strategy is not None:
            strategy.after_step(step)
    if strategy is not None:
        strategy.finish()
    return time.perf_counter() - started


def run_synchronous(model: torch.nn.Module, optimizer: Any, strategy: Ddp, rank: int, steps: int) -> float:
    """Take the steps of the mean gradient of all processes."""
    started = time.perf_counter()
    for step in range(1, steps + 1):
        (loss_of(model, draw_rows(rank, BATCH, 10_000 * rank + step)) / strategy.team.size).backward()
        strategy.sync_gradients(list(model.parameters()), scaled=False)
        optimizer.step()
        optimizer.zero_grad()
        lower_rate(optimizer, step, steps)
    return time.perf_counter() - started


def run_task(root: Path, islands: int, task: str, period: int = 0) -> Results:
    folder = root / f"{task}-{islands}-{period}"
    folder.mkdir(parents=True)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=train_rank, args=(rank, islands, folder, task, period)) for rank in range(islands)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(islands)]


# An island that is lost


def train_torchft(rank: int, folder: Path, lighthouse: str) -> None:
    """One island of torchft, which goes on where the living ones are."""
    from trainyard.train.parallel import torchft_island

    torch.set_num_threads(1)
    os.environ |= {torchft_island.ISLAND_VARIABLE: str(rank), torchft_island.LIGHTHOUSE_VARIABLE: lighthouse}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    model, progress = make_model(2), {"step": 0}
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    settings = DILOCO_SETTINGS[DilocoEngine.TORCHFT](type=DilocoEngine.TORCHFT, num_islands=2, inner_steps=10)
    island = torchft_island.TorchftIsland(model, settings)

    def take(state: Any) -> None:
        optimizer.load_state_dict(state["optimizer"])
        progress["step"] = state["step"]

    island.share_state(lambda: {"optimizer": optimizer.state_dict(), **progress}, take)
    (folder / f"ready-{rank}").touch()
    while not all((folder / f"ready-{other}").exists() for other in range(2)):
        time.sleep(0.02)
    while progress["step"] < STEPS:
        progress["step"] += 1
        (folder / f"step-{rank}").write_text(str(progress["step"]))
        loss_of(model, draw_rows(rank, BATCH, 10_000 * rank + progress["step"])).backward()
        island.sync_gradients([], scaled=False)
        optimizer.step()
        optimizer.zero_grad()
        lower_rate(optimizer, progress["step"], STEPS)
        island.after_step(progress["step"])
        time.sleep(0.002)
    facts = island.facts()
    (folder / f"{rank}.json").write_text(json.dumps({"loss": evaluate(model, 2), **facts}))
    os._exit(0)


def run_torchft(folder: Path, kill: bool) -> Results:
    os.environ["RUST_LOG"] = "error"  # its servers log every heartbeat
    from torchft.coordination import LighthouseServer

    folder.mkdir(parents=True)
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=30_000)
    address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
    spawn = multiprocessing.get_context("spawn")
    islands = [spawn.Process(target=train_torchft, args=(rank, folder, address)) for rank in range(2)]
    for process in islands:
        process.start()
    if kill:
        while read_step(folder) < STEPS // 3:
            time.sleep(0.02)
        os.kill(islands[1].pid or 0, signal.SIGKILL)
        islands[1].join()
        islands[1] = spawn.Process(target=train_torchft, args=(1, folder, address))
        islands[1].start()
    for process in islands:
        process.join()
    lighthouse.shutdown()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def read_step(folder: Path) -> int:
    try:
        return int((folder / "step-1").read_text())
    except (OSError, ValueError):
        return 0


def measure(root: Path, islands: int) -> list[Row]:
    """Return the rows of a number of islands."""
    sync = run_task(root, islands, "sync")[0]["loss"]
    rows, last = [], 0.0
    for period, most in PERIODS.items():
        ranks = run_task(root, islands, "islands", period)
        last = ranks[0]["loss"]
        rows.append(Row.at_most(f"{islands} islands, H = {period}: loss over synchronous", last / sync, limit(most)))
        exchanges = -(-STEPS // period)
        expected = count_exchange_bytes(ranks[0]["parameters"], islands, 1, "fp32") * exchanges
        rows.append(Row.at_most(f"{islands} islands, H = {period}: bytes / formula - 1", off(ranks, expected), 0))
        same = len({rank["digest"] for rank in ranks}) - 1
        rows.append(Row.at_most(f"{islands} islands, H = {period}: replicas that differ", same, 0))
    apart = sum(rank["loss"] for rank in run_task(root, islands, "apart")) / islands
    rows.append(Row.at_least(f"{islands} islands that never meet: loss over H = 50", apart / last, 1.1))
    timed = run_task(root, islands, "time", 10)
    settings = DILOCO_SETTINGS[DilocoEngine.NATIVE](type=DilocoEngine.NATIVE, num_islands=islands, inner_steps=10)
    simulation = simulate_islands(settings, timed[0]["parameters"], 1, step_s=STEP_S, steps=TIMED_STEPS, links=[LINK])
    error = abs(timed[0]["seconds"] / simulation.diloco.wall_clock_s - 1)
    rows.append(Row.at_most(f"{islands} islands: wall clock over the simulation's - 1", error, limit(0.05)))
    return rows


def off(ranks: Results, expected: int) -> float:
    return max(abs(rank["outer_bytes_sent"] / expected - 1) for rank in ranks)


def limit(value: float) -> float:
    """Return a bar; the short form, which trains too little and times on any machine, has none."""
    return size(1, 0) * value or 1e9


def main() -> int:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for islands in TEAMS:
            rows += measure(root, islands)
        losses = [run_torchft(root / f"torchft-{kill}", kill)[0]["loss"] for kill in KILLS]
        change = abs(losses[-1] / losses[0] - 1)
        rows.append(Row.at_most("killed island: change of the final loss", change, limit(0.01)))
    return finish("diloco", rows, {})


if __name__ == "__main__":
    sys.exit(main())
