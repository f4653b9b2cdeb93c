"""The numbers of operations: carried out once, in order, also by callers at the same time, and after a resume."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trainyard.backends.native.sessions.operations import KEPT, MOST_WAITING, SAVED_REPLY_BYTES, OperationQueue
from trainyard.errors import Conflict, InvalidInput, LimitExceeded


def run_operation(queue: OperationQueue, answer: dict[str, Any] | None = None, size: int = 10) -> int:
    operation = queue.take(1)
    assert operation is not None
    assert operation.state == "running"
    queue.finish(operation, answer or {"reply": {"seq": operation.seq}}, size)
    return operation.seq


def test_operations_are_numbered_and_taken_in_their_order() -> None:
    queue = OperationQueue()
    assert [queue.enter("step", {"a": n}, b"", None).seq for n in range(3)] == [1, 2, 3]
    assert [run_operation(queue) for _ in range(3)] == [1, 2, 3]
    assert queue.take(0) is None


def test_callers_at_the_same_time_get_numbers_of_their_own() -> None:
    queue = OperationQueue()
    with ThreadPoolExecutor(8) as pool:
        seqs = [operation.seq for operation in pool.map(lambda n: queue.enter("step", {"n": n}, b"", None), range(200))]
    assert sorted(seqs) == list(range(1, 201))
    assert [operation.seq for operation in queue.waiting] == list(range(1, 201))


def test_the_same_number_is_the_same_operation() -> None:
    queue = OperationQueue()
    first = queue.enter("forward", {"rows": [1]}, b"body", 1)
    assert queue.enter("forward", {"rows": [1]}, b"body", 1) is first
    for verb, arguments, body in (
        ("step", {"rows": [1]}, b"body"),
        ("forward", {}, b"body"),
        ("forward", {"rows": [1]}, b""),
    ):
        with pytest.raises(Conflict, match="E-CONFLICT"):
            queue.enter(verb, arguments, body, 1)
    with pytest.raises(Conflict, match="E-STEP: The next operation of this session is 2, not 3"):
        queue.enter("step", {}, b"", 3)
    assert len(queue.waiting) == 1


def test_the_same_key_is_the_same_operation_also_after_a_resume() -> None:
    queue = OperationQueue()
    first = queue.enter("forward", {"rows": [1]}, b"", None, "ci a")
    assert queue.enter("forward", {"rows": [1]}, b"", None, "ci a") is first
    assert queue.enter("forward", {"rows": [1]}, b"", None, "ci b").seq == 2
    assert queue.enter("forward", {"rows": [1]}, b"", None).seq == 3
    with pytest.raises(InvalidInput, match="E-PARAMETER: This Idempotency-Key came with another request"):
        queue.enter("forward", {"rows": [2]}, b"", None, "ci a")
    assert [run_operation(queue) for _ in range(3)] == [1, 2, 3]
    resumed = OperationQueue(queue.saved())
    assert resumed.enter("forward", {"rows": [1]}, b"", None, "ci b").seq == 2
    assert not resumed.waiting


def test_the_key_of_a_reply_that_is_not_kept_is_forgotten() -> None:
    queue = OperationQueue()
    for number in range(KEPT + 2):
        queue.enter("step", {}, b"", None, f"key {number}")
        run_operation(queue)
    assert len(queue.keyed) == len(queue.by_seq) == KEPT
    assert queue.enter("step", {}, b"", None, "key 0").seq == KEPT + 3


def test_a_failed_operation_has_its_number_too() -> None:
    queue = OperationQueue()
    queue.enter("step", {}, b"", 1)
    run_operation(queue, {"error": {"code": "E-STEP"}})
    assert queue.find(1).state == "failed"
    assert queue.enter("step", {}, b"", 1).answer == {"error": {"code": "E-STEP"}}
    assert queue.next_seq == 2


def test_what_a_checkpoint_knows_is_answered_after_a_resume_and_nothing_else() -> None:
    queue = OperationQueue()
    for seq, size in ((1, 10), (2, SAVED_REPLY_BYTES + 1), (3, 10)):
        queue.enter("logprobs", {"n": seq}, b"", seq)
        run_operation(queue, size=size)
    saved = queue.saved()
    queue.enter("step", {}, b"", 4)
    run_operation(queue)
    resumed = OperationQueue(saved)
    assert (resumed.done, resumed.next_seq, resumed.resumed_after) == (3, 4, 3)
    assert resumed.enter("logprobs", {"n": 3}, b"", 3).answer == {"reply": {"seq": 3}}
    with pytest.raises(Conflict, match="E-CONFLICT"):
        resumed.enter("logprobs", {"n": 4}, b"", 3)
    with pytest.raises(Conflict, match="It was carried out, and its reply is not kept any more"):
        resumed.enter("logprobs", {"n": 2}, b"", 2)
    with pytest.raises(Conflict, match="It was resumed after operation 3"):
        resumed.enter("step", {}, b"", 5)
    assert resumed.enter("step", {}, b"", 4).state == "pending"
    assert not resumed.saved()["replies"][1][3], "the large reply"


def test_only_the_newest_replies_are_kept() -> None:
    queue = OperationQueue()
    for _ in range(KEPT + 5):
        queue.enter("step", {}, b"", None)
        run_operation(queue)
    assert len(queue.by_seq) == KEPT
    with pytest.raises(Conflict, match="The reply of operation 5 is not known"):
        queue.find(5)
    with pytest.raises(Conflict, match="The reply of operation 5 is not known"):
        queue.enter("step", {}, b"", 5)
    assert queue.find(6).state == "done"


def test_a_queue_has_an_end() -> None:
    queue = OperationQueue()
    for _ in range(MOST_WAITING):
        queue.enter("step", {}, b"", None)
    with pytest.raises(LimitExceeded, match="E-LIMIT"):
        queue.enter("step", {}, b"", None)


def test_what_waits_is_carried_out_before_a_close() -> None:
    queue = OperationQueue()
    queue.enter("step", {}, b"", None)
    queue.close()
    with pytest.raises(Conflict, match="E-SESSION-STATE: The session is closing"):
        queue.enter("step", {}, b"", None)
    assert run_operation(queue) == 1
    assert queue.take(1) is None
