"""The registry: its pointer says which version is live. Every deployment ends with it, listed or not."""

from __future__ import annotations

from trainyard.serve.targets.contract import TargetDeployment


def point_registry(site: TargetDeployment) -> None:
    site.registry.point(site.new.tenant, site.new.role, site.new.version, "deploy")
    site.switched = True


def unpoint_registry(site: TargetDeployment) -> None:
    if site.switched:
        before = site.previous.version if site.previous else None
        site.registry.point(site.new.tenant, site.new.role, before, "undo")
        site.switched = False
