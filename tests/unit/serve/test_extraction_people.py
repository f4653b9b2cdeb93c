"""The rules on lists, tables and nested names of people: who is one, and which organisation stands next to them."""

from __future__ import annotations

import pytest

from trainyard.serve.extraction import rules
from trainyard.serve.extraction.extraction import RULES, RULES_VERSION, version
from trainyard.serve.extraction.names import company_name, is_abbreviation, is_person

Pairs = dict[str, str]


def people(text: str) -> Pairs:
    """Each person with the organisation that the rules join them to; empty without one."""
    extraction = rules.extract(text)
    employers = {
        relation["source"]["name"]: relation["target"]["name"]
        for relation in extraction["relations"]
        if relation["kind"] == "works_at"
    }
    return {
        entity["name"]: employers.get(entity["name"], "")
        for entity in extraction["entities"]
        if entity["kind"] == "person"
    }


def companies(text: str) -> set[str]:
    return {entity["name"] for entity in rules.extract(text)["entities"] if entity["kind"] == "company"}


TABLE = """
| Name               | Abbreviation | Organization   |
| ------------------ | ------------ | -------------- |
| Ann Ebert          | AET          | Brightwater    |
| Waldo van den Berg | WVB          | Invited Expert |
| [Rob Polder](https://example.org/rob) | RPR | Red Kite |
"""
LISTS = {
    "handles": (
        "## Present\n\n* Jane Doe (@jane)\n* John Roe (@jroe) - Acme, Node TSC\n* Max Samson\n",
        {"Jane Doe": "", "John Roe": "Acme", "Max Samson": ""},
    ),
    "organisations in parentheses": (
        "Attendees:\n\n- Jane Doe (IBM)\n- John Roe (IBM)\n- Ian Bell Miller (IBM)\n- Tom Otter (CTO)\n",
        {"Jane Doe": "IBM", "John Roe": "IBM", "Ian Bell Miller": "IBM", "Tom Otter": ""},
    ),
    "name, organisation": (
        "### Attendees\n- Jane Doe, Google\n- Max Samson, Red Hat\n- Tim Otter, VMware\n- Ellen Quist\n",
        {"Jane Doe": "Google", "Max Samson": "Red Hat", "Tim Otter": "VMware", "Ellen Quist": ""},
    ),
    "organisations that look like names": (
        "**Participants**\n1. Jane Doe, Bell Harbour\n2. Max Samson, Red Hat\n3. Tim Otter, Blue Kite\n",
        {"Jane Doe": "Bell Harbour", "Max Samson": "Red Hat", "Tim Otter": "Blue Kite"},
    ),
    "a row of names": (
        "Present: Jane Doe, John Roe,\n  Max Samson and Ann Ebert\nRegrets: Tim Otter\n",
        {"Jane Doe": "", "John Roe": "", "Max Samson": "", "Ann Ebert": "", "Tim Otter": ""},
    ),
    "semicolons": (
        "Participants: Jane Doe, Acme; John Roe, Bell Labs; Max Samson (remote)\n",
        {"Jane Doe": "Acme", "John Roe": "Bell Labs", "Max Samson": ""},
    ),
    "by organisation": (
        "## Participants\n\n- Google: Jane Doe, John Roe\n- Chair: Ann Ebert\n",
        {"Jane Doe": "Google", "John Roe": "Google", "Ann Ebert": ""},
    ),
    "no label": (
        "Jane Doe (Acme), John Roe (Acme), Max Samson (Bell Labs)\n\nText.\n",
        {"Jane Doe": "Acme", "John Roe": "Acme", "Max Samson": "Bell Labs"},
    ),
    "indented": (
        "    Members Present:\n\n      Jane Doe\n      John Roe - joined at 10:15\n\n    Absent:\n\n      none\n",
        {"Jane Doe": "", "John Roe": ""},
    ),
    "a table": (
        f"**Attendees:**\n{TABLE}",
        {"Ann Ebert": "Brightwater", "Waldo van den Berg": "", "Rob Polder": "Red Kite"},
    ),
    "a table with a role": (
        "| Name | Role |\n|---|---|\n| Jane Doe | CTO |\n| Project Board | Chair |\n",
        {"Jane Doe": ""},
    ),
    "letters of other languages": (
        "## Anwesend\n- Jörg Öztürk (Müller AG)\n- Łukasz Żak, Acme\n- J. Doe\n- Dr. Eva von Au – Universität Ulm\n",
        {"Jörg Öztürk": "Müller AG", "Łukasz Żak": "Acme", "J. Doe": "", "Dr. Eva von Au": "Universität Ulm"},
    ),
    "underscores": ("Present: Jane_Doe, Max_Samson, someone\n", {"Jane Doe": "", "Max Samson": ""}),
    "groups are no people": (
        "## Present\n* Blue Foundation Maintainers\n* Board of Directors\n* Review Team\n\n* Jane Doe\n",
        {"Jane Doe": ""},
    ),
    "text after the list": (
        "## Present\n* Jane Doe\n\nBlue Kite is late.\n\n## Participants\n\nMean Age was 20.\n",
        {"Jane Doe": ""},
    ),
}


