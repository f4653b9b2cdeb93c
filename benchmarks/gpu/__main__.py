"""`python -m benchmarks.gpu [NAME…]`: run the measurements on a card, each in its own process.

Exit code: 1 if a bar was missed, else 3 if one was inconclusive, else 0; also 0 without a card, which is printed.
"""

from __future__ import annotations

import subprocess
import sys

NAMES = ("speed", "stall", "memory", "dsa_decode", "latent")


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    commands = [[sys.executable, "-m", f"benchmarks.gpu.{name}"] for name in names or NAMES]
    codes = [subprocess.run(command, check=False).returncode for command in commands]
    missed = [code for code in codes if code not in (0, 3)]
    return 1 if missed else 3 if 3 in codes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
