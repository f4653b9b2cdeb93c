"""Documents that are data: objects stay apart, keys and types say what a name is, YAML and JSON say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainyard.serve.extraction.rules import extract


def employers(text: str) -> dict[str, str]:
    """Person -> employer, empty without one."""
    answer = extract(text)
    jobs = {
        relation["source"]["name"]: relation["target"]["name"]
        for relation in answer["relations"]
        if relation["kind"] == "works_at"
    }
    return {entity["name"]: jobs.get(entity["name"], "") for entity in answer["entities"] if entity["kind"] == "person"}


def kinds(text: str) -> dict[str, str]:
    return {entity["name"]: entity["kind"] for entity in extract(text)["entities"]}


def attributes(text: str) -> dict[str, dict[str, str]]:
    return {entity["name"]: entity["attributes"] for entity in extract(text)["entities"]}


PEOPLE = {
    "people": [
        {"name": "Jane Doe", "company": "Acme GmbH", "email": "jane@acme.example"},
        {"name": "John Roe", "company": "Beta Ltd", "email": "john@beta.example"},
    ]
}


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump, lambda value: json.dumps(value, indent=2)])
def test_each_object_of_a_list_is_one_person(write: Any) -> None:
    text = write(PEOPLE)
    assert employers(text) == {"Jane Doe": "Acme GmbH", "John Roe": "Beta Ltd"}
    assert attributes(text)["Jane Doe"] == {"email": "jane@acme.example"}
    assert attributes(text)["John Roe"] == {"email": "john@beta.example"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "J\\u00fcrgen Ma\\u00df", "company": "\\"North\\" GmbH"}', {"Jürgen Maß": 'North" GmbH'}),
        ("name: \"J\\u00fcrgen M\\u00fcller\"\ncompany: 'O''Neil GmbH'\n", {"Jürgen Müller": "O'Neil GmbH"}),
        ('{"name": "Jane Doe", "company": "Acme AG"}\n{"name": "John Roe"}\n', {"Jane Doe": "Acme AG", "John Roe": ""}),
        ("company: &a Acme AG\nstaff:\n  - {name: Jane Doe, employer: *a}\n", {"Jane Doe": "Acme AG"}),
        (
            '---\nauthor: "J\\u00fcrgen Ma\\u00df"\n---\n\nJane Doe of Beta Ltd came.\n',
            {"Jürgen Maß": "", "Jane Doe": "Beta Ltd"},
        ),
        ('{"people": {"Jane Doe": {"company": "Acme AG"}, "John Roe": {}}}', {"Jane Doe": "Acme AG", "John Roe": ""}),
        ('{"company": {"name": "Acme AG", "contacts": [{"name": "Jane Doe"}]}}', {"Jane Doe": "Acme AG"}),
    ],
)
def test_data_is_read_as_data(text: str, expected: dict[str, str]) -> None:
    assert employers(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[{"type": "company", "name": "Blue Port"}, {"kind": "project", "name": "Go"}]',
            {"Blue Port": "company", "Go": "project"},
        ),
        ('{"companies": [{"name": "Blue Harbour"}], "product": {"name": "Jane Model"}}', {"Blue Harbour": "company"}),
        ("customers:\n  - name: Blue Harbour\n    account: 0471\n", {"Blue Harbour": "company", "0471": "account"}),
        (
            '{"name": "Acme GmbH", "address": {"street": "Weg 5", "city": "Ulm"}}',
            {"Acme GmbH": "company", "Ulm": "location"},
        ),
    ],
)
def test_keys_and_types_say_what_a_name_is(text: str, expected: dict[str, str]) -> None:
    assert kinds(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "## Present\n\n* JD\n* AB\n* C.K.\n\nAttendees: JD, AB (Acme), MVK\n",
        "## Present\n\n* Steering Committee\n* Finance Committee (chair to be elected)\n* Technical Advisory Board\n",
        "## Attendees\n\n- Blue Harbour Road, Suite 5\n- 12 King Street, London\n- Lange Strasse 7\n",
        '{"attendees": ["Finance Committee", "JD", "12 King Street"]}',
    ],
)
def test_initials_committees_and_addresses_are_nobody(text: str) -> None:
    assert extract(text) == {"entities": [], "relations": []}


def test_a_street_after_a_name_is_no_employer() -> None:
    text = "## Attendees\n\n- Jane Doe, 12 Main Street, Springfield\n- John Roe, Acme GmbH, Lange Strasse 5, Berlin\n"
    assert employers(text) == {"Jane Doe": "", "John Roe": "Acme GmbH"}


@pytest.mark.parametrize(
    "text",
    [
        '- Jane Doe: Let us begin.\n- John Roe: "Fine", says Acme GmbH.\n',
        'name: "Jane Doe"\ncompany: Acme GmbH\n\nname: "John Roe"\ncompany: Beta Ltd\n',
    ],
)
def test_what_only_looks_like_yaml_is_read_as_lines(text: str) -> None:
    assert {"Jane Doe", "John Roe"} <= kinds(text).keys() or "Beta Ltd" in kinds(text)


def test_aliases_that_multiply_end() -> None:
    levels = "".join(
        f'people{number}: &l{number} {{name: "N", a: *l{number - 1}, b: *l{number - 1}, c: *l{number - 1}}}\n'
        for number in range(1, 30)
    )
    assert len(extract(f"people0: &l0 {{name: Jane Doe, company: 'Acme AG'}}\n{levels}")["entities"]) >= 1


names_of_people = st.sampled_from(["Jane Doe", "John Roe", "Ada Núñez", "Li Wei"])
objects = st.fixed_dictionaries(
    {"name": names_of_people}, optional={"company": st.sampled_from(["Acme AG", "Beta Ltd"]), "phone": st.just("+49 1")}
)


@given(st.lists(objects, min_size=1, max_size=4, unique_by=lambda value: value["name"]))
def test_json_and_yaml_give_the_same(people: list[dict[str, str]]) -> None:
    as_json = extract(json.dumps({"people": people}))
    assert extract(yaml.safe_dump({"people": people}, allow_unicode=True, sort_keys=False)) == as_json
    lines = extract("\n".join(map(json.dumps, people)))
    assert all(sorted(map(str, lines[part])) == sorted(map(str, as_json[part])) for part in ("entities", "relations"))
    assert employers(json.dumps(people)) == {person["name"]: person.get("company", "") for person in people}
