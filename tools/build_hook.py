"""Build hook of hatchling: write the types of the SDK before a wheel or an editable install is made.

`surface.pyi` and `asynchronous.pyi` are built from the table of operations, not committed. What the table imports is in
`[tool.hatch.build.targets.wheel.hooks.custom]` of pyproject.toml, for builds in an environment of their own.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TypesHook(BuildHookInterface[Any]):
    """Writes the files in the source tree: an editable install reads them there, a wheel takes them as artifacts."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        subprocess.run([sys.executable, "-m", "tools.docs", "types"], cwd=self.root, check=True)
