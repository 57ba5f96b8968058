"""A process that is started with these variables keeps freed memory; huge pages can be turned off for a process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from processes import finished

from feedline.resources.allocators import allocator_environment

POOL = "import pyarrow as pa; print(pa.default_memory_pool().backend_name)"
PAGES = """
from pathlib import Path
from feedline.resources.allocators import use_huge_pages
for use in (False, True):
    use_huge_pages(use)
    print(*[line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "THP_enabled" in line])
"""


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="pyarrow was built without jemalloc")
def test_arrow_allocates_with_jemalloc():
    done = finished(sys.executable, "-c", POOL, env={**os.environ, **allocator_environment(2)})
    assert done.stdout.split() == ["jemalloc"], done.stderr


def test_jemalloc_has_an_arena_per_thread():
    assert allocator_environment(3)["JE_ARROW_MALLOC_CONF"].endswith("narenas:3")


@pytest.mark.skipif("THP_enabled" not in Path("/proc/self/status").read_text(), reason="the kernel does not say")
def test_huge_pages_are_turned_off_and_on():
    done = finished(sys.executable, "-c", PAGES, env=dict(os.environ))
    assert done.stdout.split() == ["0", "1"], done.stderr
