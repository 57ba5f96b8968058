"""Modules over unique rows, against torch's own over the rows that they stand for, written out list by list."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from feedline.loader.dedup_tensors import InverseColumn, InverseSparse
from feedline.loader.slot_tensors import Sparse
from feedline.modules import DedupEmbedding, DedupEmbeddingBag, DedupSequenceEncoder, expand_rows

IDS, WIDTH = 20, 8
INVERSE = [0, 0, 0, 1, 2, 2, 3, 4, 4]
LENGTHS = [3, 0, 1, 11, 2]
SHAPES = [(LENGTHS, INVERSE), ([0, 0], [0, 1, 1]), ([2], [0, 0]), ([], [])]


@dataclass
class Lists:
    """The lists of unique rows and the row of each row of the batch; what both mean, written out."""

    lists: list[torch.Tensor]
    inverse: list[int]

    @property
    def rows(self) -> list[torch.Tensor]:
        return [self.lists[unique] for unique in self.inverse]

    def deduplicated(self, *, dtype: torch.dtype = torch.int64, weights: torch.Tensor | None = None) -> InverseSparse:
        inverse = torch.tensor(self.inverse, dtype=torch.int32)
        return InverseSparse(*ragged(self.lists, dtype), weights, inverse)

    def plain(self, *, dtype: torch.dtype = torch.int64, weights: torch.Tensor | None = None) -> Sparse:
        return Sparse(*ragged(self.rows, dtype), weights)


def ragged(lists: list[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(each) for each in lists], dtype=torch.int32)
    offsets = torch.tensor([0, *lengths.tolist()], dtype=torch.int64).cumsum(0)
    return torch.cat([torch.empty(0, dtype=dtype), *lists]).to(dtype), lengths, offsets


def ids_of(lengths: list[int], inverse: list[int]) -> Lists:
    generator = torch.Generator().manual_seed(7)
    return Lists([torch.randint(0, IDS, (length,), generator=generator) for length in lengths], inverse)


def gradients(result: torch.Tensor, *parameters: torch.Tensor) -> list[torch.Tensor]:
    """Of a loss that tells every entry of a result from every other."""
    weights = torch.arange(1, 1 + result.numel(), dtype=torch.float64).sin().view(result.shape)
    found = torch.autograd.grad((result * weights).sum(), parameters, allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(parameter) if each is None else each.to_dense() if each.is_sparse else each
        for parameter, each in zip(parameters, found, strict=True)
    ]


def assert_close(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("lengths", "inverse"), SHAPES)
@pytest.mark.parametrize("arguments", [{"mode": "sum"}, {"mode": "mean", "padding_idx": 3}, {"mode": "max"}])
def test_a_bag_has_the_results_and_gradients_of_torchs_over_all_rows(lengths, inverse, arguments):
    lists = ids_of(lengths, inverse)
    torchs = torch.nn.EmbeddingBag(IDS, WIDTH, dtype=torch.float64, **arguments)
    values, _, offsets = ragged(lists.rows, torch.int64)
    wanted = torchs(values, offsets[:-1])
    for sparse in (False, arguments["mode"] != "max"):
        ours = DedupEmbeddingBag(IDS, WIDTH, dtype=torch.float64, sparse=sparse, **arguments)
        ours.load_state_dict(torchs.state_dict())
        for dtype in (torch.int64, torch.int32):
            for feature in (lists.deduplicated(dtype=dtype), lists.plain(dtype=dtype)):
                found = ours(feature)
                torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
                assert_close(gradients(found, ours.weight), gradients(torchs(values, offsets[:-1]), torchs.weight))
                unique = ours(feature, expand=False)
                assert len(unique) == len(feature.lengths)
                assert torch.equal(expand_rows(unique, feature), found)
    assert torch.equal(ours(values, offsets[:-1]), wanted)  # tensors as torch's own


def test_a_bag_multiplies_the_weights_of_a_weighted_feature():
    lists = ids_of(LENGTHS, INVERSE)
    of_list = [torch.rand(length, dtype=torch.float32) for length in LENGTHS]
    weights, of_rows = torch.cat(of_list), torch.cat([of_list[unique] for unique in INVERSE])
    bag = DedupEmbeddingBag(IDS, WIDTH, mode="sum", include_last_offset=True, dtype=torch.float64)
    values, _, offsets = ragged(lists.rows, torch.int64)
    wanted = torch.nn.functional.embedding_bag(
        values, bag.weight, offsets[:-1], mode="sum", per_sample_weights=of_rows.double()
    )
    for feature in (lists.deduplicated(weights=weights), lists.plain(weights=of_rows)):
        torch.testing.assert_close(bag(feature), wanted)
        assert_close(gradients(bag(feature), bag.weight), gradients(wanted, bag.weight))
    with pytest.raises(ValueError, match=r"mode='mean'.*weighted feature\. Make it with mode=\"sum\""):
        DedupEmbeddingBag(IDS, WIDTH)(lists.deduplicated(weights=weights))


@pytest.mark.parametrize("sparse", [False, True])
def test_an_embedding_has_the_results_and_gradients_of_torchs_over_all_rows(sparse):
    torchs = torch.nn.Embedding(IDS, WIDTH, dtype=torch.float64)
    ours = DedupEmbedding(IDS, WIDTH, sparse=sparse, dtype=torch.float64)
    ours.load_state_dict(torchs.state_dict())
    inverse = torch.tensor(INVERSE, dtype=torch.int32)
    for unique in (torch.tensor([4, 1, 4, 0, 9]), torch.arange(10).view(5, 2)):
        wanted = torchs(torch.stack([unique[row] for row in INVERSE]))
        column = InverseColumn(unique, inverse)
        assert torch.equal(ours(column), wanted)
        assert_close(gradients(ours(column), ours.weight), gradients(wanted, torchs.weight))
        assert torch.equal(ours(column, expand=False), torchs(unique))
        assert torch.equal(ours(unique), torchs(unique))
    for lengths, rows in SHAPES:
        lists = ids_of(lengths, rows)
        feature = ours(lists.deduplicated())
        values, counts, offsets = ragged(lists.rows, torch.int64)
        assert len(feature.values) == sum(lengths)
        expanded = feature.expand()
        assert torch.equal(expanded.values, torchs(values))
        assert torch.equal(expanded.lengths, counts)
        assert torch.equal(expanded.offsets, offsets)
        assert_close(gradients(expanded.values, ours.weight), gradients(torchs(values), torchs.weight))
        assert torch.equal(ours(lists.plain()).values, torchs(values))


def padded_encoder(encoder: DedupSequenceEncoder, num_layers: int, **arguments: object) -> torch.nn.TransformerEncoder:
    """torch's encoder with the same parameters."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True, dtype=torch.float64, **arguments)
    torchs = torch.nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
    state = {name: value for name, value in encoder.state_dict().items() if name != "positions.weight"}
    torchs.load_state_dict(state)
    return torchs


