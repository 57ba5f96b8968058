"""KeyedJaggedTensors of batches in torchrec's own modules, against those of lists written out row by row."""

from __future__ import annotations

import builtins
import importlib.util
import pickle
import sys
import warnings
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from feedline.errors import FeedlineError
from feedline.loader.batch import Batch
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotLayout, SparseFeatures
from feedline.loader.encoding.slot import write_rows
from feedline.loader.tensors.slot_tensors import DeviceBytes, cut_pieces
from feedline.loader.tensors.torchrec_tensors import register_pipelineable
from feedline.native.unique_rows import UniqueRows

IDS = 50
WEIGHTED = pl.Struct({"values": pl.List(pl.Int64), "weights": pl.List(pl.Float32)})


def column(name: str, dtype: str, dedup: str | None, *, weighted: bool = False) -> SlotColumn:
    return SlotColumn(
        name=name, group="sparse", dtype=dtype, arrow="list", offset=0, weighted=weighted, dedup=dedup, width=1
    )


SCHEMA = BatchSchema(
    (
        column("a", "int64", "u"),
        column("b", "int64", None),
        column("c", "int32", "v"),
        column("d", "int64", "v"),
        column("w", "int64", "u", weighted=True),
        column("x", "int64", None, weighted=True),
        column("e", "int64", "u"),
        column("f", "float32", None),
        SlotColumn(name="y", group="label", dtype="float32", arrow="float", offset=0),
    )
)
INVERSE = {"u": [0, 0, 0, 1, 2, 2, 3], "v": [0, 1, 1, 1, 1, 1, 2]}
ROWS = 7
WITH_IDS = BatchSchema(
    (
        *SCHEMA,
        SlotColumn(name="p", group="categorical", dtype="int64", arrow="int64", offset=0),
        SlotColumn(name="q", group="categorical", dtype="int64", arrow="int64", offset=0, dedup="u"),
        SlotColumn(name="r", group="categorical", dtype="int64", arrow="int64", offset=1),
    )
)
IDS_OF_ROWS = {"p": [3, 1, 4, 1, 5, 9, 2], "q": [6, 6, 6, 5, 3, 3, 5], "r": [8, 9, 7, 9, 3, 2, 3]}


@pytest.fixture(scope="module")
def torchrec() -> ModuleType:
    if importlib.util.find_spec("torchrec") is None:
        pytest.skip("torchrec is not installed: make install does it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, of parts for GPUs that are absent and of names that are old
        import torchrec
        import torchrec.distributed.train_pipeline
    return torchrec


def lists_of(name: str) -> list[Any]:
    """The value of each row, the same for the rows of a run; some lists are empty."""
    dedup, kind = SCHEMA[name].dedup, SCHEMA[name]
    rng = np.random.default_rng(len(name) + ord(name[0]))
    unique = [rng.integers(0, IDS, rng.integers(0, 5)).tolist() for _ in range(ROWS)]
    values = [[float(v) for v in each] for each in unique] if kind.dtype == "float32" else unique
    if kind.weighted:
        values = [{"values": each, "weights": [float(np.float32(rng.random())) for _ in each]} for each in unique]
    return [values[row] for row in (INVERSE[dedup] if dedup else range(ROWS))]


def batch_of(schema: BatchSchema = SCHEMA, choice: SparseFeatures | None = None) -> Batch:
    types = {"int64": pl.List(pl.Int64), "int32": pl.List(pl.Int32), "float32": pl.List(pl.Float32)}
    frame = pl.DataFrame(
        {"y": [0.0] * ROWS, **{c.name: lists_of(c.name) for c in SCHEMA.sparse}, **IDS_OF_ROWS},
        schema={
            "y": pl.Float32,
            **{c.name: WEIGHTED if c.weighted else types[c.dtype] for c in SCHEMA.sparse},
            **dict.fromkeys(IDS_OF_ROWS, pl.Int64),
        },
    )
    own, *grouped = schema.parts
    groups = []
    for name, part in zip(schema.dedup, grouped, strict=True):
        first = [INVERSE[name].index(number) for number in range(INVERSE[name][-1] + 1)]
        groups.append(UniqueRows(encode(frame[first], part), np.array(INVERSE[name], np.int32)))
    rows: EncodedRows = encode(frame, own)
    layout = SlotLayout(schema, choice)
    return Batch.over(layout, write_rows(layout, [replace(rows, groups=tuple(groups))]))


def on_device(batch: Batch) -> Batch:
    """The batch as it is on a device, in pieces, with its bytes in the memory of this host."""
    pieces = [piece.clone() for piece in cut_pieces(batch._bytes(), batch._ends_of_pieces())]
    return batch._over(DeviceBytes(pieces))


PLAIN = BatchSchema(tuple(replace(column, dedup=None) for column in SCHEMA))


def written_out(torchrec: ModuleType, keys: list[str], weighted: bool = False) -> Any:
    """The KeyedJaggedTensor of all rows."""
    values, lengths, weights = [], [], []
    for key in keys:
        for value in lists_of(key):
            ids = value["values"] if isinstance(value, dict) else value
            values += ids
            weights += value["weights"] if weighted else []
            lengths.append(len(ids))
    dtype = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}[SCHEMA[keys[0]].dtype]
    return torchrec.KeyedJaggedTensor(
        keys=keys,
        values=torch.tensor(values, dtype=dtype),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        weights=torch.tensor(weights) if weighted else None,
    )


