"""Ask the workers of a running Dask or Ray cluster what they are; a program of its own.

    python -m trainyard.app.plan.cluster_probe ENGINE ADDRESS FOLDER

The last line of its output is a JSON list with an object for each worker (Dask) or host (Ray): the fields of
`describe_worker`, or {error}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from trainyard.app.plan.workers import describe_worker

CONNECT_S = 15


def ask_dask(address: str, folder: str) -> list[Any]:
    import distributed  # an extra

    untyped: Any = distributed
    with untyped.Client(address, timeout=CONNECT_S, set_as_default=False) as client:
        answers = client.run(describe_worker, folder, on_error="return")
    return list(answers.values())


def ask_ray(address: str, folder: str) -> list[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray as typed  # an extra
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray: Any = typed
    with ray.init(address, log_to_driver=False, configure_logging=False):
        asked = [
            ray.remote(describe_worker)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            .remote(folder)
            for node in ray.nodes()
            if node["Alive"]
        ]
        answers: list[Any] = []
        for reference in asked:
            try:
                answers.append(ray.get(reference, timeout=CONNECT_S))
            except Exception as error:  # of the worker, or of Ray
                answers.append(error)
    return answers


def main(engine: str, address: str, folder: str) -> int:
    answers = {"dask": ask_dask, "ray": ask_ray}[engine](address, folder)
    workers = [
        answer if isinstance(answer, dict) else {"error": f"{type(answer).__name__}: {answer}"} for answer in answers
    ]
    print(json.dumps(workers))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
