"""Rows for tables of other formats, and Iceberg tables that consist of metadata files alone, without a catalog."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DoubleType, ListType, LongType, NestedField, StringType, StructType, TimestampType

DAY = datetime.date(2026, 1, 1)


def rows(start: int, count: int = 12) -> pa.Table:
    """Return rows with every kind of column, including nulls; ids from `start`."""
    ids = list(range(start, start + count))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": pa.array([DAY + datetime.timedelta(i % 3) if i % 5 else None for i in ids], pa.date32()),
            "k": pa.array([("a b", "ü/x", "100%", None)[i % 4] for i in ids]),
            "price": pa.array([i / 4 if i % 6 else None for i in ids], pa.float64()),
            "ts": pa.array([i * 10**6 for i in ids], pa.timestamp("us", "UTC")),
            "tags": pa.array([[i] * (i % 3) if i % 7 else None for i in ids], pa.list_(pa.int64())),
            "user": pa.array([{"age": i, "name": f"n{i}"} for i in ids]),
        }
    )


def same_rows(read: pa.Table, expected: pa.Table) -> None:
    """Check that columns and rows are the same, in any order."""
    assert set(read.schema.names) == set(expected.schema.names)
    assert read.sort_by("id").to_pylist() == expected.select(read.schema.names).sort_by("id").to_pylist()


FIELDS = (
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "day", DateType(), required=False),
    NestedField(3, "k", StringType(), required=False),
    NestedField(4, "price", DoubleType(), required=False),
    NestedField(5, "ts", TimestampType(), required=False),
    NestedField(6, "tags", ListType(7, LongType(), element_required=False), required=False),
    NestedField(
        8,
        "user",
        StructType(
            NestedField(9, "age", LongType(), required=False), NestedField(10, "name", StringType(), required=False)
        ),
        required=False,
    ),
)
BY_DAY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))


class FolderCatalog(NoopCatalog):
    """A minimal catalog that creates tables in folders and commits to them."""

    def __init__(self, **properties: str) -> None:
        super().__init__("folder", **properties)

    def create(self, folder: Path | str, schema: Any, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC) -> Table:
        """Create a table; `schema` is pyiceberg's own, whose field ids the partition spec uses."""
        metadata = new_table_metadata(
            location=str(folder),
            schema=schema,
            partition_spec=spec,
            sort_order=UNSORTED_SORT_ORDER,
            properties={},
        )
        return self._written(metadata, 0)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(table.metadata, updates, enforce_validation=False)
        number = int(Path(table.metadata_location).name.partition("-")[0]) + 1
        written = self._written(metadata, number)
        return CommitTableResponse(metadata=written.metadata, metadata_location=written.metadata_location)

    def supports_server_side_planning(self) -> bool:
        return False

    def _written(self, metadata: TableMetadata, number: int) -> Table:
        place = f"{metadata.location}/metadata/{number:05d}-{uuid.uuid4()}.metadata.json"
        io = load_file_io(self.properties, place)
        if "://" not in place:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
        ToOutputFile.table_metadata(metadata, io.new_output(place))
        return Table(("t",), metadata, place, io, self)


def ice_table(folder: Path) -> Table:
    """Create an Iceberg table of two snapshots with 12 rows each, partitioned by day."""
    table = FolderCatalog().create(folder, Schema(*FIELDS), BY_DAY)
    for start in (0, 100):
        table.append(ice_rows(table, start))
    return table


def ice_rows(table: Any, start: int, **more: Any) -> pa.Table:
    """Return `rows` in the types and order of an Iceberg table."""
    data = rows(start)
    data = data.set_column(data.schema.names.index("ts"), "ts", data["ts"].cast(pa.timestamp("us")))
    for name, column in more.items():
        data = data.append_column(name, column)
    return data.select(table.schema().as_arrow().names).cast(table.schema().as_arrow())
