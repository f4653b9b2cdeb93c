"""Many prompts to one server from code that is not asynchronous: a training whose rewards a judge gives.

A step waits for its slowest reply, so a server that is busy is waited for: `RETRIES` further tries, each as late as its
Retry-After says or twice as late as the one before, up to a minute. That is about five minutes in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.json_types import JsonObject
from trainyard.serve.client.client import FIRST_WAIT_S, ChatClient

AT_ONCE, RETRIES, MOST_TOKENS = 8, 10, 64


@dataclass(frozen=True)
class JudgeServer:
    """Client of a judge; called, it gives the replies to prompts."""

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)
    first_wait_s: float = FIRST_WAIT_S
    private_hosts: tuple[str, ...] | None = None

    def __call__(self, prompts: Sequence[str], schema: JsonObject) -> list[str]:
        """Ask greedily for replies of this JSON Schema. Raises as `ChatClient.complete`."""
        return asyncio.run(self.ask(prompts, schema))

    async def ask(self, prompts: Sequence[str], schema: JsonObject) -> list[str]:
        limits: Any = {"concurrency": AT_ONCE, "retries": RETRIES, "first_wait_s": self.first_wait_s}
        client = ChatClient(self.base_url, self.model, self.key, private_hosts=self.private_hosts, **limits)
        async with client:
            completions = await asyncio.gather(
                *(
                    client.complete(
                        [{"role": "user", "content": prompt}], schema, max_tokens=MOST_TOKENS, temperature=0
                    )
                    for prompt in prompts
                )
            )
        return [completion.text for completion in completions]
