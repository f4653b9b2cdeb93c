"""Environments: what they answer, and that a trajectory is trained on the tokens that it was sampled with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.rl.calculator import (
    RENDERER,
    SETTINGS,
    SETTINGS_OF,
    TOKENIZER,
    WORDS,
    demonstration,
    example_of,
    tokenizer_of_words,
    trainer_of,
)
from benchmarks.rl.toy import Toy, toy_config, toy_policy
from tests.unit.data.renderers.toys import toy
from trainyard.app.plan.keys import dependencies
from trainyard.errors import InvalidInput
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.rewards import EnvironmentReward, EnvironmentSettings
from trainyard.spec.chain import ResolvedNode
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.contracts import IGNORED, Cursor, Generated, Sampling, StopReason
from trainyard.train.rl.drawing import Trajectory, complete_prompts
from trainyard.train.rl.environments import Environment, calculator, compute, guessing, python
from trainyard.train.rl.rewards import RewardPanel


def make_turns(text: str, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "question"}, {"role": "assistant", "content": text, **more}]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3 + 4 * 2", "11"), ("(1 - 3) / 4", "-0.5"), ("7 // 2 + 7 % 4", "6"), ("1/0", "error"), ("9**9", "error"),
        ("__import__('os')", "error"), ("a + 1", "error"), ("10**400", "error"), ("True + 1", "error"),
        ("1" * 150, "error"), ("-(-5)", "5"),
    ],
)  # fmt: skip
def test_the_calculator_computes_numbers_and_nothing_else(expression: str, value: str) -> None:
    assert compute(expression) == value


def test_a_call_is_answered_and_the_final_message_is_compared() -> None:
    assert calculator(make_turns("calc(12 * 7)"), "84") == ([{"role": "user", "content": "84"}], 0.0, False)
    call = [{"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2+2"}}}]
    answered, reward, done = calculator(make_turns("", tool_calls=call), "4")
    assert (answered[0]["role"], answered[0]["content"], reward, done) == ("tool", "4", 0.0, False)
    three = [{"id": f"c{n}", "function": {"name": "calculator", "arguments": {"expression": f"{n}*2"}}} for n in (1, 2)]
    answered, _, done = calculator(make_turns("", tool_calls=[*three, *call]), "4")
    assert [(message["content"], message.get("tool_call_id")) for message in answered] == [
        ("2", "c1"),
        ("4", "c2"),
        ("4", None),
    ]
    assert not done
    assert calculator(make_turns("It is 84"), "84") == ([], 1.0, True)
    assert calculator(make_turns("85"), "84") == ([], 0.0, True)


def test_python_prints_and_the_game_says_higher_or_lower() -> None:
    assert python(make_turns("```python\nprint(6 * 7)\n```"), "42") == ([{"role": "user", "content": "42"}], 0.0, False)
    assert python(make_turns("42"), "42") == ([], 1.0, True)
    assert guessing(make_turns("I guess 5"), "7")[0] == [{"role": "user", "content": "higher"}]
    assert guessing(make_turns("9"), "7")[0] == [{"role": "user", "content": "lower"}]
    assert guessing(make_turns("7"), "7") == ([], 1.0, True)
    assert guessing(make_turns("pass"), "7") == ([], 0.0, True)


class Scripted:
    """A policy that says what it is told, and remembers the prompts that it was given."""

    context = None

    def __init__(self, *turns: list[str]) -> None:
        self.turns, self.prompts = list(turns), list[list[list[int]]]()

    def generate(self, prompts: Sequence[Sequence[int]], _sampling: Sampling | None = None) -> list[Generated]:
        self.prompts.append([list(prompt) for prompt in prompts])
        texts = self.turns.pop(0)
        id_rows = [TOKENIZER(text)["input_ids"] for text in texts]
        return [
            Generated(ids, TOKENIZER.decode(ids, skip_special_tokens=True), [0.0] * len(ids), [0.0] * len(ids), reason)
            for ids in id_rows
            for reason in [StopReason.END if ids[-1] == 1 else StopReason.LENGTH]
        ]

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        raise NotImplementedError


def test_a_conversation_goes_on_with_the_tokens_that_were_sampled() -> None:
    config, environment = trainer_of(1, 0), Environment.of(SETTINGS_OF.environment, TOKENIZER)
    writer = Scripted(
        ["calc( 3 + 4 ) <|im_end|>", "7 <|im_end|>", "calc( 3 + 4 )", *["5 <|im_end|>"] * 5], ["7 <|im_end|>"]
    )
    conversations = complete_prompts(writer, [example_of(3, 4)], config, "0", environment)
    called, direct, endless, *_ = conversations
    # The whole conversation is what the renderer would have written, and what the second turn was given.
    ids, labels = demonstration(3, 4)
    assert called.row.prompt + called.row.ids == ids[: len(called.row.prompt + called.row.ids)]
    assert writer.prompts[1] == [called.row.prompt + called.row.ids[:-2]]
    learned = [label for label in labels if label != IGNORED]
    assert [id for id, is_learned in zip(called.row.ids, called.row.learned, strict=True) if is_learned] == learned
    assert [conversation.sampled.given for conversation in (called, direct, endless)] == [1.0, 1.0, 0.0]
    assert direct.row.learned == [True, True]
    assert not endless.ended


def test_the_tokens_of_an_environment_have_no_labels_and_the_ratio_is_1(tmp_path: Path) -> None:
    model = toy_policy(toy_config(len(WORDS), hidden=32, context=64), 0)
    environment = Environment(lambda *_: ([{"role": "user", "content": "7"}], 0.0, False), RENDERER)
    prompts = [example_of(3 + at, 4) for at in range(16)]
    toys = Toy(trainer_of(1, 0), model, TOKENIZER, prompts, RewardPanel((EnvironmentReward(),)), None, environment)
    session, feed = toys.open(tmp_path)
    (batch,) = feed.draw_batches(Cursor(), session, session.engine.config, {})
    scores = session.engine.stage.score(model, batch, session.engine.head)
    assert len(scores["logprobs_N"]) == len(batch["advantages_N"]) == int((batch["labels"] != IGNORED).sum())
    # What is trained is what was sampled: the probabilities of the drawing, and with them the ratio.
    examples = [feed.examples[row] for row in feed.plan.select_prompts(Cursor())]
    conversations = complete_prompts(
        session, examples, session.engine.config, feed.plan.name_rollout(Cursor()), environment
    )
    (rows,) = feed.plan.at(Cursor())
    sampled_N = torch.tensor([value for row in rows for value in conversations[row].logprobs])
    assert sum(sum(not is_learned for is_learned in conversations[row].row.learned) for row in rows) > 0, (
        "an environment has spoken"
    )
    assert float((scores["logprobs_N"].detach() - sampled_N).exp().sub(1).abs().max()) < 1e-4
    assert RENDERER.stop_ids == {1}


def test_a_trajectory_with_calls_of_a_tool_is_trained_on_what_was_sampled() -> None:
    renderer = toy("qwen3")
    environment, stop = Environment(calculator, renderer), renderer.stops["<|im_end|>"]

    def encode_text(text: str) -> list[int]:
        return renderer.control.ids(text, start=False)

    def turn(text: str) -> Generated:
        ids = [*encode_text(text), stop]
        return Generated(ids, text, [-0.5] * len(ids), [-0.5] * len(ids), StopReason.END)

    messages = [{"role": "user", "content": "Add 1 and 2, and 3 and 4."}]
    prompt = encode_text(renderer.text(messages, ask=True))
    trajectory = Trajectory({"input_ids": prompt, "messages": messages, "answer": "10", "question": "x"})
    calls = "\n".join(
        f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{sum}"}}}}\n</tool_call>'
        for sum in ("1+2", "3+4")
    )
    first, last = turn(calls), turn("3 + 7 is 10")
    trajectory.take(first, environment)
    assert [message["role"] for message in trajectory.messages] == ["user", "assistant", "tool", "tool"]
    assert [message["content"] for message in trajectory.messages[2:]] == ["3", "7"]
    spoken = trajectory.ids[len(first.ids) :]
    assert renderer.tokenizer.decode(spoken) == (
        "\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    trajectory.take(last, environment)
    conversation = trajectory.settled()
    assert conversation.row.ids == [*first.ids, *spoken, *last.ids]
    assert [
        id for id, is_learned in zip(conversation.row.ids, conversation.row.learned, strict=True) if is_learned
    ] == [*first.ids, *last.ids]
    assert (conversation.sampled.given, conversation.ended, len(conversation.logprobs)) == (
        1.0,
        True,
        len(first.ids) + len(last.ids),
    )


# An operator's own function

FUNCTIONS = """
def step(messages):
    said = messages[-1]["content"]
    messages.clear()                       # a copy: the conversation stays
    return ([], 1.0, True) if said == "7" else ([{"role": "user", "content": "7"}], 0.25, False)

