"""Personal data and secrets in rows: counted, masked or quarantined, by kind (`config.sensitive`).

The first step of a validator, so that no later one writes a masked text anywhere. It looks at every text of a row: the
content and the reasoning of messages, the arguments of tool calls, the descriptions in tool schemas, running text. It
leaves alone what training and the report need as it is: roles, ids and names of calls, labels, `doc_id`, `source`.

Arrow looks for candidates in whole columns (RE2); Python looks at those texts only. A quarantined row is
written with everything masked that is looked for, so that a secret is not copied there; its line says
where it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainyard.data.quality.blocks import MESSAGE_COLUMNS, Block, to_numpy
from trainyard.data.quality.detectors import Detector, detectors
from trainyard.data.quality.sieve import RowFilter, SensitiveCounts
from trainyard.data.rows import MESSAGE, MESSAGES, join_turns
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import SensitiveRules

UNTOUCHED = frozenset({"id", "type", "name", "role", "tool_call_id", "weight", "required", "pattern", "format", "$ref"})
"""Keys of calls, schemas and turns whose values chat templates and trainers read."""
ESCAPED = r"|\\u00"
"""JSON may spell any character as an escape: such a text is decoded and looked at."""


@dataclass(frozen=True)
class Looked:
    """Findings in one text: places by kind, the text with the masked kinds masked, and with all masked."""

    matches: Counter[str]
    masked: str
    bare: str


@dataclass(frozen=True)
class Rules:
    """The detectors that are requested, and which of them mask."""

    actions: dict[str, str]
    detectors: dict[str, Detector]
    candidates: str
    """RE2 pattern of every text that has to be looked at."""

    def named(self, action: str) -> list[str]:
        return [name for name in self.detectors if self.actions[name] == action]


@lru_cache(maxsize=32)
def compile_rules(config: SensitiveRules) -> Rules:
    modes = config.model_dump()
    rows = {name: row for name, row in detectors(config.phone_regions).items() if modes[name] != "off"}
    actions = {name: modes[name] for name in rows}
    return Rules(actions, rows, "|".join(row.candidates[0] for row in rows.values()))


def check_sensitive(block: Block, sieve: RowFilter) -> Block:
    """Count matches, mask them, or drop their rows as `sensitive_<kind>`, by the config of each kind."""
    rules = compile_rules(sieve.config.sensitive)
    if not rules.detectors or not len(block):
        return block
    names = ("text",) if block.port is Port.TEXT else (*MESSAGE_COLUMNS[block.port], "tools")
    names += ("answer",) if block.port is Port.PROMPTS else ()
    looked = {name: find_flagged(block, name, rules) for name in names}
    hits = {name: np.zeros(len(block), np.int64) for name in rules.detectors}
    for part in (part for parts in looked.values() for part in parts):
        for kind, counts in part.looked.matches.items():
            hits[kind][part.row] += counts
    for kind, places_of_rows in hits.items():
        sieve.sensitive.matches[kind] += int(places_of_rows.sum())
        sieve.sensitive.rows[kind] += int((places_of_rows > 0).sum())
    aside = np.zeros(len(block), bool)
    for kind in rules.named("quarantine"):
        aside |= hits[kind] > 0
    if not aside.any() and not rules.named("mask"):
        return block
    block = Block(block.port, rewritten(block, looked, aside), block.numbers)
    for kind in rules.named("quarantine"):
        mask = hits[kind] > 0
        detail = f"contains {rules.detectors[kind].name}; the row is shown masked"
        block = sieve.ledger.drop(block, mask, f"sensitive_{kind}", detail)
        hits = {name: counts[~mask] for name, counts in hits.items()}
    return block


def mask_texts(texts: pa.Array, config: SensitiveRules) -> pa.Array:
    """Plain texts with what the config masks masked: to compare masked rows with where they come from."""
    rules = compile_rules(config)
    if not rules.named("mask"):
        return texts
    parts = list(flag_texts(texts, "text", np.arange(len(texts)), rules, whole_text))
    return texts_with(texts, parts, np.zeros(len(texts), bool))


def rewritten(block: Block, looked: Mapping[str, list[FlaggedText]], aside: np.ndarray) -> pa.RecordBatch:
    """Return the block's rows with their findings masked: all of them in a quarantined row, else the masked kinds."""
    batch = block.batch
    for name, parts in looked.items():
        if parts:
            index = batch.schema.get_field_index(name)
            column = batch.column(name)
            if column.type == MESSAGES:
                flat = column.flatten()
                named = {field.name: [part for part in parts if part.field == field.name] for field in MESSAGE}
                fields = [texts_with(flat.field(field), findings, aside) for field, findings in named.items()]
                column = join_turns(block.turns(name).offsets, fields)
            else:
                column = texts_with(column, parts, aside)
            batch = batch.set_column(index, batch.schema.field(index), column)
    return batch


