"""Checks of an answer: it needs no neighbours, is not cut, and says more than its question. English and German."""

from __future__ import annotations

import re

from trainyard.data.extractive import sentences
from trainyard.data.extractive.grammar import word_set
from trainyard.data.language import ENGLISH, GERMAN

STEM = 5
LEANS = {
    ENGLISH: re.compile(
        r"^(?:e\.?g\.?,|others?:|besides|later,|further,|on the other hand|first(?:ly)?,|in the same |"
        r"an? (?:more|less) |the (?:second|third) [a-z]+s\b|"
        r"either way|ah\b|oh\b|well,|yes\b|no,|okay|ok,|sure,|it looks like|"
        r"in the (?:file|example|case|list) above|(?:to|in order to|by) \w+(?: \w+)? (?:this|these|those)\b|"
        r"(?:\w+ )?(?:features|benefits|advantages|examples|options|reasons|drawbacks|ideas|suggestions) "
        r"(?:include|are)|"
        r"there are (?:some|several|many|a (?:few|number|couple)|two|three|four|five|various) \w+|"
        r"to do (?:this|so|that)|another|as an alternative|alternatively|instead|notable examples|"
        r"(?:good )?examples (?:are|include)|"
        r"(?:the|an?) (?:last|first|second|third|other|next|same|final) (?!time|name|version|day|week|month|"
        r"step)\w+ (?:is|are|was|can|should|will)\b|"
        r"(?:\w+, )?(?:that|this|these|those) \w+|also|additionally|again|finally|lastly|second(?:ly)?|"
        r"third(?:ly)?|next|then|"
        r"unlike (?:this|that|the above)|(?:the|these|those) (?:first|last|other|same|above|former|"
        r"latter) (?:two|three|one|options?)|"
        r"(?:my|our) (?:\w+ )?(?:recommendation|suggestion|advice|approach|answer|goal|aim|example|solution)|"
        r"(?:in|for|with|at|on|by|after|before|from|because of|due to|given|as) (?:this|that|these|those|such|"
        r"all (?:this|that|of))|"
        r"(?:the|this|that|these|those|such) (?:reason|idea|result|answer|solution|alternative|exception|"
        r"difference|latter|former)\b|"
        r"(?:either|neither|both|each|none|some|most|many|all) of (?:these|those|them|this)|"
        r"(?:he|she|it|they|this|these|those|its|their|his|her)\b)"
        r"|\b(?:first|last|previous|other|above|remaining) (?:two|three|four) \w+"
        r"|\b(?:for|of|with|about|against|by|from|in|on|to|like|than|before|after|without) (?:this|these|"
        r"those)(?=[\s]*[.,;:!)]|$)"
        r"|\b(?:next|following|later|upcoming|previous|earlier|preceding) (?:chapters?|sections?|pages?|"
        r"steps?|paragraphs?|examples?|tutorials?|articles?|lessons?)\b|\blast (?:tutorial|article|lesson|chapter)\b"
        r"|\b(?:as|we) (?:already )?(?:explained|described|mentioned|discussed|noted|seen|outlined|stated|"
        r"saw)\b(?! (?:in|by) )"
        r"|\b(?:mentioned|described|discussed|listed|shown|defined|given|created|outlined|provided) (?:above|below|"
        r"earlier|previously|here)\b"
        r"|\b(?:let['’]s|let us) (?:say|assume|suppose|look|see|imagine|try)\b|\bin this (?:case|example|"
        r"situation|way)\b(?<!^)"
        r"|\baforementioned\b|\b(?:none|all|any|one|some|most) of the above\b|"
        r"\beither of (?:these|those)\b|\bthe below\b|\bsee [a-z ]{0,20}below\b"
        r"|\b(?:does|do|doing) so\b|\bthe (?:former|latter)\b|^here\b"
        r"|^(?!if|when|once|whenever|unless)(?!to |by |in order)[^;:]*\b(?:this|these|those)\b(?! (?:page|"
        r"guide|document|section|project|handbook|site|"
        r"website|repository|repo|tutorial|chapter|documentation|policy|directive|module|function|manual|book|"
        r"playbook|standard)\b)"
        r"|\bthis (?:situation|problem|approach|method|step|command|example|behaviou?r|case)\b",
        re.I,
    ),
    GERMAN: re.compile(
        r"^(?:weiterführend|darüber hinaus|mit ?hilfe|(?:die|das|der) (?:letzte|erste|zweite|dritte|andere|"
        r"nächste)n? \w+|"
        r"nichtsdestotrotz|zum anderen|andererseits|eine? (?:weitere|andere)\w*|auch (?:hier|dort|dies\w*|das|"
        r"wenn|dann|in|bei|für)|unabhängig (?:davon|hiervon)|ebenso|ebenfalls|dennoch|trotzdem|"
        r"dagegen|deswegen|darüber|davon|darunter|darin|daraus|daran|darauf|anschließend|abschließend|"
        r"schließlich|danach|vorher|"
        r"zuvor|zusätzlich|weiterhin|weitere\w*|ferner|letztere\w*|erstere\w*|ansonsten|stattdessen|beide\w*|andere\w*|"
        r"(?:bei|mit|für|von|in|an|auf|aus|nach|zu) (?:dies\w*|denen|ihm|ihr|ihnen) |"
        r"(?:bei|mit|für|von|in|an|auf|aus) (?:denen|dies\w*)\b|unser\w* (?:Empfehlung|Tipp|Ziel|Vorschlag)|"
        r"(?:er|ihre?|sein\w*|das|dies\w*|dort|hier\w*|daher|deshalb|damit|dabei|dafür|dazu|so|wie schon|"
        r"wie bereits|wie oben)\b)"
        r"|\bdies(?:e[rsmn]?|es)? (?:Situation|Problem\w*|Fall|Fälle\w*|Schritt\w*|Beispiel\w*|Stelle|Zweck|"
        r"Grund|Weise|Art|"
        r"Möglichkeit\w*|Methode\w*|Befehl\w*)\b|\b(?:vorher|dort|zuvor|oben|hier|eben|gerade) \w+(?:t|en)e[nmrs]?\b"
        r"|\b(?:dennoch|trotzdem|hier)\b|^(?!wenn|falls|sofern|sobald|um)[^,;:]*\b(?:diese[rsmn]?|"
        r"solche[rsmn]?|dieser)\b"
        r"(?! (?:Seite|Anleitung|Dokument\w*|Handbuch\w*|Leitfaden\w*|Projekt\w*|Website|Kapitel\w*|Webseite)\b)"
        r"|\b(?:nächste|folgende|nachfolgende|vorherige|vorige|letzte|obige)[nrsm]? (?:Kapiteln?|Abschnitt\w*|"
        r"Seiten?|Schritt\w*|Beispiel\w*)\b"
        r"|\bwie (?:schon|bereits|oben|zuvor|vorher|eben)\b",
        re.I,
    ),
}  # fmt: skip
"""How a sentence shows that it needs the text around it."""
FORMAL = re.compile(
    r"^Sie (?:können|müssen|sollten|sollen|dürfen|möchten|benötigen|brauchen|erhalten|finden|sehen|wählen|"
    r"haben|klicken|"
    r"geben|öffnen|wollen|gelangen|bekommen|legen|tragen|nutzen|verwenden)\b"
)
EXAMPLE = re.compile(
    r"\b(?:let['’]s say|suppose|imagine|assume|consider|nehmen wir an|angenommen)\b"
    r"|\b(?:next|following|later) (?:chapter|section|page|step)s?\b|\bnächsten (?:Kapiteln?|Abschnitt\w*)\b",
    re.I,
)
"""What begins an example of several sentences, or points to a later part."""
ADDS = re.compile(r"\b(?:also|too|auch|ebenfalls)\b")
"""What makes a sentence an addition to those before it."""
AS_WELL = re.compile(r"\bas well\W*$")
SHE_IT = re.compile(
    r"^(?!Wenn|Falls|Sofern|Sobald|Um|Wer|Bevor)[^,;:]*\b(?:sie|ihnen|ihn|ihm|dies|denen|deren|dessen|"
    r"hier(?:bei|zu|für|mit|von))\b"
)
"""A German pronoun in the first part of a sentence."""
CUT = re.compile(
    r"(?:^|\W)(?:or|and|the|an?|und|oder|sowie|der|die|das|den|dem|von|mit|für|zu[rm]?|e\.g|z\.\s?B)\W*[.:]$"
)
NOT_ONLY = re.compile(r"\b(?:not (?:only|just)|nicht nur)\b", re.I)
SNIPPET = re.compile(
    r"\b(?:this|that|these|the (?:above|following|previous)) "
    r"(?:snippet|screenshot|image|diagram|example|code|table)s?\b",
    re.I,
)
"""References to something outside of the text."""
LOST_ICON = re.compile(r"\b(?:click|press|tap|select|hit|use)(?:ing)? (?:on )?the (?:button|icon|symbol)\b", re.I)
"""A button whose picture is not in the text."""
EARLIER = re.compile(r"\bmentioned (?:above|earlier|previously|before)\b|\bthe above (?!\d)", re.I)
HALF = (
    (re.compile(r"\bnot (?:only|just|merely)\b", re.I), re.compile(r"\b(?:but|also|too|instead|as well)\b|;", re.I)),
    (re.compile(r"\bnicht (?:nur|allein)\b"), re.compile(r"\b(?:sondern|auch)\b")),
    (re.compile(r"\b(?:[Ee]inerseits|[Zz]um einen)\b"), re.compile(r"\b(?:andererseits|[Zz]um anderen)\b")),
    (re.compile(r"\b[Oo]n (?:the )?one hand\b"), re.compile(r"\b[Oo]n the other\b")),
)
"""First half of a statement, and how its second half begins."""
GLUED = {
    ENGLISH: re.compile(r"(?<=[a-z]) (?:The|This|These|If|When|You|We|It) [a-z]"),
    GERMAN: re.compile(
        r"(?<=[a-zäöüß\d]) (?:Die|Der|Das|Den|Dem|Im|Am|Auf|Bei|Mit|Nach|Wenn|Falls|Um|Für|Es|Hier|Klicken|Wählen|"
        r"Öffnen|Geben|Legen) [a-zäöüA-ZÄÖÜ]"
    ),
}
"""A heading or a line that runs into the sentence after it."""
MARKUP = re.compile(r"<%|%>|\{\{|\}\}|\{%|%\}|</?\w+>|\[\[|\]\]|@(?:sec|fig|tbl|eq)-")
FUNCTION_WORDS = word_set("function_words")


