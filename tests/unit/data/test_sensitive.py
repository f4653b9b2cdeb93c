from __future__ import annotations

import json
import random
import re
import string
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import phonenumbers
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validating import block, make_labelled, preference, qa, run, sieve

from nodes.summaries import balance
from trainyard.data.quality.detectors import detectors, luhn
from trainyard.data.quality.sensitive import (
    Looked,
    Rules,
    check_sensitive,
    compile_rules,
    mask_texts,
    sensitive_sentences,
    whole_text,
)
from trainyard.data.rows import DocumentRow, Message, SftRow, TextRow, write_rows
from trainyard.spec.axes.data import Port
from trainyard.spec.graph import check
from trainyard.spec.nodes import PHONE_REGIONS, PhoneRegion, SensitiveRules, ValidatorConfig

CASES = Path(__file__).parents[2] / "resources" / "sensitive.txt"
ALPHABETS = {
    "A": string.ascii_letters + string.digits,
    "H": string.digits + "abcdef",
    "U": string.ascii_uppercase + string.digits,
    "B": string.ascii_letters + string.digits + "+/",
    "D": string.digits,
}
RULES = tuple(detectors(()))
ALL = SensitiveRules.model_validate(dict.fromkeys(RULES, "mask"))
MAIL, PHONE, CARD = "anna.meyer@posteo.de", "+49 30 901820", "4111 1111 1111 1111"
KEY = "ghp_" + "aB3" * 12
PRIVATE = f"-----BEGIN PRIVATE KEY-----\n{'aB3+' * 16}\n-----END PRIVATE KEY-----"
SECRETS = {"email": MAIL, "phone": PHONE, "card": CARD, "api_key": KEY, "private_key": PRIVATE}


def scan_text(text: str, rules: Rules) -> Looked:
    return whole_text(text, rules, rules.detectors)


class Case(NamedTuple):
    text: str
    expected: list[tuple[str, str]]
    """Rule and what it has to find, in the order of the text."""


def cases() -> Iterator[Case]:
    rng = random.Random(5)
    for line in CASES.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("# "):
            line = re.sub(r"\{([AHUBD])(\d+)\}", lambda m: "".join(rng.choices(ALPHABETS[m[1]], k=int(m[2]))), line)
            line = line.replace("\\\\n", "\0").replace("\\n", "\n").replace("\0", "\\n")
            yield Case(re.sub(r"⟦\w+:(.*?)⟧", r"\1", line, flags=re.S), re.findall(r"(?s)⟦(\w+):(.*?)⟧", line))


def find_values(text: str) -> list[tuple[str, str]]:
    """What is found, by taking the text apart at the placeholders."""
    masked = scan_text(text, compile_rules(ALL)).bare
    names = {row.placeholder: rule for rule, row in detectors(()).items()}
    pattern = re.compile("|".join(map(re.escape, names)))
    between = [re.escape(part) for part in pattern.split(masked)]
    match = re.fullmatch("(.+?)".join(between), text, re.S)
    assert match is not None
    return [(names[placeholder], match[n + 1]) for n, placeholder in enumerate(pattern.findall(masked))]


# --- what is found --------------------------------------------------------------------------------------------------


def test_precision_and_recall_on_the_labelled_texts() -> None:
    """The figures of docs/validation.md. Every text that fails is named."""
    right, wrong, missed = Counter[str](), [], []
    all_cases = list(cases())
    for case in all_cases:
        found_values = find_values(case.text)
        right.update(rule for rule, _ in (Counter(found_values) & Counter(case.expected)).elements())
        wrong += [(value_pair, case.text) for value_pair in (Counter(found_values) - Counter(case.expected)).elements()]
        missed += [
            (value_pair, case.text) for value_pair in (Counter(case.expected) - Counter(found_values)).elements()
        ]
    assert len([case for case in all_cases if case.expected]) >= 100
    assert len([case for case in all_cases if not case.expected]) >= 150
    assert all(right[rule] >= 8 for rule in RULES), right
    assert (wrong, missed) == ([], [])


def test_every_rule_of_the_config_has_a_detector_with_its_own_placeholder() -> None:
    assert set(RULES) == set(SensitiveRules.model_fields) - {"phone_regions"}
    rows = detectors(())
    assert [rows[rule].placeholder for rule in RULES] == [f"[{rule.upper()}]" for rule in RULES]
    assert set(get_args(PhoneRegion)) <= phonenumbers.SUPPORTED_REGIONS
    assert set(PHONE_REGIONS) <= set(get_args(PhoneRegion))


