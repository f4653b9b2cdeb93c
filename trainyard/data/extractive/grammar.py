"""Facts of each language for the rules: headings that say nothing, definitions, pointing words, questions."""

from __future__ import annotations

import json
import re
from pathlib import Path

from trainyard.data.language import CHINESE, ENGLISH, FRENCH, GERMAN, JAPANESE, SPANISH

LEXICON: dict[str, str] = json.loads(Path(__file__).with_name("lexicon.json").read_text(encoding="utf-8"))
"""Word lists of the questions: what words mean, where their tags do not say it."""


def word_set(name: str) -> frozenset[str]:
    """Return the words of a list."""
    return frozenset(LEXICON[name].split())


BARE = re.compile(
    "about|arguments|background|before you (?:begin|start)|changelog|contents|description|details|examples?|faq|"
    "further reading|introduction|license|links|misc|next steps|notes?|options|overview|parameters|references|returns|"
    "see also|summary|table of contents|usage|technical details|recap|conclusion|learn more|more info(?:rmation)?|"
    "step \\d+|schritt \\d+|étape \\d+|paso \\d+|步骤 ?\\d+|手順 ?\\d+|"
    "überblick|übersicht|einleitung|einführung|hinweise?|beispiele?|inhalt(?:sverzeichnis)?|zusammenfassung|siehe auch|"
    "technische details|mehr erfahren|verwendung|beschreibung|lizenz|optionen|hintergrund|allgemeines|"
    "détails techniques|récapitulatif|en savoir plus|aperçu|présentation|exemples?|remarques?|résumé|voir aussi|"
    "utilisation|sommaire|généralités|"
    "detalles técnicos|recapitulación|aprende más|introducción|resumen|ejemplos?|notas?|descripción|"
    "uso|véase también|contenido|índice|generalidades|"
    "技术细节|更多技术细节|了解更多|概述|概要|简介|介绍|说明|示例|例子|注意|备注|目录|参见|另请参[阅见]|背景|用法|总结|参数|选项|"
    "技術詳細|まとめ|はじめに|説明|例|備考|目次|関連項目|参照|使い方|まとめ",
    re.I,
)
"""Headings that say nothing without the one above them."""
REFERENCES = re.compile(
    "see also|further reading|related(?: \\w+)?|references|links|siehe auch|weiterführende links|verwandte themen|"
    "voir aussi|en savoir plus|liens|véase también|enlaces|más información|"
    "参见|另请参[阅见]|相关链接|参考(?:资料|文献)?|関連(?:項目|情報|ページ)|参照|参考",
    re.I,
)
"""Headings above a list of other pages."""
PLAIN_HEAD = re.compile(
    "|meanings?|means|descriptions?|what it (is|does|means)|definition|purpose|explanation|"
    "bedeutung|beschreibung|zweck|erklärung|signification|description|sens|rôle|"
    "significado|descripción|función|含义|说明|描述|意思|作用|意味|説明|内容",
    re.I,
)
"""Column heads that add nothing to their cell."""
KINDS = r"(?:a|an|the|one|what|how|any|each|every|those|set|called|used|made|that)"
DEFINITIONS = {
    ENGLISH: re.compile(
        rf"^(?:(?:A|An|The)\s+)?(?P<term>[`\"]?[\w][\w .+/`\"-]{{1,50}}?)\s+"
        rf"(?:is|are|means|denotes|refers to)\s+{KINDS}\b"
    ),
    GERMAN: re.compile(
        r"^(?:(?:Ein|Eine|Der|Die|Das)\s+)?(?P<term>[`„\"]?\w[\w .+/`“\"-]{1,50}?)\s+"
        r"(?:ist|sind|bedeutet|bezeichnet|heißt)\s+(?:ein|eine|der|die|das|dass|jede[rs]?|alle)\b"
    ),
    FRENCH: re.compile(
        r"^(?:(?:Un|Une|Le|La|Les)\s+|L[’'])?(?P<term>[`\"]?\w[\w .+/`\"’'-]{1,50}?)\s+"
        r"(?:est|sont|désigne|désignent|signifie)\s+(?:(?:un|une|le|la|les|des|que|tout|chaque)\b|l[’'])"
    ),
    SPANISH: re.compile(
        r"^(?:(?:Un|Una|El|La|Los|Las)\s+)?(?P<term>[`\"]?\w[\w .+/`\"-]{1,50}?)\s+"
        r"(?:es|son|significa|designa)\s+(?:un|una|el|la|los|las|que|cada|todo)\b"
    ),
    CHINESE: re.compile(
        r"^(?P<term>[^，。、：；:（(\s]{2,16}?)(?:（[^）]*）)?(?:是指|是一[种个款项类套]|是用[于来]|指的?是|表示)"
    ),
    JAPANESE: re.compile(r"^(?P<term>[^、。：；:（(]{2,24}?)(?:（[^）]*）)?とは[、,]?"),
}
"""How a sentence begins that says what its subject is."""
POINTERS = {
    ENGLISH: re.compile(
        r"\b(all|and|another|because|best|better|both|but|each|either|everything|first|following|former|good|he|here|"
        r"however|i|idea|if|it|its|last|latter|neither|no|none|nothing|one|only|or|others?|point|problem|reason|result|trade-?off|benefit|advantage|disadvantage|drawback|downside|"
        r"same|she|since|although|though|once|while|so|some|such|that|the|their|then|there|these|they|this|those|we|what|when|where|which|who|you)\b",
        re.I,
    ),
    GERMAN: re.compile(
        r"\b(alles?|auch|beide|das|dass|dem|den|der|des|die|dies\w*|er|es|grund|hier|ihr\w*|jede\w*|man|nichts|nur|"
        r"sein\w*|sie|so|solche\w*|was|wenn|wer|wie|wir|wo|ziel|problem)\b",
        re.I,
    ),
    FRENCH: re.compile(
        r"\b(autres?|aucun\w*|but|cel\w+|ces?|cet\w*|chaque|elles?|ils?|ici|je|leurs?|mais|nous|on|ou|problème|que|qui|"
        r"raison|rien|sa|ses|si|son|tous?|tout\w*|vous|y)\b",
        re.I,
    ),
    SPANISH: re.compile(
        r"\b(algun\w*|ambos|aquí|cada|cuando|ell[ao]s?|es[eao]s?|est[eao]s?|motivo|nada|objetivo|otr[ao]s?|pero|"
        r"problema|que|quien|razón|si|su|sus|tod[ao]s?|usted\w*|yo)\b",
        re.I,
    ),
    CHINESE: re.compile("这|那|它|其|此|该|我们|您|你|他|本|目的|原因|问题|如果|当"),
    JAPANESE: re.compile("これ|それ|あれ|この|その|あの|ここ|そこ|私|本|目的|理由|問題|もの|こと"),
}
"""Words that make a term depend on the text around it."""
ASKING = {
    CHINESE: re.compile("^(?:如何|怎样|怎么|为什么|为何|是否|什么)|(?:吗|呢|什么|怎么办|怎么做|为什么|多少|哪些)$"),
    FRENCH: re.compile(r"^(?:Comment|Pourquoi|Où|Quand|Quel(?:le)?s?|Que faire)\b"),
    SPANISH: re.compile(r"^(?:Cómo|Por qué|Dónde|Cuándo|Cuál(?:es)?|Qué)\b"),
}
"""Headings that are questions without a question mark."""


