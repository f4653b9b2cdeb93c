"""Text without a page's visual marks: anchors, footnote marks, speaker labels, references.

Code spans (between backticks) are left as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

# A pattern that begins with spaces looks behind first: it would otherwise start again at each of a thousand of them.
SPACES = re.compile(r"\s+")
CODE_SPAN = re.compile(r"(`+[^`]*`+)")
ATTRIBUTES = re.compile(r"(?<!\s)\s*(?:\{:?\s*[#.][\w:.-]+(?:\s[^{}]*)?\}|\{:\s*[\w-]+=[^{}]*\})")
"""`{#anchor}`, `{: #anchor .note}`, `{:target="_blank"}` and `{.class}` of kramdown, Pandoc, MkDocs and Hugo."""
SHORTCODE = re.compile(
    r"\{\{[<%][^{}]{0,500}?\btext=[\"“]([^\"”]{0,500})[\"”][^{}]{0,500}[>%]\}\}|(?:^\s*)\{\{[<%][^{}]*[>%]\}\}"
)
TEMPLATE_TAG = re.compile(r"\{%-?[^{}]{0,500}%\}|@(?:include|link)\([^()\s]{1,80}\)")
"""Tags of Jekyll and other site builders."""
INNER_TAG = re.compile(rf"(?<=[a-z,] )(?:{TEMPLATE_TAG.pattern}|{{{{[^{{}}]{{0,200}}}}}})(?=[\s.,;:)])")
LOST = "\ufffd"
"""In place of a tag inside of a sentence: what it would print is not known."""
LATEX_REFERENCE = re.compile(
    r"\s?\((?:s\.|siehe|vgl\.|see|cf\.)?\s?(?:Abb\.|Abbildung|Tab\.|Tabelle|Fig\.|Figure|Table)?\s?\\ref\{[^{}]{1,80}\}\)"
)
"""A reference in brackets to a picture or table, as LaTeX has it."""
CHECKBOX = re.compile(r"^\s*\[[ xX]\]\s+|\s?\[\]")
"""The box of a task list, and a reference that a site builder left empty."""
FOOTNOTES = (
    re.compile(r"\s?\[\^[^\]\s]{1,60}\]"),
    re.compile(r"(?<![\w\]])\s?\[[1-9]\d{0,2}(?:\s?[,–-]\s?\d{1,3})*\](?![(:])"),
    re.compile(r"(?<=[^\W\d_])\[[1-9]\d{0,2}(?:\s?[,–-]\s?\d{1,3})*\](?![(:])"),
    re.compile(r"(?<=[^\W\d_]{3})[¹²³⁰⁴-⁹]+|(?<=[.,;:!?)»”\"。，、！？）」])[¹²³⁰⁴-⁹]+"),
    re.compile(r"(?<!\S)[¹²³⁰⁴-⁹]+"),
    re.compile(r"\s?[†‡]"),
    re.compile(r"(?<=[^\W\d_]{3})\*{1,3}(?=[\s.,;:)。，、]|$)"),
    re.compile(r"\s?[（(\[［〔]\s*(?:※|\*|注|脚注|註)\s*\d{1,2}\s*[)）\]］〕]|\s?※\s?\d{1,2}|(?<=\w)\*\d{1,2}(?!\w)"),
)
VARIABLE = re.compile(r"\{\{[^{}]{0,100}\}\}")
"""A variable of a site builder in place of a heading."""
PILCROW = re.compile(r"(?<!\s)\s*[¶§🔗]\s*$|(?<!\s)\s+#+\s*$")
"""The link to itself that documentation tools put behind a heading."""
LABEL = re.compile(
    r"^(?:[\[(]?\d{1,2}:\d{2}(?::\d{2})?[\])]?(?:\s*[-–])?\s*)?"
    r"(?P<label>[^\W\d_][\w.’'() -]{0,40}?)\s?(?::\s+|：\s*)(?=\S)"
)
TIMED = re.compile(r"^[\[(]?\d{1,2}:\d{2}(?::\d{2})?[\])]?\s")
SPEAKER = re.compile(
    r"(?:presenter|speaker|co-?host|moderator|narrator|interviewer|interviewee|announcer|audience|voice-?over|caller|"
    r"q|a|question|answer|"
    r"sprecher(?:in)?|moderator(?:in)?|referent(?:in)?|vortragende[r]?|erzähler(?:in)?|frage|antwort|"
    r"présentateur|présentatrice|animateur|animatrice|intervenante?|narrateur|question|réponse|"
    r"presentadora?|ponente|narradora?|moderadora?|instructora?|pregunta|respuesta|"
    r"主持人|讲者|讲师|演讲者|主讲人|发言人|旁白|提问者|问|答|司会(?:者)?|講師|発表者|話者|ナレーター|質問|回答)"
    r"(?: ?(?:\d{1,2}|[A-Z]|[一二三四五]))?(?: ?\([^)]*\))?",
    re.I,
)
REFERENCE = re.compile(
    r"(?:see(?:,)? also|see|related(?: pages| topics| articles| links)?|read more|more information|further reading|"
    r"learn more|next(?: steps?| page)?|previous|back to|"
    r"siehe(?: auch| dazu)?|vergleiche|weitere informationen|mehr dazu|verwandte themen|"
    r"voir(?: aussi| également)?|en savoir plus|pour plus d’informations|"
    r"véase(?: también)?|ver también|consulte también|más información|"
    r"另请参[阅见]|另见|参[见阅考]|請參閱|相关(?:内容|链接|主题|文章)|関連(?:項目|情報|ページ|記事|リンク)|参照|参考)\s*[:：]"
    r"|see also\b|siehe auch\b|voir (?:aussi|également)\b|véase(?: también)?\b|ver también\b"
    r"|(?:see|refer to|siehe|voir|véase) |(?:另请参[阅见]|另见|请?参[见阅]|請參閱|参照|参考)",
    re.I,
)
"""How a line begins that only names other pages."""
FOOTNOTE_BODY = re.compile(
    r"\[\^[^\]\s]+\]:|[¹²³⁰⁴-⁹†‡]|\[[1-9]\d{0,2}\]\s|\*{1,3}\s?\d|※\s?\d|[\[（(]?(?:注|脚注|註)\s?\d{1,2}[\]）):：\s]"
)
"""How a footnote begins."""
AND = ("and", "or", "to", "und", "oder", "bis", "et", "ou", "y", "o")
"""What may follow the hyphen of a shared word, as in "short- and long-term"."""
NOTE = re.compile("^(?:[※*\u2600-\u27bf\U0001f300-\U0001faff]\ufe0f?\\s*)+")
"""A sign that draws the eye to a paragraph."""
EMPHASIS = re.compile(r"\*\*([^*\n]{1,200})\*\*")
"""CommonMark leaves these as they are next to a Chinese character."""


def tidy_text(text: str) -> str:
    """Return the text without anchors, footnote marks and soft hyphens, with single spaces."""
    parts = CODE_SPAN.split(text.replace("\u00ad", "").replace("\u200b", ""))
    for index, part in enumerate(parts[::2]):
        text = SHORTCODE.sub(lambda match: match[1] or "", EMPHASIS.sub(r"\1", part))
        text = INNER_TAG.sub(LOST, text)
        for mark in (ATTRIBUTES, TEMPLATE_TAG, LATEX_REFERENCE, CHECKBOX, *FOOTNOTES):
            text = mark.sub("", text)
        parts[2 * index] = text
    return SPACES.sub(" ", "".join(parts)).strip()


def tidy_heading(text: str) -> str:
    """Return `tidy_text` of a heading, which documentation tools end with a link to itself."""
    return PILCROW.sub("", tidy_text(VARIABLE.sub("", text))).strip()


def speakers_of(paragraphs: Iterable[str]) -> set[str]:
    """The labels with which several paragraphs begin: the people of a transcript, or a mark that says nothing."""
    labels = Counter(match["label"] for paragraph in paragraphs if (match := LABEL.match(paragraph)))
    return {label for label, count in labels.items() if count > 1}


def spoken(text: str, speakers: Collection[str] = ()) -> bool:
    """Whether a text is something that a person says in a transcript; a definition continues in small letters."""
    label = LABEL.match(text)
    if label is None or text[label.end()].islower():
        return bool(TIMED.match(text))
    return label["label"] in speakers or bool(SPEAKER.fullmatch(label["label"]) or TIMED.match(text))


def only_refers(text: str) -> bool:
    """Whether a text does nothing but name other pages."""
    return bool(REFERENCE.match(text))


def without_label(text: str) -> str:
    """Return a paragraph without the label before its first sentence: "Note: Close the lid." gives "Close the lid."."""
    text = NOTE.sub("", text)
    label = LABEL.match(text)
    return text[label.end() :] if label and not text[label.end()].islower() else text


def join_line_ends(text: str) -> str:
    """Return the text of a printed page with the words joined that a line end cut in two.

    A hyphen stays if the page has the word with one in the middle of a line, or if the next line begins with a capital.
    """
    whole = Counter(word.lower() for word in re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)*", text))

    def join(match: re.Match[str]) -> str:
        first, second = match[1], match[2]
        if second in AND:
            return f"{first}- {second}"
        hyphened = f"{first}-{second}".lower()
        has_hyphen = not second[0].islower() or (whole[hyphened] and not whole[f"{first}{second}".lower()])
        return f"{first}{'-' if has_hyphen else ''}{second}"

    return re.sub(r"(?<![\w-])([^\W\d_]{2,}|[^\W\d_]+-[^\W\d_]+)[-\u2010\u00ad]\n[ \t]*([^\W\d_]+)", join, text)
