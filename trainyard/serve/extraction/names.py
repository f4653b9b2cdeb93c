"""How names are written: the shapes of persons' and organisations' names, and the words that are never part of one.

The rules know no list of names. They know the opposite: words of meetings, of groups and of roles that occur where a
name could be. In running text a document itself says more: a word that it also writes in lower case is a word.
"""

from __future__ import annotations

import re

UPPER = "A-Z" + "".join(chr(code) for code in range(0xC0, 0x530) if chr(code).isupper())
# Every repetition is bounded: a document of capitals only must not cost the square of its length.
W = rf"[{UPPER}][\w'’&\-]{{1,40}}"
PARTICLE = r"(?:[JS]r\.?|van|von|de|der|den|del|della|di|da|dos|du|la|le|el|al|bin|ben|ter|zu)"
TITLE = r"(?:(?:Dr|Mr|Ms|Mrs|Prof|Sir)\.?[ \t]+)"
NAME = rf"{W}(?:[ \t]+(?:{PARTICLE}|{W}|[A-Z]\.)){{0,5}}"
OWN = rf"[{UPPER}][\w'’\-]{{1,40}}"
PERSON = rf"{TITLE}?{OWN}(?:[ \t]+(?:{PARTICLE}|[A-Z]\.)){{0,3}}[ \t]+{OWN}"
FULL_PERSON = rf"{TITLE}?(?:{OWN}|[{UPPER}]\.)(?:[ \t]+(?:{PARTICLE}|{OWN}|[{UPPER}]\.?)){{0,4}}[ \t]+{OWN}"
"""With middle names: where a line or a cell says where the name begins."""
FORM = (
    r"(?:GmbH|AG|KG|KGaA|Inc\.?|Ltd\.?|LLC|LLP|PLC|Corp\.?|SA|S\.A\.|SE|SAS|SARL|S\.r\.l\.|S\.p\.A\.|SpA|BV|B\.V\.|NV|"
    r"N\.V\.|AB|Oy|Oyj|A/S|Pty|Limited|Corporation)"
)
INSTITUTION = (
    r"(?:Foundation|Institute|University|Association|Consortium|Federation|Society|Agency|Bank|College|Alliance|"
    r"Hospital|Initiative|Stiftung|Verband|Universität)"
)
COMPANY = re.compile(rf"\b(?P<name>{W}(?:[ \t]+(?:&|and|{W})){{0,5}}?[ \t]+{FORM})(?!\w)")
PART = rf"[{UPPER}][\w'’&\-]{{0,40}}(?:\.[\w\-]{{1,20}}){{0,3}}"
INSTITUTE = re.compile(rf"(?<![\w.])(?P<name>{PART}(?:[ \t]+(?:&|{PART})){{0,4}}?[ \t]+{INSTITUTION})(?![\w-])")
"""`Node.js Foundation`: an organisation by its last word; see `institute` for what precedes a name without being it."""

WORD = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*")
LOWER = re.compile(r"(?<![\w@/#.\-])[^\W\d_A-Z]{2,}(?![\w@/\-]|\.\w)")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DETERMINERS = words(
    "the a an our your their his her its this that these those each every any all both some no joint new former said "
    "same other another many most several few more if when while where for from with and or but in on at by as to"
)
GROUPS = words(
    "team teams board boards committee committees council councils group groups members member membership maintainers "
    "directors staff department division wg sig tsc tac pmc subcommittee taskforce panel chapter community cabinet "
    "collaborators contributors owners officers trustees delegates everyone everybody others observers guests"
)
ORGANISATIONS = words(
    "foundation institute university association consortium federation society agency college alliance hospital "
    "initiative corporation company limited gmbh inc ltd llc plc corp systems technologies solutions software labs "
    "holdings industries ventures partners networks authority ministry union commission office"
)
ROLES = words(
    "chair cochair chairs chairman chairwoman chairperson secretary treasurer president director manager lead leader "
    "engineer developer maintainer editor author architect analyst consultant designer researcher professor student "
    "intern advisor adviser coordinator administrator officer executive founder cofounder head owner representative "
    "delegate scribe minutes-taker notetaker note-taker facilitator moderator host presenter speaker observer guest "
    "expert specialist individual independent freelance freelancer unaffiliated self self-employed invited "
    "volunteer contributor collaborator counsel attorney sponsor liaison employee contractor assistant deputy acting "
    "vice senior junior ceo cto cfo coo cio ciso cmo cpo vp svp evp pm po tpm qa hr phd md mba msc bsc esq jr sr ii iii"
)
REMARKS = words(
    "remote remotely online zoom phone webex teams dial-in virtual virtually via in-person onsite on-site late left "
    "joined joining leaving arrived absent present excused regrets apologies maybe tentative optional proxy proxies "
    "voting non-voting he him his she her hers they them their theirs pronouns new first time part partial tbc tbd "
    "emeritus elected interim acting retired am pm utc pst est cet min mins minutes only until from after before"
)
TOPICS = words(
    "action actions agenda next meeting meetings minutes notes note decision decisions open follow project projects "
    "account accounts summary key research contact contacts status risk risks call calls weekly review reviews "
    "introduction introductions discussion discussions topic topics item items issue issues question questions answer "
    "answers announcement announcements update updates report reports recording links present absent regrets "
    "attendees attendance participants date time location plan plans proposal proposals draft drafts process "
    "processes policy policies code conduct charter election elections vote votes voting budget fund funds funding "
    "travel program programme programs summit conference workshop webinar event events session sessions release "
    "releases version versions feature features bug bugs docs documentation document documents guide website blog "
    "email mail list lists calendar security legal marketing finance "
    "technical engineering product products sales support customer customers client clients vendor vendors supplier "
    "suppliers second third last final general regular annual monthly quarterly daily today tomorrow yesterday monday "
    "tuesday wednesday thursday friday saturday sunday january february march july september october november "
    "december spring autumn source data model models test tests training appointments nominees nominations nomination "
    "application applications onboarding seat seats term terms requirements guidelines guidance resources resource "
    "overview background goals goal objectives timeline schedule deadline deadlines milestone milestones roadmap "
    "template templates checklist survey surveys feedback request requests pull merge commit commits repo repository "
    "license licence trademark governance bylaws standards standard specification spec specs proposal initiatives "
    "season working collaboration collab space spaces landscape infrastructure infra tooling tools tool "
    "how why what when where who which please see also todo warning important example examples thanks thank welcome "
    "housekeeping progression pass passes"
)
PRODUCTS = words("zoom slack github gitlab google youtube twitter linkedin facebook microsoft amazon jira discord")
"""Known to every reader of minutes, and never anybody's name."""
NEVER_PEOPLE = (
    GROUPS
    | ORGANISATIONS
    | TOPICS
    | PRODUCTS
    | (DETERMINERS - {"an", "new"})
    | (ROLES - {"po", "md", "jr", "sr", "ii", "iii"})
)
NO_NAME = re.compile(r"^(?:none|n/?a|tbd|tbc|unknown|open|yes|no|null|true|false|nobody|vacant|-+)$", re.IGNORECASE)
ABBREVIATION = re.compile(rf"[{UPPER}](?:\.?[{UPPER}0-9]){{1,3}}\.?")


