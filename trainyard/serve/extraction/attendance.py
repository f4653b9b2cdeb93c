"""Attendees of a meeting: lists and tables of people as minutes have them.

    ## Present                          Attendees: Jane Doe (Acme), John Roe        | Name | Initials | Organisation |
    * Jane Doe (@jane) - Acme, CTO      Present:                                    |------|----------|--------------|
    * John Roe, Other Corp              - Jane Doe, Acme                            | Jane Doe | JD | Acme          |

A list says where a name begins, so a name may have more words here than in running text. What follows it, in
parentheses or after a comma or a dash, is an affiliation, a role, a handle, a remark or the person's own initials; only
the first is an organisation. Whether a comma separates people or a person from an organisation is decided by the list
as a whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.serve.extraction import names

LABELS = frozenset(
    {"present", "attendees", "attendee", "attendance", "participants", "participant", "attending", "attended", "guests"}
    | {"panelists", "invitees", "invited", "observers", "apologies", "regrets", "absent", "absentees", "excused"}
    | {
        "speakers",
        "presenter",
        "presenters",
        "facilitators",
        "scribes",
        "delegates",
        "teilnehmer",
        "teilnehmende",
        "anwesend",
    }
    | {"anwesende", "entschuldigt", "présents", "excusés", "asistentes", "presenti", "aanwezig", "deelnemers"}
)
NAME_COLUMNS = frozenset({"full name", "contact", "speaker", "presenter", "delegate", "member name", "contact person"})
MAYBE_NAME_COLUMNS = frozenset(
    {"name", "names", "member", "who", "person", "people", "representative", "owner", "lead"}
)
"""Columns of people when the list is one of those present, or another column is one that only people have."""
PEOPLE_HAVE = frozenset(
    {"email", "e-mail", "mail", "phone", "role", "title", "position", "initials", "abbreviation", "handle", "github"}
    | {"affiliation", "employer", "organisation", "organization", "company", "attendance", "present", "pronouns"}
)
COMPANY_COLUMNS = frozenset(
    {"affiliation", "affiliations", "employer", "organisation", "organization", "company", "org", "institution"}
    | {"firm", "represents", "representing"}
)
HEADING = re.compile(r"^ {0,3}(?P<level>#{1,6})[ \t]*(?P<label>[^#\n].{0,120}?)[ \t]*#*[ \t]*$")
ALONE = re.compile(r"^\s*(?:[*+\-]\s+)?(?P<mark>\*\*|__|)(?P<label>[A-Za-z][A-Za-z /&()]{2,60}?):?(?P=mark)\s*:?\s*$")
UNDERLINE = re.compile(r"^\s*(?:={3,}|-{3,})\s*$")
BULLET = re.compile(r"^\s*(?:[*+•\-–]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s*)?(?P<text>\S.*)$")
ROW = re.compile(r"^\s*\|(?P<cells>.*)\|\s*$")
RULE = re.compile(r"^[\s|:\-]*-[\s|:\-]*$")
LINK = re.compile(r"!?\[(?P<text>[^\[\]\n]{0,200})\]\([^()\n]{0,300}\)")
NOISE = re.compile(r"<[^<>\n]{0,200}>|\*\*|__|~~|`|(?<![\w(])@[\w\-]+|\b[\w.+\-]{1,64}@[\w\-]{1,64}(?:\.[\w\-]{1,64})+")
BRACKETS = re.compile(r"[(\[](?P<inside>[^()\[\]\n]{1,120})[)\]]")
ENTRY = re.compile(
    rf"(?P<name>{names.FULL_PERSON})(?P<rest>\s*[^\w\s].*|\s+(?:from|of|at|via|by|joined|joining|left|arrived)\b.*)?$"
)
GROUP = re.compile(r"^(?P<label>[^:,;()\n]{2,60}):\s+(?P<people>\S.*)$")
IN_ROLL = re.compile(rf"(?:^|[,;:])[ \t]*({names.FULL_PERSON})[ \t]*\([^()\n]{{1,60}}\)[ \t]*(?=[,;.]|$)")
OUTER = r"(?![^()\[\]]{0,200}[)\]])"
"""Not within brackets."""


@dataclass(frozen=True)
class Attendee:
    """A person of a list, and the organisation that the list gives for them; empty when it gives none."""

    name: str
    company: str = ""


def is_attendance(label: str) -> bool:
    """Whether a heading or a field's label is one of people who were there (or were not)."""
    words = names.WORD.findall(re.sub(r"\(.*?\)", " ", label.casefold().replace("_", " ")))
    if not 1 <= len(words) <= 6:
        return False
    return words[0] in LABELS or words[-1] in LABELS or " ".join(words[-2:]) == "roll call"


