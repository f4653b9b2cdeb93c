"""The wordings of a fact's question, in the language of its document."""

from __future__ import annotations

import re

from trainyard.data.extractive.wordings import INSTRUCTIONS, WORDINGS
from trainyard.data.language import ENGLISH

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
SAME_RULE = {"cell": "section"}
"""Rules that ask with the wordings of another one."""


def questions(rule: str, topic: str, title: str, *, count: int, turn: int, language: str = ENGLISH) -> list[str]:
    """`count` different wordings of one question (1 to 8); the last of several is the reserved one.

    `turn` (any integer, constant for a question) says where in the list of training wordings to begin.
    """
    clause = ""
    if rule == "question" and language == ENGLISH and title.lower() in topic.lower():
        clause = subordinate(topic, title)
        rule = "named" if clause else "bare"
    forms = WORDINGS[language][SAME_RULE.get(rule, rule)]
    training, reserved = forms[:-1], forms[-1]
    chosen = [training[(turn + step) % len(training)] for step in range(max(1, count - 1))]
    if count > 1:
        chosen.append(reserved)
    return [form.format(topic=topic, title=title, clause=clause) for form in chosen]


def instruction(rule: str, topic: str, title: str, language: str = ENGLISH) -> str:
    """The fact's question as an instruction to write."""
    return INSTRUCTIONS[language][SAME_RULE.get(rule, rule)].format(topic=topic, title=title)


def subordinate(question: str, name: str) -> str:
    """An English question as a clause: "How long does the pump run?" gives "how long the pump runs".

    The subject has to be a pronoun or contain `name`, because only there it is certain where it ends. Returns an empty
    string for any other question.
    """
    match = ASKED.fullmatch(question)
    if match is None:
        return subject_clause(question)
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


def subject_clause(question: str) -> str:
    """A question whose first words are its subject is a clause already: "What belongs into the bowl?"."""
    match = re.fullmatch(r"(?:What|Which \w+|Who|How many \w+) \w+ .+\?", question)
    return question[0].lower() + question[1:-1] if match else ""


def third_person(verb: str) -> str:
    """The form of a verb that follows "it"."""
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if re.search(r"(?:s|x|z|ch|sh|o)$", verb):
        return f"{verb}es"
    return f"{verb[:-1]}ies" if re.search(r"[^aeiou]y$", verb) else f"{verb}s"