@pytest.mark.parametrize("rule", RULES)
def test_every_example_is_a_candidate_of_its_rule(rule: str, tmp_path: Path) -> None:
    """Arrow's pattern decides which texts are looked at at all."""
    texts = [case.text for case in cases() if any(name == rule for name, _ in case.expected)]
    only = {name: "mask" if name == rule else "off" for name in RULES}
    masked = mask_texts(pa.array(texts), SensitiveRules.model_validate(only))
    assert all(f"[{rule.upper()}]" in text for text in masked.to_pylist())


def test_numbers_of_a_country_without_its_code_are_found_where_the_region_is_named() -> None:
    text = "Teléfono 912 345 678"
    assert scan_text(text, compile_rules(SensitiveRules(phone="mask"))).bare == text
    spain = compile_rules(SensitiveRules(phone="mask", phone_regions=("ES",)))
    assert scan_text(text, spain).bare == "Teléfono [PHONE]"


@given(st.text(st.sampled_from("ab1 .@-+()/:=\n"), max_size=80))
def test_a_masked_text_has_nothing_left_to_mask(text: str) -> None:
    rules = compile_rules(ALL)
    looked = scan_text(f"{text} {MAIL} {text} {KEY} {text}", rules)
    assert looked.matches["email"] >= 1 <= looked.matches["api_key"]
    assert not scan_text(looked.bare, rules).matches


@given(st.integers(10**14, 10**15 - 1))
def test_one_check_digit_of_ten_is_luhns(number: int) -> None:
    assert sum(luhn(f"{number}{digit}") for digit in range(10)) == 1


