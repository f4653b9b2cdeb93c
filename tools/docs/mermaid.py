"""`python -m tools.docs.mermaid`: put Mermaid into docs/assets, so that the site's diagrams need no other server.

The theme would load it from a public server. It is taken from the npm package instead, once, and checked against the
digest below. To take another version: change both, and look at a page with a diagram.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

VERSION = "12.3.0"
INTEGRITY = "4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw=="
"""SHA-512 of the package, as npm writes it."""
ASSETS = Path(__file__).parents[2] / "docs" / "assets"
SCRIPT = ASSETS / "mermaid.min.js"
STAMP = ASSETS / f"mermaid-{VERSION}.txt"
"""Mermaid's licence; its name says which version is there."""


def fetch(folder: Path) -> Path:
    """Have npm write the package into a folder. Raises `SystemExit` if npm is not here or the digest differs."""
    try:
        subprocess.run(
            ["npm", "pack", f"mermaid@{VERSION}", "--silent"], cwd=folder, check=True, stdout=subprocess.PIPE
        )
    except FileNotFoundError:
        raise SystemExit(
            "`make docs` needs npm, which brings the script that draws diagrams: install Node.js."
        ) from None
    (package,) = folder.glob("*.tgz")
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if digest != INTEGRITY:
        raise SystemExit(f"mermaid {VERSION} has the digest {digest}, not {INTEGRITY}.")
    return package


def extract(package: Path) -> None:
    ASSETS.mkdir(exist_ok=True)
    with tarfile.open(package) as archive:
        for name, target in (("package/dist/mermaid.min.js", SCRIPT), ("package/LICENSE", STAMP)):
            member = archive.extractfile(name)
            assert member is not None
            target.write_bytes(member.read())


if __name__ == "__main__":
    if not (SCRIPT.is_file() and STAMP.is_file()):
        with tempfile.TemporaryDirectory() as folder:
            extract(fetch(Path(folder)))
