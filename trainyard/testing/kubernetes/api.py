"""The API server of the double: discovery, lists, watches, jobs, pods, logs and secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from urllib.parse import parse_qs, urlsplit

from trainyard.testing.kubernetes.node import NodeDouble
from trainyard.testing.kubernetes.objects import Key, Object, ObjectStore, list_unknown_fields
from trainyard.testing.loopback import LoopbackHandler, LoopbackServer, serving

TOKEN = "token-of-the-cluster-double"
RESOURCE = re.compile(
    r"/(?:api/v1|apis/batch/v1)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>pods|jobs|secrets|events)"
    r"(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
KINDS = {"pods": ("v1", "Pod"), "secrets": ("v1", "Secret"), "events": ("v1", "Event"), "jobs": ("batch/v1", "Job")}
TYPES = {"jobs": "V1Job", "secrets": "V1Secret"}
NAMESPACES = "/api/v1/namespaces"
"""Prefect's observer starts no watch before discovery has shown namespaces, as every cluster does."""
WATCH_S = 1.0


@dataclass
class ClusterDouble:
    """A cluster with one node. `images` are those that its registry has."""

    images: set[str]
    namespaces: set[str] = field(default_factory=lambda: {"default"})
    gpus: int = 0
    node_labels: dict[str, str] = field(default_factory=dict)
    store: ObjectStore = field(default_factory=ObjectStore)
    unknown_fields: list[str] = field(default_factory=list)
    """Fields of bodies that the official types do not have: a cluster warns of them and drops them."""
    closing: Event = field(default_factory=Event)
    ending: list[Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node = NodeDouble(self.store, self.images, self.gpus, self.node_labels)

    def add_secret(self, name: str, values: dict[str, str], namespace: str = "default") -> None:
        self.store.put("secrets", {"apiVersion": "v1", "kind": "Secret", "stringData": values,
                                   "metadata": {"name": name, "namespace": namespace}})  # fmt: skip

    def create(self, kind: str, namespace: str, body: Object) -> tuple[int, Object]:
        if namespace not in self.namespaces:
            return 404, failure(404, "NotFound", f'namespaces "{namespace}" not found')
        body = {**body, "metadata": {**body.get("metadata", {}), "namespace": namespace}}
        if kind in TYPES:
            self.unknown_fields += list_unknown_fields(body, TYPES[kind])
            try:
                require_type(body, TYPES[kind])
            except (ValueError, TypeError) as error:
                return 422, failure(422, "Invalid", str(error))
        if kind == "jobs" and (problem := find_invalid(body)):
            return 422, failure(422, "Invalid", f"Job is invalid: {problem}")
        created = self.store.put(kind, body)
        if kind == "jobs":
            self.node.start_pod(created)
        return 201, created

    def delete(self, key: Key) -> tuple[int, Object]:
        """Delete an object; a job's pods are ended first, in the background."""
        item = self.store.get(key)
        if item is None:
            return 404, failure(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        thread = Thread(target=self.end_object, args=(key,), name=f"delete-{key[2]}")
        self.ending.append(thread)
        thread.start()
        return 200, item

    def end_object(self, key: Key) -> None:
        if key[0] == "jobs":
            for pod in self.store.select("pods", key[1], f"job-name={key[2]}"):
                self.node.end_pod(("pods", key[1], pod["metadata"]["name"]))
        elif key[0] == "pods":
            self.node.end_pod(key)
        self.store.remove(key)

    def evict(self, job: str, namespace: str = "default") -> None:
        """End the pod of a job, as a drained node does; the job stays."""
        for pod in self.store.select("pods", namespace, f"job-name={job}"):
            process = self.node.processes[pod["metadata"]["name"]]
            process.terminate()

    def close(self) -> None:
        self.closing.set()
        self.node.close()
        for thread in self.ending:
            thread.join()


def require_type(body: Object, type_name: str) -> None:
    """Read a body by the official client's model. Raises `ValueError` or `TypeError` for a wrong value."""
    from kubernetes.client import ApiClient  # for tests with this double

    ApiClient().deserialize(json.dumps(body), type_name, "application/json")


def find_invalid(job: Object) -> str:
    """Return why the API server refuses a job, by the rules that a template could break."""
    template = job["spec"]["template"]["spec"]
    container = template["containers"][0]
    volumes = [volume["name"] for volume in template.get("volumes") or ()]
    mounts = [mount["name"] for mount in container.get("volumeMounts") or ()]
    if not container.get("image"):
        return "spec.template.spec.containers[0].image: Required value"
    if missing := [name for name in mounts if name not in volumes]:
        return f"spec.template.spec.containers[0].volumeMounts: Not found: {missing}"
    if template.get("restartPolicy") not in ("Never", "OnFailure"):
        return "spec.template.spec.restartPolicy: Required value: valid values: OnFailure, Never"
    quantities = container.get("resources") or {}
    for name, request in (quantities.get("requests") or {}).items():
        limit = (quantities.get("limits") or {}).get(name)
        if limit is not None and read_quantity(request) > read_quantity(limit):
            return f"spec.template.spec.containers[0].resources.requests: must be less than or equal to {name} limit"
    return ""


def read_quantity(text: object) -> float:
    """Return a quantity such as 500m, 2 or 4Gi as a number."""
    from kubernetes.utils.quantity import parse_quantity  # for tests with this double

    return float(parse_quantity(text))


def failure(code: int, reason: str, message: str) -> Object:
    """Return a Status, the body of every refusal of a cluster."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
            "message": message}  # fmt: skip


def describe_api(path: str) -> Object | None:
    """Return the answer of a route of discovery."""
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]

    def resources(version: str) -> list[Object]:
        return [
            {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
            for name, (group, kind) in KINDS.items()
            if group == version
        ]

    namespaces = {"name": "namespaces", "singularName": "namespace", "namespaced": False, "kind": "Namespace",
                  "verbs": ["get", "list"]}  # fmt: skip
    batch = {"groupVersion": "batch/v1", "version": "v1"}
    routes: dict[str, Object] = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0-double"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1",
                  "groups": [{"name": "batch", "versions": [batch], "preferredVersion": batch}]},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1",
                    "resources": [namespaces, *resources("v1")]},
        "/apis/batch/v1": {"kind": "APIResourceList", "groupVersion": "batch/v1", "resources": resources("batch/v1")},
    }  # fmt: skip
    return routes.get(path)


def make_handler(cluster: ClusterDouble) -> type[LoopbackHandler]:
    def list_objects(kind: str, namespace: str, selector: str) -> Object:
        version, name = KINDS[kind]
        items = cluster.store.select(kind, namespace, selector)
        metadata = {"resourceVersion": str(cluster.store.version)}
        return {"apiVersion": version, "kind": f"{name}List", "metadata": metadata, "items": items}

    def list_namespaces() -> Object:
        items = [{"metadata": {"name": name}, "status": {"phase": "Active"}} for name in sorted(cluster.namespaces)]
        return {"apiVersion": "v1", "kind": "NamespaceList", "metadata": {"resourceVersion": "1"}, "items": items}

    class ApiHandler(LoopbackHandler):
        def reply(self) -> None:
            address = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(address.query).items()}
            body = self.body()
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.send(401, failure(401, "Unauthorized", "Unauthorized"))
            if (description := describe_api(address.path)) is not None:
                return self.send(200, description)
            if address.path == NAMESPACES:
                return self.send(200, list_namespaces())
            match = RESOURCE.fullmatch(address.path)
            if match is None:
                return self.send(404, failure(404, "NotFound", "the server could not find the requested resource"))
            key = (match["kind"], match["namespace"] or "", match["name"] or "")
            if self.command == "GET" and not key[2] and query.get("watch") in ("true", "True", "1"):
                return self.stream(key[0], key[1], query)
            self.send(*self.answer(key, query, body, is_log=bool(match["log"])))

        def answer(self, key: Key, query: dict[str, str], body: bytes, *, is_log: bool) -> tuple[int, object]:
            kind, namespace, name = key
            if is_log:
                previous = query.get("previous") in ("true", "True")
                return (400, "") if previous else (200, cluster.node.read_log(name))
            if self.command == "POST":
                return cluster.create(kind, namespace, json.loads(body))
            if self.command == "DELETE":
                return cluster.delete(key)
            if not name:
                return 200, list_objects(kind, namespace, query.get("labelSelector", ""))
            item = cluster.store.get(key)
            return (200, item) if item else (404, failure(404, "NotFound", f"{name} not found"))

        def stream(self, kind: str, namespace: str, query: dict[str, str]) -> None:
            """Send changes, a line each, until the client leaves or the double closes."""
            since, selector = int(query.get("resourceVersion") or 0), query.get("labelSelector", "")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                while not cluster.closing.is_set():
                    until = cluster.store.version
                    for change in cluster.store.wait_changes(kind, since, namespace, selector, WATCH_S):
                        self.wfile.write(json.dumps(change).encode() + b"\n")
                        until = max(until, int(change["object"]["metadata"]["resourceVersion"]))
                    self.wfile.flush()
                    since = max(since, until)
            except OSError:  # the client has left
                return

        do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = reply

    return ApiHandler


@contextmanager
def serve_cluster(cluster: ClusterDouble) -> Iterator[str]:
    """Serve a cluster on a free port; yields its address. Every process of its pods is ended at the end."""
    with serving(LoopbackServer(make_handler(cluster))) as server:
        try:
            yield server.url
        finally:
            cluster.close()


def write_kubeconfig(path: Path, address: str, token: str = TOKEN) -> None:
    """Write the file by which kubectl, Prefect's worker and its observer find the cluster."""
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "double",
        "clusters": [{"name": "double", "cluster": {"server": address}}],
        "users": [{"name": "double", "user": {"token": token}}],
        "contexts": [{"name": "double", "context": {"cluster": "double", "user": "double"}}],
    }  # fmt: skip
    path.write_text(json.dumps(config), encoding="utf-8")