def knowing(messages, answer):
    return [], float(messages[-1]["content"] == answer), True

def guessed(messages, answer=None):
    return [], float(messages[-1]["content"] == answer), True

def raising(messages):
    raise KeyError("table")

def alone(): ...
def nothing(messages): return None
def system(messages): return [{"role": "system", "content": "x"}], 0.0, False
def rich(messages): return [], float("nan"), True
def silent(messages): return [], 0.0, False
NUMBER = 3
max = dict
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    path = tmp_path / "house.py"
    path.write_text(FUNCTIONS)
    return path


def load_environment(house: Path, function: str) -> Environment:
    settings = EnvironmentSettings(type="function", name="house", max_turns=3)
    return Environment.of(settings, TOKENIZER, f"{house}:{function}")


def test_a_function_of_the_operator_answers_and_its_rewards_are_added(house: Path) -> None:
    writer = Scripted(["3 <|im_end|>", *["7 <|im_end|>"] * 7], ["7 <|im_end|>"])
    first, second, *_ = complete_prompts(
        writer, [example_of(3, 4)], trainer_of(1, 0), "0", load_environment(house, "step")
    )
    assert (first.sampled.given, second.sampled.given) == (1.25, 1.0)
    assert TOKENIZER.decode(first.row.ids) == (
        "3 <|im_end|> <|im_start|> user 7 <|im_end|> <|im_start|> assistant 7 <|im_end|>"
    )
    for name in ("knowing", "guessed"):
        assert load_environment(house, name).step(make_turns("7"), "7") == ([], 1.0, True)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("raising", "raised KeyError: 'table'"), ("nothing", r"returned NoneType, and not \(messages, reward, done\)"),
        ("system", "Its messages are a list of"), ("rich", "reward is nan"), ("silent", "said nothing"),
        ("alone", "takes neither"), ("max", "takes neither"), ("NUMBER", "is not a function"), 
        ("gone", "AttributeError"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_used_says_why(function: str, problem: str, house: Path) -> None:
    with pytest.raises(InvalidInput, match=rf"E-REWARD: The environment 'house' cannot be used.*{problem}"):
        load_environment(house, function).step(make_turns("5"), "7")


def test_only_a_function_has_a_name_and_the_settings_have_its_place(house: Path) -> None:
    for wrong in ({"type": "function"}, {"type": "calculator", "name": "house"}):
        with pytest.raises(ValueError, match="An environment of type function, and no other, has a name"):
            EnvironmentSettings.model_validate(wrong)
    stage = {**SETTINGS, "type": "grpo", "environment": {"type": "function", "name": "house"}}
    trainer = resolve_trainer(TrainerConfig.model_validate({"stage": stage}), "starter")
    node = ResolvedNode(id="trainer", type="trainer", config=trainer, inputs={})
    settings = load_settings(environments={"house": f"{house}:step"}, home=house.parent)

    def list_keys(settings: Settings) -> list[str]:
        return [dependency.digest() for dependency in dependencies(node, settings, "run") if dependency.name == "step"]

    before = list_keys(settings)
    house.write_text(f"{FUNCTIONS}# changed")
    assert list_keys(settings) != before
    with pytest.raises(InvalidInput, match=r"trainyard\.toml has no environment 'house'"):
        list_keys(load_settings(home=house.parent))


def test_a_template_that_cannot_continue_is_refused() -> None:
    forgetful = tokenizer_of_words()
    forgetful.chat_template = (
        "{% for m in messages %}{{ m['role'] }} {% if loop.last %}{{ m['content'] }}{% endif %} <|im_end|> {% endfor %}"
    )
    with pytest.raises(InvalidInput, match=r"E-CHAT-TEMPLATE: The chat template cannot continue"):
        Environment.of(EnvironmentSettings(type="guessing"), forgetful)


def test_a_game_without_a_number_to_guess_is_said() -> None:
    with pytest.raises(InvalidInput, match="The game guessing hides a number, and the answer of a row is 'blue'"):
        guessing(make_turns("I guess 5"), "blue")
