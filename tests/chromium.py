"""The browser that tests of pages open."""

from __future__ import annotations

import shutil

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one that is installed. Debian's headless shell is the same engine without a browser's own pages and address
bar, which nobody sees: two thirds of the CPU time of a page (0.9 s in place of 1.5 s on two cores)."""
MISSING = (
    "Chromium is not installed: `apt-get install chromium-headless-shell` (or chromium), or put a chromium or "
    "google-chrome on the PATH"
)


def find_chromium() -> str | None:
    return next((program for name in PROGRAMS if (program := shutil.which(name))), None)
