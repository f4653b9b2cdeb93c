from __future__ import annotations

import pytest

from trainyard.app.access.limits import (
    MAX_KNOWN,
    WRONG_S,
    CallerRates,
    OpenRequests,
    TooMany,
    WrongCredentials,
    reserve_heavy_slot,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_may_send_two_seconds_at_once_and_then_its_rate() -> None:
    clock = Clock()
    buckets = CallerRates(5, clock)
    for _ in range(10):
        buckets.take("ci")
    with pytest.raises(TooMany, match="E-RATE: ci sent more than 5 requests a second") as refused:
        buckets.take("ci")
    assert refused.value.retry_after_s == 1
    buckets.take("other")
    clock.now += 0.2
    buckets.take("ci")
    with pytest.raises(TooMany):
        buckets.take("ci")
    clock.now += 1_000
    for _ in range(10):
        buckets.take("ci")
    with pytest.raises(TooMany):
        buckets.take("ci")


def test_a_rate_below_one_lets_one_through_and_says_when_to_come_back() -> None:
    buckets = CallerRates(0.1, Clock())
    buckets.take("ci")
    with pytest.raises(TooMany, match=r"Ask again in 10 s"):
        buckets.take("ci")


def test_what_is_remembered_has_a_limit() -> None:
    buckets, wrong = CallerRates(5, Clock()), WrongCredentials(now=Clock())
    for number in range(MAX_KNOWN + 50):
        buckets.take(f"c{number}")
        wrong.note(f"10.0.{number // 256}.{number % 256}")
    assert len(buckets.buckets) == len(wrong.failures) == MAX_KNOWN


def test_an_address_with_ten_wrong_credentials_waits_and_no_other_does() -> None:
    clock = Clock()
    wrong = WrongCredentials(now=clock)
    for _ in range(10):
        wrong.require_patience("192.0.2.1")
        wrong.note("192.0.2.1")
        clock.now += 1
    with pytest.raises(TooMany, match="10 wrong credentials came from this address"):
        wrong.require_patience("192.0.2.1")
    wrong.require_patience("192.0.2.2")
    clock.now += WRONG_S - 10
    wrong.require_patience("192.0.2.1")


def test_heavy_operations_have_places() -> None:
    with (
        reserve_heavy_slot(2),
        reserve_heavy_slot(2),
        pytest.raises(TooMany, match="2 operations that take long"),
        reserve_heavy_slot(2),
    ):
        pass
    with reserve_heavy_slot(2), pytest.raises(KeyError), reserve_heavy_slot(2):
        raise KeyError
    with reserve_heavy_slot(2), reserve_heavy_slot(2):
        pass


def test_addresses_of_one_customer_of_ipv6_are_one() -> None:
    wrong = WrongCredentials(now=Clock())
    for number in range(10):
        wrong.note(f"2001:db8:0:1::{number:x}")
    with pytest.raises(TooMany):
        wrong.require_patience("2001:db8:0:1:ffff::1")
    wrong.require_patience("2001:db8:0:2::1")
    wrong.require_patience("unix:")


def test_places_are_for_one_caller_and_for_all_and_are_given_back() -> None:
    open_requests = OpenRequests(2, 3)
    with open_requests.reserve_slot("ci"), open_requests.reserve_slot("ci"):
        with pytest.raises(TooMany, match="E-RATE: 2 requests and streams of ci are open") as refused:
            open_requests.reserve_slot("ci").__enter__()
        assert refused.value.retry_after_s == 5
        with open_requests.reserve_slot("other"), pytest.raises(TooMany, match="3 requests and streams are open"):
            open_requests.reserve_slot("third").__enter__()
        with open_requests.reserve_slot("third"):
            pass
    with pytest.raises(ZeroDivisionError), open_requests.reserve_slot("ci"):
        assert 1 / 0
    assert not open_requests.open
