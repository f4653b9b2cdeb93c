#!/usr/bin/env bash
# Download the wheels that a bare CUDA machine needs for tests/gpu and benchmarks/gpu, at the versions of constraints.txt.
# Assumed there: Linux on x86-64, Python 3.12 with torch 2.11 (CUDA 13), accelerate, huggingface_hub, tokenizers, pyarrow,
# pytest, psutil, httpx, PyYAML, Jinja2, rich, regex, xxhash, pandas, nvidia-ml-py. Usage, from the repository's root:
#   make gpu-wheels    the wheels go to .gpu-wheels (31 MiB), which is kept out of git
set -euo pipefail
out=.gpu-wheels
engine="transformers peft pydantic pydantic-settings pydantic-core annotated-types typing-inspection python-dotenv msgspec orjson rfc8785
  tenacity rensa google-crc32c jsonschema jsonschema-specifications referencing rpds-py attrs"
optional="trl datasets dill multiprocess liger-kernel torchao schedulefree pytorch_optimizer bitsandbytes"
mkdir -p "$out"
rm -f "$out"/*.whl
# shellcheck disable=SC2086 (lists of names)
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  --abi cp312 --abi abi3 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
  --platform manylinux2014_x86_64 --platform manylinux_2_24_x86_64 --platform any \
  --constraint <(grep -viE '^(torch|liger)' constraints.txt) --dest "$out" $engine $optional
# bitsandbytes ships a library for every CUDA and ROCm since 2022; those of CUDA 13 and the CPU are a tenth of it.
python3 - "$out"/bitsandbytes-*.whl <<'PYTHON'
import re, sys, zipfile
from pathlib import Path

wheel = Path(sys.argv[1])
whole = wheel.rename(wheel.with_suffix(".whole"))
with zipfile.ZipFile(whole) as old, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
    for entry in old.infolist():
        library = entry.filename.endswith(".so")
        if not library or re.search(r"_(cpu|cuda13\d)\.so$", entry.filename):
            new.writestr(entry, old.read(entry))
whole.unlink()
PYTHON
du -sm "$out" | cut -f1 | sed 's/$/ MiB in .gpu-wheels/'
