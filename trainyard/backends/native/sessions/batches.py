"""From what a call contains to a batch: rows rendered by the stage, lists of numbers, or tensors (imports torch).

What comes from a caller is checked before the model sees it: an id above the vocabulary or a mask of another shape
would end a process on a GPU, and with it the session.

Shapes: B rows, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
import safetensors.torch
import torch
from jinja2.exceptions import TemplateError
from torch.nn.utils.rnn import pad_sequence

from trainyard.data.formats.shapes import Normaliser, detect
from trainyard.data.quarantine import BadRow
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.rows import PreferenceRow, TextRow, to_chosen_row
from trainyard.errors import InvalidInput, LimitExceeded
from trainyard.json_types import JsonMapping
from trainyard.serve.prompt_fields import find_hidden_field
from trainyard.serve.protocol import ApiError, ChatRequest, parse
from trainyard.spec.axes.data import DataFormat, Port
from trainyard.train.contracts import IGNORED, Batch
from trainyard.train.model.sampling import find_pad_id
from trainyard.train.rows.tokens import require_targets
from trainyard.train.session.session import Session

IDS, MASK, LABELS = "input_ids", "attention_mask", "labels"
MOST_ROWS = 4096
NO_LISTS: Mapping[str, object] = MappingProxyType({})
MOST_SIDE_TENSORS = 64
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Encoder:
    """Encoder of the content of calls: the session's tokenizer, template, stage and config."""

    session: Session

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.session.engine.tokenizer)

    @cached_property
    def vocabulary(self) -> int:
        return int(self.session.engine.model.get_input_embeddings().weight.shape[0])

    @cached_property
    def pad_id(self) -> int:
        return find_pad_id(self.session.engine.tokenizer)

    def batch(self, arguments: JsonMapping, body: bytes) -> Batch:
        """The batch of a `forward`: of exactly one of rows, batch and tensors. Raises `InvalidInput` (`E-STEP`)."""
        named = [
            name
            for name, there in (("rows", arguments.get("rows")), ("batch", arguments.get("batch")), ("tensors", body))
            if there
        ]
        if len(named) != 1:
            raise InvalidInput(
                f"A forward takes one of rows, batch and tensors, and got {' and '.join(named) or 'none'}.",
                do="Give the rows of one batch, in one of the three forms.", code="E-STEP",
            )  # fmt: skip
        if named == ["rows"]:
            return self.rows(arguments["rows"])
        if body:
            return self.checked(read_tensors(body))
        return self.checked(self.from_lists(arguments["batch"]), arguments["batch"])

    def rows(self, records: Sequence[Any]) -> Batch:
        """Rows of the stage's data, rendered and labelled as a training does it.

        Raises `InvalidInput`: `E-DATA-FORMAT` for a row in no known form, `E-DATA-EMPTY` where nothing is learned.
        """
        stage, config = self.session.engine.stage, self.session.engine.config
        require_count(len(records))
        examples, ledger = stage.encode(self.parsed(records), self.session.engine.tokenizer, config)
        if ledger.refused:
            raise InvalidInput(
                f"The chat template refuses {ledger.rows['dropped_template']} of the {len(records)} rows.",
                why=f"It says: {ledger.refusal_words()}.",
                do="Correct these rows, or leave them out.", code="E-STEP",
            )  # fmt: skip
        require_targets(ledger)
        return self.checked(stage.collate(list(examples), self.pad_id))

    def parsed(self, records: Sequence[Any]) -> list[Any]:
        facts = self.session.engine.stage.facts
        if Port.TEXT in facts.ports and all(isinstance(record, dict) and set(record) == {"text"} for record in records):
            return [TextRow(str(record["text"])) for record in records]
        normalise = Normaliser(detect(records, DataFormat.AUTO, "the rows of this call"))
        rows, port = [], normalise.detected.shape.port
        for index, record in enumerate(records):
            try:
                row, _ = normalise(record)
            except BadRow as bad:
                raise InvalidInput(
                    f"Row {index} cannot be read: {bad.detail}.",
                    do="Correct it, or leave it out.",
                    code="E-DATA-FORMAT",
                ) from bad
            rows.append(row)
        if port in facts.ports:
            return rows
        if port in facts.instead:
            return [to_chosen_row(row) for row in rows if isinstance(row, PreferenceRow)]
        raise InvalidInput(
            f"Stage {self.session.engine.config.stage} does not learn from {port.value} rows.",
            do=f"Give {' or '.join(port.value for port in facts.ports)} rows; docs/formats.md shows each.",
            code="E-DATA-FORMAT",
        )

    def from_lists(self, lists: JsonMapping) -> Batch:
        """Lists of numbers as tensors; ragged rows are filled up on the right, and masked."""
        if IDS not in lists:
            raise invalid(f"has no {IDS}")
        batch = {name: self.build_tensor(name, values) for name, values in lists.items()}
        if MASK not in batch and is_ragged(lists[IDS]):
            batch[MASK] = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in lists[IDS]], batch_first=True)
        return batch

    def build_tensor(self, name: str, values: Any) -> torch.Tensor:
        fill = self.pad_id if name.endswith(IDS) else IGNORED if name.endswith(LABELS) else 0
        try:
            if is_ragged(values):
                return pad_sequence([torch.tensor(row) for row in values], batch_first=True, padding_value=fill)
            return tensor_of_lists(values)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise invalid(f"has a {name} that is not a list of numbers: {error}") from error

    def checked(self, batch: Batch, lists: JsonMapping = NO_LISTS) -> Batch:
        """Return the batch, if the model can take it. `lists` are what its tensors were made of."""
        if IDS not in batch:
            raise invalid(f"has no {IDS}")
        shape = batch[IDS].shape
        if len(shape) != 2 or not batch[IDS].numel():
            raise invalid(f"has {IDS} of the shape {tuple(shape)}, and needs rows of tokens (B, T)")
        require_count(shape[0])
        context = self.session.context
        if context is not None and shape[1] > context:
            raise LimitExceeded(
                f"A row has {shape[1]:,} tokens, and the model sees {context:,}.", do="Cut it.", code="E-LIMIT"
            )
        return {name: self.check_tensor(name, value, shape, lists.get(name)) for name, value in batch.items()}

    def check_tensor(self, name: str, value: torch.Tensor, shape: torch.Size, rows: object) -> torch.Tensor:
        """Ids within the vocabulary, labels too or -100, masks and labels of the shape of the ids."""
        prefix, _, last = name.rpartition("/")
        kind = next((suffix for suffix in (IDS, LABELS, MASK, "position_ids") if last.endswith(suffix)), "")
        if value.dtype not in (*WHOLE, *FLOATING):
            raise invalid(f"has a {name} of {value.dtype}")
        if value.ndim == 2 and len(value) != shape[0]:
            raise invalid(f"has a {name} of {len(value)} rows with {IDS} of {shape[0]}")
        if not kind or prefix:
            return value
        if value.dtype not in WHOLE:
            raise invalid(f"has a {name} of {value.dtype}, and needs whole numbers")
        if last == kind and value.shape != shape:
            raise invalid(f"has a {name} of the shape {tuple(value.shape)} with {IDS} of {tuple(shape)}")
        value = value.long()
        if kind in (IDS, LABELS):
            least, most = find_bounds(value, rows, IGNORED if kind == LABELS else None)
            if not 0 <= least <= most < self.vocabulary:
                raise invalid(f"has a token in {name} outside of 0 … {self.vocabulary - 1}")
        return value

    # Prompts

    def prompts(self, records: Sequence[Any], *, ask: bool) -> list[list[int]]:
        """Token ids of each: of `tokens` as they are, of a `text` as it is, of `messages` by the chat template.

        With `ask` a conversation ends where the assistant begins. Raises `InvalidInput` (`E-SAMPLING`, `E-STEP`).
        """
        require_count(len(records))
        prompt_ids = [self.prompt(record, ask=ask) for record in records]
        longest, context = max(map(len, prompt_ids)), self.session.context
        if context is not None and longest > context:
            raise LimitExceeded(
                f"A row has {longest:,} tokens, and the model sees {context:,}.", do="Cut it.", code="E-LIMIT"
            )
        return prompt_ids

    def prompt(self, record: JsonMapping, *, ask: bool) -> list[int]:
        if "tokens" in record:
            ids = [int(token) for token in record["tokens"]]
            if ids and not 0 <= min(ids) <= max(ids) < self.vocabulary:
                raise invalid(f"has a token outside of 0 … {self.vocabulary - 1}")
            return ids
        if "text" in record:
            return self.renderer.ids(str(record["text"]))
        return self.renderer.ids(self.conversation(record, ask=ask))

    def conversation(self, record: JsonMapping, *, ask: bool) -> str:
        """Return the text of a conversation, which contains each of its fields, as the model server takes them."""
        body = {"model": "session", **{name: record[name] for name in ("messages", "tools") if name in record}}
        try:
            request = parse(ChatRequest, orjson.dumps(body))
            turns, tools = request.turns(), request.offered()
            text = self.renderer.text(turns, tools, ask=ask)
            hidden = find_hidden_field(self.renderer, turns, tools, text)
        except (TemplateError, ApiError, RecursionError, orjson.JSONEncodeError) as error:
            raise InvalidInput(
                f"The chat template does not take these messages: {error}.",
                do="Give messages with role and content, in an order that the template knows.", code="E-STEP",
            ) from error  # fmt: skip
        if hidden is not None:
            raise InvalidInput(
                f"The chat template does not write {hidden} of this conversation.",
                do="Leave it out, or create the session with an engine.template that has a place for it.",
                code="E-STEP",
            )
        return text


