"""Checks of a chain against the work pool of this home: missing settings, and data that containers do not see."""

from __future__ import annotations

from pathlib import Path

from trainyard.compute.pools import has_shared_home, is_container_pool, list_problems
from trainyard.errors import Reason, to_reason
from trainyard.settings import Settings
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.compat.run import list_paths

ROOT_CODE = "R-PATH-ROOT"
INSTEAD = "data of the Hub, a bucket or a data worker, or files on the volume of the home"


def check_pool(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Return the problems of the pool, and the local data that its containers do not see; none inside a container."""
    if not settings.device_limits:
        return []
    reasons = [to_reason(problem, None, "") for problem in list_problems(settings)]
    if not is_container_pool(settings):
        return reasons
    folders = [settings.home, *settings.data_roots] if has_shared_home(settings) else []
    for node in chain.nodes:
        for field, path in list_paths(node.config):
            place = settings.working_folder / Path(path).expanduser()
            if not any(place.is_relative_to(folder) for folder in folders):
                seen = f"their home {settings.home} and data_roots" if folders else "no folder of this machine"
                because = f"{place} is on this machine, and runs of the pool {settings.work_pool} see {seen}."
                reasons.append(Reason(ROOT_CODE, node.id, f"config.{field}", because, INSTEAD))
    return reasons
