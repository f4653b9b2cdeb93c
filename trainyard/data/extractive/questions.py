"""The wordings of a fact's question, in the language of its document: eight of them, the last is the reserved one.

They are in `wordings.json`, by language (`""` is the neutral one) and rule; a rule with one text has it eight times.
`{topic}` and `{title}` become the fact's own words; `{clause}` of the rule `named` is the question as a subordinate
clause ("how long the battery lasts"). Neighbours in the list differ in form, so that two wordings of one fact do, too.

Adding a language: a table in `wordings.json`, a row in `trainyard.data.language`, and what `grammar` knows of it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from trainyard.data.language import ENGLISH

FORMS = 8
_TEXTS = json.loads(Path(__file__).with_name("wordings.json").read_text(encoding="utf-8"))
WORDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    language: {rule: (forms,) * FORMS if isinstance(forms, str) else tuple(forms) for rule, forms in rules.items()}
    for language, rules in _TEXTS["questions"].items()
}
"""Language -> rule -> eight wordings; rules of code have English ones only."""
INSTRUCTIONS: dict[str, dict[str, str]] = _TEXTS["instructions"]
"""Language -> rule -> the fact's question as an instruction to write."""
ASKED = re.compile(
    r"(?P<word>(?:(?:at|in|on|for|from|with|to|by|of) )?(?:what|which|who|whom|whose|when|where|why|how)\b(?:(?! (?:"
    r"is|are|was|were|do|does|did|can|could|may|might|must|shall|should|will|would|has|have|had) ).)*?)?"
    r"(?:^| )(?P<verb>is|are|was|were|do|does|did|can|could|may|might|must|should|will|would|has|have) (?P<rest>.+)\?",
    re.I,
)
PERSONS = re.compile(r"(?P<subject>I|you|we|they|people|users) (?P<rest>.+)")
DETERMINER = r"(?:(?:the |a |an |my |our |your |another |each |every )(?:[a-z]+ )?)?"
TO_DO = ("how", "what", "when", "where", "which")
"""Questions that become "how to start the pump" when they are asked with "do I"."""
IRREGULAR = {"have": "has", "do": "does", "go": "goes", "be": "is"}
SAME_RULE = {"cell": "section", "option": "term", "value": "term"}
"""Rules that ask with the wordings of another one in a language that has none of their own."""


PLACES: dict[str, tuple[str, ...]] = {language: tuple(forms) for language, forms in _TEXTS["places"].items()}
"""Language -> the ways to name the page of a question, one for each wording."""


def questions(
    rule: str, topic: str, title: str, *, count: int, turn: int, language: str = ENGLISH, clause: str = "",
    placed: bool = False,
) -> list[str]:  # fmt: skip
    """Return `count` different wordings of one question (1 to 8); the last of several is the reserved one.

    `turn` (any integer, constant for a question) says where in the list of training wordings to begin. `clause` is the
    question of the rule `named` as a clause; `placed` names the page in each wording.
    """
    if rule == "question" and language == ENGLISH and title.lower() in topic.lower():
        clause = subordinate(topic, title)
        rule = "named" if clause else "bare"
    elif rule == "named" and not clause:
        rule = "bare"
    forms = WORDINGS[language].get(rule) or WORDINGS[language][SAME_RULE[rule]]
    if placed and rule in ("named", "bare"):
        forms = tuple(template.replace("{question}", "{topic}") for template in PLACES[language])
    elif placed:
        forms = tuple(
            template.replace("{question}", form) for template, form in zip(PLACES[language], forms, strict=True)
        )
    training, reserved = forms[:-1], forms[-1]
    wordings = [training[(turn + step) % len(training)] for step in range(max(1, count - 1))]
    if count > 1:
        wordings.append(reserved)
    return [form.format(topic=topic, title=title, clause=clause) for form in wordings]


def instruction(rule: str, topic: str, title: str, language: str = ENGLISH) -> str:
    """Return the fact's question as an instruction to write."""
    texts = INSTRUCTIONS[language]
    return (texts.get(rule) or texts[SAME_RULE[rule]]).format(topic=topic, title=title)


def subordinate(question: str, name: str) -> str:
    """Return an English question as a clause: "How long does the pump run?" gives "how long the pump runs".

    The subject has to be a pronoun or contain `name`, because only there it is certain where it ends. Returns an empty
    string for any other question.
    """
    match = ASKED.fullmatch(question)
    if match is None:
        # A question whose first words are its subject is a clause already: "What belongs into the bowl?".
        plain = re.fullmatch(r"(?:What|Which \w+|Who|How many \w+) \w+ .+\?", question)
        return question[0].lower() + question[1:-1] if plain else ""
    word, verb, rest = match["word"] or "whether", match["verb"].lower(), match["rest"]
    word = word[0].lower() + word[1:]
    if match["word"] and verb in ("is", "are", "was", "were") and rest.lower().endswith(name.lower()):
        return f"{word} {rest} {verb}"
    split = PERSONS.fullmatch(rest) or re.fullmatch(
        rf"(?P<subject>{DETERMINER}{re.escape(name)}s?) (?P<rest>.+)", rest, re.I
    )
    if split is None:
        return ""
    subject, after = split["subject"], split["rest"]
    if verb == "do":
        return f"{word} to {after}" if subject == "I" and word in TO_DO else f"{word} {subject} {after}"
    if verb == "does":
        base, _, behind = after.partition(" ")
        return f"{word} {subject} {third_person(base)} {behind}".strip() if base.isalpha() else ""
    return "" if verb == "did" else f"{word} {subject} {verb} {after}"


def third_person(verb: str) -> str:
    """Return the form of a verb that follows "it"."""
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if re.search(r"(?:s|x|z|ch|sh|o)$", verb):
        return f"{verb}es"
    return f"{verb[:-1]}ies" if re.search(r"[^aeiou]y$", verb) else f"{verb}s"