def bags(torchrec: ModuleType, keys: list[str], *, weighted: bool = False) -> Any:
    config = torchrec.EmbeddingBagConfig
    torch.manual_seed(3)
    tables = [
        config(name=f"t{key}", embedding_dim=4, num_embeddings=IDS, feature_names=[key]) for key in reversed(keys)
    ]
    return torchrec.EmbeddingBagCollection(tables=tables, is_weighted=weighted, device=torch.device("cpu"))


def assert_same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    assert torch.equal(one.values(), other.values())
    assert torch.equal(one.lengths(), other.lengths())
    assert (
        torch.equal(one.weights_or_none(), other.weights_or_none())
        if other.weights_or_none() is not None
        else (one.weights_or_none() is None)
    )


CASES = [("int64", False, ["b", "a", "e", "d", "x", "w"]), ("int32", False, ["c"]), ("int64", True, ["x", "w"])]


@pytest.mark.parametrize(("dtype", "weighted", "keys"), CASES)
def test_embedding_bags_of_unique_rows_are_those_of_all_rows(torchrec, dtype, weighted, keys):
    batch = batch_of()
    features = batch.to_torchrec(dtype, weighted=weighted)
    assert features.keys() == keys
    wanted = written_out(torchrec, keys, weighted)
    rows = [batch.groups[SCHEMA[key].dedup].unique_rows if SCHEMA[key].dedup else ROWS for key in keys]
    assert features.stride_per_key() == rows
    names, inverse = features.inverse_indices()
    assert names == keys
    assert inverse.dtype == torch.int64
    assert inverse.tolist() == [INVERSE.get(SCHEMA[key].dedup or "", list(range(ROWS))) for key in keys]
    collection = bags(torchrec, keys, weighted=weighted)
    result, all_rows = collection(features), collection(wanted)
    assert torch.equal(result.values(), all_rows.values())
    losses = [each.values().sin().sum() for each in (result, all_rows)]
    gradients = [torch.autograd.grad(loss, list(collection.parameters())) for loss in losses]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert_same(batch.to_torchrec(dtype, weighted=weighted, expand=True), wanted)
    plain = written_out(torchrec, [column.name for column in PLAIN.sparse if column.name in keys], weighted)
    assert_same(batch.expanded().to_torchrec(dtype, weighted=weighted), plain)
    assert_same(batch_of(PLAIN).to_torchrec(dtype, weighted=weighted), plain)


@pytest.mark.parametrize("schema", [WITH_IDS, WITH_IDS.expanded], ids=["groups", "plain"])
def test_categorical_features_follow_the_lists_as_lists_of_one(torchrec, schema):
    """Deduplicated or not, the embeddings of all rows are those of the ids written out."""
    batch = batch_of(schema)
    names = [column.name for column in schema.group("categorical")]
    assert names
    features = batch.to_torchrec(categorical=True)
    lists = batch.to_torchrec().keys()
    assert features.keys() == [*lists, *names]
    wanted = batch.expanded()
    assert {name: wanted[name].tolist() for name in names} == IDS_OF_ROWS
    for each in (features, batch.to_torchrec(categorical=True, expand=True)):
        collection = bags(torchrec, each.keys())
        result = collection(each)
        for name in names:
            table = dict(collection.named_parameters())[f"embedding_bags.t{name}.weight"]
            assert torch.equal(result[name], table[wanted[name]]), name
        for name in lists:
            ids = wanted.sparse[name]
            table = dict(collection.named_parameters())[f"embedding_bags.t{name}.weight"]
            pooled = torch.nn.functional.embedding_bag(
                ids.values, table, ids.offsets, mode="sum", include_last_offset=True
            )
            torch.testing.assert_close(result[name], pooled)
    for group, tensors in batch.groups.items():
        own = [name for name in names if schema[name].dedup == group]
        of_group = batch.to_torchrec(categorical=True, group=group)
        keys = of_group.keys()
        assert [key for key in keys if key in names] == own
        assert of_group.stride() == tensors.unique_rows
    with pytest.raises(ValueError, match="in a deduplicated group 'nobody'"):
        batch.to_torchrec(categorical=True, group="nobody")


