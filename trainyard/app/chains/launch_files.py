"""A chain as a task of SkyPilot, or as a TrainJob of Kubeflow Trainer: other launchers that find the machine.

Both install Trainyard, write the chain to a file and run it there. The file is the chain as it was written, so that the
machine resolves it: what this machine decides, such as `method: auto`, is decided again.
"""

from __future__ import annotations

from typing import Any

import yaml

from trainyard.app.plan.machine import is_local, list_trainers
from trainyard.errors import Reason, Refused
from trainyard.spec.chain import ChainSpec, ResolvedChain
from trainyard.spec.nodes import DataSourceConfig

SETUP = "python3 -m pip install --quiet trainyard"
RUN = "trainyard up && trainyard run chain.yaml --watch"
RUNTIME = "torch-distributed"
"""The ClusterTrainingRuntime that Kubeflow Trainer installs."""
END = "END_OF_CHAIN"


def write_chain(spec: ChainSpec) -> str:
    """Return the chain as YAML, without defaults."""
    body = spec.model_dump(mode="json", exclude_unset=True)
    return yaml.safe_dump(body, sort_keys=False, allow_unicode=True)


def write_script(spec: ChainSpec) -> str:
    return f"cat > chain.yaml <<'{END}'\n{write_chain(spec)}{END}\n{RUN}\n"


def count_gpus(chain: ResolvedChain) -> int:
    """Return the GPUs that the largest trainer needs; at least one, except where services compute."""
    sizes = [config.launch.processes for _, config in list_trainers(chain) if not config.backend.facts.remote]
    return max(sizes, default=0)


def list_local_sources(chain: ResolvedChain) -> list[str]:
    return [node.id for node in chain.nodes if isinstance(node.config, DataSourceConfig) and is_local(node.config)]


def export_skypilot(spec: ChainSpec, chain: ResolvedChain, gpu: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a SkyPilot task and its notes. Raises `Refused` (`E-EXPORT`) without the name of a GPU."""
    gpus = count_gpus(chain)
    if gpus and not gpu:
        because = "SkyPilot chooses a machine by the name of its GPU, and a chain names none."
        raise Refused([Reason("E-EXPORT", None, "gpu", because, "Give --gpu, such as --gpu H100.")])
    task: dict[str, Any] = {"name": chain.name, "num_nodes": 1}
    if gpus:
        task["resources"] = {"accelerators": f"{gpu}:{gpus}"}
    local = list_local_sources(chain)
    notes = [f"{name} reads local files: workdir copies this folder to the machine." for name in local]
    if local:
        task["workdir"] = "."
    notes.append("`sky launch -i 10 --down` ends an idle machine; without it the machine stays and costs money.")
    return {**task, "setup": SETUP, "run": write_script(spec)}, tuple(notes)


def export_kubeflow(spec: ChainSpec, chain: ResolvedChain, gpu: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a TrainJob and its notes. Raises `Refused` (`E-EXPORT`) for data that no pod would have."""
    if gpu:
        because = f"A TrainJob asks for a number of GPUs, so --gpu {gpu} would have no effect."
        raise Refused([Reason("E-EXPORT", None, "gpu", because, "Remove --gpu, and choose nodes in the runtime.")])
    if local := list_local_sources(chain):
        reasons = [
            Reason("E-EXPORT", name, "config.path", "It reads files of this machine, which a pod does not have.",
                   "Read a data set of the Hub, or a bucket.")
            for name in local
        ]  # fmt: skip
        raise Refused(reasons)
    gpus = count_gpus(chain)
    trainer: dict[str, Any] = {"numNodes": 1, "command": ["sh", "-c"], "args": [f"{SETUP}\n{write_script(spec)}"]}
    if gpus:
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": chain.name.replace("_", "-").lower()},
        "spec": {"runtimeRef": {"name": RUNTIME}, "trainer": trainer},
    }
    return job, (f"The runtime {RUNTIME} has to be installed in the cluster.",)


LAUNCHERS = {"skypilot": ("SkyPilot", export_skypilot), "kubeflow": ("Kubeflow Trainer", export_kubeflow)}
