"""The node of the cluster: places pods, pulls images, runs commands, and ends them by SIGTERM with their grace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from trainyard.testing.kubernetes.objects import Key, Object, ObjectStore, format_now

GPU = "nvidia.com/gpu"


@dataclass
class NodeDouble:
    """One machine of the cluster."""

    store: ObjectStore
    images: set[str]
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    logs: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pods-")))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Name of a pod -> its process."""
    threads: list[Thread] = field(default_factory=list)

    def start_pod(self, job: Object) -> None:
        """Make the pod of a job, and run it if it can be placed and its image is there."""
        metadata, template = job["metadata"], job["spec"]["template"]
        labels = {**(template.get("metadata") or {}).get("labels", {}), "job-name": metadata["name"]}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"],
                 "controller": True, "blockOwnerDeletion": True}  # fmt: skip
        pod = self.store.put("pods", {
            "apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
            "metadata": {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"], "labels": labels,
                         "ownerReferences": [owner]},
            "status": {"phase": "Pending", "conditions": [], "containerStatuses": []},
        })  # fmt: skip
        key: Key = ("pods", metadata["namespace"], pod["metadata"]["name"])
        if problem := self.find_misfit(template["spec"]):
            self.store.change_status(key, conditions=[
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": problem},
            ])  # fmt: skip
            return
        container = template["spec"]["containers"][0]
        if container["image"] not in self.images:
            for reason in ("ErrImagePull", "ImagePullBackOff"):
                message = f'Back-off pulling image "{container["image"]}": not found'
                self.store.change_status(key, containerStatuses=[
                    status_of(container, {"waiting": {"reason": reason, "message": message}})])  # fmt: skip
            return
        self.run_container(key, job, container)

    def find_misfit(self, spec: Object) -> str:
        """Return why the pod cannot run on this node, in the scheduler's words."""
        limits = (spec["containers"][0].get("resources") or {}).get("limits") or {}
        if int(limits.get(GPU, 0)) > self.gpus:
            return f"0/1 nodes are available: 1 Insufficient {GPU}."
        if any(self.labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
            return "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        return ""

    def run_container(self, key: Key, job: Object, container: Object) -> None:
        variables = self.resolve_variables(container, key[1])
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        environment = {"PATH": path, "HOME": os.environ.get("HOME", "/"), **variables}
        with (self.logs / key[2]).open("wb") as log:
            process = subprocess.Popen(
                [*container.get("command", []), *container.get("args", [])], env=environment, cwd="/", stdout=log,
                stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.processes[key[2]] = process
        running = status_of(container, {"running": {"startedAt": format_now()}}) | {"ready": True}
        self.store.change_status(key, phase="Running", startTime=format_now(), containerStatuses=[running])
        job_key: Key = ("jobs", key[1], job["metadata"]["name"])
        self.store.change_status(job_key, active=1, startTime=format_now())
        thread = Thread(target=self.await_end, args=(key, job_key, container, process), name=f"pod-{key[2]}")
        self.threads.append(thread)
        thread.start()

    def resolve_variables(self, container: Object, namespace: str) -> dict[str, str]:
        """Return the environment of a container, with the values of its secrets."""
        variables: dict[str, str] = {}
        for source in container.get("envFrom") or ():
            variables |= self.read_secret(namespace, source["secretRef"]["name"])
        for entry in container.get("env") or ():
            reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
            if reference:
                variables[entry["name"]] = self.read_secret(namespace, reference["name"])[reference["key"]]
            else:
                variables[entry["name"]] = entry.get("value") or ""
        return variables

    def read_secret(self, namespace: str, name: str) -> dict[str, str]:
        secret = self.store.get(("secrets", namespace, name)) or {}
        return dict(secret.get("stringData") or {})

    def await_end(self, key: Key, job_key: Key, container: Object, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        code = 128 - code if code < 0 else code
        ended = {"terminated": {"exitCode": code, "finishedAt": format_now(),
                                "reason": "Error" if code else "Completed"}}  # fmt: skip
        phase = "Failed" if code else "Succeeded"
        self.store.change_status(key, phase=phase, containerStatuses=[status_of(container, ended)])
        count = {"failed": 1} if code else {"succeeded": 1}
        condition = {"type": "Failed" if code else "Complete", "status": "True", "lastTransitionTime": format_now()}
        self.store.change_status(job_key, active=0, conditions=[condition], **count)

    def end_pod(self, key: Key) -> None:
        """SIGTERM, then SIGKILL after the pod's grace period; the pod is removed."""
        pod = self.store.get(key)
        process = self.processes.get(key[2])
        if pod is not None and process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(pod["spec"].get("terminationGracePeriodSeconds", 30))
            except subprocess.TimeoutExpired:
                process.kill()
        self.store.remove(key)

    def read_log(self, name: str) -> str:
        path = self.logs / name
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for thread in self.threads:
            thread.join()
        shutil.rmtree(self.logs, ignore_errors=True)


def status_of(container: Object, state: dict[str, Any]) -> Object:
    """Return a V1ContainerStatus."""
    return {"name": container["name"], "image": container["image"], "imageID": "", "ready": False, "restartCount": 0,
            "state": state}  # fmt: skip