def encode_rows(
    torchs: torch.nn.TransformerEncoder,
    rows: list[torch.Tensor],
    pooling: str,
    causal: bool,
    positions: torch.Tensor | None,
) -> torch.Tensor:
    """Every row by itself."""
    results = []
    for row in rows:
        if not len(row):
            results.append(torch.zeros(WIDTH, dtype=torch.float64))
            continue
        if positions is not None:
            row = row + positions[torch.arange(len(row)).clamp(max=len(positions) - 1)]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(len(row), dtype=row.dtype) if causal else None
        result = torchs(row[None], mask=mask, is_causal=causal)[0]
        pooled = {
            "mean": lambda r: r.mean(0),
            "sum": lambda r: r.sum(0),
            "first": lambda r: r[0],
            "last": lambda r: r[-1],
        }
        results.append(pooled[pooling](result))
    return torch.stack(results) if results else torch.zeros(0, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize(
    ("num_layers", "pooling", "causal", "positions", "layer"),
    [
        (1, "mean", False, 0, {}),
        (2, "sum", False, 4, {"norm_first": True, "activation": "gelu"}),
        (2, "last", True, 32, {"bias": False}),
        (1, "first", False, 0, {"layer_norm_eps": 1e-3}),
    ],
)
def test_an_encoder_has_the_results_and_gradients_of_torchs_over_each_row(
    num_layers, pooling, causal, positions, layer
):
    torch.manual_seed(5)
    encoder = DedupSequenceEncoder(
        WIDTH, 2, num_layers, 16, 0.0, pooling=pooling, causal=causal, positions=positions, dtype=torch.float64, **layer
    )
    torchs = padded_encoder(encoder, num_layers, **layer)
    table = torch.randn(IDS, WIDTH, dtype=torch.float64, requires_grad=True)
    places = None if encoder.positions is None else encoder.positions.weight
    own = [parameter for name, parameter in encoder.named_parameters() if name != "positions.weight"]
    for lengths, inverse in SHAPES if num_layers == 1 else SHAPES[:1]:
        lists = ids_of(lengths, inverse)
        wanted = encode_rows(torchs, [table[row] for row in lists.rows], pooling, causal, places)
        of_torch = gradients(wanted, table, *torchs.parameters()) if wanted.requires_grad else None
        for max_length in (None, 12):
            encoder.max_length = max_length
            for feature in (lists.deduplicated(), lists.plain()):
                feature.values = table[feature.values]
                found = encoder(feature)
                torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
                of_ours = gradients(found, table, *own)
                assert_close(of_ours, of_torch or [torch.zeros_like(each) for each in of_ours])
                unique = encoder(feature, expand=False)
                assert torch.equal(expand_rows(unique, feature), found)


def test_gradients_are_the_derivatives():
    lists = ids_of([3, 0, 10], [0, 0, 1, 2, 2])
    encoder = DedupSequenceEncoder(4, 2, 1, 4, 0.0, dtype=torch.float64)

    def encode(values: torch.Tensor) -> torch.Tensor:
        feature = lists.deduplicated()
        feature.values = values
        return encoder(feature)

    torch.manual_seed(5)
    assert torch.autograd.gradcheck(encode, torch.randn(13, 4, dtype=torch.float64, requires_grad=True), fast_mode=True)


def test_a_nan_stays_in_its_row():
    encoder = DedupSequenceEncoder(WIDTH, 2, 1, 16, 0.0)
    lists = Lists([torch.ones(3, WIDTH), torch.full((2, WIDTH), torch.nan), torch.ones(9, WIDTH)], [0, 1, 1, 2])
    feature = InverseSparse(
        torch.cat(lists.lists), torch.tensor([3, 2, 9]), torch.tensor([0, 3, 5, 14]), None, torch.tensor(lists.inverse)
    )
    assert encoder(feature).isnan().all(1).tolist() == [False, True, True, False]


def test_modules_compile_into_one_graph():
    embedding, bag = DedupEmbedding(IDS, WIDTH), DedupEmbeddingBag(IDS, WIDTH)
    encoder = DedupSequenceEncoder(WIDTH, 2, 1, 16, 0.0, max_length=12)

    def model(feature: InverseSparse) -> torch.Tensor:
        return bag(feature) + encoder(embedding(feature))

    feature = ids_of(LENGTHS, INVERSE).deduplicated()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(feature), model(feature))


