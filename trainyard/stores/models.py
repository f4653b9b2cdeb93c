"""Resolution of model names to folders, and checks before loading. Nothing here imports torch or runs a model's code.

A name is `starter` (the model that comes with Trainyard), a folder, or a Hub name such as `org/model`. A folder is
loaded only if its weights are safetensors whose header is consistent, and if nothing in it asks for its own code:
there is no switch that allows pickled weights or remote code, neither here nor in a chain. Every loader in the
product passes `trust_remote_code=False` and `use_safetensors=True` besides.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from trainyard.errors import Corrupt, InvalidInput, NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.loading import load_object
from trainyard.settings import Settings
from trainyard.spec.axes.latent import LATENT_FILE
from trainyard.spec.chain import digest
from trainyard.spec.estimate.shape import BaseFacts
from trainyard.spec.load.spellings import did_you_mean, nearest, nearest_paths
from trainyard.spec.training import STARTER
from trainyard.stores.model_configs import asks_for_code, check_init, check_kernels, check_patterns, check_sizes
from trainyard.stores.whole import file_sha256, write_json_durably

SHIPPED_STARTER = Path(__file__).parents[1] / "train" / "starter" / "model"
"""The starter's weights in the package; their card is the README.md next to them."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
MAX_HEADER_BYTES = 100_000_000
"""The safetensors library's own cap; a header of a 70 B model has about 100 kB."""
MAX_JSON_BYTES = 64 << 20
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
    "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True)
class ModelSource:
    """A model that may be loaded. `path` is None for a Hub name that is not on this machine."""

    name: str
    path: Path | None
    sha256: str
    """Digest of the files that decide what the model computes; of the name when it is not on this machine."""
    parameters: int | None = None

    @property
    def location(self) -> str:
        """Return what `from_pretrained` takes."""
        return str(self.path) if self.path else self.name


def resolve_model(name: str, settings: Settings) -> ModelSource:
    """Return the model that a name means, checked.

    Raises `NotFound` (`E-MODEL-NOT-FOUND`), `InvalidInput` (`E-MODEL-UNSAFE`, `E-MODEL-INVALID`) or `Corrupt`.
    """
    digests = settings.models / ".digests.json"
    if name == STARTER:
        return resolve_folder(name, starter_folder(settings.models), digests=digests)
    folder = model_folder(name, settings)
    if folder is not None:
        return resolve_folder(name, folder, digests=digests)
    if not HUB_NAME.fullmatch(name) or ".." in name:
        raise NotFound(
            f"There is no model {name!r}.",
            why="It is neither `starter`, nor a folder, nor a Hub name of the form org/model; a relative path "
            f"starts at {settings.working_folder}.",
            do=did_you_mean(
                [*nearest(name, [STARTER]), *nearest_paths(name, [settings.working_folder])],
                "Name an existing folder with config.json and safetensors weights, or `starter`.",
            ),
            code="E-MODEL-NOT-FOUND",
        )
    cached = load_object("huggingface_hub:try_to_load_from_cache")(name, "config.json")
    if isinstance(cached, str):
        return resolve_folder(name, Path(cached).parent, digests=digests)
    return ModelSource(name, None, hashlib.sha256(name.encode()).hexdigest())


def starter_folder(models: Path) -> Path:
    """The folder that `starter` means: this home's own build (`trainyard starter build`), else the shipped weights."""
    pointer = models / STARTER / "current"
    built = models / STARTER / pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else None
    return built if built is not None and built.is_dir() else SHIPPED_STARTER


def model_folder(name: str, settings: Settings) -> Path | None:
    """The real path of the folder that a name means; a relative one starts at the working folder, as data paths do."""
    if name == STARTER or not name.strip() or "\0" in name:
        return None
    try:
        folder = settings.working_folder / Path(name).expanduser()
        return folder.resolve() if folder.is_dir() else None
    except (RuntimeError, OSError):  # the home of a user that is not there, a name that is too long
        return None


def resolve_folder(name: str, folder: Path, *, digests: Path | None = None) -> ModelSource:
    """A model folder, checked and digested. `digests` is a file that remembers digests by size and time of change."""
    parameters = check_model_folder(folder)
    return ModelSource(name, folder, model_sha256(folder, digests=digests), parameters)