def sections(document: str) -> Iterator[list[str]]:
    """Yield the lines of each list of people that has a heading or a label of its own."""
    lines = document.splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        below = lines[index + 1] if index + 1 < len(lines) else ""
        if (heading := HEADING.match(line)) and is_attendance(heading["label"]):
            end = next_heading(lines, index + 1, len(heading["level"]))
            yield lines[index + 1 : end]
            index = end
        elif (alone := ALONE.match(line)) and is_attendance(alone["label"]):
            start = index + 1 + bool(UNDERLINE.match(below))
            end = end_of_list(lines, start)
            yield lines[start:end]
            index = max(end, index + 1)
        else:
            if is_roll(line):
                yield [line]
            index += 1


def is_roll(line: str) -> bool:
    """Whether a line without a label is a list of people: three or more, most of them with parentheses."""
    with_brackets = IN_ROLL.findall(line)
    return len(with_brackets) > 2 and len(with_brackets) * 2 > len(re.split(r"[,;]", line))


def next_heading(lines: list[str], start: int, level: int) -> int:
    """Where a heading of this level or a higher one is; headings below it divide the list (`### Remote`)."""
    for index in range(start, len(lines)):
        match = HEADING.match(lines[index])
        if match and len(match["level"]) <= level:
            return index
    return len(lines)


def end_of_list(lines: list[str], start: int) -> int:
    """Return the end of a list without a heading: the first blank line that no item follows, or the next label."""
    for index in range(start, len(lines)):
        line = lines[index]
        if HEADING.match(line) or (index > start and UNDERLINE.match(line)) or begins_another(line):
            return index
        if not line.strip():
            after = next((text for text in lines[index + 1 : index + 3] if text.strip()), "")
            if not BULLET.match(after) and not ROW.match(after) and not is_entry(clean(after)):
                return index
    return len(lines)


def begins_another(line: str) -> bool:
    """Whether a line is the label of something else, such as `Agenda:`."""
    match = ALONE.match(line)
    return match is not None and line.rstrip(" *_").endswith(":") and not is_attendance(match["label"])


def read_people(lines: list[str]) -> list[Attendee]:
    """Return the people of a list's lines: items, plain lines, or names in a row."""
    people: list[Attendee] = []
    plain: list[str] = []
    for entry in map(clean, join_items(lines)):
        group = GROUP.match(entry)
        if group and is_group(group["label"], group["people"]):
            company = "" if is_attendance(group["label"]) else names.company_name(group["label"])
            members = read_entries(separate([group["people"]]))
            people += [Attendee(member.name, member.company or company) for member in members]
        else:
            plain.append(entry)
    return read_entries(separate(plain)) + people


def is_group(label: str, people: str) -> bool:
    """`Acme: Jane Doe, John Roe`: more than one person follows, or the label itself is not a name."""
    return not is_entry(label) or ("," in people and all(is_entry(part) for part in people.split(",")))


def join_items(lines: list[str]) -> list[str]:
    """Return the items without their marks; a line that a comma ends continues in the next one.

    A plain line counts until the first item: what follows a list is text.
    """
    texts: list[str] = []
    items = False
    for line in lines:
        if HEADING.match(line) or ROW.match(line) or not line.strip():
            continue
        item = BULLET.match(line)
        text = item["text"] if item else line.strip()
        if texts and not item and texts[-1].endswith((",", ";", " and")):
            texts[-1] = f"{texts[-1]} {text}"
        elif item or not items:
            texts.append(text)
        items = items or item is not None
    return texts


def clean(entry: str) -> str:
    """Return an entry without links, addresses, handles and emphasis."""
    text = NOISE.sub(" ", LINK.sub(lambda match: match["text"], entry))
    text = re.sub(r"(?<=[^\W\d_])_(?=[^\W\d_])", " ", text)
    return " ".join(text.split()).strip(" ,;*_")


def separate(entries: list[str]) -> list[str]:
    """Return one entry for each person, with what the list says of that person."""
    rows = [re.split(rf"\s*;\s*{OUTER}" if ";" in entry else rf"\s*,\s*{OUTER}", entry) for entry in entries]
    divided = [";" in entry for entry in entries]
    described = are_described([row for row, semicolons in zip(rows, divided, strict=True) if not semicolons])
    persons: list[str] = []
    for entry, row, semicolons in zip(entries, rows, divided, strict=True):
        people = sum(is_entry(part) for part in row)
        if semicolons or (people > 1 and not described and people * 5 >= len(row) * 3):
            persons += [person for part in row for person in pair(part)]
        else:
            persons += pair(entry)
    return persons


def are_described(rows: list[list[str]]) -> bool:
    """Whether a comma leads from a person to an organisation or a role, in this list as a whole.

    Three lines or more of the same two parts are people with their organisations, also where those look like names.
    """
    divided = [row for row in rows if len(row) > 1]
    if len(divided) < 2:
        return False
    with_role = [row for row in divided if len(row) <= 3 and is_entry(row[0]) and not is_entry(row[1])]
    alike = len(divided) >= 3 and all(len(row) == 2 for row in divided)
    return alike or len(with_role) * 2 >= len(divided)