def test_wrong_input_is_refused_with_a_remedy():
    feature = ids_of(LENGTHS, INVERSE).deduplicated()
    bag, embedding = DedupEmbeddingBag(3, WIDTH), DedupEmbedding(3, WIDTH)
    encoder = DedupSequenceEncoder(WIDTH, 2, 1, 16, max_length=5)
    for mode in ("sum", "mean", "max"):
        with pytest.raises(IndexError, match="got id -1, expected 0 to 2"):
            DedupEmbeddingBag(3, WIDTH, mode=mode)(Lists([torch.tensor([1, -1])], [0, 0]).deduplicated())
    with pytest.raises(IndexError, match=r"DedupEmbeddingBag has 3 embeddings: got id \d+, expected 0 to 2\. Make"):
        bag(feature)
    with pytest.raises(IndexError, match=r"DedupEmbedding has 3 embeddings: got id \d+, expected 0 to 2\. Make"):
        embedding(feature)
    with pytest.raises(
        TypeError, match=r"takes a feature of lists: got InverseColumn, which has no lengths, offsets, weights\."
    ):
        bag(InverseColumn(torch.tensor([1]), torch.tensor([0, 0])))
    with pytest.raises(TypeError, match=r"DedupEmbedding takes ids: got list\. Pass"):
        embedding([1, 2])
    with pytest.raises(TypeError, match=r"got others beside it\. Pass the feature alone"):
        bag(feature, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"one more than its lists: got 6 offsets and 4 lengths\."):
        bag(InverseSparse(feature.values, feature.lengths[1:], feature.offsets, None, feature.inverse))
    feature.values = feature.values.float()
    for module in (bag, embedding):
        with pytest.raises(TypeError, match=r"takes ids of int32 or int64: got torch\.float32\. .* hash_bucket"):
            module(feature)
    with pytest.raises(ValueError, match=r"takes embeddings \[V, 8\]: got values of shape \[17\]\. Pass a feature"):
        encoder(feature)
    feature.values = torch.ones(17, WIDTH)
    with pytest.raises(RuntimeError, match=r"longer than max_length .* Cut lists with first_x"):
        encoder(feature)
    feature.weights = torch.ones(17)
    with pytest.raises(ValueError, match=r"no use for weights: got a weighted feature\. Pool it"):
        encoder(feature)
    for counted in (DedupEmbeddingBag(3, 2, scale_grad_by_freq=True), DedupEmbedding(3, 2, scale_grad_by_freq=True)):
        with pytest.raises(ValueError, match=r"needs every row of the batch: .* pass feature\.expand\(\)"):
            counted(feature)
    with pytest.raises(ValueError, match=r"got 'median', expected one of mean, sum, first, last"):
        DedupSequenceEncoder(WIDTH, 2, pooling="median")
    with pytest.raises(ValueError, match="divides d_model: got 3 heads and 8"):
        DedupSequenceEncoder(WIDTH, 3)
