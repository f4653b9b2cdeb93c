"""Connections of `aiohttp` and `httpx` to names that are judged when they are looked up (`judging`)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import httpx
from aiohttp.abc import AbstractResolver, ResolveResult

from trainyard.data.remote.addresses import Resolve
from trainyard.serve.client.judging import JudgedHosts, is_numeric


class JudgedResolver(AbstractResolver):
    """The names of an `aiohttp` session, which asks for no numeric address."""

    def __init__(self, private: Iterable[str], resolve: Resolve = socket.getaddrinfo) -> None:
        self._hosts = JudgedHosts(private, resolve)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = await asyncio.get_running_loop().run_in_executor(None, self._hosts.addresses, host, port)
        return [
            ResolveResult(
                hostname=host, host=address, port=port, proto=0, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            )
            for address in addresses
        ]  # fmt: skip

    async def close(self) -> None:
        """Nothing is open between two calls."""


class JudgedTransport(httpx.BaseTransport):
    """The connections of an `httpx` client, without proxies: a proxy would look the name up itself."""

    def __init__(self, private: Iterable[str], resolve: Resolve = socket.getaddrinfo) -> None:
        self._hosts = JudgedHosts(private, resolve)
        self._transport = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        if is_numeric(url.host):
            return self._transport.handle_request(request)
        try:
            addresses = self._hosts.addresses(url.host, url.port or (443 if url.scheme == "https" else 80))
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        request.extensions["sni_hostname"] = url.host  # the certificate's name; the Host header is already the name
        *earlier, last = addresses
        for address in earlier:
            request.url = url.copy_with(host=address)
            try:
                return self._transport.handle_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue  # nothing was sent: the next address of the name is tried
        request.url = url.copy_with(host=last)
        return self._transport.handle_request(request)

    def close(self) -> None:
        self._transport.close()
