"""The table: every template in one row, every claim measured, and a wrong claim found out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.renderers.toys import assistant, toy, user
from trainyard.data.renderers.choice import digest, list_shipped, map_by_digest, template_text
from trainyard.data.renderers.contract import ALL, CALLING, NONE, PLAIN, Flavour, Turn
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.table import DEFAULT, RENDERERS
from trainyard.data.renderers.verify import Sample, measure, relate, toy_tokenizer, verify, verify_template, wrong_flag
from trainyard.errors import InvalidInput, NotFound

WITHOUT_A_ROW = {
    "idefics3", "idefics3_training", "llava_next", "llava_next_training", "muse_glimmer", "muse_glimmer_training",
    "smolvlm", "smolvlm_training",
}  # fmt: skip
"""Templates that the default renderer takes."""


def test_every_template_that_trl_ships_has_a_row_or_is_left_to_the_default() -> None:
    listed = Counter(name for spec in RENDERERS.values() for name in spec.templates)
    assert max(listed.values()) == 1
    assert set(list_shipped()) - set(listed) == WITHOUT_A_ROW
    own_templates = {name for spec in RENDERERS.values() for name in spec.own_templates}
    assert set(listed) - set(list_shipped()) == own_templates == {"chatml", "mistral", "olmo3", "role_colon"}


def test_the_families_that_are_promised_are_in_the_table() -> None:
    families = {"chatml", "qwen2.5", "qwen3", "qwen3-keep", "llama3", "gemma", "mistral", "phi3", "deepseek-r1"}
    assert families | {"deepseek-v3", "gpt-oss", "olmo3", "glm4.5", "role_colon"} <= set(RENDERERS)
    assert all(name == spec.name for name, spec in RENDERERS.items())


def test_digests_tell_the_templates_apart() -> None:
    assert len(map_by_digest()) == sum(len(spec.templates) for spec in RENDERERS.values())


def test_every_claim_is_what_is_measured_and_every_rendering_has_parity() -> None:
    table = verify()
    assert [row.problem for row in table if row.problem] == []
    assert len(table) == len(list_shipped()) + 4
    rows = {row.template: row for row in table}
    assert rows["qwen3"].kinds == dict.fromkeys(("plain", "system", "thoughts", "tools"), "not history")
    assert rows["deepseekv3"].kinds["plain"] == "not prompt"
    assert rows["mistral"].kinds == {"plain": "yes", "system": "not history", "thoughts": "-", "tools": "not history"}
    assert {name for name in ("llama3", "qwen2_5", "gemma3", "qwen3_training", "phi3") if rows[name].extension} == {
        "llama3", "qwen2_5", "gemma3", "qwen3_training", "phi3",
    }  # fmt: skip
    assert not any(rows[name].extension for name in ("qwen3", "gptoss", "olmo3", "deepseek_r1_distill", "glm4moe"))


@pytest.mark.parametrize(
    ("name", "claim", "says"),
    [
        ("qwen3", ALL, "plain, system, thoughts, tools. Probed: none"),
        ("qwen3", PLAIN, "plain, system. Probed: none"),
        ("llama3", NONE, "none. Probed: plain, system"),
        ("qwen2_5", PLAIN, "plain, system. Probed: plain, system, tools"),
        ("deepseekv3", CALLING, "plain, system, tools. Probed: none"),
    ],
)
def test_a_wrong_flag_fails(name: str, claim: frozenset[Flavour], says: str) -> None:
    right = next(spec for spec in RENDERERS.values() if name in spec.templates)
    assert right.templates[name] == measure(toy(name)).extends_in
    row = replace(right, templates={name: claim})
    assert (
        f"is listed as extending its turns in: {says}."
        in verify_template(row, name, template_text(right, name)).problem
    )


def test_a_wrong_flag_is_told_with_what_was_measured() -> None:
    assert measure(toy("llama3")).extension
    with pytest.raises(InvalidInput, match=r"E-CHAT-TEMPLATE: The template qwen3 is listed as .* Probed: none\."):
        raise wrong_flag("qwen3", PLAIN, NONE)


def test_an_unknown_template_is_probed() -> None:
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    text = turns + "{{ '[assistant]' if add_generation_prompt }}"
    renderer = Renderer(toy_tokenizer(text))
    assert renderer.spec is DEFAULT
    assert digest(text) not in map_by_digest()
    assert measure(renderer).extension
    assert list(renderer.stops) == ["</s>"]
    forgetful = text.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else '' }}")
    assert not measure(Renderer(toy_tokenizer(forgetful))).extension


TURNS = "[{{ m.role }}]{{ m.content }}</s>"
CALLED = "{{ m.tool_calls | tojson if m.tool_calls }}"


@pytest.mark.parametrize(
    ("template", "plain", "tools"),
    [
        # Only the newest eight messages.
        ("{% for m in messages[-8:] %}" + TURNS + "{% endfor %}", "messages: 8 of 96 shown", None),
        # The first and the newest: a prefix alone would not show it.
        ("{% for m in messages[:2] + messages[-30:] if messages | length > 40 %}" + TURNS
         + "{% else %}{% for m in messages %}" + TURNS + "{% endfor %}{% endfor %}", "messages: 32 of 96 shown", None),
        # All messages, and of the results of tools those of the newest ten messages.
        ("{% for m in messages %}{% if m.role != 'tool' or loop.revindex <= 10 %}" + TURNS + CALLED
         + "{% endif %}{% endfor %}", "", "results of tools: 3 of 48 shown"),
        ("{% for m in messages %}" + TURNS + CALLED + "{% endfor %}", "", ""),
    ],
)  # fmt: skip
def test_windows_over_messages_and_results_are_found(template: str, plain: str, tools: str | None) -> None:
    text = template + "{{ '[assistant]' if add_generation_prompt }}"
    measurement = measure(Renderer(toy_tokenizer(text)))
    assert measurement.relations[Flavour.PLAIN].hidden == plain
    assert (Flavour.PLAIN in measurement.extends_in) is not bool(plain)
    if tools is not None:
        assert measurement.relations[Flavour.TOOLS].hidden == tools
        assert (Flavour.TOOLS in measurement.extends_in) is not bool(tools)
    words = verify_template(DEFAULT, "mine", text).kinds
    assert words["plain"] == (f"not history ({plain})" if plain else "yes")


@pytest.mark.parametrize("ends", ["<|end|>", "<|final|><|end|>"])
def test_a_template_that_always_writes_the_next_header_extends(ends: str) -> None:
    """Whether it is asked for or not, as Command A's does: the header is no part of the answer."""
    text = (
        "{% for m in messages %}<|start|><|{{ m.role }}|>{{ m.content }}" + ends + "{% endfor %}<|start|><|assistant|>"
    )
    renderer = Renderer(toy_tokenizer(text))
    measurement = measure(renderer)
    assert measurement.extends_in == PLAIN
    pieces = renderer.pieces([user("one"), assistant("two"), user("three"), assistant("four")])
    first = ends.partition("><")[0].rstrip(">") + ">"
    assert [piece.text for piece in pieces if piece.learned] == [f"two{first}", f"four{first}"]