def is_entry(text: str) -> bool:
    match = ENTRY.match(text.strip())
    return match is not None and names.is_person(match["name"])


def pair(entry: str) -> list[str]:
    """`Jane Doe and John Roe` are two."""
    sides = re.split(rf"\s+(?:and|&)\s+{OUTER}", entry, maxsplit=1)
    return sides if len(sides) == 2 and all(is_entry(side) for side in sides) else [entry]


def read_entries(entries: list[str]) -> list[Attendee]:
    """Return the people of entries of one person each. Initials in parentheses are known by the whole list."""
    matches = [match for entry in entries if (match := ENTRY.match(entry.strip())) and names.is_person(match["name"])]
    insides = [[bracket["inside"].strip() for bracket in BRACKETS.finditer(match["rest"] or "")] for match in matches]
    initials = find_initials([(match["name"], inside) for match, inside in zip(matches, insides, strict=True)])
    return [
        Attendee(match["name"].strip(), affiliation(match["name"], inside, match["rest"] or "", initials))
        for match, inside in zip(matches, insides, strict=True)
    ]


def find_initials(entries: list[tuple[str, list[str]]]) -> frozenset[str]:
    """Which bracketed capitals abbreviate people.

    Initials belong to one person. When half of a list's different abbreviations fit their person, all of them do.
    """
    abbreviations = [
        (name, inside) for name, insides in entries for inside in insides if names.ABBREVIATION.fullmatch(inside)
    ]
    counts = Counter(inside for _, inside in abbreviations)
    single = [(name, inside) for name, inside in abbreviations if counts[inside] == 1]
    fitting = {inside for name, inside in single if names.is_abbreviation(inside, name)}
    if len(fitting) > 1 and len(fitting) * 2 >= len(single):
        return frozenset(inside for _, inside in single)
    return frozenset(fitting)


def affiliation(name: str, insides: list[str], rest: str, initials: frozenset[str]) -> str:
    """Return the first organisation of what follows a name."""
    outside = BRACKETS.sub(" ", rest).strip()
    separated = re.match(r"^(?:[,:/|–—\-]|from\b|of\b|at\b)\s*(?P<text>.*)$", outside)
    after = re.split(r"\s*[,;]\s*|\s+[/|–—\-]\s+", separated["text"] if separated else "")
    within = [part for inside in insides if inside not in initials for part in re.split(r"\s*[,;/]\s*", inside)]
    for part in [*within, *(part for part in after if not names.is_abbreviation(part, name))]:
        if names.is_address(part):
            break  # what follows a street is a place
        if company := names.company_name(part):
            return company
    return ""


def tables(document: str) -> Iterator[list[list[str]]]:
    """Yield the tables in pipes: rows of cells, the first one the header; without a header's rule it is not a table."""
    rows: list[list[str]] = []
    for line in [*document.splitlines(), ""]:
        if match := ROW.match(line):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", match["cells"])])
        else:
            if len(rows) > 2 and RULE.match("|".join(rows[1])):
                yield [rows[0], *rows[2:]]
            rows = []


def people_of_table(table: list[list[str]], *, listed: bool) -> list[tuple[Attendee, dict[str, str]]]:
    """(person, the row by its header) of a table; `listed`: it is within a list of those present."""
    header = [clean(cell).casefold() for cell in table[0]]
    columns = people_columns(header, listed=listed)
    companies = [index for index, label in enumerate(header) if label in COMPANY_COLUMNS]
    people: list[tuple[Attendee, dict[str, str]]] = []
    for row in table[1:]:
        cells = [clean(cell) for cell in row]
        by_header = dict(zip(header, cells, strict=False))
        full_name = " ".join(by_header.get(label, "") for label in ("first name", "last name") if label in header)
        texts = [full_name] if full_name.strip() else [cells[index] for index in columns if index < len(cells)]
        employer = next((names.company_name(cells[index]) for index in companies if index < len(cells)), "")
        for text in texts:
            for person in read_people([text]):
                people.append((Attendee(person.name, employer or person.company), by_header))
    return people


def people_columns(header: list[str], *, listed: bool) -> list[int]:
    sure = [index for index, label in enumerate(header) if label in NAME_COLUMNS or is_attendance(label)]
    maybe = [index for index, label in enumerate(header) if label in MAYBE_NAME_COLUMNS]
    if maybe and (listed or PEOPLE_HAVE & set(header)):
        return sorted({*maybe[:1], *sure}) if not listed else maybe[:1]
    if sure or not listed:
        return sure
    return [0]
