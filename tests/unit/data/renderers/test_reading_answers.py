"""From sampled ids to a message, and on to the next prompt without rendering what was sampled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.renderers.toys import assistant, example, toy, user
from trainyard.data.renderers.contract import Flavour, Parsed, Termination, Turn
from trainyard.data.renderers.probing import relate, samples
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.spans import remove_marks
from trainyard.data.renderers.table import RENDERERS

TEMPLATES = [name for spec in RENDERERS.values() for name in spec.templates if name not in spec.own_templates]
KNOWN = [*TEMPLATES, "chatml", "mistral", "olmo3", "role_colon"]


def ids_of(renderer: Renderer, text: str) -> list[int]:
    return renderer.control.ids(text, start=False)


def spoken(renderer: Renderer, turns: list[Turn], index: int, tools: list[dict[str, object]] | None) -> Parsed:
    """A turn rendered as the last one, its learned ids parsed back."""
    encoded = example(renderer, turns[: index + 1], tools)
    rows = list(zip(encoded.ids, encoded.weights, encoded.message_index, strict=True))
    before = renderer.tokenizer.decode([id for id, _, message in rows if message < index])
    own = [id for id, weight, message in rows if weight and message == index]
    return renderer.parse(own, opened=renderer.opening(before))


def plain(turn: Turn) -> tuple[object, ...]:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in turn.get("tool_calls", [])]
    return turn["content"], turn.get("reasoning_content"), calls


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_rendered_is_read_back(name: str) -> None:
    found, compared = toy(name), 0
    for one in (one for flavour in Flavour for one in samples(flavour) if relate(found, one)):
        for index, turn in enumerate(one.turns):
            if turn["role"] != "assistant" or ("diffusion" in name and index == 3 and one.tools):
                continue  # diffusion_gemma does not prompt for an answer to a tool's result
            text, thought = found.text(one.turns[: index + 1], one.tools), turn.get("reasoning_content")
            want = {**turn, "reasoning_content": thought if thought and thought in text else None}
            got = spoken(found, one.turns, index, one.tools)
            assert plain(got.turn) == plain(want), (index, text)
            assert got.termination is Termination.STOP
            compared += 1
    assert compared >= 3


TEXT = st.text(alphabet="ab .é🦊\n{}\"'", max_size=30)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["chatml", "qwen2.5", "role_colon", "mistral", "phi3", "olmo3"]), TEXT)
def test_any_answer_is_read_back_to_the_letter(name: str, text: str) -> None:
    found = toy(name)
    got = spoken(found, [user("one"), assistant(text)], 1, None)
    # What ends an answer may be glued to white space at its end where a template trims; these templates do not.
    assert got.turn["content"] == text


def test_a_turn_that_was_cut_off_says_so() -> None:
    found = toy("qwen3")
    got = found.parse(ids_of(found, "<think>\nhm"))
    assert got.termination is Termination.LENGTH
    assert not got.termination.finished
    assert got.turn == {"role": "assistant", "reasoning_content": "hm", "content": ""}


def test_what_follows_a_stop_token_is_ignored() -> None:
    found = toy("llama3")
    got = found.parse([*ids_of(found, "Yes."), found.stops["<|eot_id|>"], *ids_of(found, "user: more")])
    assert got == Parsed({"role": "assistant", "content": "Yes."}, Termination.STOP)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3", '<tool_call>\n{"name": "weigh", }\n</tool_call>'),
        ("qwen3", '<tool_call>\n{"arguments": {}}\n</tool_call>'),
        ("qwen3", "<tool_call>\n[1]\n</tool_call>"),
        ("mistral", '[TOOL_CALLS] [{"nom": 1}]'),
    ],
)
def test_a_call_that_cannot_be_read_is_malformed_and_kept_as_text(name: str, text: str) -> None:
    found = toy(name)
    got = found.parse([*ids_of(found, text), next(iter(found.stop_ids))])
    assert got.termination is Termination.MALFORMED
    assert got.turn["content"] == text


def test_a_thought_that_the_prompt_opened_is_read() -> None:
    found = toy("deepseek-r1")
    prompt = found.text([user("one")], ask=True)
    assert found.opening(prompt) == "<think>"
    got = found.parse([*ids_of(found, "hm\n</think>\n\nYes."), *found.stop_ids], opened=found.opening(prompt))
    assert plain(got.turn) == ("Yes.", "hm", [])


BRIDGED = ["chatml", "qwen2.5", "qwen3", "llama3", "gemma3", "phi3", "mistral", "glm4.5", "role_colon"]


@pytest.mark.parametrize("name", BRIDGED)
def test_a_bridge_keeps_what_was_sampled(name: str) -> None:
    found = toy(name)
    stop = found.stops[found.separator or found.tokenizer.eos_token]
    prompt = ids_of(found, found.text([user("one")], ask=True))
    completion = [*ids_of(found, "two   words"), stop]
    bridged = found.bridge(prompt, completion, [user("three")])
    assert bridged is not None
    assert bridged[: len(prompt) + len(completion)] == [*prompt, *completion]
    asked = [user("one"), assistant("two   words"), user("three")]
    rendered, ours = remove_marks(found.text(asked, ask=True)), found.tokenizer.decode(bridged)
    # What stands between prompt and answer in a rendering is not in the bridge: the model did not say it.
    assert ours in (rendered, rendered.replace(f"{found.lead}two", "two"))


def test_a_bridge_takes_the_result_of_a_tool() -> None:
    found = toy("qwen3")
    prompt = ids_of(found, found.text([user("one")], ask=True))
    call = '<tool_call>\n{"name": "weigh", "arguments": {}}\n</tool_call>'
    completion = [*ids_of(found, call), found.stops["<|im_end|>"]]
    bridged = found.bridge(prompt, completion, [{"role": "tool", "content": "80"}])
    assert bridged is not None
    assert found.tokenizer.decode(bridged[len(prompt) + len(completion) :]) == (
        "\n<|im_start|>user\n<tool_response>\n80\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_no_bridge_where_it_would_be_another_conversation() -> None:
    found = toy("chatml")
    prompt, stop = ids_of(found, found.text([user("one")], ask=True)), found.stops["<|im_end|>"]
    said = ids_of(found, "two")
    assert found.bridge(prompt, said, [user("three")]) is None, "it was cut off"
    assert found.bridge(prompt, [], [user("three")]) is None
    assert found.bridge(prompt, [*said, stop], []) is None
    assert found.bridge(prompt, [*said, stop], [assistant("more")]) is None
    assert found.bridge(prompt, [*said, found.stops["</s>"]], [user("three")]) is None, "it ended in another way"
    harmony = toy("gpt-oss")
    said = [*ids_of(harmony, "<|channel|>final<|message|>two"), harmony.stops["<|return|>"]]
    assert harmony.bridge(prompt, said, [user("three")]) is None, "an earlier answer ends with <|end|>"