def test_a_template_that_takes_nothing_has_no_extension() -> None:
    measurement = measure(Renderer(toy_tokenizer("{{ raise_exception('never') }}")))
    assert measurement.relations == {}
    assert not measurement.extension


def test_verify_takes_names_and_refuses_unknown_ones() -> None:
    assert [row.template for row in verify(frozenset({"llama3", "qwen3_training"}))] == [
        "llama3", "llama3_training", "qwen3_training",
    ]  # fmt: skip
    with pytest.raises(NotFound, match="E-CHAT-TEMPLATE"):
        verify(frozenset({"llama9"}))


EXTENDING = ["chatml", "llama3", "gemma3", "qwen2_5", "qwen3_training", "phi3", "cohere", "glm4moe", "role_colon"]
WORDS = st.text(alphabet="abc XYZ.?é🦊\n<|>{}", max_size=24).map(lambda text: f"w{text}w")
"""Contents do not begin with a line break: there a tokenizer may join it with the one before."""


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EXTENDING), st.lists(st.tuples(WORDS, WORDS), min_size=2, max_size=4))
def test_templates_that_extend_do_so_for_any_conversation(name: str, talk: list[tuple[str, str]]) -> None:
    turns: list[Turn] = [turn for question, answer in talk for turn in (user(question), assistant(answer))]
    relation = relate(toy(name), Sample(turns, ()))
    assert relation is not None
    assert relation.extends


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["qwen3", "gptoss", "olmo3"]), st.lists(st.tuples(WORDS, WORDS), min_size=2, max_size=4))
def test_templates_that_rewrite_their_history_never_extend(name: str, talk: list[tuple[str, str]]) -> None:
    turns: list[Turn] = [turn for question, answer in talk for turn in (user(question), assistant(answer))]
    relation = relate(toy(name), Sample(turns, ()))
    assert relation is not None
    assert not relation.history
