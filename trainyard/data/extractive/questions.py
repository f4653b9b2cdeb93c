"""The wordings of a question, per kind of fact. The last wording of a list is the one that training never shows.

With `wordings: n`, a pair is asked in n - 1 of the first seven wordings and in the last one. Which of the seven they
are is drawn from the question, so that training meets them all and has to attend to the topic, not to the form.
"""

from __future__ import annotations

SECTION = (
    'What does "{title}" say about "{topic}"?',
    'Explain "{topic}" as it is described in "{title}".',
    'In "{title}", what is written under "{topic}"?',
    'Tell me about "{topic}" (from "{title}").',
    '"{title}" has a part on "{topic}". What is its main point?',
    'Give a short description of "{topic}", following "{title}".',
    'What should a reader of "{title}" know about "{topic}"?',
    'I need help with "{topic}". How does "{title}" put it in a sentence or two?',
)
QUESTION = (
    '{topic} (See "{title}".)',
    'A question on "{title}": {topic}',
    '{topic} Answer as "{title}" does.',
    'According to "{title}": {topic}',
    'Reader of "{title}" asks: {topic}',
    'From the page "{title}", answer this: {topic}',
    '{topic} What is the documented answer in "{title}"?',
    'Could you clear this up for me? I am reading "{title}" and wonder: {topic}',
)
ABOUT = (
    'What is "{title}" about?',
    'Give the gist of "{title}".',
    'How does "{title}" introduce its subject?',
    'What does "{title}" begin with?',
    'Summarise the beginning of "{title}".',
    'What is the subject of "{title}"?',
    'Introduce "{title}" in a sentence or two.',
    'Somebody hands me "{title}". What will I find in there?',
)
TERM = (
    'What does "{topic}" mean in "{title}"?',
    'Define "{topic}" as used in "{title}".',
    'In "{title}", what is "{topic}"?',
    'How does "{title}" define "{topic}"?',
    'Give the meaning of "{topic}" from "{title}".',
    'What is meant by "{topic}" in "{title}"?',
    'What does "{title}" state about the term "{topic}"?',
    'I came across "{topic}" while reading "{title}". Can you tell me what it stands for?',
)
SYMBOL = (
    "What does `{topic}` of {title} do?",
    "Explain `{topic}` in {title}.",
    "What is `{topic}` from {title} for?",
    "Describe `{topic}` ({title}).",
    "According to its documentation, what does `{topic}` in {title} do?",
    "Summarise the docstring of `{topic}` in {title}.",
    "{title} defines `{topic}`. What is its purpose?",
    "I found `{topic}` in the file {title}. When would somebody use it?",
)
COMMIT = (
    "What does the commit to {topic} in {title} do?",
    "Summarise the change of {topic} ({title}).",
    "Why was {topic} changed in {title}?",
    "Describe commit {title}, which touches {topic}.",
    "Write the message of commit {title} to {topic}.",
    "What was the purpose of changing {topic} in {title}?",
    "{title} edits {topic}. What did it bring?",
    "I see that {title} modified {topic}. What happened there?",
)
DIFF = ("Write the change for this commit message:\n\n{topic}",) * 8
BODY = ("Complete this function of {title}. Reply with its body only.\n\n{topic}",) * 8
SNIPPET = ('Show the code for this part of "{title}": {topic}',) * 8
INSTRUCTIONS = {
    "section": 'Write what a user of "{title}" has to know about "{topic}". Use one or two sentences.',
    "question": 'Answer the question from "{title}" in one or two sentences: {topic}',
    "about": 'Write an introduction to "{title}" in one or two sentences.',
    "term": 'Write a glossary entry for "{topic}" as used in "{title}".',
    "symbol": "Write the first paragraph of the docstring of `{topic}` in {title}.",
    "commit": "Write the commit message for {title}, which changes {topic}.",
}
WORDINGS: dict[str, tuple[str, ...]] = {
    "section": SECTION,
    "question": QUESTION,
    "about": ABOUT,
    "term": TERM,
    "symbol": SYMBOL,
    "commit": COMMIT,
    "diff": DIFF,
    "body": BODY,
    "snippet": SNIPPET,
}


def questions(rule: str, topic: str, title: str, *, count: int, turn: int) -> list[str]:
    """`count` different wordings of one question (1 to 8); the last of several is the reserved one.

    `turn` (any integer, constant for a question) says where in the list of training wordings to begin.
    """
    forms = WORDINGS[rule]
    training, reserved = forms[:-1], forms[-1]
    chosen = [training[(turn + step) % len(training)] for step in range(max(1, count - 1))]
    if count > 1:
        chosen.append(reserved)
    return [form.format(topic=topic, title=title) for form in chosen]


def instruction(rule: str, topic: str, title: str) -> str:
    """The fact's question as an instruction to write."""
    return INSTRUCTIONS[rule].format(topic=topic, title=title)
