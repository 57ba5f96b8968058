"""The port of a dashboard before its cluster is up: reserved, and opened by whoever asks for a page.

Runs in: the feeder, whose loop accepts connections like those of trainers. They are held until the cluster listens on
the port itself, and are then asked to repeat their request, which it answers.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

_REQUEST_S, _REQUEST_BYTES = 1.0, 16_384  # until a request has arrived whose connection has
_WAITING = 16


class ReservedPort:
    """A free port of loopback that no other process gets before its server listens on it.

    Linux lets two sockets of one user bind a port, while neither listens, if both say SO_REUSEADDR, as tornado's do.
    wanted: called when somebody connects before; None: nobody can.
    """

    def __init__(self, wanted: Callable[[], None] | None = None) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._held: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        if wanted is not None:
            self._socket.listen(_WAITING)
            self._socket.setblocking(False)

    def fileno(self) -> int:
        """The socket that listens; -1 once it is released."""
        return self._socket.fileno()

    def accept(self) -> None:
        """Hold the connections that wait."""
        with self._lock:
            held = self._hold()
        if held and self._wanted is not None:
            self._wanted()

    def _hold(self) -> int:
        count = len(self._held)
        with contextlib.suppress(OSError):  # none is left, or the socket is closed
            while True:
                self._held.append(self._socket.accept()[0])
        return len(self._held) - count

    def release(self) -> None:
        """End the reservation."""
        with self._lock:
            if self._wanted is not None:
                self._hold()
                with contextlib.suppress(OSError):  # closed before
                    self._socket.shutdown(socket.SHUT_RDWR)  # a thread that polls it would keep it listening
            self._socket.close()

    def redirect(self) -> None:
        """Have those whose connections are held repeat their requests."""
        with self._lock:
            held, self._held = self._held, []
        for connection in held:
            with contextlib.closing(connection), contextlib.suppress(OSError, IndexError):
                connection.settimeout(_REQUEST_S)
                head = b""
                while b"\r\n\r\n" not in head and len(head) < _REQUEST_BYTES:
                    received = connection.recv(_REQUEST_BYTES)
                    if not received:
                        break
                    head += received
                path = head.split()[1]
                answer = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: %b\r\nContent-Length: 0\r\n"
                connection.sendall(answer % path + b"Connection: close\r\n\r\n")

    def close(self) -> None:
        """End the reservation, and the connections."""
        self.release()
        with self._lock:
            for connection in self._held:
                connection.close()
            self._held = []
