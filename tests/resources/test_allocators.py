"""A process that is started with these variables keeps freed memory; huge pages can be turned off for a process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from processes import finished

from feedline.resources.allocators import allocator_environment, own_or_users

POOL = "import pyarrow as pa; print(pa.default_memory_pool().backend_name)"
PAGES = """
from pathlib import Path
from feedline.resources.allocators import use_huge_pages
for use in (False, True):
    use_huge_pages(use)
    print(*[line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "THP_enabled" in line])
"""
FAULTS = """
import resource, sys
from feedline.resources.allocators import keep_freed_memory
if sys.argv[1:]:
    keep_freed_memory(1)
import numpy as np
import pyarrow as pa
def fill():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for nbytes in (20 << 20, 24 << 20):
        np.ones(nbytes, np.uint8)
        np.asarray(pa.allocate_buffer(nbytes, resizable=True))[:] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
fill()
print(sum(fill() for _ in range(5)))
"""


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="pyarrow was built without jemalloc")
def test_arrow_allocates_with_jemalloc():
    done = finished(sys.executable, "-c", POOL, env={**os.environ, **allocator_environment(2)})
    assert done.stdout.split() == ["jemalloc"], done.stderr


def test_jemalloc_has_an_arena_per_thread():
    for name in ("JE_ARROW_MALLOC_CONF", "_RJEM_MALLOC_CONF"):
        assert "narenas:3" in allocator_environment(3)[name].split(",")


def test_what_the_user_sets_stays_and_what_polars_sets_for_itself_does_not():
    """It does so when it is imported, also where something is set, which it leaves to win."""
    command = [sys.executable, "-c", "import os, polars; print(os.environ['_RJEM_MALLOC_CONF'])"]
    bare = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    printed = finished(*command, env=bare).stdout.strip()
    ours = allocator_environment(2)
    assert own_or_users(2, {"_RJEM_MALLOC_CONF": printed}) == ours
    printed = finished(*command, env=bare | ours).stdout.strip()
    assert printed.endswith(ours["_RJEM_MALLOC_CONF"])
    assert own_or_users(2, {"_RJEM_MALLOC_CONF": printed})["_RJEM_MALLOC_CONF"] == printed, "nothing is started anew"
    users = {"_RJEM_MALLOC_CONF": "narenas:1", "MALLOC_ARENA_MAX": ""}
    users["JE_ARROW_MALLOC_CONF"] = "dirty_decay_ms:0,muzzy_decay_ms:0"
    assert own_or_users(2, users) == ours | users


def test_a_process_keeps_what_it_frees_from_then_on():
    bare = {name: value for name, value in os.environ.items() if name not in allocator_environment(1)}
    often, once = (int(finished(sys.executable, "-c", FAULTS, *words, env=bare).stdout) for words in ([], ["keep"]))
    assert once < 1000 < often, "faults of the second and later times"


@pytest.mark.skipif("THP_enabled" not in Path("/proc/self/status").read_text(), reason="the kernel does not say")
def test_huge_pages_are_turned_off_and_on():
    done = finished(sys.executable, "-c", PAGES, env=dict(os.environ))
    assert done.stdout.split() == ["0", "1"], done.stderr
