"""The live page's own server: a port of loopback that costs nothing until somebody opens the page.

Runs in: any process that has a status to show, such as a feeder; connections wait in the backlog of the listening
socket until the process's own loop, which polls it, has the server started. That is a thread with an event loop of its
own: it imports tornado and Bokeh (0.4 to 0.8 s of CPU time), takes the socket over, and answers.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import socket
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from feedline.loader.wire.run_status import FeederStatus

logger = logging.getLogger(__name__)

PAGE = "/feedline"
_WAITING = 128  # connections in the backlog, while the server is loaded
_CLOSE_S = 5.0  # a server that is being loaded, or puts a page together, ends soon; the process does not wait longer


class PageServer:
    """A server of the live page on a free port of 127.0.0.1.

    statuses: the last one of each feeder to show, asked for in the server's thread, once a second while somebody looks.
    A `Door` of a feeder's loop, which calls `accept` when the first viewer connects; a process without one calls
    `start`. All methods belong to one thread. Raises OSError if there is no port.
    """

    def __init__(self, statuses: Callable[[], Sequence[FeederStatus]]) -> None:
        self._statuses = statuses
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=_WAITING)
        self._socket.setblocking(False)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}{PAGE}"
        self._end: Future[None] = Future()
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        """The listening socket; -1 once the server has it, or is closed."""
        return self._socket.fileno() if self._thread is None else -1

    def accept(self) -> None:
        """Start the server, which answers the connections that wait."""
        self.start()

    def start(self) -> None:
        if self._thread is None and not self._end.done():
            self._thread = threading.Thread(target=self._serve, name="feedline-page", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the server, whoever looks at its pages."""
        if not self._end.done():
            self._end.set_result(None)
        if self._thread is None:
            self._socket.close()
        else:
            self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        try:
            live_page = import_quietly("feedline.service.page.live_page")
            if not self._end.done():
                live_page.serve_page(self._statuses, self._socket, self._end)
        except Exception as error:
            logger.warning("the live page cannot be served: %s: %s", type(error).__name__, error)
        finally:
            self._socket.close()  # what still waits is refused


def is_installed() -> bool:
    """Whether Bokeh is there, which the extra `dashboard` brings; it is not imported."""
    return importlib.util.find_spec("bokeh") is not None


def import_quietly(module: str) -> Any:
    """A module, without the warnings of Bokeh and tornado about what their next versions will do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)
