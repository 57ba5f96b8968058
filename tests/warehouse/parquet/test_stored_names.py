"""Columns of files and their fields get the table's names, found by name or by field id."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from feedline.errors import TableError
from feedline.warehouse.parquet.stored_names import StoredField, StoredNames, groups_under_other_names

INNER = (StoredField("b", "col-3", 3, ()),)
ITEM = StoredField("element", "element", 0, INNER)
FIELDS = (
    StoredField("a", "col-1", 1, ()),
    StoredField("s", "col-2", 2, INNER),
    StoredField("l", "col-4", 4, (ITEM,)),
)
STRUCT = pa.struct([("col-3", pa.int8())])
RENAMED = pa.struct([("b", pa.int8())])


def stored(ids: bool = False) -> pa.Schema:
    def field(name: str, kind: pa.DataType, id: int) -> pa.Field:
        return pa.field(name, kind, metadata={b"PARQUET:field_id": str(id).encode()} if ids else None)

    inner = pa.struct([field("col-3", pa.int8(), 3)])
    return pa.schema([field("col-1", pa.int64(), 1), field("col-2", inner, 2), field("col-4", pa.list_(inner), 4)])


@pytest.mark.parametrize("by_id", [False, True])
def test_columns_and_fields_get_the_names_of_the_table(by_id: bool):
    names = StoredNames.of(FIELDS, by_id=by_id)
    found = names.schema(stored(ids=by_id), "file")
    expected = pa.schema([("a", pa.int64()), ("s", RENAMED), ("l", pa.list_(RENAMED))])
    assert found.equals(expected, check_metadata=True)


def test_rows_are_renamed_without_a_change_of_their_values():
    batch = pa.record_batch([[1, 2], [{"col-3": 1}, None], [[{"col-3": 2}], []]], schema=stored())
    found = StoredNames.of(FIELDS, by_id=False).rename(batch, "file")
    assert found.to_pylist() == [{"a": 1, "s": {"b": 1}, "l": [{"b": 2}]}, {"a": 2, "s": None, "l": []}]
    assert found.column(0).buffers()[1].address == batch.column(0).buffers()[1].address


def test_some_columns_are_renamed_alone():
    schema = pa.schema([stored().field("col-2")])
    assert StoredNames.of(FIELDS, by_id=False).schema(schema, "file").names == ["s"]


@pytest.mark.parametrize("kind", [pa.large_list(STRUCT), pa.list_(STRUCT, 2)])
def test_lists_of_all_kinds(kind: pa.DataType):
    found = StoredNames.of((StoredField("l", "x", 1, (ITEM,)),), by_id=False).schema(pa.schema([("x", kind)]), "file")
    assert found.field("l").type.value_type == RENAMED
    assert type(found.field("l").type) is type(kind)


def test_maps_are_renamed_in_keys_and_values():
    parts = (StoredField("key", "key", 5, ()), StoredField("value", "value", 6, INNER))
    names = StoredNames.of((StoredField("m", "x", 1, parts),), by_id=False)
    found = names.schema(pa.schema([("x", pa.map_(pa.string(), STRUCT))]), "file")
    assert found == pa.schema([("m", pa.map_(pa.string(), RENAMED))])


def test_a_dropped_column_does_not_take_the_name_of_another():
    names = StoredNames.of((StoredField("a", "col-1", 1, ()),), by_id=False)
    found = names.schema(pa.schema([("a", pa.int8()), ("col-1", pa.int64()), ("b", pa.int8())]), "file")
    assert found == pa.schema([("a'", pa.int8()), ("a", pa.int64()), ("b", pa.int8())])


def test_a_file_without_field_ids_is_refused_where_columns_are_found_by_them():
    with pytest.raises(TableError, match="s3://b/f has no field id for 'col-1': expected one for each column"):
        StoredNames.of(FIELDS, by_id=True).schema(stored(), "s3://b/f")


def test_equal_names_are_equal_and_short_in_the_keys_of_tasks():
    names, other = StoredNames.of(FIELDS, by_id=True), StoredNames.of(FIELDS, by_id=False)
    assert pickle.loads(pickle.dumps(names)) == names == StoredNames.of(list(FIELDS), by_id=True)
    assert repr(names) != repr(other)
    assert len(repr(names)) < 80


def test_groups_of_columns_under_other_names_have_a_remedy():
    message = str(groups_under_other_names("s3://b/f"))
    assert message.startswith("s3://b/f stores groups of columns once per run under other names than the table's")
    assert "feedline optimize" in message