def test_values_lengths_and_weights_are_views_of_the_slot(torchrec):
    batch = batch_of()
    ids, weighted = batch.to_torchrec(), batch.to_torchrec(weighted=True)
    assert inside(batch, ids.values())
    assert inside(batch, ids.lengths())
    assert ids.values().data_ptr() == batch.sparse["b"].values.data_ptr()
    for tensor in (weighted.values(), weighted.lengths(), weighted.weights()):
        assert inside(batch, tensor)
    assert weighted.weights().data_ptr() == batch.sparse["x"].weights.data_ptr()
    once = ids.inverse_indices()[1].untyped_storage().data_ptr()
    assert weighted.inverse_indices()[1].untyped_storage().data_ptr() == once
    assert batch.to_torchrec("int32").inverse_indices()[1].untyped_storage().data_ptr() == once
    assert not inside(batch, batch.to_torchrec(expand=True).values())


def inside(batch: Batch, tensor: torch.Tensor) -> bool:
    start = batch._root.ctypes.data
    return bool(start <= tensor.data_ptr() < start + batch.nbytes)


LISTS = BatchSchema(tuple(column for column in PLAIN if column.group != "categorical"))
SCALARS = BatchSchema(
    tuple(
        SlotColumn(name=name, group="categorical", dtype="int64", arrow="int64", offset=offset)
        for offset, name in enumerate(IDS_OF_ROWS)
    )
)
CHOICES = [
    SparseFeatures(),
    SparseFeatures(expand=False),
    SparseFeatures(dtype="int32"),
    SparseFeatures(dtype="int32", expand=False),
    SparseFeatures(features=("q", "w", "b", "p")),
    SparseFeatures(features=("q", "w", "b", "p"), expand=False),
    SparseFeatures(features=("e", "d"), expand=False),
    SparseFeatures(features=("a", "e"), expand=False),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("moved", [False, True], ids=["host", "device"])
def test_embeddings_of_the_chosen_features_are_those_of_all_rows(torchrec, choice: SparseFeatures, moved: bool):
    host = batch_of(WITH_IDS, choice)
    batch = on_device(host) if moved else host
    features = batch.sparse_features
    assert batch.sparse_features is features, "what was made for the input distribution is used again in the step"
    assert features.keys() == list(choice.features or "baedxwpqr")
    assert features.values().dtype == getattr(torch, choice.dtype)
    expands = choice.expand is None or choice.expand
    assert (features.inverse_indices_or_none() is None) == expands
    assert features.stride() == ROWS
    lengths, known = features.lengths().split(features.stride_per_key()), features.length_per_key()
    assert known == [int(each.sum()) for each in lengths], "torchrec takes these for sums of lengths"
    collection, plain, names = bags(torchrec, features.keys()), host.expanded(), features.keys()
    result, tables = collection(features), dict(collection.named_parameters())
    for name in names:
        table = tables[f"embedding_bags.t{name}.weight"]
        if name in IDS_OF_ROWS:
            assert torch.equal(result[name], table[plain[name]])
        else:
            ids = plain.sparse[name]
            pooled = torch.nn.functional.embedding_bag(
                ids.values, table, ids.offsets, mode="sum", include_last_offset=True
            )
            torch.testing.assert_close(result[name], pooled)


@pytest.mark.parametrize("choice", [SparseFeatures(), SparseFeatures(expand=False)], ids=str)
def test_weighted_features_have_their_weights(torchrec, choice: SparseFeatures):
    batch = batch_of(SCHEMA, choice)
    features = batch.weighted_sparse_features
    wanted = written_out(torchrec, features.keys(), weighted=True)
    collection = bags(torchrec, features.keys(), weighted=True)
    assert torch.equal(collection(features).values(), collection(wanted).values())
    with pytest.raises(ValueError, match="no weighted features"):
        batch_of(SCALARS).weighted_sparse_features  # noqa: B018


def test_lists_alone_and_ids_alone_are_views_of_the_slot(torchrec):
    lists, scalars, both = batch_of(LISTS), batch_of(SCALARS), batch_of(WITH_IDS.expanded)
    assert inside(lists, lists.sparse_features.values())
    assert inside(lists, lists.sparse_features.lengths())
    assert inside(lists, lists.weighted_sparse_features.weights())
    assert inside(scalars, scalars.sparse_features.values())
    assert scalars.sparse_features.to_dict()["q"].values().tolist() == IDS_OF_ROWS["q"]
    assert not inside(both, both.sparse_features.values())
    with pytest.raises(ValueError, match="no sparse features of int64"):
        batch_of(BatchSchema(SCHEMA.columns[-1:])).sparse_features  # noqa: B018


def test_dense_features_are_of_all_rows(torchrec):
    batch = batch_of(WITH_IDS)
    assert torch.equal(batch.dense_features, batch.expanded().dense)
    assert batch.dense_features is batch.dense_features
    plain = batch_of(PLAIN)
    assert plain.dense_features is plain.dense


def test_the_choice_goes_with_copies_of_a_batch(torchrec):
    choice = SparseFeatures(features=("d", "b"), dtype="int32")
    batch = batch_of(SCHEMA, choice)
    for copied in (batch.clone(), pickle.loads(pickle.dumps(batch)), batch.expanded(), on_device(batch)):
        assert copied.sparse_features.keys() == ["d", "b"]
        assert torch.equal(copied.sparse_features.values(), batch.sparse_features.values())


@pytest.mark.parametrize("schema", [SCHEMA, LISTS, WITH_IDS], ids=["groups", "lists", "ids"])
def test_memory_that_torchrec_frees_is_of_lists_only(torchrec, schema: BatchSchema):
    """As `free_features_storage_early` and `clear_data_dist_inputs` do, by resizing the storage of what they get."""
    host = batch_of(schema, SparseFeatures(expand=False))
    batch = on_device(host)
    for copied in (batch, batch.clone()):
        assert torch.equal(copied._bytes(), host._bytes())
        assert len(copied._device_bytes.pieces) == (3 if schema.dedup else 2)
    others = {column.name: batch[column.name] for column in schema if column.group != "sparse"}
    for tensor in (batch.sparse_features.values(), batch.sparse_features.lengths()):
        tensor.untyped_storage().resize_(0)
    for name, values in others.items():
        expected = host[name]
        pairs = [(values, expected)] if torch.is_tensor(values) else [(values.values, expected.values)]
        assert all(torch.equal(*pair) for pair in pairs), name
    assert torch.equal(batch.labels, host.labels)
    assert torch.equal(batch.valid, host.valid)
    if all(column.group != "categorical" for column in schema):  # else a copy was freed
        with pytest.raises(
            FeedlineError, match=r"lists are gone: .*free_features_storage_early or clear_data_dist_inputs"
        ):
            batch.sparse  # noqa: B018
        with pytest.raises(FeedlineError, match="lists are gone"):
            batch._bytes()


def test_a_stream_holds_what_was_made_for_torchrec(torchrec, monkeypatch: pytest.MonkeyPatch):
    """Pieces, copies of ids and inverse indices, each of which has memory of its own."""
    batch = on_device(batch_of(WITH_IDS, SparseFeatures(expand=False)))
    features, weighted = batch.sparse_features, batch.weighted_sparse_features
    inverse = [each.inverse_indices()[1] for each in (features, weighted)]
    used = [*batch._device_bytes.pieces, features.values(), features.lengths(), weighted.weights(), *inverse]
    held = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: held.append((storage(self), stream)))
    batch.record_stream("other")
    assert {(storage(tensor), "other") for tensor in used} == set(held)


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_freeing_host_memory_is_refused_by_name(torchrec):
    batch = batch_of(LISTS)
    with pytest.raises(FeedlineError, match="free_features_storage_early needs batches on a GPU"):
        batch.sparse_features.clear_storage()
    with pytest.raises(RuntimeError, match="not resizable"):  # `clear_data_dist_inputs`
        batch.sparse_features.values().untyped_storage().resize_(0)
    assert batch.sparse_features.values().sum() >= 0


