"""Whole sentences of a text, and which of them may be an answer.

A sentence ends with `.`, `!` or `?` before a space and no small letter, or with `。`, `！` or `？` outside of brackets.
An answer is one sentence that is complete without its neighbours: it announces nothing, points at nothing and has no
remains of markup.
"""

from __future__ import annotations

import re

from trainyard.data.extractive.cleaning import AND, only_refers, spoken

LEAST_WORDS, ENOUGH_WORDS, WANTED_WORDS, MOST_WORDS = 5, 8, 40, 60
CJK = "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
UNSPACED = re.compile(f"[{CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
"""Characters of the scripts that put no space between words."""
CHARACTERS_PER_WORD = 1.7
"""Chinese words have 1.5 to 1.7 characters on average, Japanese ones a little more."""
CJK_SHARE = 0.1
"""Of an answer's characters: it gets the full stop of its script."""
ENDS, CLOSERS = ".!?…。！？．｡؟।", "\"'”’»)]」』）】*_"
END = re.compile(r"(?<![.!?…؟।])[.!?…؟।]+[\"'”’»)\]]*\s+|[。！？．｡]+[」』”’）)】\]]*\s*")
OPENERS = "\"'“„‘«([¿¡「『（"
NESTED = (("「", "」"), ("『", "』"), ("（", "）"), ("“", "”"), ("《", "》"))
QUOTED_LOW = (("„", "“"), *(pair for pair in NESTED if pair[0] != "“"))
"""The pairs of a text with German quotation marks, where “ is the closing one."""
ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|resp|no|nos|fig|sec|dr|mr|mrs|ms|st|prof|inc|ltd|ca|al|vol|pp|est|"
    r"z\.\s?B|d\.\s?h|sog|bspw|insb|einschl|zzgl|gem|Abs|Art|o\.\s?ä|u\.\s?U|u\.\s?a|bzw|usw|evtl|ggf|Nr|Abb|Hr|Tel|Std|Min|inkl|max|min|vgl|"
    r"p\.\s?ex|Mme|env|réf|art|p\.\s?ej|Sr|Sra|Ud|Uds|núm|pág|tel)|\b[^\W\d_])\.$",
    re.I,
)
MONTH = re.compile(
    r"(?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhundert)\b"
)
INCOMPLETE = re.compile(
    r"[:：,，、–—?？؟]\s*[.。]?$|(?:\.\.|…)[\"'”)]*$"
    r"|\bas follows\b|\bthe following\b|\bfollowing (?:steps|commands?|table|list|example|options)\b"
    r"|\b(?:shown|listed|described|given|see|table|list|example|figure|steps|command) (?:below|above)\b|\bbelow[.:]?$"
    r"|\b(?:examples?|code|section|snippet|figure) above\b|\babove (?:examples?|code|section|figure)\b"
    r"|\bprevious (?:examples?|section|chapter|page)\b"
    r"|\bas (?:you can see|we saw|shown|mentioned|described) (?:above|before)"
    r"|\b(?:u\.\s?a|z\.\s?B|d\.\s?h)\.$"
    r"|\bwie folgt\b|\bfolgende[nmrs]?\b|\bcomme suit\b|\bsuivante?s?\W*$|\bci-(?:dessous|dessus|après)\b"
    r"|\bsiguientes?\W*$|\ba continuación\b|\bcomo sigue\b"
    r"|如下|(?<![\d０-９A-Za-z度℃%％])以下(?=[のをにがは是为几列各、]|步骤|命令|内容|示例|选项|方法|操作|手順)|下列|下面的|下表|下图|上述"
    r"|次の(?:とおり|通り|よう|手順|表|例)|下記|上記",
    re.I,
)
"""A lead-in without what follows it, a question, a sentence that was cut off, or one that points at what is near."""
FOLLOWING_STEPS = re.compile(r"\bsteps?\b|\b(?:Schritte?n?|Vorgehen)\b", re.I)
"""A lead-in of several paragraphs."""
POINTING = re.compile(
    r"(?:it|its|they|their|them|this|these|those|that|he|she|his|her|such|then|thus|so|hence|therefore|otherwise|"
    r"however|instead|both|neither|also|but|and|or|nor|still|yet|likewise|similarly|meanwhile|moreover|furthermore|"
    r"here|now|next|let['’]s|let us|suppose|imagine|as you can see|as we|you (?:may|might) have|remember|"
    r"for example|for instance|in this case|in that case|in these cases|in addition(?! to)|in doing so|as a result|"
    r"the (?:former|latter|same|other|others|rest)|"
    r"das (?:ist|sind|bedeutet|heißt|kann|wird)|"
    r"hier(?:zu|für|bei|mit|von|durch|auf|an|in|unter|über)|denn|ebenfalls|ebenso|davon|darunter|darin|daraus|zudem|"
    r"aber|und|oder|jetzt|nun|mais|et|maintenant|imaginons|pero|y|ahora|supongamos|empecemos|"
    r"er|dies|diese[nmrs]?|dadurch|damit|daher|dann|deshalb|dabei|dazu|dort|hier|jedoch|sonst|andernfalls|außerdem|"
    r"ils|elles?|cela|ceci|celui-ci|celle-ci|ainsi|alors|donc|sinon|toutefois|cependant|ensuite|puis|"
    r"esto|eso|ello|ellos|ellas|así|entonces|además|sin embargo|luego|por eso|por ejemplo)\b"
    r"|es (?:wird|hat|kann|muss|soll|darf|wurde|enthält|besteht|liegt|dient)\b"
    r"|(?:如[你您]所见|让我们|现在|假设|还有|它|它们|他|她|这|这些|这样|那|那些|此|此外|因此|所以|但|但是|然而|不过|否则|例如|同样)"
    r"|(?:では、|見たように|これ|それ|あれ|この|その|そこ|ここ|しかし|そのため|したがって|また、|ただし|なお|例えば|たとえば|さらに|次に)",
    re.I,
)
"""Beginnings that depend on the sentence before."""
REMAINS = re.compile(
    r"\{\s*[#:%{.]|[%}]\}|\ufffd|\[\^|\[[1-9]\d{0,2}\]|\]\(|^\W*(?:!!!|:::|\||>|@|#)|^\W*$"
    r"|\b(?:in|on|at|to|the|via|from|with|of|for|an?|and|or|our|your|see) [.,;:)](?=\s|$)"
    r"|^[.,;:!?。，、；：！？]|(?<!\.)\.\.(?!\.)|[.。]。|。\s*\."
    rf"|[^\W\d_]- (?!(?:{'|'.join(AND)})\b)[^\W\d_A-ZÄÖÜ]",
)
"""Markup that was not understood, a lost character, or a hyphen that a line end left behind."""


