"""The rule that only patches reach into Dask finds each way of doing so, and nothing else."""

from __future__ import annotations

import ast

from dask_access import accesses

REACHING = """
import distributed
from distributed import Client, Scheduler, Worker
from tornado.web import RequestHandler

class Page(RequestHandler):
    def get(self): self._page = 1

class Quiet(Scheduler):  # found
    pass

def replace(worker: Worker, client: Client, name: str):
    distributed.batched.time = name  # found
    setattr(distributed.batched, name, None)  # found
    own: object = worker
    own.status = name  # found
    worker.stream_handlers.pop("free-keys")  # found
    return client._run(print), getattr(client, "_run"), worker.address  # found

class Leaving:
    def __init__(self, worker: Worker):
        self._worker, self._name = worker, ""

    def leave(self, other: object):
        self._worker.handlers["retire"] = self.leave  # found
        self._worker.handlers["feedline_leave"] = self._name
        self._name = other.name
"""


def test_reaching_into_dask_is_found():
    expected = [line for line, text in enumerate(REACHING.splitlines(), 1) if "# found" in text]
    found = accesses(ast.parse(REACHING))
    assert sorted({line for line, _ in found}) == expected
    assert len(found) == len(expected) + 1, "one line has two"


def test_modules_without_dask_may_use_their_own_private_names():
    assert not accesses(ast.parse("class Own:\n def copy(self, other: object): return other._name"))
