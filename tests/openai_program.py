"""A whole job by OpenAI's own SDK, whose calls are the only ones: upload, train, poll, events, checkpoints, chat.

    OPENAI_BASE_URL=… OPENAI_API_KEY=… python openai_program.py

It runs in an environment with the package `openai` alone, so it imports nothing of Trainyard, and prints one JSON
object at its end.
"""

from __future__ import annotations

import json
import time
from typing import Any

import openai

ENDED = ("succeeded", "failed", "cancelled")


def write_rows(count: int = 24) -> bytes:
    turns = [
        [{"role": "user", "content": f"What is twice {n}?"}, {"role": "assistant", "content": f"Twice {n} is {2 * n}."}]
        for n in range(count)
    ]
    return b"".join(json.dumps({"messages": pair}).encode() + b"\n" for pair in turns)


def refusal(call: Any) -> tuple[int, str | None]:
    """Return status and code of the error that a call raises."""
    try:
        call()
    except openai.APIStatusError as error:
        refused = error
    else:
        raise AssertionError("it was accepted")
    assert refused.request_id
    return refused.status_code, refused.code


def main() -> None:
    client, rows = openai.OpenAI(max_retries=0), write_rows()
    file = client.files.create(file=("chats.jsonl", rows), purpose="fine-tune")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == rows
    job = client.fine_tuning.jobs.create(
        model="starter", training_file=file.id, suffix="Twice Bot", seed=7, metadata={"file": file.id},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
    )  # fmt: skip
    deadline = time.monotonic() + 400
    while job.status not in ENDED and time.monotonic() < deadline:
        time.sleep(1)
        job = client.fine_tuning.jobs.retrieve(job.id)
    assert job.status == "succeeded", job
    assert job.fine_tuned_model is not None
    assert job.trained_tokens
    assert [entry.id for entry in client.fine_tuning.jobs.list(metadata={"file": file.id})] == [job.id]
    messages = [event.message for event in client.fine_tuning.jobs.list_events(job.id, limit=5)]
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert checkpoint.fine_tuned_model_checkpoint == job.fine_tuned_model
    assert job.fine_tuned_model in {model.id for model in client.models.list()}
    assert client.models.retrieve(job.fine_tuned_model).object == "model"
    question: Any = {
        "model": job.fine_tuned_model, "messages": [{"role": "user", "content": "What is twice 7?"}],
        "temperature": 0, "max_tokens": 12,
    }  # fmt: skip
    answer = client.chat.completions.create(**question)
    chunks = client.chat.completions.create(stream=True, **question)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert client.completions.create(model="starter", prompt="Hello", max_tokens=3).choices
    assert client.models.delete(job.fine_tuned_model).deleted
    refused = {
        "chat": refusal(lambda: client.chat.completions.create(**question)),
        "cancel": refusal(lambda: client.fine_tuning.jobs.cancel(job.id)),
        "embeddings": refusal(lambda: client.embeddings.create(model="starter", input="x")),
        "responses": refusal(lambda: client.responses.create(model="starter", input="x")),
        "model": refusal(lambda: client.fine_tuning.jobs.create(model="gpt-4o-mini", training_file=file.id)),
    }
    assert client.files.delete(file.id).deleted
    report = {"version": openai.__version__, "steps": checkpoint.step_number, "messages": messages, "refused": refused}
    print(json.dumps({**report, "answer": text}))


if __name__ == "__main__":
    main()
