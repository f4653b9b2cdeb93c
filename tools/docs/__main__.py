"""`python -m tools.docs`: write the pages that are built from the tables in the code.

    python -m tools.docs           all of it
    python -m tools.docs types     the types of the SDK alone (surface.pyi, asynchronous.pyi)

Committed are the short texts that are read before anything is built: the names of the operations, parts of AGENTS.md
and of the skill, llms.txt; `tests/architecture/test_reference.py` fails if one is out of date. Built are the pages of
docs/reference and the types of the SDK: by `make setup`, `make docs`, and the build of a wheel (its types).
"""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> None:
    if arguments == ["types"]:  # a build of a wheel has few packages
        from tools.docs.sdk import write_types

        write_types()
        return
    from tools.docs.pages import write

    print(f"wrote {len(write())} files: docs/reference, what agents read, the types of the SDK")


if __name__ == "__main__":
    main(sys.argv[1:])