def num_words(text: str) -> int:
    """Return the words of a text; where a script has no spaces between them, by the number of characters."""
    unspaced = len(UNSPACED.findall(text))
    spaced = UNSPACED.sub(" ", text).split() if unspaced else text.split()
    return sum(any(map(str.isalnum, word)) for word in spaced) + round(unspaced / CHARACTERS_PER_WORD)


def sentences(text: str) -> list[str]:
    """Whole sentences; a full stop after an abbreviation, an initial or a German ordinal ends none."""
    parts: list[str] = []
    start = 0
    for match in END.finditer(text):
        if ends_here(text[start : match.start()], match[0], text[match.end() :]):
            parts.append(text[start : match.end()].strip())
            start = match.end()
    return [*parts, rest] if (rest := text[start:].strip()) else parts


def ends_here(before: str, mark: str, after: str) -> bool:
    """Whether a sentence ends with `mark`."""
    if mark[0] in "。！？．｡":
        return all(before.count(opener) <= before.count(closer) for opener, closer in NESTED)
    following = after.lstrip(OPENERS)[:1]
    if following.islower() or (mark[0] == "." and ABBREVIATION.search(f"{before}.")):
        return False
    return not (re.search(r"\b\d{1,2}$", before) and MONTH.match(after))


def short_answer(text: str, most_sentences: int = 1) -> str | None:
    """Return the first sentence of a paragraph; None when it is too long, says too little or needs its neighbours.

    `most_sentences` above 1 adds the next ones while the answer has at most 40 words.
    """
    if spoken(text) or only_refers(text):
        return None
    parts: list[str] = []
    words = 0
    for sentence in sentences(text)[:most_sentences]:
        length = num_words(sentence)
        if parts and (words + length > WANTED_WORDS or INCOMPLETE.search(sentence)):
            break
        parts.append(sentence)
        words += length
    answer = " ".join(parts).rstrip(" ;；")
    if not LEAST_WORDS <= words <= MOST_WORDS or not re.search(r"[^\W\d_]{2}", answer) or not complete(answer):
        return None
    last = answer.rstrip(CLOSERS)[-1:]
    if last and last in ENDS and answer[-1] != "`":
        return answer
    # A full stop is added where none is, in the form of its script.
    return f"{answer}。" if len(re.findall(f"[{CJK}]", answer)) > CJK_SHARE * len(answer) else f"{answer}."


def complete(answer: str) -> bool:
    """Whether a sentence can be read alone."""
    if INCOMPLETE.search(answer) or POINTING.match(answer.lstrip(OPENERS)) or REMAINS.search(outside_code(answer)):
        return False
    if re.search(r"\{\s*#", answer) or answer.count("`") % 2:
        return False
    bare = outside_code(answer)
    pairs = (("(", ")"), ("[", "]"), *(QUOTED_LOW if "„" in bare else NESTED))
    return all(bare.count(opener) == bare.count(closer) for opener, closer in pairs)


def outside_code(text: str, replacement: str = "x") -> str:
    """Return the text with `replacement` in place of each code span."""
    return re.sub(r"`[^`]*`", replacement, text)
