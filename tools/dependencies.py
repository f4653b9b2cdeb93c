"""`python -m tools.dependencies bill`: write `sbom.cdx.json`, the bill of materials of the pinned dependencies.
`python -m tools.dependencies audit [FOLDER]`: look for advisories on them, and compare with docs/dependencies.md.

The bill is CycloneDX 1.6 JSON of constraints.txt: name, version and purl of each package, and the licence that its
metadata tells. It has no date and no random number, so that the same pins give the same bytes. It is written here in
forty lines because cyclonedx-bom brings twenty packages for it.

An audit reads advisories in OSV form from a folder (a checkout of pypa/advisory-database, or the unpacked export of
osv.dev), or asks api.osv.dev without one. Every advisory that holds for a pinned version has to be a row of
docs/dependencies.md with the reason why it is accepted; a row that names no pinned version is refused as well.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from trainyard import __version__

REPOSITORY = Path(__file__).parent.parent
CONSTRAINTS, BILL = REPOSITORY / "constraints.txt", REPOSITORY / "sbom.cdx.json"
PAGE = REPOSITORY / "docs" / "dependencies.md"
OSV = "https://api.osv.dev/v1/query"


def pinned() -> dict[str, str]:
    """Name -> version of constraints.txt, names as PyPI writes them."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").split()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


# --- the bill of materials ------------------------------------------------------------------------------------------


def bill(pins: dict[str, str]) -> dict[str, Any]:
    """The pins as a CycloneDX document."""
    components = [component(name, version) for name, version in sorted(pins.items())]
    content = json.dumps([[part["name"], part["version"]] for part in components])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "trainyard",
                "name": "trainyard",
                "version": __version__,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
    }


def component(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    component: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    licence = licence_of(name)
    return component | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def licence_of(name: str) -> str | None:
    """What a package's metadata says of its licence; None where it is not installed, as on another system."""
    try:
        package_metadata = metadata(name)
    except PackageNotFoundError:
        return None
    listed = [
        classifier.rpartition(" :: ")[2]
        for classifier in package_metadata.get_all("Classifier", [])
        if classifier.startswith("License :: ")
    ]
    free = (package_metadata.get("License") or "").strip().splitlines()
    return package_metadata.get("License-Expression") or "; ".join(listed) or (free[0][:80] if free else None)


def written(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


# --- advisories -----------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """A row of docs/dependencies.md: an advisory that holds for a pinned version, and why it is accepted."""

    advisory: str
    package: str
    version: str
    reason: str


def accepted() -> list[Known]:
    rows = re.findall(r"^\| ([A-Z]+-[\w-]+) \| ([\w.-]+) (\S+) \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    return [Known(advisory, canonicalize_name(name), version, why.strip()) for advisory, name, version, why in rows]


class Fixed(NamedTuple):
    """A row of the second table: the release that a pin may not fall below."""

    advisory: str
    package: str
    version: str


def fixed() -> list[Fixed]:
    rows = re.findall(
        r"^\| ([A-Z]+-[\w-]+) \| ([\w.-]+) \| (\d\S*) \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.M
    )
    return [Fixed(advisory, canonicalize_name(name), version) for advisory, name, version in rows]


def below(rows: Iterable[Fixed], pins: dict[str, str]) -> list[Fixed]:
    """Rows whose package is pinned below the release that fixes the advisory, or is not pinned at all."""
    return [row for row in rows if row.package not in pins or Version(pins[row.package]) < Version(row.version)]


def stale(rows: Iterable[Known], pins: dict[str, str]) -> list[Known]:
    """Rows that speak of a version that is not pinned (any more)."""
    return [row for row in rows if pins.get(row.package) != row.version]


def advisories_in(folder: Path) -> Iterator[dict[str, Any]]:
    """Advisories in OSV form below a folder, JSON or YAML."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            yield json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix in (".yaml", ".yml"):
            yield yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def advisories_online(pins: dict[str, str]) -> Iterator[dict[str, Any]]:
    with httpx.Client(timeout=30) as client:
        for name, version in pins.items():
            body = {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
            yield from client.post(OSV, json=body).raise_for_status().json().get("vulns", [])


def holding(advisories: Iterable[dict[str, Any]], pins: dict[str, str]) -> dict[str, set[str]]:
    """Name of a pinned package -> names of the advisories that hold for it; an advisory may have several names."""
    by_package: dict[str, set[str]] = {}
    for advisory in advisories:
        if not isinstance(advisory, dict) or advisory.get("withdrawn"):
            continue
        for affected in advisory.get("affected", []):
            package = affected.get("package", {})
            name = canonicalize_name(package.get("name", ""))
            if package.get("ecosystem") == "PyPI" and name in pins and is_affected(affected, pins[name]):
                by_package.setdefault(name, set()).add(" ".join([advisory["id"], *advisory.get("aliases", [])]))
    return by_package


def is_affected(affected: dict[str, Any], version: str) -> bool:
    """Whether a version is listed, or lies in a range of versions (ranges of commits say nothing of a release)."""
    if version in affected.get("versions", []):
        return True
    events = [
        affected_range["events"]
        for affected_range in affected.get("ranges", [])
        if affected_range.get("type") == "ECOSYSTEM"
    ]
    return any(within(range_events, Version(version)) for range_events in events)


def within(events: list[dict[str, str]], version: Version) -> bool:
    """Whether the last event at or before the version opened the range."""
    inside = False
    for event in sorted(events, key=event_place):
        (kind, boundary), *_ = event.items()
        if kind == "introduced" and (boundary == "0" or parsed(boundary) <= version):
            inside = True
        elif (kind == "fixed" and parsed(boundary) <= version) or (
            kind == "last_affected" and parsed(boundary) < version
        ):
            inside = False
    return inside


def event_place(event: dict[str, str]) -> Version:
    return parsed(next(iter(event.values())))


def parsed(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def unlisted(by_package: dict[str, set[str]], rows: Iterable[Known]) -> list[str]:
    """Advisories that hold for a pinned version, and that no row accepts under any of their names."""
    listed = {(row.package, row.advisory) for row in rows}
    return sorted(
        f"{name}: {names}"
        for name, advisories in by_package.items()
        for names in advisories
        if not any((name, alias) in listed for alias in names.split())
    )


def audit(folder: Path | None) -> list[str]:
    """Return the problems of the list of accepted advisories; empty if it is complete and nothing in it is stale."""
    pins, rows = pinned(), accepted()
    advisories = advisories_in(folder) if folder else advisories_online(pins)
    old = [f"{row.advisory}: {row.package} is pinned below {row.version}" for row in below(fixed(), pins)]
    old += [f"{row.advisory}: {row.package} {row.version} is not pinned; remove the row" for row in stale(rows, pins)]
    return old + [f"{line}: not in docs/dependencies.md" for line in unlisted(holding(advisories, pins), rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("bill", "audit"))
    parser.add_argument("folder", nargs="?", type=Path, help="advisories in OSV form; without it api.osv.dev is asked")
    args = parser.parse_args()
    if args.what == "bill":
        BILL.write_text(written(bill(pinned())), encoding="utf-8")
        return
    try:
        problems = audit(args.folder)
    except httpx.HTTPError as error:
        sys.exit(f"{OSV} cannot be reached ({error}). Name a folder of advisories: make audit DATABASE=folder.")
    if problems:
        sys.exit("\n".join(problems))
    print(f"no advisory but the {len(accepted())} accepted ones holds for {len(pinned())} pinned packages")


if __name__ == "__main__":
    main()
