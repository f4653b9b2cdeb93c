"""Objects of the cluster with their versions, the log of changes that watches read, and the fields of their types."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Condition
from typing import Any
from uuid import uuid4

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace and name."""
CONTAINER_TYPE = re.compile(r"(?:List|list)\[(.+)\]|(?:Dict|dict)\([^,]+, ?(.+)\)|(?:Dict|dict)\[[^,]+, ?(.+)\]")


@dataclass
class ObjectStore:
    """What the API server keeps."""

    objects: dict[Key, Object] = field(default_factory=dict)
    log: list[tuple[int, str, str, Object]] = field(default_factory=list)
    """(version, kind, ADDED, MODIFIED or DELETED, object) of every change."""
    version: int = 1
    changed: Condition = field(default_factory=Condition)

    def put(self, kind: str, item: Object) -> Object:
        """Store an object, with what a cluster adds to it when it is new."""
        with self.changed:
            metadata = item["metadata"]
            if "name" not in metadata:
                metadata["name"] = f"{metadata['generateName']}{secrets.token_hex(3)}"
            key = (kind, metadata["namespace"], metadata["name"])
            is_new = key not in self.objects
            metadata.setdefault("uid", str(uuid4()))
            metadata.setdefault("creationTimestamp", format_now())
            self._note(kind, "ADDED" if is_new else "MODIFIED", item)
            self.objects[key] = item
            return deepcopy(item)

    def change_status(self, key: Key, **status: Any) -> None:
        """Change fields of an object's status, if it is still there."""
        with self.changed:
            if (item := self.objects.get(key)) is not None:
                item["status"] = {**item.get("status", {}), **status}
                self._note(key[0], "MODIFIED", item)

    def remove(self, key: Key) -> None:
        with self.changed:
            if (item := self.objects.pop(key, None)) is not None:
                self._note(key[0], "DELETED", item)

    def _note(self, kind: str, change: str, item: Object) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, kind, change, deepcopy(item)))
        self.changed.notify_all()

    def get(self, key: Key) -> Object | None:
        with self.changed:
            return deepcopy(self.objects.get(key))

    def select(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return objects of a namespace, or of all for an empty name, whose labels fit."""
        with self.changed:
            items = [deepcopy(item) for (each, _, _), item in self.objects.items() if each == kind]
        return [item for item in items if fits(item, namespace, selector)]

    def wait_changes(self, kind: str, since: int, namespace: str, selector: str, timeout_s: float) -> list[Object]:
        """Return the changes after a version as lines of a watch; waits for the first one."""
        with self.changed:
            self.changed.wait_for(lambda: self.version > since, timeout_s)
            changes = [row for row in self.log if row[0] > since and row[1] == kind]
        return [{"type": row[2], "object": row[3]} for row in changes if fits(row[3], namespace, selector)]


def fits(item: Object, namespace: str, selector: str) -> bool:
    """Return whether an object is in a namespace and has the labels of a selector: `key`, `key=value`, with commas."""
    labels = item["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        name, _, value = part.partition("=")
        if name not in labels or (value and labels[name] != value.removeprefix("=")):
            return False
    return namespace in ("", item["metadata"]["namespace"])


def format_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_unknown_fields(value: Any, type_name: str, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that the official client's models do not have."""
    from kubernetes.client import models  # for tests with this double

    if match := CONTAINER_TYPE.fullmatch(type_name):
        inner = next(filter(None, match.groups()))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from list_unknown_fields(item, inner, f"{path}.{key}")
        return
    model = getattr(models, type_name, None)
    if model is None or not isinstance(value, dict):
        return
    attributes = {name: model.openapi_types[attribute] for attribute, name in model.attribute_map.items()}
    for name, item in value.items():
        if name not in attributes:
            yield f"{path}.{name}".lstrip(".")
        else:
            yield from list_unknown_fields(item, attributes[name], f"{path}.{name}")
