"""Load the tokenizer of a model as its training does; for a process that only renders, without torch.

transformers works without torch for tokenizers, and imports it wherever it finds it, which costs 3 s of CPU. `None` in
`sys.modules` makes a package absent (https://docs.python.org/3/reference/import.html#the-module-cache), so that the
same `AutoTokenizer` of the same transformers is loaded in 0.5 s.

The tokens that a tokenizer puts before a text, in a chat template that does not write them.

`tokenizer("hi")` begins with BOS where its post-processor or `add_bos_token` adds one, and a base that has only seen
such texts is far off without it. Rendered chats are encoded without special tokens, here as by transformers and vLLM,
so the token has to be in the template's text: a template of the table, or a file, gets it as its first expression.
That text is used and saved, so each server writes what training showed.

The base's own template stays as it is. Without BOS in it transformers, vLLM and the embedded server ask without BOS,
and training does the same; the note says so. (llama.cpp and ollama add BOS by the file of the model.)
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2.exceptions import TemplateError

from trainyard.data.renderers.choice import AUTO, ChosenTemplate, choose_template
from trainyard.data.renderers.limited import is_known, open_limited
from trainyard.data.template_child import MARGIN_CHARS, answer, environment
from trainyard.json_types import JsonObject
from trainyard.loading import load_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_without_torch() -> None:
    """Make torch absent in this process, which must not train, serve or measure afterwards: it only renders rows."""
    if "torch" not in sys.modules and "transformers" not in sys.modules:
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would say that it found no PyTorch
        sys.modules["torch"] = None  # type: ignore[assignment]


def load_tokenizer(location: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder or of the cache. Raises `OSError` where there is none."""
    collects = gc.isenabled()
    gc.disable()  # the import makes a million objects that stay
    try:
        auto_tokenizer = load_object("transformers:AutoTokenizer")
    finally:
        if collects:
            gc.enable()
    tokenizer: PreTrainedTokenizerBase = auto_tokenizer.from_pretrained(location, trust_remote_code=False)
    return tokenizer


PROBE, QUESTION = "a", "melon"


def choose_for_tokenizer(
    tokenizer: PreTrainedTokenizerBase, name: str = AUTO, *, roots: Sequence[Path] = ()
) -> ChosenTemplate:
    """Return the template for `name` (see `choose_template`), which begins with the tokenizer's first token.

    Raises as `choose_template`, and `TemplateLimit` (`E-CHAT-TEMPLATE`) for a file that cannot be rendered.
    """
    base_template = tokenizer.get_chat_template() if tokenizer.chat_template else None
    choice = choose_template(name, base_template, roots=roots)
    start = find_start(tokenizer)
    if not start or writes_start(tokenizer, choice.text, start):
        return choice
    if choice.text == base_template:
        note = f"The tokenizer puts {start} before a text, and the base's own chat template does not: no chat has it."
        return replace(choice, note=" ".join(filter(None, (choice.note, note))))
    first = "bos_token" if start == tokenizer.bos_token else json.dumps(start, ensure_ascii=False)
    note = f"The template does not write {start}, which the tokenizer puts first: it is added, and saved with it."
    text = f"{{{{ {first} }}}}{choice.text}"
    return replace(choice, text=text, note=" ".join(filter(None, (choice.note, note))))


def find_start(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the special tokens that the tokenizer puts before a text, as text; empty if it adds none."""
    whole = list(tokenizer(PROBE)["input_ids"])
    plain = list(tokenizer(PROBE, add_special_tokens=False)["input_ids"])
    added = next((size for size in range(len(whole)) if whole[size : size + len(plain)] == plain), 0)
    return "".join(tokenizer.convert_ids_to_tokens(whole[:added]))


def writes_start(tokenizer: PreTrainedTokenizerBase, template: str, start: str) -> bool:
    """Whether a template writes these tokens before the first question."""
    for content in (QUESTION, [{"type": "text", "text": QUESTION}]):
        turns = [{"role": "user", "content": content}]
        names = {**tokenizer.special_tokens_map, "messages": turns, "add_generation_prompt": True}
        before, question, _ = write_text(template, names).partition(QUESTION)
        if question:
            return start in before
    return start in template or "bos_token" in template  # it takes no single question


def write_text(template: str, names: JsonObject) -> str:
    """Return what a template writes for its variables, empty if it refuses them; an unknown template in its child."""
    if is_known(template):
        return answer(environment().from_string(template), names, MARGIN_CHARS).get("text", "")
    try:
        return open_limited(template).render(json.dumps(names))
    except TemplateError:
        return ""
