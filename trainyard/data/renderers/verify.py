"""Verification behind `trainyard renderers verify`: every template, tried with a tokenizer that is built here.

No model and no network: a byte-level BPE tokenizer is trained on a few sentences and given the special tokens that the
template's text names.

Whether turns extend one another, found out by rendering: a flag that is only written down will be wrong some day.

The extension property: the ids of a prompt, followed by what the model says up to its stop token, begin the ids of the
next prompt, in every conversation. Then turns of one conversation can be trained as one sequence and a server can keep
its cache. Two relations make it up, and a template can break either: the answer as rendered begins with the generation
prompt (`prompt`; a prefilled `<think>` breaks it), and a longer conversation begins with the shorter one (`history`;
thoughts that are dropped from earlier turns break it). A template that shows only the newest messages, or the results
of the newest calls, breaks the second one too, in conversations that are longer than its window: so a long one of each
kind is rendered as well.
source: tinker-cookbook, renderers/base.py, has_extension_property
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
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.spans import REFUSALS, TemplateText
from trainyard.data.renderers.table import DEFAULT, RENDERERS
from trainyard.errors import InvalidInput


@dataclass(frozen=True)
class Relations:
    """Findings in one kind of conversation."""

    prompt: bool
    history: bool
    hidden: str = ""
    """What a long conversation does not show any more, such as `messages: 8 of 96 shown`; empty if it shows all."""

    @property
    def extends(self) -> bool:
        return self.prompt and self.history


@dataclass(frozen=True)
class TemplateProbe:
    """Findings about a template."""

    relations: dict[Flavour, Relations]
    """Kind of conversation -> its relations. A kind that the template does not take, or does not show, is absent."""

    @property
    def extends_in(self) -> frozenset[Flavour]:
        return frozenset(flavour for flavour, relations in self.relations.items() if relations.extends)

    @property
    def extension(self) -> bool:
        """Whether turns extend one another in every kind of conversation that the template takes."""
        return bool(self.relations) and all(relations.extends for relations in self.relations.values())


def user(text: str) -> Turn:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> Turn:
    return {"role": "assistant", "content": text, **more}


def build_result(text: str, call_id: str) -> Turn:
    return {"role": "tool", "name": "weigh_fruit", "tool_call_id": call_id, "content": text}


CALL: dict[str, Any] = {
    "id": "call00001", "type": "function",
    "function": {"name": "weigh_fruit", "arguments": {"fruit": "quince"}},
}  # fmt: skip
QUESTIONS = [user("Is a melon a fruit?"), user("And a kiwi?"), user("And a stone?")]
TOOLS: Tools = [
    {
        "type": "function",
        "function": {
            "name": "weigh_fruit", "description": "Weigh a fruit.",
            "parameters": {"type": "object", "properties": {"fruit": {"type": "string", "description": "Which."}},
                           "required": ["fruit"]},
        },
    }
]  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A conversation, and texts that have to be seen in it."""

    turns: list[Turn]
    texts: tuple[str, ...]
    tools: Tools | None = None


def samples(flavour: Flavour) -> list[Sample]:
    """Conversations of a kind."""
    thinks = flavour is Flavour.THOUGHTS
    thought_too = ("thought number",) if thinks else ()
    plain = Sample(talk(flavour), ("And a stone?", "Yes.", *thought_too))
    more = [thought(n) if thinks else {} for n in range(3)]
    used = [assistant("", tool_calls=[CALL], **more[0]), build_result("it weighs 80 gram", "call00001")]
    answered = [assistant("80 gram.", **more[1]), QUESTIONS[1], assistant("Yes.", **more[2])]
    called = Sample([QUESTIONS[0], *used, *answered], ("quince", "it weighs", *thought_too), TOOLS)
    return {Flavour.TOOLS: [called], Flavour.THOUGHTS: [plain, called]}.get(flavour, [plain])


LONG = 48
"""Exchanges of a long conversation. Windows that are in use have 2 to 32 messages."""


LONG_FLAVOURS = frozenset({Flavour.PLAIN, Flavour.TOOLS})
"""Kinds that are tried in a long conversation: a window hides messages whether there is a system message or not."""