def texts_with(texts: pa.Array, parts: list[FlaggedText], aside: np.ndarray) -> pa.Array:
    """Return the texts of one field with those of `parts` replaced."""
    if not parts:
        return texts
    mask = np.zeros(len(texts), bool)
    mask[[part.index for part in parts]] = True
    written = [part.looked.bare if aside[part.row] else part.looked.masked for part in parts]
    return pc.replace_with_mask(texts, pa.array(mask), pa.array(written, pa.string()))


# --- the texts of a row ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlaggedText:
    """A text of a block with findings: its field, its place in the column's flat array, and its row."""

    field: str
    index: int
    row: int
    looked: Looked


def find_flagged(block: Block, name: str, rules: Rules) -> list[FlaggedText]:
    """Return the findings in one column: a text, a list of tool schemas, or a list of messages."""
    column = block.column(name)
    owners = np.arange(len(block))
    if column.type != MESSAGES:
        return list(flag_texts(column, name, owners, rules, whole_text if name == "text" else json_text))
    owners, flat = np.repeat(owners, np.diff(block.turns(name).offsets)), column.flatten()
    return [
        part
        for field, read in MESSAGE_TEXTS.items()
        for part in flag_texts(flat.field(field), field, owners, rules, read)
    ]


Reader = Callable[[str, Rules, Collection[str]], Looked]
"""Finds sensitive parts of a text by the named rules, in order."""


def flag_texts(texts: pa.Array, field: str, owners: np.ndarray, rules: Rules, read: Reader) -> Iterator[FlaggedText]:
    pattern = rules.candidates if read is whole_text else rules.candidates + ESCAPED
    indices = np.flatnonzero(to_numpy(pc.match_substring_regex(texts, pattern).fill_null(False)))
    selection = texts.take(pa.array(indices))
    masks: dict[str, np.ndarray] = {}  # which texts each rule has to look at
    for name, row in rules.detectors.items() if read is whole_text else ():
        matches = [to_numpy(pc.match_substring_regex(selection, regex)) for regex in row.candidates]
        masks[name] = np.logical_and.reduce(matches)
    for number, (index, text) in enumerate(zip(indices.tolist(), selection.to_pylist(), strict=True)):
        names = [name for name, mask in masks.items() if mask[number]] if masks else rules.detectors
        looked = read(text, rules, names)
        if looked.matches:
            yield FlaggedText(field, index, int(owners[index]), looked)


def whole_text(text: str, rules: Rules, names: Collection[str]) -> Looked:
    """Return every place of the text, each under the first of the rules that finds it."""
    spans: list[tuple[int, int, str]] = []
    for name in names:
        earlier = sorted(spans)
        for start, end in rules.detectors[name].find(text):
            if not overlaps(earlier, start, end):
                spans.append((start, end, name))
    if not spans:
        return Looked(Counter(), text, text)
    spans = outermost(sorted(spans))
    masked, bare, last = [], [], 0
    for start, end, name in spans:
        between, placeholder = text[last:start], rules.detectors[name].placeholder
        bare += [between, placeholder]
        masked += [between, placeholder if rules.actions[name] == "mask" else text[start:end]]
        last = end
    return Looked(Counter(name for *_, name in spans), "".join([*masked, text[last:]]), "".join([*bare, text[last:]]))


