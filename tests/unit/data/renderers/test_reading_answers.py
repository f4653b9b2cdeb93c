"""From sampled ids to a message, and on to the next prompt without rendering what was sampled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.renderers.toys import assistant, example, toy, user
from trainyard.data.renderers.contract import Flavour, Parsed, Termination, Turn
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.spans import remove_marks
from trainyard.data.renderers.table import RENDERERS
from trainyard.data.renderers.verify import relate, samples

TEMPLATES = [name for spec in RENDERERS.values() for name in spec.templates if name not in spec.own_templates]
KNOWN = [*TEMPLATES, "chatml", "mistral", "olmo3", "role_colon"]


def encode_text(renderer: Renderer, text: str) -> list[int]:
    return renderer.control.ids(text, start=False)


def parse_spoken(renderer: Renderer, turns: list[Turn], index: int, tools: list[dict[str, object]] | None) -> Parsed:
    """A turn rendered as the last one, its learned ids parsed back."""
    encoded = example(renderer, turns[: index + 1], tools)
    rows = list(zip(encoded.ids, encoded.weights, encoded.message_index, strict=True))
    before = renderer.tokenizer.decode([id for id, _, message in rows if message < index])
    learned_ids = [id for id, weight, message in rows if weight and message == index]
    return renderer.parse(learned_ids, opened=renderer.opening(before))


def list_contents(turn: Turn) -> tuple[object, ...]:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in turn.get("tool_calls", [])]
    return turn["content"], turn.get("reasoning_content"), calls


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_rendered_is_read_back(name: str) -> None:
    renderer, compared = toy(name), 0
    for sample in (sample for flavour in Flavour for sample in samples(flavour) if relate(renderer, sample)):
        for index, turn in enumerate(sample.turns):
            if turn["role"] != "assistant" or ("diffusion" in name and index == 3 and sample.tools):
                continue  # diffusion_gemma does not prompt for an answer to a tool's result
            text, thought = renderer.text(sample.turns[: index + 1], sample.tools), turn.get("reasoning_content")
            want = {**turn, "reasoning_content": thought if thought and thought in text else None}
            got = parse_spoken(renderer, sample.turns, index, sample.tools)
            assert list_contents(got.turn) == list_contents(want), (index, text)
            assert got.termination is Termination.STOP
            compared += 1
    assert compared >= 3


TEXT = st.text(alphabet="ab .é🦊\n{}\"'", max_size=30)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["chatml", "qwen2.5", "role_colon", "mistral", "phi3", "olmo3"]), TEXT)
def test_any_answer_is_read_back_to_the_letter(name: str, text: str) -> None:
    renderer = toy(name)
    got = parse_spoken(renderer, [user("one"), assistant(text)], 1, None)
    # What ends an answer may be glued to white space at its end where a template trims; these templates do not.
    assert got.turn["content"] == text


def test_a_turn_that_was_cut_off_says_so() -> None:
    renderer = toy("qwen3")
    got = renderer.parse(encode_text(renderer, "<think>\nhm"))
    assert got.termination is Termination.LENGTH
    assert not got.termination.finished
    assert got.turn == {"role": "assistant", "reasoning_content": "hm", "content": ""}


def test_what_follows_a_stop_token_is_ignored() -> None:
    renderer = toy("llama3")
    got = renderer.parse(
        [*encode_text(renderer, "Yes."), renderer.stops["<|eot_id|>"], *encode_text(renderer, "user: more")]
    )
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
    renderer = toy(name)
    got = renderer.parse([*encode_text(renderer, text), next(iter(renderer.stop_ids))])
    assert got.termination is Termination.MALFORMED
    assert got.turn["content"] == text


def test_a_thought_that_the_prompt_opened_is_read() -> None:
    renderer = toy("deepseek-r1")
    prompt = renderer.text([user("one")], ask=True)
    assert renderer.opening(prompt) == "<think>"
    got = renderer.parse(
        [*encode_text(renderer, "hm\n</think>\n\nYes."), *renderer.stop_ids], opened=renderer.opening(prompt)
    )
    assert list_contents(got.turn) == ("Yes.", "hm", [])


BRIDGED = ["chatml", "qwen2.5", "qwen3", "llama3", "gemma3", "phi3", "mistral", "glm4.5", "role_colon"]


@pytest.mark.parametrize("name", BRIDGED)
def test_a_bridge_keeps_what_was_sampled(name: str) -> None:
    renderer = toy(name)
    stop = renderer.stops[renderer.separator or renderer.tokenizer.eos_token]
    prompt = encode_text(renderer, renderer.text([user("one")], ask=True))
    completion = [*encode_text(renderer, "two   words"), stop]
    bridged = renderer.bridge(prompt, completion, [user("three")])
    assert bridged is not None
    assert bridged[: len(prompt) + len(completion)] == [*prompt, *completion]
    turns = [user("one"), assistant("two   words"), user("three")]
    rendered, bridged_text = remove_marks(renderer.text(turns, ask=True)), renderer.tokenizer.decode(bridged)
    # What stands between prompt and answer in a rendering is not in the bridge: the model did not say it.
    assert bridged_text in (rendered, rendered.replace(f"{renderer.lead}two", "two"))


def test_a_bridge_takes_the_result_of_a_tool() -> None:
    renderer = toy("qwen3")
    prompt = encode_text(renderer, renderer.text([user("one")], ask=True))
    call = '<tool_call>\n{"name": "weigh", "arguments": {}}\n</tool_call>'
    completion = [*encode_text(renderer, call), renderer.stops["<|im_end|>"]]
    bridged = renderer.bridge(prompt, completion, [{"role": "tool", "content": "80"}])
    assert bridged is not None
    assert renderer.tokenizer.decode(bridged[len(prompt) + len(completion) :]) == (
        "\n<|im_start|>user\n<tool_response>\n80\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_no_bridge_where_it_would_be_another_conversation() -> None:
    renderer = toy("chatml")
    prompt, stop = encode_text(renderer, renderer.text([user("one")], ask=True)), renderer.stops["<|im_end|>"]
    completion = encode_text(renderer, "two")
    assert renderer.bridge(prompt, completion, [user("three")]) is None, "it was cut off"
    assert renderer.bridge(prompt, [], [user("three")]) is None
    assert renderer.bridge(prompt, [*completion, stop], []) is None
    assert renderer.bridge(prompt, [*completion, stop], [assistant("more")]) is None
    assert renderer.bridge(prompt, [*completion, renderer.stops["</s>"]], [user("three")]) is None, (
        "it ended in another way"
    )
    harmony = toy("gpt-oss")
    completion = [*encode_text(harmony, "<|channel|>final<|message|>two"), harmony.stops["<|return|>"]]
    assert harmony.bridge(prompt, completion, [user("three")]) is None, "an earlier answer ends with <|end|>"
