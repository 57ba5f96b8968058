"""A ring's memory comes from the node of the trainer's GPU, on machines that have several."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedline.loader.ring.numa import node_of_device, preferred_node
from feedline.loader.ring.slots import RingMemory

GPU = "0000:3b:00.0"


def machine(system: Path, has_memory: str, node: str) -> Path:
    for path, content in (("devices/system/node/has_memory", has_memory), (f"bus/pci/devices/{GPU}/numa_node", node)):
        (system / path).parent.mkdir(parents=True, exist_ok=True)
        (system / path).write_text(f"{content}\n")
    return system


@pytest.mark.parametrize(
    ("has_memory", "node", "expected"), [("0-1", "1", 1), ("0,2", "0", 0), ("0", "0", None), ("0-1", "-1", None)]
)
def test_the_node_of_a_gpu(tmp_path: Path, has_memory: str, node: str, expected: int | None):
    assert node_of_device(GPU, machine(tmp_path, has_memory, node)) == expected
    assert node_of_device("0000:00:00.0", tmp_path) is None


def test_memory_of_a_node_that_is_there(caplog: pytest.LogCaptureFixture):
    memory = RingMemory.create(generation=0, slots=2, slot_bytes=4096, node=0)
    memory.slot(1)[:] = 7
    memory.close_fd()
    with preferred_node(None):
        pass
    assert not caplog.records


def test_a_node_that_is_not_there_is_a_warning_only(caplog: pytest.LogCaptureFixture):
    with preferred_node(1000):
        pass
    assert "the ring is not bound to NUMA node 1000" in caplog.text