def common_words(document: str) -> frozenset[str]:
    """The words that a document writes in lower case."""
    return frozenset(word for word in LOWER.findall(document) if word.islower())


def is_person(name: str) -> bool:
    """Whether a text of two words or more can be a person's name."""
    found = [word.casefold() for word in name.replace("_", " ").split()]
    plain = [word.strip(".,") for word in found]
    capital = [word for word in name.split() if word[:1].isupper()]
    return (
        len(plain) > 1
        and len(capital) > 1
        and not all(word.isupper() and len(word) < 5 for word in name.split())
        and not re.search(r"[\d@/]", name)
        and not any(word in NEVER_PEOPLE for word in plain)
    )


def is_person_in_text(name: str, common: frozenset[str]) -> bool:
    """The same in running text, where capitals also begin sentences and titles: most of it must not be common words."""
    found = [word for word in WORD.findall(name) if word[0].isupper()]
    return is_person(name) and sum(word.casefold() in common for word in found) * 2 < len(found)


def is_abbreviation_of(short: str, name: str) -> bool:
    """Whether capitals such as `JD` or `RPR` are made of a name.

    They begin with its first letter and have that of its last word, or are three letters of it or more in their order.
    """
    letters = short.replace(".", "").casefold()
    parts = [word.casefold() for word in WORD.findall(name)]
    if not ABBREVIATION.fullmatch(short) or len(parts) < 2:
        return False
    remaining = iter("".join(parts))
    in_order = len(letters) > 2 and all(letter in remaining for letter in letters)
    return letters[0] == parts[0][0] and (in_order or parts[-1][0] in letters[1:])


def institute(match: re.Match[str], common: frozenset[str]) -> str:
    """The organisation of an `INSTITUTE` match without what only precedes it; empty when nothing is left of its name.

    A determiner goes, and so does the capital that begins a line or a sentence when the document writes the word in
    lower case elsewhere.
    """
    found = match["name"].split()
    before = match.string[max(0, match.start() - 3) : match.start()].rstrip(" \t*_-")
    begins = not before or before[-1] in "\n.!?:"
    while len(found) > 1:
        first = found[0].casefold()
        if first not in DETERMINERS and not (begins and (first in common or first in TOPICS)):
            break
        found, begins = found[1:], False
    return " ".join(found) if any(word.casefold() not in TOPICS for word in found[:-1]) else ""


def company_name(text: str) -> str:
    """The organisation that an affiliation names; empty for a role, a committee, a handle, a remark or a sentence."""
    text = " ".join(text.split()).strip(" ,;:*\"'`()[]")
    if COMPANY.fullmatch(text):
        return text
    if found := INSTITUTE.match(text):
        return institute(found, frozenset())
    parts = text.split()
    plain = [part.casefold().strip(".,") for part in parts]
    if not 1 <= len(parts) <= 5 or NO_COMPANY.search(text) or not re.search(r"[^\W\d_]{2}|\d[^\W\d_]", text):
        return ""
    if any(word in NOT_COMPANIES for word in plain) or all(word in TOPICS or word in DETERMINERS for word in plain):
        return ""
    return text if all(is_capital(part) or part in CONNECTORS for part in parts) and is_capital(parts[0]) else ""


NOT_COMPANIES = GROUPS | ROLES | REMARKS
NO_COMPANY = re.compile(r"[@/\\:<>{}|=#?!_]")
CONNECTORS = frozenset({"of", "and", "the", "for", "de", "der", "des", "du", "und", "et", "&"})


def is_capital(word: str) -> bool:
    """`Acme`, `eBay`, `3M`: a capital among the first letters."""
    return any(letter.isupper() for letter in word[:3])