def check_model_folder(folder: Path) -> int:
    """Refuse what must not be loaded; returns the number of parameters. Raises as `resolve_model`."""
    config = read_json(folder / "config.json", "E-MODEL-INVALID")
    if not isinstance(config.get("model_type"), str):
        raise InvalidInput(
            f"{folder.name}/config.json names no model_type.",
            do="Give the folder that `save_pretrained` wrote.",
            code="E-MODEL-INVALID",
        )
    refuse_remote_code(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InvalidInput(
            f"{folder.name} has no tokenizer ({', '.join(TOKENIZER_FILES)}).",
            do="Save the tokenizer in the same folder as the weights.",
            code="E-MODEL-INVALID",
        )
    check_kernels(f"{folder.name}/config.json", config)
    parameters = sum(count_parameters(path) for path in weight_files(folder))
    check_sizes(f"{folder.name}/config.json", config, parameters)
    return parameters


def check_adapter_folder(folder: Path, modules: Iterable[str] = ()) -> JsonObject:
    """Refuse an adapter that must not be loaded; returns its `adapter_config.json`.

    `modules` are the names of the base's modules, with which the adapter's patterns are tried; left out, those that
    the adapter's own tensors name. Raises as `resolve_model`, and `InvalidInput` (`E-ADAPTER-INVALID`).
    """
    config = read_json(folder / "adapter_config.json", "E-ADAPTER-INVALID")
    mapping = config.get("auto_mapping") or {}
    library = str(mapping.get("parent_library") or "transformers") if isinstance(mapping, dict) else "of another kind"
    if library.split(".", maxsplit=1)[0] not in ("transformers", "peft"):
        raise remote_code(folder, f"adapter_config.json names the library {library!r}")
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        refuse_pickles(folder)
        raise InvalidInput(
            f"{folder.name} has no adapter_model.safetensors.",
            do="Give the folder that a trainer wrote.",
            code="E-MODEL-INVALID",
        )
    check_init(folder.name, config)
    tensors = read_safetensors_header(weights)
    check_patterns(folder.name, config, modules or module_names(tensors))
    return config


def template_dirs(path: Path) -> list[Path]:
    """Return the folders of an adapter or a model that may contain its chat template."""
    return [folder for folder in (path / "tokenizer", path) if folder.is_dir()]


def module_names(tensors: Iterable[str]) -> set[str]:
    """Return the modules that contain these tensors, and the modules that contain those."""
    parts = (name.removeprefix("base_model.model.").split(".") for name in tensors)
    return {".".join(names[:end]) for names in parts for end in range(1, len(names))}


def base_modules(folder: Path) -> set[str]:
    """Names of a base's modules, from its weight files."""
    return module_names(name for path in weight_files(folder) for name in read_safetensors_header(path))


def refuse_remote_code(folder: Path) -> None:
    for path in sorted(folder.glob("*.json")):
        if path.name.endswith("config.json") and asks_for_code(read_json(path, "E-MODEL-INVALID")):
            raise remote_code(folder, f"{path.name} has `auto_map`")
    if (folder / "custom_generate").exists():
        raise remote_code(folder, "it has a folder custom_generate")


def remote_code(folder: Path, evidence: str) -> InvalidInput:
    return InvalidInput(
        f"{folder.name} asks to run code of its own: {evidence}.",
        why="Code from a model folder is never executed, and no setting allows it.",
        do="Use a model whose architecture is part of transformers.",
        code="E-MODEL-UNSAFE",
    )


def refuse_pickles(folder: Path) -> None:
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PICKLES)
    if pickles:
        raise InvalidInput(
            f"{folder.name} has pickled weights ({pickles[0]}) and no safetensors.",
            why="Unpickling a file can run any code, so it is never done.",
            do="Convert the weights to safetensors on a machine that you trust, and give that folder.",
            code="E-MODEL-UNSAFE",
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that a loader would read: one file, or the shards that the index names."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json(index, "E-MODEL-INVALID").get("weight_map", {}).values()))
        outside = [name for name in names if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", str(name))]
        if outside:
            raise InvalidInput(
                f"{folder.name}/{index.name} names {outside[0]!r}, which is not a file name in this folder.",
                do="Download the folder from its publisher again.",
                code="E-MODEL-INVALID",
            )
        files = [folder / name for name in names]
    else:
        files = [folder / "model.safetensors"]
    missing = [path.name for path in files if not path.is_file()]
    if missing or not files:
        refuse_pickles(folder)
        raise InvalidInput(
            f"{folder.name} has no {missing[0] if missing else 'weights'}.",
            do="Give the folder that `save_pretrained` wrote, with all its shards.",
            code="E-MODEL-INVALID",
        )
    return files


def count_parameters(path: Path) -> int:
    return sum(prod(entry["shape"]) for entry in read_safetensors_header(path).values())


def read_safetensors_header(path: Path) -> dict[str, JsonObject]:
    """Tensor name -> {dtype, shape, data_offsets}, after a check that the tensors tile the file exactly.

    Format: 8 bytes little-endian length, that many bytes of JSON, then the data
    (https://github.com/huggingface/safetensors#format). Raises `Corrupt` (`E-MODEL-INVALID`).
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise broken_error(path, f"its header claims {length:,} bytes of a file of {size:,}")
        text = stream.read(length)
    try:
        header = json.loads(text, object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise broken_error(path, f"its header is not JSON ({type(error).__name__})") from error
    if not isinstance(header, dict):
        raise broken_error(path, "its header is not an object")
    header.pop("__metadata__", None)
    check_tiling(path, header, size - 8 - length)
    return header


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key appears twice")
    return mapping


def check_tiling(path: Path, header: JsonMapping, data_bytes: int) -> None:
    """Each byte of the data belongs to exactly one tensor, and each tensor has the bytes that its shape needs."""
    spans = []
    for name, entry in header.items():
        try:
            start, end = (whole(number) for number in entry["data_offsets"])
            needed_bits = prod(whole(number) for number in entry["shape"]) * DTYPE_BITS[entry["dtype"]]
        except (KeyError, TypeError, ValueError) as error:
            raise broken_error(path, f"its entry {name[:80]!r} is not a tensor ({error})") from error
        if (end - start) * 8 != needed_bits:
            raise broken_error(
                path, f"its tensor {name[:80]!r} has {end - start:,} bytes and needs {needed_bits // 8:,}"
            )
        spans.append((start, end, name))
    position = 0
    for start, end, name in sorted(spans):
        if start != position:
            kind = "overlaps the tensor before it" if start < position else "leaves a hole before it"
            raise broken_error(path, f"its tensor {name[:80]!r} {kind}")
        position = end
    if position != data_bytes:
        raise broken_error(path, f"its tensors cover {position:,} of {data_bytes:,} bytes")


def whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is not a size")
    return number


def broken_error(path: Path, problem: str) -> Corrupt:
    return Corrupt(
        f"{path.parent.name}/{path.name} is not a sound safetensors file: {problem}.",
        do="Take the file from its maker again.",
        code="E-MODEL-INVALID",
    )


def read_json(path: Path, code: str) -> JsonObject:
    """Return a JSON object of at most 64 MiB. Raises `InvalidInput` with `code`."""
    if not path.is_file():
        raise InvalidInput(
            f"{path.parent.name} has no {path.name}.", do="Give the folder that `save_pretrained` wrote.", code=code
        )
    try:
        value = json.loads(path.read_bytes()) if path.stat().st_size <= MAX_JSON_BYTES else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(
            f"{path.parent.name}/{path.name} is not a JSON object.", do="Take the file from its maker.", code=code
        )
    return value


def identity_files(folder: Path) -> list[Path]:
    """The files that decide what a model computes and how text becomes tokens; logs, manifests and pickles are not."""
    texts = ("*config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json")
    patterns: Iterable[str] = (*texts, "chat_template*", LATENT_FILE, "*.safetensors", "*.safetensors.index.json")
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def model_sha256(folder: Path, *, digests: Path | None = None) -> str:
    """Digest over the names and digests of the identity files.

    With `digests`, a file whose size, inode and time of change are known is not read again: 5 GB would take 15 s.
    """
    cache = read_digests(digests)
    fresh = dict(cache)
    files = {}
    for path in identity_files(folder):
        status = path.stat()
        stamp = f"{path}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
        fresh[stamp] = files[path.name] = cache.get(stamp) or file_sha256(path)
    if digests is not None and fresh != cache:
        digests.parent.mkdir(parents=True, exist_ok=True)
        write_json_durably(digests, fresh)
    return digest(files)


def read_digests(path: Path | None) -> dict[str, str]:
    """Return the stored digests; empty for an unreadable file, since every digest can be computed again."""
    if path is None or not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def base_facts(folder: Path) -> BaseFacts:
    """Return what a model folder's config and tokenizer say. Raises `InvalidInput` (`E-MODEL-INVALID`)."""
    stamps = ((folder / name).stat() for name in ("config.json", "tokenizer.json") if (folder / name).is_file())
    return read_base_facts(folder, tuple((stamp.st_mtime_ns, stamp.st_size) for stamp in stamps))


@lru_cache(maxsize=64)
def read_base_facts(folder: Path, _stamps: tuple[tuple[int, int], ...]) -> BaseFacts:
    """Return the facts of a folder with files of these times and sizes: a large tokenizer is read once."""
    return BaseFacts.from_config(read_json(folder / "config.json", "E-MODEL-INVALID"), tokenizer_size(folder))


def tokenizer_size(folder: Path) -> int | None:
    """Return one more than the highest id of a folder's tokenizer; None where only loading it would show it.

    Format: `model.vocab` of tokenizer.json is a mapping of tokens to ids, or a list in the order of the ids (Unigram);
    `added_tokens` lists those that were added later.
    """
    path = folder / "tokenizer.json"
    if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        return None
    value = read_json(path, "E-MODEL-INVALID")
    vocabulary = (value.get("model") or {}).get("vocab") or {}
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    added = (token.get("id") for token in value.get("added_tokens") or ())
    return max((number for number in itertools.chain(ids, added) if isinstance(number, int)), default=-1) + 1 or None


def chat_template(folder: Path) -> str | None:
    """Text of a folder's chat template, where transformers would find it; None when there is none."""
    template_file = folder / "chat_template.jinja"
    if template_file.is_file():
        return template_file.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    template = read_json(config, "E-MODEL-INVALID").get("chat_template") if config.is_file() else None
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def chat_template_sha256(folder: Path) -> str | None:
    """Digest of the chat template's text. Training and serving must agree on it."""
    text = chat_template(folder)
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()
