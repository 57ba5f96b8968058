"""The Apache Parquet interoperability collection: read as pyarrow reads it, or refused with a reason; never a crash.

The files of a folder are read by one child process, each within a bound of memory and time.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from collection_reader import child
from forked import forked
from warehouse_samples import COLLECTION, collection

from feedline.native import parquet as native

TIME_S = 60.0

pytestmark = pytest.mark.skipif(not COLLECTION.exists(), reason=f"the Parquet collection is not at {COLLECTION}")

ENCRYPTED = "is encrypted: expected a plain Parquet file"
# The files that are refused, each with the reason; pyarrow reads none of these either.
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
if native.COMPILED:  # which finds the damage itself, or leaves it to pyarrow in another order
    REFUSED |= {
        "ARROW-GH-41321.parquet": "row group 0 is not valid Parquet: Number of decoded rep / def levels",
        "ARROW-GH-45185.parquet": "row group 0 is not valid Parquet: its first level is inside a list",
        "ARROW-GH-47662.parquet": "row group 0 is not valid Parquet: its values end early",
        "datapage_v1-corrupt-checksum.parquet": "a page's checksum does not fit its bytes",
    }
# A file that once crashed readers, and is read correctly now: an index page of bit width 0 is all zeros.
GOOD_AFTER_ALL = {"ARROW-GH-43605.parquet"}

BAD = collection("bad_data")
ALL = [*BAD, *collection("data"), *collection("shredded_variant")]


def in_children(function: str, jobs: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
    """The results of jobs, which a child process runs one after the other; none may crash or hang."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = forked(child, theirs, function, jobs)
    theirs.close()
    answers: list[dict[str, Any]] = []
    try:
        for job in jobs:
            assert ours.poll(TIME_S), f"no answer for {job[0]} within {TIME_S:g} s"
            answers.append(json.loads(ours.recv()))
    except EOFError:
        process.join()
        pytest.fail(f"the child died at {jobs[len(answers)][0]}: exit code {process.exitcode}")
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()
    return answers


def compare_problems(path: Path, found: dict[str, Any]) -> list[str]:
    """How the reading of a file differs from pyarrow's."""
    reason = ENCRYPTED if path.suffix == ".encrypted" else REFUSED.get(path.name)
    checks = {"differs from pyarrow": found["different"] == []}
    if reason is None:
        checks["is refused"] = (found["refused"], found["pyarrow"]) == (None, None)
    else:
        refused = found["refused"] or ""
        checks |= {
            "is not refused for its reason": reason in refused and path.name in refused,
            "is refused, but pyarrow reads it": found["pyarrow"] is not None,
            "is read as frames": found["frames"] is not None,
        }
    return [f"{path.relative_to(COLLECTION)} {problem}: {found}" for problem, holds in checks.items() if not holds]


@pytest.mark.parametrize("folder", ["bad_data", "data", "shredded_variant"])
def test_files_are_read_as_pyarrow_reads_them_or_refused(folder: str):
    paths = collection(folder)
    assert paths
    answers = in_children("compare", [(str(path),) for path in paths])
    problems = [compare_problems(path, found) for path, found in zip(paths, answers, strict=True)]
    assert not list(itertools.chain(*problems))


def test_every_listed_file_exists():
    assert {path.name for path in BAD} - set(REFUSED) == GOOD_AFTER_ALL
    assert set(REFUSED) | GOOD_AFTER_ALL <= {path.name for path in ALL}


def test_bad_files_are_found_by_a_check_and_skipped_by_a_plan(tmp_path: Path):
    folders = [tmp_path / str(number) for number, _ in enumerate(BAD)]
    for folder in folders:
        folder.mkdir()
    answers = in_children("skip", [(str(path), str(folder)) for path, folder in zip(BAD, folders, strict=True)])
    for path, found in zip(BAD, answers, strict=True):
        if path.name in GOOD_AFTER_ALL:
            assert (found["checked"], found["skipped"], found["files"]) == ([], [], 2)
            continue
        assert found["checked"] == [str(path)]
        assert found["problems"] == []
        [[skipped, reason]] = found["skipped"]
        assert skipped == str(path)
        assert reason in f"{path}{REFUSED[path.name]}" or REFUSED[path.name].removeprefix("is ")[:20] in reason
        assert (found["files"], found["rows"]) == (1, 100)