def find_bounds(value: torch.Tensor, rows: Any, ignored: int | None) -> tuple[int, int]:
    """Return the least and the largest number of a tensor, those that are ignored left out; (0, 0) without any.

    Where `rows` are given, of which a small tensor was made, Python finds them in a third of the time that numpy takes.
    """
    if rows is not None and value.dim() == 2:
        numbers = set(chain.from_iterable(rows)) - {ignored}
        return (min(numbers), max(numbers)) if numbers else (0, 0)
    array = value.numpy()
    selection = array[array != ignored] if ignored is not None else array
    return (int(selection.min()), int(selection.max())) if selection.size else (0, 0)


def tensor_of_lists(values: object) -> torch.Tensor:
    """`torch.tensor(values)`, by numpy in half of the time."""
    tensor = torch.from_numpy(np.array(values))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def is_ragged(values: object) -> bool:
    return (
        isinstance(values, list)
        and bool(values)
        and all(isinstance(row, list) for row in values)
        and len({len(row) for row in values}) > 1
    )


def read_tensors(body: bytes) -> Batch:
    """Return the tensors of a safetensors file. Raises `InvalidInput` (`E-STEP`)."""
    try:
        tensors: Batch = safetensors.torch.load(body)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise invalid(f"cannot be read as safetensors: {error}") from error
    if len(tensors) > MOST_SIDE_TENSORS:
        raise invalid(f"has {len(tensors)} tensors, at most {MOST_SIDE_TENSORS} are read")
    return tensors


def require_count(rows: int) -> None:
    if rows > MOST_ROWS:
        raise LimitExceeded(
            f"A call has {rows:,} rows, and takes at most {MOST_ROWS:,}.",
            do="Send them in several calls.",
            code="E-LIMIT",
        )


def invalid(why: str) -> InvalidInput:
    return InvalidInput(
        f"The batch {why}.", do="Give input_ids, labels and attention_mask of the same shape, as numbers.",
        code="E-STEP",
    )  # fmt: skip