HOSTILE = {
    "at signs": "a@" * 50_000,
    "labels": "a@" + "b." * 50_000,
    "local part": "a" * 100_000,
    "digits": "1" * 100_000,
    "groups": "1 2-3.4(5)" * 10_000,
    "plus": "+(" * 50_000,
    "begin": "-----BEGIN PRIVATE KEY-----\n" * 4_000,
    "begin and base64": "-----BEGIN PRIVATE KEY-----" + "aB3+" * 25_000,
    "names": "api_key=" * 12_500,
    "long name": "api_key_" + "a-" * 50_000,
    "urls": "://a:" * 20_000,
    "tokens": "sk-" + "a1-" * 33_000,
    "dots": "eyJ." * 25_000,
    "underscores": "secret_" * 14_000,
    "equals": "token=" + "=" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_grows_with_the_length_whatever_is_in_a_text(name: str) -> None:
    """100,000 characters; ten times as many may take about ten times as long, never a hundred times."""
    text, rules = HOSTILE[name], compile_rules(ALL)

    def seconds(text_part: str) -> float:
        best = 9.0
        for _ in range(2):
            start = time.process_time()
            scan_text(text_part, rules)
            best = min(best, time.process_time() - start)
        return best

    short = seconds(text[: len(text) // 10])
    assert seconds(text) < max(25 * short, 0.1)


# --- what is done ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_count_changes_nothing_and_counts(rule: str, tmp_path: Path) -> None:
    secret = SECRETS[rule]
    rows = [qa(f"What is {secret} for?", "No idea."), qa("b?", f"It is {secret} and\n{secret}"), qa("c?")]
    out = run(rows, tmp_path)
    assert [row.messages for row in out.kept_rows] == [row.messages for row in rows]
    assert out.facts["sensitive"][rule] == {"action": "count", "rows": 2, "found": 3}
    assert out.report["sensitive"] == out.facts["sensitive"]
    assert sum(counts["found"] for counts in out.facts["sensitive"].values()) == 3


@pytest.mark.parametrize("rule", RULES)
def test_mask_writes_the_placeholder_and_keeps_the_row(rule: str, tmp_path: Path) -> None:
    out = run([qa(f"What is {SECRETS[rule]} for?", f"Ask {SECRETS[rule]}.")], tmp_path, sensitive={rule: "mask"})
    placeholder = f"[{rule.upper()}]"
    assert [turn.content for turn in out.kept_rows[0].messages] == [
        f"What is {placeholder} for?",
        f"Ask {placeholder}.",
    ]
    assert out.facts["sensitive"][rule] == {"action": "mask", "rows": 1, "found": 2}


@pytest.mark.parametrize("rule", RULES)
def test_quarantine_drops_the_row_and_copies_no_secret(rule: str, tmp_path: Path) -> None:
    rows = [qa("a?", f"Ask {SECRETS[rule]} or {MAIL}.", source="a.jsonl:1"), qa("b?")]
    out = run(rows, tmp_path, sensitive={rule: "quarantine"})
    assert out.facts["dropped"] == {f"sensitive_{rule}": 1}
    assert [row.messages[0].content for row in out.kept_rows] == ["b?"]
    (line,) = out.quarantine
    assert (line["source"], line["reason"]) == ("a.jsonl:1", f"sensitive_{rule}")
    assert f"[{rule.upper()}]" in line["row"]
    files = b"".join(path.read_bytes() for path in out.folder.rglob("*") if path.is_file())
    assert SECRETS[rule].encode() not in files
    assert MAIL.encode() not in files


@pytest.mark.parametrize("rule", RULES)
def test_off_does_not_look(rule: str, tmp_path: Path) -> None:
    out = run([qa("a?", f"Ask {SECRETS[rule]}.")], tmp_path, sensitive={rule: "off"})
    assert rule not in out.facts["sensitive"]
    assert SECRETS[rule] in out.kept_rows[0].messages[1].content


def test_one_word_is_every_kind_s_action() -> None:
    assert ValidatorConfig(sensitive="mask").sensitive == ALL
    assert ValidatorConfig().sensitive == ValidatorConfig(sensitive="count").sensitive
    node = {"type": "validator", "config": {"sensitive": "maks"}}
    chain = {"nodes": [{"type": "data_source", "config": {"path": "a.jsonl"}}, node, {"type": "trainer"}]}
    (reason,) = check(chain)
    assert (reason.code, reason.field) == ("E-SPEC-VALUE", "config.sensitive")
    assert "is none of off, count, mask, quarantine" in reason.because


def test_a_row_that_is_both_masked_and_put_aside_is_put_aside(tmp_path: Path) -> None:
    rows = [qa("a?", f"{MAIL} {KEY}"), qa("b?", MAIL)]
    out = run(rows, tmp_path, sensitive={"email": "mask", "api_key": "quarantine"})
    assert out.facts["dropped"] == {"sensitive_api_key": 1}
    assert [row.messages[1].content for row in out.kept_rows] == ["[EMAIL]"]
    assert out.facts["sensitive"]["email"] == {"action": "mask", "rows": 2, "found": 2}


def test_every_text_of_a_row_is_masked_and_no_id_or_label(tmp_path: Path) -> None:
    call = {"id": "call_4111111111111111", "type": "function"}
    arguments = {"to": MAIL, "card": 4111111111111111, "again": [MAIL], "n": 3}
    calls = json.dumps([{**call, "function": {"name": "send_mail", "arguments": json.dumps(arguments)}}])
    more = json.dumps({"name": "send_mail", "tool_call_id": call["id"], "reasoning_content": f"I write to {MAIL}."})
    tools = json.dumps([{"type": "function", "function": {"name": "send_mail", "description": f"As {MAIL} does."}}])
    row = SftRow(
        [
            Message("system", f"You are {MAIL}."),
            Message("user", f"Pay with {CARD}"),
            Message("assistant", "", tool_calls=calls),
            Message("tool", f"sent to {MAIL}", more=more),
            Message("assistant", f"Call {PHONE}."),
        ],
        doc_id="4111111111111111",
        source=f"{MAIL}.jsonl:1",
        pair="4111111111111111",
        tools=tools,
    )
    (masked,) = run([row], tmp_path, sensitive="mask").kept_rows
    assert [turn.content for turn in masked.messages] == [
        "You are [EMAIL].", "Pay with [CARD]", "", "sent to [EMAIL]", "Call [PHONE].",
    ]  # fmt: skip
    (masked_call,) = json.loads(masked.messages[2].tool_calls)
    assert {key: masked_call[key] for key in call} == call
    assert json.loads(masked_call["function"]["arguments"]) == {
        "to": "[EMAIL]",
        "card": "[CARD]",
        "again": ["[EMAIL]"],
        "n": 3,
    }
    assert masked.messages[3].extras == {**json.loads(more), "reasoning_content": "I write to [EMAIL]."}
    assert json.loads(masked.tools)[0]["function"] == {"name": "send_mail", "description": "As [EMAIL] does."}
    assert (masked.doc_id, masked.pair, masked.source) == (row.doc_id, row.pair, row.source)
    assert [turn.role for turn in masked.messages] == [turn.role for turn in row.messages]


def test_both_sides_of_a_preference_completions_and_texts_are_masked(tmp_path: Path) -> None:
    pair = preference(f"Mail {MAIL}?", f"Yes, {MAIL}.", f"No, {PHONE}.")
    (masked,) = run([pair], tmp_path / "pair", sensitive="mask").kept_rows
    sides = [side[0].content for side in (masked.prompt, masked.chosen, masked.rejected)]
    assert sides == ["Mail [EMAIL]?", "Yes, [EMAIL].", "No, [PHONE]."]
    (masked,) = run(
        [make_labelled(f"{MAIL}?", f"{CARD}", label=False)], tmp_path / "labelled", sensitive="mask"
    ).kept_rows
    assert (masked.prompt[0].content, masked.completion[0].content, masked.label) == ("[EMAIL]?", "[CARD]", False)
    (masked,) = run([TextRow(f"Dear {MAIL},\n{PRIVATE}")], tmp_path / "text", sensitive="mask").kept_rows
    assert masked.text == "Dear [EMAIL],\n[PRIVATE_KEY]"


@pytest.mark.parametrize("arguments", ["{not json", '"anna\\u002emeyer\\u0040posteo.de"', "[" * 3000])
def test_arguments_that_are_no_json_or_spell_characters_as_escapes(arguments: str, tmp_path: Path) -> None:
    calls = json.dumps([{"id": "1", "type": "function", "function": {"name": "f", "arguments": f"{arguments} {MAIL}"}}])
    escaped = calls.replace("@", "\\u0040")
    row = SftRow([Message("user", "a?"), Message("assistant", "", tool_calls=escaped)])
    (masked,) = run([row], tmp_path, sensitive="mask").kept_rows
    written = json.loads(masked.messages[1].tool_calls)[0]["function"]["arguments"]
    assert MAIL not in written
    assert "[EMAIL]" in written


def test_keys_of_arguments_that_become_the_same_stay_two(tmp_path: Path) -> None:
    arguments = json.dumps({MAIL: 1, "b.b@posteo.de": 2})
    calls = json.dumps([{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}])
    row = SftRow([Message("user", "a?"), Message("assistant", "", tool_calls=calls)])
    (masked,) = run([row], tmp_path, sensitive="mask").kept_rows
    written = json.loads(masked.messages[1].tool_calls)[0]["function"]["arguments"]
    assert json.loads(written) == {"[EMAIL]": 1, "[EMAIL]_2": 2}


def test_a_block_without_anything_stays_the_same_object(tmp_path: Path) -> None:
    given_block = block([qa(), qa("b?")])
    assert check_sensitive(given_block, sieve(tmp_path, sensitive="mask")).batch.equals(given_block.batch)
    counting = sieve(tmp_path)
    assert check_sensitive(given_block, counting) is given_block


def test_rows_that_differ_in_what_is_masked_are_duplicates(tmp_path: Path) -> None:
    rows = [qa("Who?", f"Ask {name}@posteo.de.") for name in ("anna.meyer", "bernd.weber")]
    assert run(rows, tmp_path / "count").facts["dropped"] == {}
    assert run(rows, tmp_path / "mask", sensitive="mask").facts["dropped"] == {"exact_duplicate": 1}


def test_a_masked_answer_is_grounded_in_its_masked_document(tmp_path: Path) -> None:
    documents: list[Any] = [DocumentRow("d", "d.md", "markdown", "D", f"Orders go to {MAIL} only.")]
    write_rows(tmp_path / "documents" / "rows.arrow", Port.DOCUMENTS, documents)
    row = qa("Where do orders go?", f"Orders go to {MAIL}.", doc_id="d")
    out = run([row], tmp_path, documents=tmp_path / "documents", grounding=1.0, sensitive="mask")
    assert out.kept_rows[0].messages[1].content == "Orders go to [EMAIL]."


def test_what_was_found_is_told(tmp_path: Path) -> None:
    rows = [qa("a?", MAIL), qa("b?", PHONE), qa("c?", KEY), qa("d?")]
    facts = run(rows, tmp_path, sensitive={"phone": "mask", "api_key": "quarantine"}).facts
    assert sensitive_sentences(facts["sensitive"]) == [
        "1 keys of services in 1 rows, quarantined with their rows.",
        "1 e-mail addresses in 1 rows, left as they are.",
        "1 phone numbers in 1 rows, masked.",
    ]
    assert balance("sft", facts["kept"], facts) == "3 of 4 sft (1 sensitive api key), 1 email found, 1 phone masked"
