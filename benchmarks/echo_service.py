"""How long does a bare FastAPI application take to parse a JSON body and send it back? The measure of `step_verbs`.

python -m benchmarks.echo_service PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

APP = FastAPI()


@APP.get("/health")
def health() -> None:
    """Answer that the service is ready."""


@APP.post("/echo")
def echo(body: dict[str, Any]) -> dict[str, Any]:
    return body


def main() -> None:
    uvicorn.run(APP, port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
