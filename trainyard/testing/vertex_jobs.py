"""Double of Vertex AI's job service: custom jobs over gRPC, each container's command as a local process.

    with serve_jobs(VertexJobsDouble(accelerators={"europe-west4": {"NVIDIA_L4"}})) as address:
        JobServiceAsyncClient(transport=JobServiceGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(address)))

Requests and answers are the messages of `google-cloud-aiplatform`. The service itself was never called.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc
    from google.cloud.aiplatform_v1.types import (
        CancelCustomJobRequest,
        CreateCustomJobRequest,
        CustomJob,
        GetCustomJobRequest,
    )
    from google.protobuf.empty_pb2 import Empty

SERVICE = "google.cloud.aiplatform.v1.JobService"
PARENT = re.compile(r"projects/[^/]+/locations/(?P<region>[a-z0-9-]+)")


@dataclass
class VertexJobsDouble:
    """The custom jobs of some regions."""

    accelerators: Mapping[str, set[str]]
    """Region -> names of the accelerators that it has."""
    valid_login: bool = True
    jobs: dict[str, CustomJob] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def create(self, request: CreateCustomJobRequest, context: grpc.ServicerContext) -> CustomJob:
        import grpc  # for tests with this double
        from google.cloud.aiplatform_v1.types import CustomJob, JobState

        if not self.valid_login:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials.")
        region = (PARENT.fullmatch(request.parent) or {"region": ""})["region"]
        (pool,) = request.custom_job.job_spec.worker_pool_specs
        accelerator = pool.machine_spec.accelerator_type.name
        if pool.machine_spec.accelerator_count and accelerator not in self.accelerators.get(region, set()):
            problem = f"Accelerator type {accelerator} is not supported for custom training in region {region}."
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        with self.lock:
            job = CustomJob(request.custom_job)
            job.name = f"{request.parent}/customJobs/{len(self.jobs) + 1}"
            job.state = JobState.JOB_STATE_RUNNING
            self.jobs[job.name] = job
            container = pool.container_spec
            path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
            environment = {"PATH": path, **{entry.name: entry.value for entry in container.env}}
            argv = [*container.command, *container.args]
            self.processes[job.name] = subprocess.Popen(argv, env=environment, cwd="/", stdin=subprocess.DEVNULL)
        return job

    def get(self, request: GetCustomJobRequest, context: grpc.ServicerContext) -> CustomJob:
        from google.cloud.aiplatform_v1.types import JobState

        job, process = self.jobs[request.name], self.processes[request.name]
        if job.state == JobState.JOB_STATE_RUNNING and process.poll() is not None:
            job.state = JobState.JOB_STATE_FAILED if process.returncode else JobState.JOB_STATE_SUCCEEDED
            if process.returncode:
                job.error.message = f"The replica workerpool0-0 exited with a non-zero status of {process.returncode}."
        return job

    def cancel(self, request: CancelCustomJobRequest, context: grpc.ServicerContext) -> Empty:
        from google.cloud.aiplatform_v1.types import JobState
        from google.protobuf.empty_pb2 import Empty

        self.processes[request.name].terminate()
        self.jobs[request.name].state = JobState.JOB_STATE_CANCELLED
        return Empty()

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def serve_jobs(double: VertexJobsDouble) -> Iterator[str]:
    """Serve the double on a free port; yields host:port. Processes of its jobs are ended at the end."""
    import grpc  # for tests with this double
    from google.cloud.aiplatform_v1.types import (
        CancelCustomJobRequest,
        CreateCustomJobRequest,
        CustomJob,
        GetCustomJobRequest,
    )
    from google.protobuf.empty_pb2 import Empty

    rows = {
        "CreateCustomJob": (double.create, CreateCustomJobRequest.deserialize, CustomJob.serialize),
        "GetCustomJob": (double.get, GetCustomJobRequest.deserialize, CustomJob.serialize),
        "CancelCustomJob": (double.cancel, CancelCustomJobRequest.deserialize, Empty.SerializeToString),
    }
    methods = {name: grpc.unary_unary_rpc_method_handler(*row) for name, row in rows.items()}
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
            double.close()
