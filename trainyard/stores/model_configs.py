"""Checks of a model's or an adapter's config before any library acts on it. No torch.

A config is data from a stranger, but libraries take orders from it: `auto_map` names code, `attn_implementation` may
name a kernel to download, sizes are allocated before a weight is compared, `init_lora_weights` rewrites the base, and
the patterns of an adapter are matched with an engine that backtracks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping
from trainyard.sandbox.children import ChildEnded, LineChild
from trainyard.sandbox.limits import ChildLimits
from trainyard.spec.estimate.shape import ModelShape

ATTENTIONS = frozenset({"eager", "sdpa", "flash_attention_2"})
"""Kernels that a config may name: those that come with torch, and one package that an operator installs."""
ATTENTION_KEYS = frozenset({"attn_implementation", "_attn_implementation", "_attn_implementation_internal"})
EXPERT_KEYS = frozenset({"experts_implementation", "_experts_implementation", "_experts_implementation_internal"})
EXPERTS = frozenset({"eager", "batched_mm", "grouped_mm"})
MAX_NESTING = 64
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")
MAX_LAYERS = 10_000
WIDTHS = (
    "hidden_size", "n_embd", "d_model", "intermediate_size", "n_inner", "ffn_dim", "d_ff", "moe_intermediate_size",
    "vocab_size", "head_dim", "num_attention_heads", "n_head", "num_key_value_heads", "num_experts",
    "num_local_experts", "n_routed_experts", "n_positions",
)  # fmt: skip
"""Each of these is a side of some tensor, or a number of parts of one."""
POSITIONS, MAX_POSITIONS = "max_position_embeddings", 1 << 27
MAX_EXCESS = 16
"""A config may describe 16 times the numbers that the files have: 4-bit weights are packed by eight."""
MARGIN = 1 << 20
NEUTRAL_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` under which PEFT leaves the base as it is."""
LISTED = {"modules_to_save": r"(^|.*\.){}($|\..*)", "layers_pattern": r"(?:^|.*?\.){}\.(?P<idx>\d+)\."}
"""Fields with names that PEFT puts into a pattern of its own."""
PATTERNS_S = 1.0
PATTERN_BYTES = 256 << 20
"""Patterns cannot sleep: their processor time ends them, which a busy machine may take long to give."""


