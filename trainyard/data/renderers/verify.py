"""Verification behind `trainyard renderers verify`: every template, tried with a tokenizer that is built here.

No model and no network: a byte-level BPE tokenizer is trained on a few sentences and given the special tokens that the
template's text names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trainyard.data.renderers.choice import digest, find_renderer, list_shipped, read, recognise_template, template_text
from trainyard.data.renderers.contract import Flavour, RendererSpec, Tools, Turn
from trainyard.data.renderers.probing import Relations, measure, samples, wrong_flag
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.spans import REFUSALS
from trainyard.data.renderers.table import DEFAULT, RENDERERS

TOKEN = re.compile(r"<\|[^<>|\s'\"{}]+\|?>|<[A-Za-z_/]+\|?>|<｜[^｜]+｜>|\[/?(?:INST|gMASK|[A-Z]+_[A-Z_]+)\]")
"""What reads as a token in the text of a template."""
SENTENCES = (
    "A melon is a fruit. The quick brown fox jumps over the lazy dog while user, assistant and system talk.\n\n"
    "Is a kiwi a fruit? Yes, it weighs 80 gram.  Thoughts are free: 0123456789.\n"
)


@dataclass(frozen=True)
class Verified:
    """A template of the table."""

    renderer: str
    template: str
    sha256: str
    stops: tuple[str, ...]
    extension: bool
    """Whether each prompt begins with the prompt before it and what the model said, in every kind of conversation."""
    kinds: dict[str, str]
    """Kind of conversation -> yes, or which relation fails, or - where the template does not take it."""
    problem: str = ""


@cache
def name_backend() -> str:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([SENTENCES * 4], trainer)
    return str(backend.to_str())


def toy_tokenizer(template: str, spec: RendererSpec = DEFAULT) -> PreTrainedTokenizerFast:
    """A tokenizer in which the tokens that a template names are single ids: `<think>` and `<tool_call>` kinds are
    added, the others special, as in the models that the templates come from."""
    named = sorted({*TOKEN.findall(template), *spec.stops, *spec.tokens})
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(name_backend()),
        bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=template,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    is_plain = re.compile(r"</?(?!\w+_of_)[a-z_A-Z]+>").fullmatch
    tokenizer.add_tokens([token for token in named if is_plain(token)])
    tokenizer.add_special_tokens({"extra_special_tokens": [token for token in named if not is_plain(token)]})
    return tokenizer


def verify(names: frozenset[str] = frozenset()) -> list[Verified]:
    """Verify every template of the table and all others that TRL ships, or those of the given names.

    Raises `NotFound` (`E-CHAT-TEMPLATE`) for a name that is neither a renderer nor a template.
    """
    rows = [(spec, name, template_text(spec, name)) for spec in RENDERERS.values() for name in spec.templates]
    templates = {name for _, name, _ in rows}
    rows += [
        (DEFAULT, name, path.read_text(encoding="utf-8"))
        for name, path in list_shipped().items()
        if name not in templates
    ]
    for name in sorted(names - {name for spec, template, _ in rows for name in (spec.name, template)}):
        find_renderer(name)
    return [verify_template(*row) for row in rows if not names or row[0].name in names or row[1] in names]


def verify_file(path: Path) -> Verified:
    """A template file. One that the table does not know is rendered under limits, and its parity is not compared."""
    text = read(path)
    return verify_template(recognise_template(text), path.name, text)


def verify_template(spec: RendererSpec, name: str, template: str) -> Verified:
    """Return one template: probed, its parity checked, an answer parsed back."""
    renderer = Renderer(toy_tokenizer(template, spec), spec, template)
    probe = measure(renderer)
    claim = spec.templates.get(name, probe.extends_in)
    problems = [] if claim == probe.extends_in else [str(wrong_flag(name, claim, probe.extends_in))]
    conversations = [sample for flavour in Flavour for sample in samples(flavour)]
    problems += [text for sample in conversations if (text := parity_problem(renderer, sample.turns, sample.tools))]
    return Verified(
        renderer=spec.name,
        template=name,
        sha256=digest(template),
        stops=tuple(renderer.stops),
        extension=probe.extension,
        kinds={flavour.value: relation_word(probe.relations.get(flavour)) for flavour in Flavour},
        problem="; ".join(problems),
    )


def relation_word(relations: Relations | None) -> str:
    if relations is None:
        return "-"
    failing = [name for name, passed in (("prompt", relations.prompt), ("history", relations.history)) if not passed]
    note = f" ({relations.hidden})" if relations.hidden else ""
    return "not " + "+".join(failing) + note if failing else "yes"


def parity_problem(renderer: Renderer, turns: list[Turn], tools: Tools | None = None) -> str:
    """Return how a rendering differs from `apply_chat_template`; empty if it does not, or if the template refuses both.

    An unknown template is not compared: `apply_chat_template` would run it in this process without limits.
    """
    if not renderer.is_trusted:
        return ""
    apply: Any = renderer.tokenizer.apply_chat_template
    try:
        expected_ids = apply(
            renderer.adapt_turns(turns), tools=tools, chat_template=renderer.template, return_dict=False
        )
    except REFUSALS:
        return ""
    ids = renderer.render(turns, tools).ids
    return "" if ids == expected_ids else f"{len(ids)} ids where apply_chat_template gives {len(expected_ids)}"
