"""Every scheduled start of a night has its own date, also when clocks change: against Prefect's cron schedule."""

from __future__ import annotations

import asyncio
from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from prefect.server.schemas.schedules import CronSchedule

from trainyard.spec.night import Window

DAYS = 366


@pytest.mark.parametrize(
    ("zone", "starts"),
    [
        ("Europe/London", "01:00"),
        ("Europe/Berlin", "02:30"),
        ("America/New_York", "02:00"),
        ("America/Santiago", "00:00"),
        ("Africa/Cairo", "00:15"),
        ("Australia/Lord_Howe", "02:15"),
        ("Asia/Kolkata", "23:30"),
        ("UTC", "01:00"),
    ],
)
def test_a_year_of_scheduled_starts_has_a_date_each(zone: str, starts: str) -> None:
    hour, minute = starts.split(":")
    schedule = CronSchedule(cron=f"{int(minute)} {int(hour)} * * *", timezone=zone)
    begin = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone))
    moments = asyncio.run(schedule.get_dates(n=DAYS, start=begin))
    window = Window(zone=zone, starts=starts)
    dates = [datetime.strptime(window.find_date(moment.timestamp()), "%Y%m%d").date() for moment in moments]
    assert {(later - earlier).days for earlier, later in pairwise(dates)} == {1}
    assert dates[0] == moments[0].astimezone(ZoneInfo(zone)).date()
