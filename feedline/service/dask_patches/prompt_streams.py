"""Send Dask's messages within a process without the timers and coroutines that collect them for a network.

Runs in: a feeder whose scheduler, worker and client share its event loop. Replaces: `BatchedSend` of the modules
`distributed.client`, `scheduler` and `worker`, for streams within the process. Why: `BatchedSend` waits some
milliseconds between two messages, in a coroutine that is woken for each message and once more at the end of that time.
A block needs six messages, each alone. Here they are put into the receiver's queue in the loop's next turn, in their
order, with those that were sent in the same turn.
"""

from __future__ import annotations

from typing import Any

import distributed.client
import distributed.scheduler
import distributed.worker
from distributed.batched import BatchedSend
from distributed.comm.core import CommClosedError
from distributed.comm.inproc import InProc

from feedline.service.dask_patches.versions import allow


class PromptSend(BatchedSend):
    """A stream that sends in the loop's next turn, if it goes to this process."""

    loop: Any

    def start(self, comm: object) -> None:
        """Begin to send. Dask calls this on the loop."""
        if not isinstance(comm, InProc):
            super().start(comm)  # type: ignore[no-untyped-call]
            return
        self.comm = comm
        if self.buffer:
            self.loop.asyncio_loop.call_soon(self._flush)

    def send(self, *msgs: object) -> None:
        """Send messages. Dask calls this on the loop. Raises CommClosedError."""
        if not isinstance(self.comm, InProc):
            super().send(*msgs)
            return
        if self.comm.closed():
            raise CommClosedError(f"{self.comm!r} is closed")
        if not self.buffer:
            self.loop.asyncio_loop.call_soon(self._flush)
        self.buffer.extend(msgs)

    def _flush(self) -> None:
        messages, self.buffer = self.buffer, []
        if messages and self.comm is not None and not self.comm.closed():
            self.comm._write_q.put_nowait(messages)

    def close(self, timeout: float | None = None) -> Any:
        """Send what is left, and close. Dask awaits some of them."""
        if not isinstance(self.comm, InProc):
            return super().close(timeout)
        self._flush()
        self.comm.abort()
        closed = self.loop.asyncio_loop.create_future()
        closed.set_result(None)
        return closed

    def abort(self) -> None:
        if not isinstance(self.comm, InProc):
            super().abort()  # type: ignore[no-untyped-call]
            return
        self.buffer = []
        if not self.comm.closed():
            self.comm.abort()


def send_promptly() -> None:
    """Let the nodes of this process that are made from now on have such streams."""
    if allow("prompt messages within a process, which save time"):
        for module in (distributed.client, distributed.scheduler, distributed.worker):
            setattr(module, "BatchedSend", PromptSend)  # noqa: B010 -- a module's