def test_a_dtype_without_groups_and_a_batch_of_no_rows(torchrec):
    batch = batch_of()
    floats = batch.to_torchrec("float32")
    assert floats.inverse_indices_or_none() is None
    assert_same(floats, written_out(torchrec, ["f"]))
    empty = SlotLayout(SCHEMA)
    none = Batch.over(empty, write_rows(empty, []))
    features = none.to_torchrec()
    assert features.inverse_indices()[1].shape == (6, 0)
    assert len(features.values()) == 0
    with pytest.raises(
        ValueError, match=r"no sparse features of uint8: their sparse features are b \(int64\), a \(int64, u\), e"
    ):
        batch.to_torchrec("uint8")
    unweighted = replace(PLAIN, columns=PLAIN.columns[:2])
    with pytest.raises(ValueError, match=r"no weighted features: their sparse features are a \(int64\), b \(int64\)\."):
        Batch.over(SlotLayout(unweighted), write_rows(SlotLayout(unweighted), [])).to_torchrec(weighted=True)


@pytest.mark.parametrize(
    ("group", "weighted", "keys"), [("u", False, ["a", "e"]), ("u", True, ["w"]), ("v", False, ["d"])]
)
def test_a_group_by_itself_is_a_plain_tensor_of_unique_rows(torchrec, group, weighted, keys):
    batch = batch_of()
    features = batch.to_torchrec(group=group, weighted=weighted)
    assert features.keys() == keys
    assert features.inverse_indices_or_none() is None
    assert features.stride() == batch.groups[group].unique_rows
    collection = bags(torchrec, keys, weighted=weighted)
    wanted = collection(written_out(torchrec, keys, weighted)).values()
    assert torch.equal(batch.groups[group].expand(collection(features).values()), wanted)
    assert_same(batch.to_torchrec(group=group, weighted=weighted, expand=True), written_out(torchrec, keys, weighted))
    with pytest.raises(ValueError, match="no sparse features of float32 in a deduplicated group 'u'"):
        batch.to_torchrec("float32", group="u")


