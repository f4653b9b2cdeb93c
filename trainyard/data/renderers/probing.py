"""Probes of whether turns extend one another, by rendering: a flag that is only written down will be wrong some day.

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

from dataclasses import dataclass
from typing import Any

from trainyard.data.renderers.contract import Flavour, Tools, Turn
from trainyard.data.renderers.spans import REFUSALS, TemplateText
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
    def words(flavours: frozenset[Flavour]) -> str:
        return ", ".join(flavour.value for flavour in Flavour if flavour in flavours) or "none"

    return InvalidInput(
        f"The template {name} is listed as extending its turns in: {words(claimed)}. Probed: {words(actual)}.",
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
