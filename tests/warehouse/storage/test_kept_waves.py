"""Kept waves are loaded as they were saved; damaged ones are not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from feedline.warehouse.storage.content_store import KeptWaves

TABLES = [pa.table({"x": [1, 2]}), pa.table({"y": ["a"]})]


def test_waves_of_an_interrupted_pass_are_loaded_and_removed_in_the_end(tmp_path: Path):
    KeptWaves(str(tmp_path)).save("waves/one.arrow", TABLES)
    resumed = KeptWaves(str(tmp_path))
    assert resumed.load("waves/one.arrow") == TABLES
    assert resumed.load("waves/two.arrow") is None
    resumed.save("waves/two.arrow", TABLES[:1])
    resumed.forget()
    assert not list(tmp_path.glob("waves/*.arrow"))


def test_damaged_waves_are_not_loaded(tmp_path: Path):
    KeptWaves(str(tmp_path)).save("waves/one.arrow", TABLES)
    (file,) = tmp_path.glob("waves/*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert KeptWaves(str(tmp_path)).load("waves/one.arrow") is None


def test_without_a_work_dir_nothing_is_kept():
    waves = KeptWaves(None)
    waves.save("waves/one.arrow", TABLES)
    assert waves.load("waves/one.arrow") is None
    waves.forget("waves")
