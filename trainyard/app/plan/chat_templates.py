"""Chat templates against the tokenizers of their bases, without any row: a short chat is encoded as rows would be.

Imports transformers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from trainyard.app.plan.machine import find_base_folder, list_trainers
from trainyard.app.plan.row_fit import encode_rows_of, load_tokenizer
from trainyard.data.paths import data_roots
from trainyard.data.renderers.choice import AUTO
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.rows import LabelledRow, Message, PreferenceRow, PromptRow, Row, SftRow
from trainyard.errors import InvalidInput, Reason, TrainyardError, to_reason
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.training import TrainerConfig

CONTROL = re.compile(r"<\|[^<>|\s'\"{}]+\|?>|<[A-Za-z_]+\|>|<｜[^｜\s]+｜>|<(?:start|end)_of_turn>")
"""Words of a template that only mean something as one token of the tokenizer; `<think>` and `[INST]` are texts, too."""
SYSTEM = Message("system", "Be brief.")
QUESTION, ANSWER, OTHER = (
    Message("user", "Is a melon a fruit?"),
    Message("assistant", "Yes."),
    Message("assistant", "No."),
)
MOST_TOKENS = 4096
SHOWN = 4


def template_problems(chain: ResolvedChain, settings: Settings, nodes: frozenset[str]) -> list[Reason]:
    """Return why these trainers could not render a chat on the tokenizer of their base, which is on this machine."""
    reasons: list[Reason] = []
    for node, config in list_trainers(chain):
        base = (
            find_base_folder(config.base_model or settings.default_base_model, settings) if node.id in nodes else None
        )
        if base is None:
            continue
        try:
            tokenizer = load_tokenizer(base, config.engine.template, data_roots(settings))
            check_chat(config, tokenizer)
            if config.engine.template != AUTO:
                check_tokens(config, tokenizer)
        except TrainyardError as error:
            reasons.append(to_reason(error, node.id, "config.engine.template"))
    return reasons


def check_chat(config: TrainerConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Encode a short chat as a row of the stage. Raises `InvalidInput` (`E-CHAT-TEMPLATE`) if it is refused."""
    refusal = ""
    for prompt in ([QUESTION], [SYSTEM, QUESTION]):
        examples, ledger = encode_rows_of(config, sample_rows(config, prompt), tokenizer, MOST_TOKENS)
        if examples:
            return
        refusal = refusal or (" ".join(ledger.refused) or "nothing of the answer is learned")
    raise InvalidInput(
        f"The chat template {config.engine.template!r} does not render a chat on the tokenizer of {config.base_model}.",
        why=f"It says: {refusal}.",
        do="Set engine.template to auto, or to a renderer of the base's family (`trainyard renderers verify`).",
        code="E-CHAT-TEMPLATE",
    )


def sample_rows(config: TrainerConfig, prompt: list[Message]) -> list[Row]:
    """Return one row of the kind that a stage learns from."""
    ports = config.stage.facts.ports
    if config.stage.facts.draws_groups:
        return [PromptRow(prompt, "Yes.")]
    if Port.PREFERENCE in ports:
        return [PreferenceRow(prompt, [ANSWER], [OTHER])]
    return [LabelledRow(prompt, [ANSWER], True)] if Port.LABELLED in ports else [SftRow([*prompt, ANSWER])]


def check_tokens(config: TrainerConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `InvalidInput` (`E-CHAT-TEMPLATE`) for control tokens of a template that the base lacks."""
    text = "".join(piece.text for piece in Renderer(tokenizer).pieces([QUESTION, ANSWER]))
    missing = missing_tokens(text, tokenizer, config.added_tokens)
    if not missing:
        return
    missing_names = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else "")
    template = config.engine.template
    raise InvalidInput(
        f"The tokenizer of {config.base_model} has no {missing_names}, which the chat template {template!r} writes.",
        why="Spelled out they are ordinary text, at which no answer ends.",
        do="Set engine.template to auto, or to a renderer of the base's family (`trainyard renderers verify`); "
        "or add them: added_tokens.",
        code="E-CHAT-TEMPLATE",
    )


def missing_tokens(text: str, tokenizer: PreTrainedTokenizerBase, added: Sequence[str]) -> list[str]:
    """Return the control tokens in a rendered text that a tokenizer does not have."""
    vocabulary = tokenizer.get_vocab()
    return [word for word in dict.fromkeys(CONTROL.findall(text)) if word not in vocabulary and word not in added]
