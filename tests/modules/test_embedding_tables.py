"""Tables over unique rows give torch's results and gradients over all rows."""

from __future__ import annotations

import pytest
import torch
from repeated_lists import IDS, INVERSE, LENGTHS, SHAPES, WIDTH, Lists, assert_close, gradients, ids_of, ragged

from feedline.loader.tensors.slot_tensors import InverseColumn, InverseSparse
from feedline.modules import DedupEmbedding, DedupEmbeddingBag, expand_rows


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


def test_wrong_input_of_tables_is_refused_with_a_remedy():
    feature = ids_of(LENGTHS, INVERSE).deduplicated()
    bag, embedding = DedupEmbeddingBag(3, WIDTH), DedupEmbedding(3, WIDTH)
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
    for counted in (DedupEmbeddingBag(3, 2, scale_grad_by_freq=True), DedupEmbedding(3, 2, scale_grad_by_freq=True)):
        with pytest.raises(ValueError, match=r"needs every row of the batch: .* pass feature\.expand\(\)"):
            counted(feature)