def walk_values(value: object, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield every key of an object with its value, at any depth. Raises `InvalidInput` (`E-MODEL-INVALID`)."""
    if depth > MAX_NESTING:
        raise InvalidInput(
            f"A config is nested deeper than {MAX_NESTING} levels.",
            do="Take it from its maker.",
            code="E-MODEL-INVALID",
        )
    if isinstance(value, dict):
        yield from value.items()
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(part, (dict, list)):
            yield from walk_values(part, depth + 1)


def asks_for_code(config: Mapping[str, object]) -> bool:
    """Return whether `auto_map` occurs anywhere in a config; a part of a model may have its own config."""
    return any(key == "auto_map" for key, _ in walk_values(config))


def check_kernels(where: str, config: Mapping[str, object]) -> None:
    """Refuse a config that names an attention kernel or an experts kernel of its own (`E-MODEL-INVALID`)."""
    for key, value in walk_values(config):
        kernels = ATTENTIONS if key in ATTENTION_KEYS else EXPERTS if key in EXPERT_KEYS else None
        values = list(value.values()) if isinstance(value, dict) else [value]
        odd = [name for name in values if name is not None and str(name) not in kernels] if kernels is not None else []
        if kernels is not None and odd:
            raise InvalidInput(
                f"{where} asks for {key} {str(odd[0])[:100]!r}.",
                why=f"Another kernel is code that would be downloaded; allowed are {', '.join(sorted(kernels))}.",
                do=f"Remove {key} from the file, and choose the kernel with engine.attention.",
                code="E-MODEL-INVALID",
            )


def check_sizes(where: str, config: Mapping[str, object], parameters: int) -> None:
    """Refuse sizes that the weight files cannot have: a library takes memory for the config's sizes first.

    `parameters` is the count in the files. Raises `InvalidInput` (`E-MODEL-INVALID`).
    """
    for key, value in walk_values(config):
        most = MAX_LAYERS if key in LAYERS else parameters if key in WIDTHS else MAX_POSITIONS
        if key not in (*LAYERS, *WIDTHS, POSITIONS) or value is None:
            continue
        for size in value if isinstance(value, list) else [value]:
            if type(size) is not int or size < 0:
                raise absurd(where, f"{key} is {str(size)[:100]!r}", "A size is a whole number.")
            if size > most:
                raise absurd(where, f"{key} is {size:,}", f"At most {most:,} fits {parameters:,} weights in the files.")
    shape = ModelShape.from_config(config) if config.get("num_attention_heads") else None
    described = shape.parameters if shape is not None else 0
    if described > MAX_EXCESS * parameters + MARGIN:
        raise absurd(where, f"it describes {described:,} weights", f"The files have {parameters:,}.")


def absurd(where: str, problem: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"The sizes in {where} do not fit the weights: {problem}.", why=why,
        do="Take config.json and the weights from their maker again.", code="E-MODEL-INVALID",
    )  # fmt: skip


def check_init(where: str, config: Mapping[str, object]) -> None:
    """Refuse an adapter whose loading rewrites the base (`E-ADAPTER-INVALID`)."""
    init = config.get("init_lora_weights")
    if (isinstance(init, (dict, list, float, int)) and not isinstance(init, bool)) or init not in NEUTRAL_INITS:
        raise InvalidInput(
            f"The adapter in {where} was started with init_lora_weights {str(init)[:100]!r}, which changes the base.",
            why="Loading it would change the weights that every other adapter and the base itself answer with.",
            do="Save it with PEFT's path_initial_model_for_weight_conversion, which makes a plain LoRA of it, or "
            "train it with another init.",
            code="E-ADAPTER-INVALID",
        )


def patterns(config: JsonMapping) -> list[tuple[str, str, str]]:
    """The regular expressions of an adapter's config as PEFT 0.20 makes them: (field, pattern, how it is matched).

    Raises `InvalidInput` (`E-ADAPTER-INVALID`) for a field of another type.
    """
    matches = []
    for name in ("target_modules", "exclude_modules"):
        if isinstance(config.get(name), str):
            matches.append((name, config[name], "fullmatch"))
    for name, form in LISTED.items():
        listed = [config[name]] if isinstance(config.get(name), str) else config.get(name) or []
        matches += [(name, form.replace("{}", text), "match") for text in require_texts(name, listed)]
    for name in ("rank_pattern", "alpha_pattern"):
        matches += [(name, rf"(.*\.)?({text})$", "match") for text in require_texts(name, config.get(name) or {})]
    return [(name, text, how) for name, text, how in matches if text != "all-linear"]


def require_texts(name: str, values: Any) -> list[str]:
    if not isinstance(values, (list, dict)) or not all(isinstance(value, str) for value in values):
        raise InvalidInput(
            f"{name} of the adapter's config is not made of texts.",
            do="Take it from its maker.",
            code="E-ADAPTER-INVALID",
        )
    return list(values)


def check_patterns(where: str, config: JsonMapping, modules: Iterable[str]) -> None:
    """Match an adapter's patterns with the names of modules, as PEFT will, in a child with a limit of time and memory.

    Plain names, which every adapter of this product has, need no child. Raises `InvalidInput` (`E-ADAPTER-INVALID`).
    """
    regexes = [(name, text, how) for name, text, how in patterns(config) if not is_plain(name, text)]
    if not regexes:
        return
    child = LineChild("trainyard.stores.pattern_child", ChildLimits(PATTERNS_S, PATTERN_BYTES))
    try:
        problem = child.start({"patterns": regexes, "names": sorted(set(modules))})["problem"]
    except ChildEnded:
        problem = f"Matching took more than {PATTERNS_S:g} s of processor time, or too much memory."
    finally:
        child.stop()
    if not problem:
        return
    raise InvalidInput(
        f"A pattern in the adapter's config of {where} cannot be used.",
        why=problem,
        do="Write target_modules as a list of names.",
        code="E-ADAPTER-INVALID",
    )


def is_plain(name: str, text: str) -> bool:
    """Return whether a name of `modules_to_save` is only letters, so that Trainyard wrote its pattern."""
    inner = text.removeprefix(r"(^|.*\.)").removesuffix(r"($|\..*)")
    return name == "modules_to_save" and inner.replace("_", "").isalnum()
