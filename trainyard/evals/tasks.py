"""From rows and task files to cases: which fields a benchmark can use, and which rows count as one piece of evidence.

Task files are JSONL; the keys decide what a line is:

    {"question": …, "answer": … or […]}                       exact_match, f1, heldout_loss, token_accuracy
    {"question": …, "choices": […], "answer": index or text}  multiple_choice
    {"prompt": …, "chosen": …, "rejected": …}                 pairwise_reward_accuracy
    {"text": …}                                               forgetting, heldout_loss

Any of them may carry `document`: lines that share it are drawn together in the bootstrap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from trainyard.data import rows
from trainyard.errors import InvalidInput, NotFound
from trainyard.evals.benchmarks.likelihood import GENERAL_SET
from trainyard.evals.benchmarks.table import benchmark
from trainyard.evals.cases import Case, Turn, assistant
from trainyard.evals.job import HELDOUT_FOLDER, SETS, EvaluationJob, HeldOutSet, label
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import Port
from trainyard.spec.estimate.verdict import Counted
from trainyard.spec.nodes import BenchmarkSpec

TASK_LINE_CHARS = 1_000_000


def cases_of(line: BenchmarkSpec, job: EvaluationJob) -> list[Case]:
    """Return the cases of one benchmark line, at most `max_rows`, spread evenly over the file.

    Raises `InvalidInput` (`E-DATA-EMPTY`, `E-BENCHMARK`) or `NotFound` (`E-BENCHMARK`).
    """
    row = benchmark(line.name)
    if line.path:
        cases = list(read_task_file(Path(line.path)))
    elif line.set:
        cases = list(heldout_cases(line, job))
    elif line.name == "forgetting":
        cases = list(read_task_file(Path(job.general_set or GENERAL_SET)))
    else:  # a task of the harness brings its own rows; these only say how many
        return [Case(id=f"{line.name}:{index}", cluster=str(index)) for index in range(line.max_rows)]
    needed = row.needs or "text"
    fitting = [case for case in cases if has(case, needed)]
    if not fitting:
        raise InvalidInput(
            f"{label(line)} has no row with the field {needed!r} that {line.name} needs.",
            why=f"{len(cases)} rows were read.",
            do="Choose a benchmark that fits the set, or a task file with that field (docs/evaluation.md lists them).",
            code="E-DATA-EMPTY",
        )
    return spread(fitting, line.max_rows)


def has(case: Case, needed: str) -> bool:
    """Likelihoods take plain text too; every other field has to be filled itself."""
    return bool(getattr(case, needed)) or (needed == "answer" and bool(case.text))


def spread(cases: list[Case], most: int) -> list[Case]:
    """At most `most` cases at even distances, so that every part of a sorted file is represented."""
    if len(cases) <= most:
        return cases
    return [cases[index * len(cases) // most] for index in range(most)]


def heldout_cases(line: BenchmarkSpec, job: EvaluationJob) -> Iterator[Case]:
    """Yield the rows of a held-out set; if two ports have one, of the set whose rows the benchmark can use."""
    sets = [held_out for held_out in job.heldout if held_out.name == line.set]
    matching = [
        held_out
        for held_out in sets
        if (held_out.port is Port.PREFERENCE) == (benchmark(line.name).needs == "rejected")
    ]
    for held_out in (matching or sets)[:1]:
        yield from rows_of(held_out)


def gold_of(line: BenchmarkSpec, job: EvaluationJob) -> str:
    """Return where the gold answers of a line come from, for the report."""
    if line.path:
        return f"file ({Path(line.path).name})"
    if line.set:
        return next((held_out.gold for held_out in job.heldout if held_out.name == line.set), "unknown")
    return "fixed general text of this package" if line.name == "forgetting" else f"task {line.name}"


def count_held_out(folder: Path, port: Port) -> Counted | None:
    """Return the rows and independent cases of the set that decides, below the folder of a validated set of rows.

    None where nothing is held out there.
    """
    for name in SETS:
        path = folder / HELDOUT_FOLDER / f"{name}.arrow"
        if path.is_file():
            cases = list(rows_of(HeldOutSet(name=name, port=port, path=str(path))))
            return Counted(len(cases), len({case.cluster or case.id for case in cases}))
    return None


def rows_of(held_out: HeldOutSet) -> Iterator[Case]:
    for row in rows.read_rows(Path(held_out.path), held_out.port):
        yield from case_of_row(row, by_question=held_out.name == rows.UNSEEN_WORDING)


def case_of_row(row: rows.Row, *, by_question: bool) -> Iterator[Case]:
    """Yield a row as a case; nothing for a row without a last assistant turn (an undesired completion, for one).

    `by_question`: rows about trained documents are independent by question; rows about unseen ones by document.
    """
    pair = getattr(row, "pair", "")
    cluster = (pair or row.source) if by_question else (row.doc_id or pair or row.source)
    match row:
        case rows.SftRow(messages=messages):
            for *prompt, last in up_to_answer(messages):
                yield conversation(row, cluster, prompt, last)
        case rows.PreferenceRow(chosen=[*middle, last], rejected=[*_, worse]):
            yield conversation(row, cluster, [*row.prompt, *middle], last, rejected=turn(worse))
        case rows.LabelledRow(completion=[*middle, last], label=True):
            yield conversation(row, cluster, [*row.prompt, *middle], last)
        case rows.DocumentRow() | rows.TextRow():
            yield Case(id=row.source, cluster=cluster, text=row.text)


def up_to_answer(messages: list[rows.Message]) -> list[list[rows.Message]]:
    """Return the conversation up to its last answer that is to be learned, if it ends with an answer."""
    if not messages or messages[-1].role != "assistant":
        return []
    ends = [end for end, message in enumerate(messages, 1) if message.role == "assistant" and message.learned]
    return [messages[: ends[-1]]] if ends else []


def conversation(
    row: rows.SftRow | rows.PreferenceRow | rows.LabelledRow,
    cluster: str,
    prompt: list[rows.Message],
    last: rows.Message,
    rejected: Turn | None = None,
) -> Case:
    return Case(
        id=row.source,
        cluster=cluster or row.source,
        prompt=tuple(turn(message) for message in prompt),
        answer=turn(last),
        rejected=rejected,
        gold=(last.content,) if last.content.strip() else (),
        tools=row.tools,
    )


def turn(message: rows.Message) -> Turn:
    """Return a message as chat templates take it."""
    plain: Turn = {"role": message.role, "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = msgspec.json.decode(message.tool_calls)
    plain |= {name: value for name, value in message.extras.items() if name in rows.TEMPLATE_EXTRAS}
    return plain


def read_task_file(path: Path) -> Iterator[Case]:
    """Yield the cases of a JSONL task file; a wrong line is an error that names it."""
    if not path.is_file():
        raise NotFound(f"The task file {path} does not exist.", do="Correct `path`.", code="E-BENCHMARK")
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(TASK_LINE_CHARS), b""), 1):
            if line.strip():
                yield task_case(line, path, number)


def task_case(line: bytes, path: Path, number: int) -> Case:
    where = f"{path.name}:{number}"
    try:
        value = json.loads(line)
    except ValueError as error:
        raise wrong_line(where, f"it is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise wrong_line(where, f"it is a {type(value).__name__}, not an object")
    cluster = str(value.get("document") or where)
    if isinstance(value.get("text"), str):
        return Case(id=where, cluster=cluster, text=value["text"])
    question = value.get("question", value.get("prompt"))
    if not isinstance(question, str):
        raise wrong_line(where, "it has neither `text` nor `question` nor `prompt`")
    return question_case(value, question, where, cluster)


def question_case(value: JsonObject, question: str, where: str, cluster: str) -> Case:
    prompt = ({"role": "user", "content": question},)
    if "chosen" in value or "rejected" in value:
        sides = [value.get(side) for side in ("chosen", "rejected")]
        if not all(isinstance(side, str) for side in sides):
            raise wrong_line(where, "`chosen` and `rejected` have to be texts")
        return Case(where, cluster, prompt, assistant(sides[0]), assistant(sides[1]), gold=(str(sides[0]),))
    choices = tuple(str(choice) for choice in value.get("choices", ()))
    gold = parse_accepted(value.get("answer"), choices, where)
    return Case(where, cluster, prompt, assistant(gold[0]), choices=choices, gold=gold)


def parse_accepted(answer: Any, choices: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The accepted answers: an index into the choices, a text, or several texts."""
    if choices and isinstance(answer, int) and 0 <= answer < len(choices):
        return (choices[answer],)
    texts = [answer] if isinstance(answer, str) else answer
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise wrong_line(where, f"`answer` is {answer!r}, not a text, a list of texts or the index of a choice")
    if choices and not set(texts) <= set(choices):
        raise wrong_line(where, f"the answer {texts[0]!r} is not among its choices")
    return tuple(texts)


def wrong_line(where: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"The line {where} of a task file cannot be used: {why}.",
        do='Write one JSON object a line, such as {"question": "…", "answer": "…"} (docs/evaluation.md).',
        code="E-BENCHMARK",
    )