@pytest.mark.parametrize("list_name", LISTS)
def test_a_list_of_those_present(list_name: str) -> None:
    text, expected = LISTS[list_name]
    assert people(text) == expected


def test_a_role_column_becomes_an_attribute() -> None:
    (entity,) = rules.extract("| Name | Role |\n|---|---|\n| Jane Doe | CTO |\n")["entities"]
    assert entity["attributes"] == {"role": "CTO"}


def test_a_table_of_other_things_names_nobody() -> None:
    assert people("| Name | Status |\n|---|---|\n| Blue Kite | open |\n") == {}


@pytest.mark.parametrize(
    "text",
    [
        "## Present\n- Jane Doe (JD)\n- John Roe (JRE)\n- Waldo Michael Saber (MLS)\n",
        "Jane Doe (JD), John Roe (JRE), Ann Ebert (AET)\n",
        "Presenter: Aki Samson (AKI)\n\nAKI: We begin. Jane Doe (JD) was late. A Request For Ideas (RFI) is open.\n",
        "The Technical Committee (TC) met the Review Board (RB).\n",
        TABLE.replace("Brightwater", "").replace("Red Kite", ""),
    ],
)
def test_initials_in_parentheses_are_no_company(text: str) -> None:
    assert companies(text) == set()


@pytest.mark.parametrize(
    "text",
    [
        "- id: 4\n  name:\n    first: Jane\n    middle: Q\n    last: Doe\n  company: Acme\n"
        "- id: 5\n  name: {first: John, last: Roe}\n",
        '[{"name": {"first": "Jane", "last": "Doe"}, "company": "Acme"}, {"name": {"last": "Roe", "first": "John"}}]',
        "members:\n  - first_name: Jane\n    last_name: Doe\n    employer: Acme\n\n"
        "  - last_name: Roe\n    first_name: John\n",
        '  "name": {\n    "first": "Jane",\n    "last": "Doe"\n  },\n  "company": "Acme",\n\n'
        '  "name": {"given": "John", "family": "Roe"}',
    ],
)
def test_first_and_last_names_are_one_person(text: str) -> None:
    assert people(text) == {"Jane Doe": "Acme", "John Roe": ""}


def test_titles_in_running_text_are_no_people_and_no_companies() -> None:
    text = (
        "# Cross Project Council Meeting\n\nUpdate Contributor Code of Conduct to v2. Google Summer of Code is open, "
        "see the Conduct Plan of Action. Last Tuesday at Slack we said: covenant first.\n\nDiscussing Project Boards:\n"
        "* First Pass at Bootstrap\n"
    )
    assert (people(text), companies(text)) == ({}, set())


def test_an_organisation_ends_with_its_kind() -> None:
    text = (
        "Welcome to The Blue Kite Foundation. Each Foundation votes; a node.js release. Node.js Foundation staff, "
        "Review Foundation."
    )
    assert companies(text) == {"Blue Kite Foundation", "Node.js Foundation"}


def test_a_part_of_a_known_name_is_the_same_person() -> None:
    assert people("## Present\n* Saleh Abdel Motaal\n\nAbdel Motaal (Acme) spoke.\n") == {"Saleh Abdel Motaal": ""}


@pytest.mark.parametrize(
    ("text", "company"),
    [
        ("Red Hat", "Red Hat"), ("eBay", "eBay"), ("3M", "3M"), ("Blue Foundation Board", "Blue Foundation"),
        ("Node TSC", ""), ("@jane", ""), ("remote", ""), ("he/him", ""), ("Chair", ""), ("joined late", ""),
        ("10:15", ""), ("", ""),
    ],
)  # fmt: skip
def test_what_an_affiliation_names(text: str, company: str) -> None:
    assert company_name(text) == company


def test_what_abbreviates_a_name() -> None:
    assert all(is_abbreviation(short, "Rob van Polder") for short in ("RP", "RVP", "RPR", "R.P."))
    assert not any(is_abbreviation(short, "Rob van Polder") for short in ("IBM", "Rob", "P", "PR"))
    assert is_person("Jane Doe")
    assert not any(map(is_person, ("Jane", "Review Board", "Jane 2", "jane doe")))


def test_documents_that_the_earlier_rules_read_are_read_again() -> None:
    assert version(RULES).endswith(f":rules-{RULES_VERSION}")
    assert version("a-model").endswith(":a-model")
