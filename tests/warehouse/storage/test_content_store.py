"""Files of a work directory are written whole, streamed and verified."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest

from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import locate


class Part(bytearray):
    """Bytes that record when they are freed."""


def test_content_for_a_store_is_not_held_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_store, "_SPOOL_BYTES", 10)
    monkeypatch.setattr(content_store, "_RUN_BYTES", 7)
    before: list[weakref.ref[Part]] = []

    def parts() -> Iterator[Part]:
        for number in range(5):
            assert all(one() is None for one in before[:-1])
            parts = [Part(f"part {number};".encode())]
            before.append(weakref.ref(parts[0]))
            yield parts.pop()

    location = locate("memory://overflow/w")
    content_store.put(location, "folder/name", parts())
    assert bytes(content_store.get(location, "folder/name")) == b"part 0;part 1;part 2;part 3;part 4;"
