"""Conversations that the chat template of a session refuses: an error of the call, with the template's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.small_jobs import Jobs
from trainyard.backends.native.assembly import assemble
from trainyard.backends.native.sessions.batches import Encoder
from trainyard.compute.child import Events
from trainyard.errors import InvalidInput

USER = {"role": "user", "content": "How heavy is it?"}
ANSWER = {"role": "assistant", "content": "80 gram."}
CALL = {"type": "function", "function": {"name": "weigh", "arguments": "no JSON"}}
REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "gemma": ([{"role": "system", "content": "Be brief."}, USER, ANSWER], "System role not supported"),
    "qwen3.5": ([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, USER, ANSWER], "weigh.* are not an"),
}


@pytest.mark.parametrize("template", REFUSED)
def test_a_refused_conversation_is_an_error_of_its_call(template: str, jobs: Jobs, tmp_path: Path) -> None:
    messages, pattern = REFUSED[template]
    job = jobs(backend="native", engine={"template": template}, hyperparameters={"max_length": 200})
    encoder = Encoder(assemble(job, tmp_path, Events(tmp_path / "events.jsonl"), "cpu").session)
    good = {"messages": [USER, ANSWER]}
    assert len(encoder.batch({"rows": [good, good]}, b"")["input_ids"]) == 2
    with pytest.raises(InvalidInput, match=rf"E-STEP: The chat template refuses 1 of the 2 rows\. .*{pattern}"):
        encoder.batch({"rows": [good, {"messages": messages}]}, b"")
    for ask in (True, False):
        with pytest.raises(InvalidInput, match=rf"E-STEP: The chat template does not take these messages: .*{pattern}"):
            encoder.prompts([{"messages": messages}], ask=ask)
    hidden = {"messages": [{**USER, "name": "Bob"}]}
    with pytest.raises(InvalidInput, match=r"E-STEP: The chat template does not write messages\.0\.name of this"):
        encoder.prompts([hidden], ask=True)
    for nonsense in ([], [5], [{"content": "x"}], [{"role": "user"}], [{**USER, "tool_calls": 7}]):
        with pytest.raises(InvalidInput, match=r"E-STEP"):
            encoder.prompts([{"messages": nonsense}], ask=True)
