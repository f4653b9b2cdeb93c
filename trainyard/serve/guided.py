"""Output that is valid JSON for a schema, whatever the model wants to say.

llguidance computes after each token which tokens may follow; the others' logits become minus infinity before
sampling. A weak model can still wander inside an open string until the budget ends, so three things are added:
whitespace between JSON tokens is off, a string without a `maxLength` gets a share of the budget, and towards the end
of the budget a token is taken only if the shortest way to close everything after it still fits.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 64
MIN_STRING_CHARS = 32
WATCHED_TOKENS = 256
"""Before the last 256 tokens of the budget, closing is looked at every 32nd token only; it costs about 2 ms."""
MAX_CLOSING_TOKENS = 4096
CLOSERS = (b'"', b"}", b"]", b",", b":", b"0")
"""What ends a string, an object, a list, then what leads on to the next required part. The quote comes first because
inside a string the others are just text."""
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTED_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
OPEN_OBJECTS = ("additionalProperties", "patternProperties", "minProperties", "$ref", "anyOf", "oneOf", "propertyNames")
STRING_LIMITS = ("maxLength", "enum", "const", "pattern", "format")


def subschemas(schema: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield the schemas directly inside a schema; a property that is named `items` is not mistaken for the keyword."""
    for keyword in NAMED_SCHEMAS:
        if isinstance(named := schema.get(keyword), dict):
            yield from (part for part in named.values() if isinstance(part, dict))
    for keyword in LISTED_SCHEMAS:
        if isinstance(listed := schema.get(keyword), list):
            yield from (part for part in listed if isinstance(part, dict))
    for keyword in SINGLE_SCHEMAS:
        if isinstance(single := schema.get(keyword), dict):
            yield single


def walk_schemas(schema: JsonObject, depth: int = 0) -> Iterator[JsonObject]:
    if depth > MAX_SCHEMA_DEPTH:
        raise refused_error(f"it is nested deeper than {MAX_SCHEMA_DEPTH}")
    yield schema
    for part in subschemas(schema):
        yield from walk_schemas(part, depth + 1)


def is_free_string(schema: JsonObject) -> bool:
    kind = schema.get("type")
    return (kind == "string" or (isinstance(kind, list) and "string" in kind)) and not any(
        limit in schema for limit in STRING_LIMITS
    )


def bound_schema(schema: JsonObject, max_tokens: int) -> JsonObject:
    """A narrower schema: every free string gets a `maxLength`, its share of 1.5 characters a token of the budget, and
    an object that lists its properties has no others. What meets it meets the given one."""
    bounded = copy.deepcopy(schema)
    free = [part for part in walk_schemas(bounded) if is_free_string(part)]
    if not any("allOf" in part for part in walk_schemas(bounded)):
        for part in walk_schemas(bounded):
            if "properties" in part and not any(keyword in part for keyword in OPEN_OBJECTS):
                part["additionalProperties"] = False
    for part in free:
        share = max(MIN_STRING_CHARS, int(1.5 * max_tokens / len(free)))
        part["maxLength"] = max(share, int(part.get("minLength", 0)))
    return bounded


def refused_error(why: str) -> InvalidInput:
    return InvalidInput(
        f"The json_schema cannot be enforced: {why}.",
        do="Use the JSON Schema keywords that docs/serving.md lists, or raise max_tokens.",
        code="E-JSON-SCHEMA",
    )


class Grammars:
    """Compiled schemas of one tokenizer. Compiling takes 1 to 100 ms, so the last 64 are kept."""

    def __init__(self, tokenizer: LLTokenizer, token_bytes: list[bytes], eos_ids: list[int]) -> None:
        self.tokenizer, self.token_bytes, self.eos_ids = tokenizer, token_bytes, eos_ids
        by_bytes = {text: index for index, text in reversed(list(enumerate(token_bytes)))}
        self.closers = [by_bytes[closer] for closer in CLOSERS if closer in by_bytes]
        self.lengths = np.array([len(text) for text in token_bytes])
        self.compiled: dict[str, LLMatcher] = {}

    def constraint(self, schema: JsonObject, max_tokens: int) -> Constraint:
        """Return a fresh constraint. Raises `InvalidInput` (`E-JSON-SCHEMA`) if it cannot be enforced or cannot fit."""
        if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
            raise refused_error(f"it is longer than {MAX_SCHEMA_BYTES:,} bytes")
        try:
            text = json.dumps(bound_schema(schema, max_tokens))
        except (TypeError, ValueError, OverflowError) as error:
            raise refused_error(f"a keyword has a value of another type ({error})") from error
        if text not in self.compiled:
            self.compiled[text] = self.compile(text)
            for oldest in list(self.compiled)[:-64]:
                del self.compiled[oldest]
        constraint = Constraint(self, self.compiled[text].deep_copy(), max_tokens)
        if constraint.needed > max_tokens:
            raise refused_error(
                f"its shortest instance takes {constraint.needed} tokens and max_tokens is {max_tokens}"
            )
        return constraint

    def compile(self, text: str) -> LLMatcher:
        grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": False})
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise refused_error(" ".join(matcher.get_error().split())[:300])
        return matcher

    def allowed(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        """Which tokens may follow, one flag a token of the model's vocabulary."""
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little", count=len(self.token_bytes)).astype(bool)

    def closing_token(self, matcher: LLMatcher) -> int:
        """Return the token that brings the end nearest: a closing mark if one may follow, else the longest token."""
        allowed = self.allowed(matcher)
        for token in (*self.eos_ids, *self.closers):
            if allowed[token]:
                return token
        return int(np.argmax(np.where(allowed, self.lengths, -1)))

    def closing_length(self, matcher: LLMatcher, limit: int = MAX_CLOSING_TOKENS) -> int:
        """Tokens that closing everything takes from here; `limit` + 1 if it takes more."""
        probe, count = matcher.deep_copy(), 0
        while not probe.is_accepting() and not probe.is_stopped() and count <= limit:
            if not probe.consume_token(self.closing_token(probe)):
                return limit + 1
            count += 1
        return count


class Constraint:
    """A request's way through its grammar, with its token budget in view."""

    def __init__(self, grammars: Grammars, matcher: LLMatcher, max_tokens: int) -> None:
        self.grammars, self.matcher, self.left = grammars, matcher, max_tokens
        self.needed = grammars.closing_length(matcher)

    @property
    def finished(self) -> bool:
        return self.matcher.is_stopped()

    @property
    def complete(self) -> bool:
        """Whether the text so far is a whole instance."""
        return self.matcher.is_accepting()

    def allowed(self) -> NDArray[np.bool_]:
        return self.grammars.allowed(self.matcher)

    def accept(self, token: int) -> int:
        """Consume the sampled token, or the closing token if the sampled one no longer fits; returns which."""
        self.left -= 1
        if self.left <= max(WATCHED_TOKENS, 2 * self.needed) or self.left % 32 == 0:
            probe = self.matcher.deep_copy()
            fits = probe.consume_token(token) and self.remember(probe) <= self.left
            if not fits:
                token = self.grammars.closing_token(self.matcher)
        if not self.matcher.consume_token(token):
            raise refused_error(self.matcher.get_error() or "the grammar stopped")
        return token

    def remember(self, probe: LLMatcher) -> int:
        self.needed = self.grammars.closing_length(probe, limit=max(self.left, self.needed) + 1)
        return self.needed
