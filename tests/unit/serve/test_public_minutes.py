"""The rules on thirty public minutes that nobody here wrote: attendees by a label file, organisations by our labels.

The minutes are not in the repository. Every third one was left unread while the rules were written.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard.serve.extraction import rules
from trainyard.stores.graph.facts import normalise_name

ORGANISATIONS = Path(__file__).parents[2] / "resources" / "minutes_organisations.json"
Names = dict[str, set[str]]


@pytest.fixture
def attendees(shared_data: Path) -> Names:
    labels = json.loads((shared_data / "minutes" / "labels.json").read_text(encoding="utf-8"))
    return {
        name: {normalise_name("person", name_given) for name_given in page_labels["person"]}
        for name, page_labels in sorted(labels.items())
    }


@pytest.fixture
def names_by_page(shared_data: Path, attendees: Names) -> dict[str, Names]:
    """Document -> kind -> normalised names."""
    answers = {
        name: rules.extract((shared_data / "minutes" / name).read_text(encoding="utf-8"))["entities"]
        for name in attendees
    }
    return {
        name: {
            kind: {normalise_name(kind, entity["name"]) for entity in entities if entity["kind"] == kind}
            for kind in KINDS
        }
        for name, entities in answers.items()
    }


KINDS = ("person", "company")


def recall(attendees: Names, names_by_page: dict[str, Names]) -> float:
    right = sum(len(attendee_names & names_by_page[name]["person"]) for name, attendee_names in attendees.items())
    return right / sum(map(len, attendees.values()))


def test_attendees_are_found(attendees: Names, names_by_page: dict[str, Names]) -> None:
    held_out = {name: attendees[name] for name in list(attendees)[2::3]}
    assert (len(attendees), len(held_out)) == (30, 10)
    print(f"recall of attendees {recall(attendees, names_by_page):.3f}, held out {recall(held_out, names_by_page):.3f}")
    assert recall(attendees, names_by_page) >= 0.9
    assert recall(held_out, names_by_page) >= 0.9


def test_those_found_are_people(attendees: Names, names_by_page: dict[str, Names]) -> None:
    """A person who is only named in the text is no error, so the share of attendees is a lower bound."""
    answer_count = sum(len(page_names["person"]) for page_names in names_by_page.values())
    right = sum(len(attendee_names & names_by_page[name]["person"]) for name, attendee_names in attendees.items())
    print(f"{right} of {answer_count} persons are attendees")
    assert right / answer_count >= 0.95


def test_organisations_are_found_and_right(names_by_page: dict[str, Names]) -> None:
    labels = json.loads(ORGANISATIONS.read_text(encoding="utf-8"))
    there = right_found = answer_count = right_said = 0
    for document, page_labels in labels.items():
        names = names_by_page[document]["company"] - {
            normalise_name("company", spelling) for spelling in page_labels["either"]
        }
        spellings = [
            {normalise_name("company", spelling) for spelling in several} for several in page_labels["organisations"]
        ]
        there, answer_count = there + len(spellings), answer_count + len(names)
        right_found += sum(bool(several & names) for several in spellings)
        right_said += sum(any(name in several for several in spellings) for name in names)
    print(f"organisations: recall {right_found}/{there}, precision {right_said}/{answer_count}")
    assert len(labels) >= 10
    assert right_found / there >= 0.6
    assert right_said / answer_count >= 0.8