def overlaps(spans: list[tuple[int, int, str]], start: int, end: int) -> bool:
    """Whether a place touches one of those found before, which are in order and apart."""
    first = bisect_right(spans, start, key=lambda span: span[1])
    return first < len(spans) and spans[first][0] < end


def outermost(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Places in order without those that begin inside another: one rule may find a key by its form and by its name."""
    result: list[tuple[int, int, str]] = []
    for start, end, name in spans:
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]), result[-1][2])
        else:
            result.append((start, end, name))
    return result


def json_text(text: str, rules: Rules, names: Collection[str], *, free: bool = False) -> Looked:
    """Return the strings of a JSON text; a text that is none is looked at as it is."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return whole_text(text, rules, names)
    counts: Counter[str] = Counter()
    masked, bare = (msgspec.json.encode(side).decode() for side in walk(value, rules, counts, free=free))
    return Looked(counts, masked, bare) if counts else Looked(counts, text, text)


def walk(value: object, rules: Rules, counts: Counter[str], *, free: bool) -> tuple[object, object]:
    """A JSON value masked both ways. `free`: inside the arguments of a call, where no key has a meaning for us."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and free):
        # A string in the arguments of a call is mostly JSON itself.
        written, is_json = str(value), free and str(value)[:1] in ("{", "[")
        names = rules.detectors
        looked = json_text(written, rules, names, free=True) if is_json else whole_text(written, rules, names)
        counts.update(looked.matches)
        masked_text, bare_text = (value if text == written else text for text in (looked.masked, looked.bare))
        return masked_text, bare_text
    if isinstance(value, list):
        pairs = [walk(item, rules, counts, free=free) for item in value]
        return [first for first, _ in pairs], [two for _, two in pairs]
    if not isinstance(value, dict):
        return value, value
    masked: dict[str, object] = {}
    bare: dict[str, object] = {}
    for key, item in value.items():
        if key in UNTOUCHED and not free and not isinstance(item, dict | list):
            masked[key] = bare[key] = item
            continue
        masked_value, two = walk(item, rules, counts, free=free or key == "arguments")
        named = whole_text(key, rules, rules.detectors) if free else Looked(Counter(), key, key)
        counts.update(named.matches)
        masked[choose_unused_key(named.masked, masked)], bare[choose_unused_key(named.bare, bare)] = masked_value, two
    return masked, bare


def choose_unused_key(key: str, existing: Mapping[str, object]) -> str:
    """Return the key, with a number if two keys became the same by being masked."""
    number, name = 2, key
    while name in existing:
        name, number = f"{key}_{number}", number + 1
    return name


MESSAGE_TEXTS: dict[str, Reader] = {"content": whole_text, "tool_calls": json_text, "more": json_text}


# --- the report -----------------------------------------------------------------------------------------------------


def sensitive_facts(config: SensitiveRules, counts: SensitiveCounts) -> dict[str, dict[str, object]]:
    """Kind -> action, rows and places, for every kind that is looked for; for the report and the reference."""
    return {
        kind: {"action": action, "rows": counts.rows[kind], "found": counts.matches[kind]}
        for kind, action in compile_rules(config).actions.items()
    }


OUTCOMES = {"count": "left as they are", "mask": "masked", "quarantine": "quarantined with their rows"}


def sensitive_sentences(facts: Mapping[str, JsonMapping]) -> list[str]:
    """Return one sentence for each kind that was found."""
    names = {kind: row.name for kind, row in detectors(()).items()}
    return [
        f"{fact['found']:,} {names[kind]} in {fact['rows']:,} rows, {OUTCOMES[fact['action']]}."
        for kind, fact in facts.items()
        if fact["found"]
    ]
