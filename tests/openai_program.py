"""A whole job by OpenAI's own SDK, whose calls are the only ones: upload, train, poll, events, checkpoints, chat.

    OPENAI_BASE_URL=… OPENAI_API_KEY=… python openai_program.py

It runs in an environment with the package `openai` alone, so it imports nothing of Trainyard, and prints one JSON
object at its end.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import time
from typing import Any

import openai

ENDED = ("succeeded", "failed", "cancelled")


def write_rows(numbers: range = range(24)) -> bytes:
    turns = [
        [{"role": "user", "content": f"What is twice {n}?"}, {"role": "assistant", "content": f"Twice {n} is {2 * n}."}]
        for n in numbers
    ]
    return b"".join(json.dumps({"messages": pair}).encode() + b"\n" for pair in turns)


def refusal(call: Any) -> tuple[int, str | None, str | None]:
    """Return status, code and param of the error that a call raises."""
    try:
        call()
    except openai.APIStatusError as error:
        refused = error
    else:
        raise AssertionError("it was accepted")
    assert refused.request_id
    return refused.status_code, refused.code, refused.param


def list_parameters() -> dict[str, list[str]]:
    """Return the names of the parameters that this version of the SDK sends, by path."""
    from openai.types import completion_create_params as text  # the names of the types differ in nothing but this
    from openai.types.chat import completion_create_params as chat
    from openai.types.fine_tuning import job_create_params as job

    types = {
        "/chat/completions": (chat.CompletionCreateParamsBase, chat.CompletionCreateParamsStreaming),
        "/completions": (text.CompletionCreateParamsBase, text.CompletionCreateParamsStreaming),
        "/fine_tuning/jobs": (job.JobCreateParams,),
    }
    return {path: sorted({name for kind in kinds for name in kind.__annotations__}) for path, kinds in types.items()}


def read_results(client: Any, job: Any) -> list[dict[str, str]]:
    """Return the rows of a job's result file, which is the base64 of a CSV."""
    (file_id,) = job.result_files
    assert client.files.retrieve(file_id).purpose == "fine-tune-results"
    text = base64.b64decode(client.files.content(file_id).read()).decode()
    return list(csv.DictReader(io.StringIO(text)))


def check_settings(client: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Send each setting of a completion once, and return what is refused."""
    create = client.chat.completions.create
    several = create(**{**question, "temperature": 1, "seed": 5, "n": 2, "stop": ["."], "logprobs": True})
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].logprobs.content
    assert (
        create(**{**question, "temperature": 1, "seed": 5})
        .choices[0]
        .message.content.startswith(several.choices[0].message.content)
    )
    schema = {"type": "object", "properties": {"twice": {"type": "integer"}}, "required": ["twice"]}
    formatted = create(
        **{**question, "max_tokens": 40},
        response_format={"type": "json_schema", "json_schema": {"name": "twice", "schema": schema, "strict": True}},
    )
    assert isinstance(json.loads(formatted.choices[0].message.content)["twice"], int)
    chunks = list(create(stream=True, stream_options={"include_usage": True}, **question))
    assert chunks[-1].usage.completion_tokens > 0
    biased = create(logit_bias={"40": 100}, frequency_penalty=-1, presence_penalty=-1, **question)
    assert biased.choices[0].message.content != create(**question).choices[0].message.content
    tool = {"type": "function", "function": {"name": "double", "parameters": {"type": "object"}}}
    return {
        "tools": refusal(lambda: create(tools=[tool], **question)),
        "functions": refusal(lambda: create(functions=[tool["function"]], **question)),
        "n": refusal(lambda: create(**{**question, "n": 100})),
        "messages": refusal(lambda: create(**{**question, "messages": [{"role": "user", "content": 3}]})),
    }


def main() -> None:
    client, rows = openai.OpenAI(max_retries=0), write_rows()
    file = client.files.create(file=("chats.jsonl", rows), purpose="fine-tune")
    held_out = client.files.create(file=("unseen.jsonl", write_rows(range(30, 42))), purpose="fine-tune")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == rows
    job = client.fine_tuning.jobs.create(
        model="starter", training_file=file.id, validation_file=held_out.id, suffix="Twice Bot",
        seed=7, metadata={"file": file.id},
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
    metrics = [event.data for event in client.fine_tuning.jobs.list_events(job.id) if event.type == "metrics"]
    results = read_results(client, job)
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert checkpoint.fine_tuned_model_checkpoint == job.fine_tuned_model
    assert checkpoint.metrics.valid_loss == checkpoint.metrics.full_valid_loss == metrics[0]["valid_loss"]
    assert float(results[-1]["valid_loss"]) == round(metrics[0]["valid_loss"], 5)
    assert len(results) == checkpoint.step_number == len(metrics)
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
    settings = check_settings(client, question)
    assert client.models.delete(job.fine_tuned_model).deleted
    refused = {
        **settings,
        "chat": refusal(lambda: client.chat.completions.create(**question)),
        "cancel": refusal(lambda: client.fine_tuning.jobs.cancel(job.id)),
        "embeddings": refusal(lambda: client.embeddings.create(model="starter", input="x")),
        "responses": refusal(lambda: client.responses.create(model="starter", input="x")),
        "model": refusal(lambda: client.fine_tuning.jobs.create(model="gpt-4o-mini", training_file=file.id)),
    }
    for file_id in (file.id, held_out.id, *job.result_files):
        assert client.files.delete(file_id).deleted
    report = {"version": openai.__version__, "steps": checkpoint.step_number, "messages": messages, "refused": refused}
    print(json.dumps({**report, "answer": text, "parameters": list_parameters()}))


if __name__ == "__main__":
    main()