def find_hidden(renderer: TemplateText, flavour: Flavour) -> str:
    """Return what a conversation of many exchanges does not show; empty if it shows all that a short one does.

    Judged by the texts that each message is alone in having.
    """
    turns: list[Turn] = []
    for number in range(LONG):
        turns.append(user(f"question-{number:03}"))
        if flavour is Flavour.TOOLS:
            call = {**CALL, "id": f"call{number:05}"}  # of its own, which some templates look up
            turns += [assistant("", tool_calls=[call]), build_result(f"result-{number:03}", call["id"])]
        turns.append(assistant(f"answer-{number:03}"))
    try:
        text = renderer.text(turns, TOOLS if flavour is Flavour.TOOLS else None)
    except REFUSALS:
        return ""
    messages = [turn["content"] for turn in turns if turn["role"] in ("user", "assistant") and turn["content"]]
    results = [turn["content"] for turn in turns if turn["role"] == "tool"]
    for name, contents in (("messages", messages), ("results of tools", results)):
        count = sum(content in text for content in contents)
        if 0 < count < len(contents):
            return f"{name}: {count} of {len(contents)} shown"
    return ""


def talk(flavour: Flavour) -> list[Turn]:
    """Three questions with their answers."""
    more = [thought(n) if flavour is Flavour.THOUGHTS else {} for n in range(3)]
    turns = [
        turn for question, extra in zip(QUESTIONS, more, strict=True) for turn in (question, assistant("Yes.", **extra))
    ]
    return [{"role": "system", "content": "Be brief."}, *turns] if flavour is Flavour.SYSTEM else turns


def thought(number: int) -> dict[str, str]:
    return {"reasoning_content": f"thought number {number}"}


def measure(renderer: TemplateText) -> TemplateProbe:
    """Render conversations of every kind and compare their ids."""
    by_flavour: dict[Flavour, Relations] = {}
    for flavour in Flavour:
        sample_relations = [
            relations for sample in samples(flavour) if (relations := relate(renderer, sample)) is not None
        ]
        if sample_relations:
            hidden = find_hidden(renderer, flavour) if flavour in LONG_FLAVOURS else ""
            history = not hidden and all(entry.history for entry in sample_relations)
            by_flavour[flavour] = Relations(all(entry.prompt for entry in sample_relations), history, hidden)
    return TemplateProbe(by_flavour)


def wrong_flag(name: str, claimed: frozenset[Flavour], actual: frozenset[Flavour]) -> InvalidInput:
    def format_flavours(flavours: frozenset[Flavour]) -> str:
        return ", ".join(flavour.value for flavour in Flavour if flavour in flavours) or "none"

    return InvalidInput(
        f"The template {name} is listed as extending its turns in: {format_flavours(claimed)}. "
        f"Probed: {format_flavours(actual)}.",
        why="A wrong flag would train on, or cache, token sequences that the model never sees.",
        do="Correct the row in trainyard/data/renderers to what was probed.",
        code="E-CHAT-TEMPLATE",
    )


def relate(renderer: TemplateText, sample: Sample) -> Relations | None:
    turns, tools = sample.turns, sample.tools
    try:
        answer_indices = [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]
        prompts = [renderer.text(turns[:index], tools, ask=True) for index in answer_indices]
        answered = [renderer.text(turns[: index + 1], tools) for index in answer_indices]
    except REFUSALS:
        return None
    if not all(any(text in whole for whole in answered) for text in sample.texts):
        return None
    ids = renderer.control.ids
    ended = [
        ids(text[: renderer.with_stop(after, renderer.turn_end(text))])
        for text, after in zip(answered, [*prompts[1:], answered[-1]], strict=True)
    ]
    prompt_ids = [ids(text) for text in prompts]
    return Relations(
        prompt=all(begins(turn, prompt) for turn, prompt in zip(ended, prompt_ids, strict=True)),
        history=all(begins(later, turn) for later, turn in zip(prompt_ids[1:], ended[:-1], strict=True)),
    )


def begins(ids: list[int], first: list[int]) -> bool:
    return ids[: len(first)] == first


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
    """Return whether each prompt begins with the prompt before it and the model's reply, in every conversation."""
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