def test_an_unsharded_embedding_collection_needs_expanded_rows(torchrec):
    batch = batch_of()
    tables = [torchrec.EmbeddingConfig(name="t", embedding_dim=4, num_embeddings=IDS, feature_names=["a"])]
    collection = torchrec.EmbeddingCollection(tables=tables, device=torch.device("cpu"))
    wanted = collection(written_out(torchrec, ["b", "a"]))["a"]
    found = collection(batch.to_torchrec(expand=True))["a"]
    assert torch.equal(found.values(), wanted.values())
    assert torch.equal(found.lengths(), wanted.lengths())
    ignoring = collection(batch.to_torchrec())["a"]
    assert len(ignoring.lengths()) == batch.groups["u"].unique_rows != len(wanted.lengths())


def test_a_batch_on_another_device_gives_tensors_there(torchrec):
    moved = batch_of().to("meta")
    features = moved.to_torchrec()
    assert {features.values().device.type, features.lengths().device.type} == {"meta"}
    assert features.inverse_indices()[1].device.type == "meta"
    assert moved.sparse_features.inverse_indices()[1].shape == (6, ROWS), "unique rows are kept on a device"
    assert features.stride_per_key() == batch_of().to_torchrec().stride_per_key()


def test_without_torchrec_the_error_names_the_extra(monkeypatch):
    batch, original = batch_of(), builtins.__import__

    def refuse(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "torchrec":
            raise ModuleNotFoundError("No module named 'torchrec'", name="torchrec")
        return original(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModuleNotFoundError, match=r"needs torchrec, .*'feedline\[torchrec\]'.*keyed_jagged"):
        batch.to_torchrec()


def test_batches_are_registered_once_torchrec_is_there(monkeypatch):
    registered: list[type] = []
    module = SimpleNamespace(Pipelineable=SimpleNamespace(register=registered.append))
    monkeypatch.delitem(sys.modules, "torchrec.streamable", raising=False)
    register_pipelineable(Batch)
    assert not registered
    monkeypatch.setitem(sys.modules, "torchrec.streamable", module)
    register_pipelineable(Batch)
    assert registered == [Batch]