JAPANESE_ENDINGS = {
    re.compile("(?:ですか|ますか|でしょうか|ませんか)$"): "？",
    re.compile("とは$"): "何ですか？",
    re.compile("[うくぐすつぬぶむる]には$"): "どうすればよいですか？",
}
"""How a Japanese heading that asks ends -> what makes it a whole question."""
COLONS = {FRENCH: " : ", CHINESE: "：", JAPANESE: "："}
"""Where it is not ": "."""


MOST_TASK_HEADING = 9
TASK_OBJECT = re.compile(r"(?:the|an?|your|my|our|all|new|any|up|out|multiple|existing|another|more|`)(?: |\w*`)", re.I)
"""What follows a verb, not a noun: "Create a group", but "Test results"."""
NO_TASK = re.compile(
    r"\b(?:guidelines?|process(?:es)?|polic(?:y|ies)|tools?|requirements?|criteria|hours|procedures?|plans?|standards?|"
    r"environments?|guides?|rules|principles|practices|strateg(?:y|ies)|options|expectations|responsibilities|basics|"
    r"tips|resources|notes|errors?|issues|problems|limits|levels?|strategy|committee|experience|mode|methods?)$",
    re.I,
)
"""The end of a heading that begins with an adjective: "Reporting guidelines"."""


def as_question(heading: str, language: str) -> str | None:
    """Return the question that a heading is, with its mark; None for a heading that is none."""
    if heading[-1:] in "?？؟" and len(heading) > 1:
        return heading
    if language == ENGLISH and (how := re.fullmatch(r"How to ([a-z].*)", heading)):
        return f"How do I {re.sub(r'[Yy]our ', 'my ', how[1])}?"
    if language == JAPANESE:
        return next((f"{heading}{tail}" for ending, tail in JAPANESE_ENDINGS.items() if ending.search(heading)), None)
    if language in ASKING and ASKING[language].search(heading):
        return {CHINESE: f"{heading}？", FRENCH: f"{heading} ?", SPANISH: f"¿{heading}?"}[language]
    return None


def as_task(heading: str) -> str | None:
    """Return "How do I create a group?" for the English headings "Create a group" and "Creating a group"."""
    words = heading.split()
    if (
        not 2 <= len(words) <= MOST_TASK_HEADING
        or not words[0].isalpha()
        or re.search(r"[?:;!()\[\]/–—]| - |\d$", heading)
    ):
        return None
    first, rest = words[0].lower(), " ".join(words[1:])
    commands = word_set("en_commands")
    if first not in commands:
        bases = [first[:-3], f"{first[:-3]}e", first[:-4]] if first.endswith("ing") and len(first) > 5 else []
        first = next((base for base in bases if base in commands), "")
        if not first or NO_TASK.search(rest):
            return None
    elif not TASK_OBJECT.match(rest):
        return None
    if re.match(r"(?:and|or|with|is|are|in|at|of)\b", rest) or first in ("do", "be", "let"):
        return None
    return f"How do I {first} {re.sub(r'[Yy]our ', 'my ', rest)}?"


def definition_subject(sentence: str, title: str) -> str | None:
    """ "the Hazel filter" of "The Hazel filter is the mesh …", if that is what the title names. English only."""
    match = re.match(rf"(?P<article>A |An |The )?(?P<name>{re.escape(title)}) is {KINDS}\b", sentence, re.I)
    return f"{(match['article'] or '').lower()}{match['name']}" if match else None
