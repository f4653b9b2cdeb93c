"""A listening socket with a thread for each connection, and what it has accepted."""

from __future__ import annotations

import socket
import threading


class AcceptingServer:
    """Carries out `serve` for each connection; `stop` waits for all of them."""

    def __init__(self, listener: socket.socket) -> None:
        self.socket, self.accepted = listener, 0
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.accepted += 1
            thread = threading.Thread(target=self.serve, args=(connection,))
            self.threads.append(thread)
            thread.start()

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for thread in self.threads:
            thread.join()
