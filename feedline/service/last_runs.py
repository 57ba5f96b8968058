"""The last status of each run, in `status/` of the pipeline's `work_dir`.

`LastRun` writes in the feeder, when a trainer leaves and at the end; `last_statuses` reads, in commands.

A file is named by everything that tells one run's feeder from another's: the name of pipeline.yaml, the fingerprint of
the job (all keys that decide what is delivered, so not `epochs`, `cluster`, `memory`, `feeder` and `cache`, which the
status has as far as they decide speed), the ranks that the feeder served, and the number of all ranks. The next run of
the same replaces it. The newest 200 files are kept.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.fs as pafs

from feedline.config import PipelineSpec
from feedline.errors import FeedlineError, TableNotFoundError
from feedline.loader.ring.rendezvous import job_fingerprint
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.run_status import FeederStatus
from feedline.warehouse.storage.content_store import get, put, remove
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import Location, absolute, join, locate, redact
from feedline.warehouse.storage.retry import with_retries

logger = logging.getLogger(__name__)

_FOLDER = "status"
_KEPT = 200
_FINGERPRINT_DIGITS = 16
_LISTINGS = 5


class LastRun:
    """The file of one feeder's run. world_size: the number of all ranks."""

    def __init__(self, spec: PipelineSpec, world_size: int) -> None:
        self._work_dir, self._world_size = spec.work_dir, world_size
        self._prefix = _prefix(spec)

    def write(self, status: FeederStatus) -> None:
        """Replace the file. Failures of the store or disk are logged, not raised."""
        name = f"{self._prefix}{_ranges([rank.rank for rank in status.ranks])}-of-{self._world_size}.json"
        try:
            location = locate(absolute(self._work_dir))
            put(location, f"{_FOLDER}/{name}", [pack(status)])
            for stale in _files(location)[_KEPT:]:  # another feeder may delete it first, or it is another user's
                remove(self._work_dir, f"{_FOLDER}/{stale}")
        except (OSError, FeedlineError, pa.ArrowException) as error:
            logger.warning("the status of this run could not be kept in %s: %s", redact(self._work_dir), error)


def last_statuses(spec: PipelineSpec) -> list[FeederStatus]:
    """The last status of each feeder that ran a pipeline as it is now, the latest first: one per set of ranks, also of
    different runs. Those of another release are left out.

    Raises StoreError if the store of `work_dir` keeps failing, TableError if it may not be listed.
    """
    location, prefix = locate(absolute(spec.work_dir)), _prefix(spec)
    found = [_load(location, name) for name in _files(location) if name.startswith(prefix)]
    return sorted((each for each in found if each is not None), key=lambda each: -each.now_s)


def last_status(spec: PipelineSpec) -> FeederStatus | None:
    """The status with which the last feeder of a pipeline ended; None if none ran it as it is now. Raises as
    `last_statuses`."""
    return next(iter(last_statuses(spec)), None)


def _prefix(spec: PipelineSpec) -> str:
    name = re.sub(r"[^A-Za-z0-9._]", "_", PurePosixPath(spec.file).name)
    return f"{name}-{job_fingerprint(spec)[:_FINGERPRINT_DIGITS]}-"


def _load(location: Location, name: str) -> FeederStatus | None:
    try:
        return unpack(FeederStatus, bytes(get(location, f"{_FOLDER}/{name}")))
    except (OSError, FeedlineError) as error:  # also a file of another user
        logger.warning("the status of a run, %s, cannot be read and is skipped: %s", name, error)
        return None


def _files(location: Location) -> list[str]:
    files, name = location.filesystem, join(redact(location.uri), _FOLDER)
    selector = pafs.FileSelector(join(location.path, _FOLDER), allow_not_found=True)
    for listings_left in reversed(range(_LISTINGS)):
        try:
            with explain_errors(name, verb="listed"):
                infos = with_retries(lambda: files.get_file_info(selector), files, name, verb="listed")
            break
        except TableNotFoundError:  # another process renamed its file while this one looked at it
            if not listings_left:
                raise
    found = [info for info in infos if info.base_name.endswith(".json")]
    return [info.base_name for info in sorted(found, key=lambda info: -(info.mtime_ns or 0))]


def _ranges(ranks: Sequence[int]) -> str:
    """Ranks as ranges: "0-3_6"."""
    return "_".join(_runs(sorted(set(ranks)))) or "none"


def _runs(ranks: Sequence[int]) -> Iterator[str]:
    first = last = None
    for rank in (*ranks, None):
        if last is not None and rank == last + 1:
            last = rank
            continue
        if first is not None:
            yield f"{first}" if first == last else f"{first}-{last}"
        first = last = rank
