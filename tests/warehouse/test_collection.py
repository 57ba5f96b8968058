"""The Apache Parquet interoperability collection: read as pyarrow reads it, or refused with a reason; never a crash.

Each file is read by a child process of its own, within a bound of memory and time.
"""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from collection_reader import child
from forked import forked
from warehouse_samples import COLLECTION, collection

TIME_S = 60.0

pytestmark = pytest.mark.skipif(not COLLECTION.exists(), reason=f"the Parquet collection is not at {COLLECTION}")

ENCRYPTED = "is encrypted: expected a plain Parquet file"
# What is not read, each with the words that say why. pyarrow reads none of these either.
REFUSED = {
    "ARROW-GH-41317.parquet": "row group 0 does not hold the rows of its footer: got 0, expected 3",
    "ARROW-GH-41321.parquet": "row group 0 is not valid Parquet: Invalid or corrupted bit_width 254",
    "ARROW-GH-45185.parquet": "row group 0 is not valid Parquet: The repetition level at the start of a record",
    "ARROW-GH-47662.parquet": "row group 0 is not valid Parquet: Unexpected end of stream",
    "ARROW-RS-GH-6229-DICTHEADER.parquet": "row group 0 is not valid Parquet: Invalid column metadata",
    "ARROW-RS-GH-6229-LEVELS.parquet": "row group 0 is not valid Parquet: Number of decoded rep / def levels",
    "PARQUET-1481.parquet": "is not valid Parquet: Invalid physical column type: UNKNOWN",
    "datapage_v1-corrupt-checksum.parquet": "CRC checksum verification failed",
    "rle-dict-uncompressed-corrupt-checksum.parquet": "CRC checksum verification failed",
    "incorrect_map_schema.parquet": "is not valid Parquet: Map keys must be annotated as required",
    "large_string_map.brotli.parquet": "row group 0 needs more memory than there is",
}
# A file that readers once crashed on, and that reads well since: an index page of bit width 0 is all zeros.
GOOD_AFTER_ALL = {"ARROW-GH-43605.parquet"}

BAD = collection("bad_data")
ALL = [*BAD, *collection("data"), *collection("shredded_variant")]


def in_child(what: str, *arguments: str) -> dict[str, Any]:
    """The answer of a child process, which must neither crash nor hang."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = forked(child, theirs, what, *arguments)
    theirs.close()
    try:
        assert ours.poll(TIME_S), f"no answer within {TIME_S:g} s"
        answer: dict[str, Any] = json.loads(ours.recv())
    except EOFError:
        process.join()
        pytest.fail(f"the child died without an answer: exit code {process.exitcode}")
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()
    return answer


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(COLLECTION)))
def test_read_as_pyarrow_reads_it_or_refused(path: Path):
    found = in_child("compare", str(path))
    assert found["different"] == []
    reason = ENCRYPTED if path.suffix == ".encrypted" else REFUSED.get(path.name)
    if reason is None:
        assert (found["refused"], found["pyarrow"]) == (None, None)
        return
    assert reason in found["refused"]
    assert path.name in found["refused"]
    assert found["pyarrow"] is not None, "pyarrow reads what is refused"
    assert found["frames"] is not None


def test_nothing_in_the_lists_is_missing():
    assert {path.name for path in BAD} - set(REFUSED) == GOOD_AFTER_ALL
    assert set(REFUSED) | GOOD_AFTER_ALL <= {path.name for path in ALL}


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_a_bad_file_is_found_by_a_check_and_skipped_by_a_plan(path: Path, tmp_path: Path):
    found = in_child("skip", str(path), str(tmp_path))
    if path.name in GOOD_AFTER_ALL:
        assert (found["checked"], found["skipped"], found["files"]) == ([], [], 2)
        return
    assert found["checked"] == [str(path)]
    assert found["problems"] == []
    [[skipped, reason]] = found["skipped"]
    assert skipped == str(path)
    assert reason in f"{path}{REFUSED[path.name]}" or REFUSED[path.name].removeprefix("is ")[:20] in reason
    assert (found["files"], found["rows"]) == (1, 100)
