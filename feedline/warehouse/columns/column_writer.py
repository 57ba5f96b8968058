"""Write the column file of one base file, row group by row group.

Runs wherever tasks of `columns add` run: one task per base file, which holds one row group's inputs and values. The
file has the base file's row groups; a note in its footer names the base file, the digest of its footer, and the fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.dataclass import dataclass
from feedline.errors import DataError, TableError
from feedline.warehouse.columns.values import ColumnSource
from feedline.warehouse.discovery.column_log import ColumnFile, column_path
from feedline.warehouse.optimize.landing import room_for
from feedline.warehouse.parquet.footer import file_facts
from feedline.warehouse.parquet.writer import Encoding, upload, writer_options
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.faults import label
from feedline.warehouse.storage.retry import is_local

NOTE_KEY = b"feedline.columns"
_READ_ROWS = 1 << 20  # rows decoded at once: row groups are read whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTask:
    """A base file, with all its row groups and their rows, and what is written for it: `fields`, from `source`.

    schema: the table's. encodings: of the Parquet columns.
    """

    claim: Claim
    fragment: Fragment
    rows: tuple[int, ...]
    schema: pa.Schema
    fields: pa.Schema
    source: ColumnSource
    encodings: Sequence[Encoding]

    @property
    def path(self) -> str:
        """Where the column file will be, below the table's root."""
        return column_path(self.claim.run, self.fragment.path)


def staged(claim: Claim, path: str) -> str:
    """Where a run's file is written before it is moved to a path below the table's root."""
    return claim.own(path).path


def write_column_file(task: ColumnTask) -> ColumnFile:
    """Write the column file below the run's own folder; returns it as it will be. Raises as reading does."""
    filesystem, path = task.claim.location.filesystem, staged(task.claim, task.path)
    task.claim.check()
    local = is_local(filesystem)
    with room_for(task.claim.uri):
        if local:
            filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        sink = filesystem.open_output_stream(path) if local else pa.BufferOutputStream()
        with sink:
            with pq.ParquetWriter(sink, task.fields, **writer_options(task.encodings)) as writer:
                for position in range(len(task.rows)):
                    values = new_columns(task, position)
                    writer.write_table(values, row_group_size=max(values.num_rows, 1))
                writer.add_key_value_metadata(
                    note_of(task.fragment.path, task.fragment.footer_digest, task.fields.names)
                )
            size = sink.tell()
            if not local:
                upload(filesystem, path, sink.getvalue())
    facts = file_facts(filesystem, path, size, task.path)
    if tuple(facts.rows) != task.rows:
        raise TableError(
            f"column file {task.path} has other row groups than its base file: got {len(facts.rows)} of "
            f"{sum(facts.rows):,} rows, expected {len(task.rows)} of {sum(task.rows):,}. Rewrite the base file with "
            "smaller row groups"
        )
    return ColumnFile(
        path=task.path,
        bytes=size,
        footer_digest=facts.digest,
        footer_bytes=facts.footer_bytes,
        base_digest=task.fragment.footer_digest,
        fields=tuple(task.fields.names),
    )


def note_of(base: str, base_digest: bytes, fields: Sequence[str]) -> dict[bytes, bytes]:
    """The metadata of a column file: its base file, and the fields."""
    note = {"version": 1, "base": base, "base_digest": base_digest.hex(), "fields": list(fields)}
    return {NOTE_KEY: json.dumps(note).encode()}


def new_columns(task: ColumnTask, position: int) -> pa.Table:
    """The values of one row group. Raises DataError where they do not fit the fields."""
    fragment = task.fragment.alone(position)
    names = task.source.inputs(task.schema)
    rows = read_arrow(fragment, ReadRequest(names, task.schema, chunk_rows=_READ_ROWS))
    place = label(fragment.uri, fragment.row_groups[0])
    values = task.source.compute(rows)
    if values.num_rows != rows.num_rows:
        raise DataError(
            f"new columns have another number of rows than {place}: got {values.num_rows}, expected {rows.num_rows}. "
            "Compute one value per row"
        )
    arrays = []
    for field in task.fields:
        array = contiguous(values[field.name])
        try:
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"column {field.name!r} of {place} does not fit its type: got {array.type}, expected {field.type} "
                f"({error}). Drop the column, and add it with the wider type"
            ) from error
    return pa.Table.from_arrays(arrays, schema=task.fields)
