"""Requests that create, find, close and resume sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Parameters, Request
from trainyard.api.requests.chains import PARAMETERS
from trainyard.api.requests.fields import Argument, Option

WAIT = "Wait until it takes calls; in a request over a network, look at its state instead."


class SessionInput(Request):
    session: Annotated[str, Argument("SESSION", completes="session")] = Field(
        pattern=r"^session-[0-9a-f]{12}$", description="Id of a session."
    )


class CreateSessionInput(Request):
    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(
        None, description="A session: the settings of a trainer without a data set."
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    wait: Annotated[bool, Option("--wait/--no-wait", local=True)] = Field(False, description=WAIT)


class SessionsInput(Request):
    limit: int = Field(50, ge=1, le=1000, description="At most so many.")


class ResumeSessionInput(SessionInput):
    wait: Annotated[bool, Option("--wait/--no-wait", local=True)] = Field(False, description=WAIT)
