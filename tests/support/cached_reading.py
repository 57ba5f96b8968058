"""Read three columns of a table in a store through a cache, once SIGUSR1 has come: a program for several processes."""

from __future__ import annotations

import signal

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # of all threads, those of libraries too

import sys  # noqa: E402
from dataclasses import replace  # noqa: E402

from feedline import Table  # noqa: E402
from feedline.warehouse.cache.cache_folder import CacheRef  # noqa: E402
from feedline.warehouse.reading.read import ReadRequest, read_arrow  # noqa: E402
from feedline.warehouse.selection.select import plan_fragments, screen_rows  # noqa: E402

if __name__ == "__main__":
    uri, folder = sys.argv[1:]
    ref = CacheRef(folder=folder, size=10**9, free=0, shared=False)
    snapshot = replace(Table(uri).snapshot(), source_cache=ref)
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    fragments = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
    request = ReadRequest(["request_id", "hist_0", "str_0"], snapshot.schema)
    print(sum(read_arrow(each, request).num_rows for each in fragments), flush=True)
