"""What does a signature cost at a registration and before a load, against reading and hashing the files?

    python -m benchmarks.signatures

An adapter of 1 GB (in the short form 8 MB) is signed and verified by OpenSSF model-signing, in a process that has
imported it already; the import is measured apart, in new processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.harness import Row, finish, size
from trainyard.stores.signing.bundles import sign_folder, verify_folder
from trainyard.stores.signing.keys import SigningKeys
from trainyard.stores.whole import describe_files

MEGABYTES, REPEATS = size(1000, 8), size(3, 1)
MOST_S, MOST_IMPORT_S = 10.0, 5.0


def make_adapter(folder: Path) -> None:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    with (folder / "adapter_model.safetensors").open("wb") as stream:
        for _ in range(MEGABYTES):
            stream.write(os.urandom(1_000_000))


def measure_import() -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import model_signing"], check=True)
        times.append(time.perf_counter() - start)
    return median(times)


def main() -> int:
    with tempfile.TemporaryDirectory() as work:
        folder, keys = Path(work) / "adapter", SigningKeys(Path(work) / "home")
        make_adapter(folder)
        hashing, signing, verifying = list[float](), list[float](), list[float]()
        for _ in range(REPEATS + 1):  # the first one imports the library
            start = time.perf_counter()
            files = describe_files(folder)
            hashed = time.perf_counter()
            bundle = sign_folder(folder, files, keys)
            signed = time.perf_counter()
            verify_folder(folder, files, bundle, keys, "adapter")
            hashing.append(hashed - start)
            signing.append(signed - hashed)
            verifying.append(time.perf_counter() - signed)
    print(f"{MEGABYTES} MB: digests {median(hashing[1:]):.2f} s, signature {len(bundle):,} bytes")
    rows = [
        Row.at_most("seconds to sign", median(signing[1:]), MOST_S),
        Row.at_most("seconds to verify", median(verifying[1:]), MOST_S),
        Row.at_most("seconds to import the library", measure_import(), MOST_IMPORT_S),
    ]
    return finish("signatures", rows, {})


if __name__ == "__main__":
    sys.exit(main())