def leans(sentence: str, language: str) -> bool:
    """Whether a sentence needs the one before it, or points to another place of the page."""
    text = sentence.strip().lstrip(sentences.OPENERS)
    if any(first.search(text) and not second.search(text) for first, second in HALF):
        return True
    if language == GERMAN and re.match(r"Sie ", text) and not FORMAL.match(text):
        return True
    if language == GERMAN and SHE_IT.search(text):
        return True
    pattern = LEANS.get(language)
    return bool(pattern and pattern.search(re.sub(r"`[^`]*`", "x", text)))


def stems(text: str) -> set[str]:
    words = re.findall(r"[^\W_]+", text.lower())
    return {word[:STEM] for word in words if word not in FUNCTION_WORDS}


def is_fresh(answer: str, question: str, least: int) -> bool:
    """Whether an answer has `least` words that its question does not contain, or a new name, number or code."""
    question_stems, answer_stems = stems(question), stems(answer)
    fresh = {stem for stem in answer_stems if stem not in question_stems}
    if len(fresh) >= least or (len(fresh) > 1 and len(fresh) * 2 > len(answer_stems)):
        return True
    if re.match(r"(?:Which|Who) ", question) and fresh:
        return True
    marks = re.findall(r"`[^`]+`|\w*\d[\w.,]*|\w+://\S+|(?<=\w )[A-Z][\w-]*[A-Z]\w*", answer)
    return any(mark.lower() not in question.lower() for mark in marks)


def is_whole(answer: str, language: str) -> bool:
    """Whether an answer is not cut, has no markup and begins like a text of its own."""
    if re.search(r":\s*\d+\.$", answer) or CUT.search(answer) or MARKUP.search(sentences.outside_code(answer)):
        return False
    if (glued := GLUED.get(language)) and glued.search(sentences.outside_code(answer)):
        return False
    if language == ENGLISH and LOST_ICON.search(answer):
        return False
    first, *rest = sentences.sentences(answer)[:6] or [""]
    if leans(first, language) or ("```" not in answer and any(map(SNIPPET.search, rest))):
        return False
    return not (rest and EXAMPLE.search(rest[-1]))
