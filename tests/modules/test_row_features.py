"""What modules ask of a feature: an inverse, lists that fit together, ids within the table."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from repeated_lists import ids_of

from feedline.modules.row_features import check_ids, check_ragged, expand_rows, inverse_of, refuse_outside


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4)])
def test_rows_are_expanded_by_their_inverse(shape: tuple[int, ...]):
    inverse = torch.tensor([2, 0, 0, 1, 2])
    unique = torch.arange(24, dtype=torch.float64)[: torch.Size(shape).numel()].view(shape).requires_grad_()
    expanded = expand_rows(unique, SimpleNamespace(inverse=inverse))
    assert torch.equal(expanded, torch.stack([unique[row] for row in inverse]))
    expanded.sum().backward()
    counts = torch.bincount(inverse, minlength=3).to(torch.float64)
    assert torch.equal(unique.grad, counts.view(3, *[1] * (len(shape) - 1)).expand(shape))


def test_plain_rows_are_returned_as_they_are():
    unique = torch.ones(3, 2)
    assert inverse_of(object()) is None
    assert expand_rows(unique, object()) is unique


def test_lists_that_do_not_fit_together_are_refused():
    feature = ids_of([2, 1], [0, 1, 1]).deduplicated()
    assert check_ragged(feature, "Module") is feature
    with pytest.raises(TypeError, match="Module takes a feature of lists: got Tensor, which has no lengths, offsets"):
        check_ragged(torch.ones(1), "Module")
    feature.offsets = feature.offsets[:-1]
    with pytest.raises(ValueError, match="one more than its lists: got 2 offsets and 2 lengths"):
        check_ragged(feature, "Module")


def test_ids_are_integers_that_the_table_has():
    for dtype in (torch.int32, torch.int64):
        check_ids(torch.tensor([1], dtype=dtype), "Module")
    with pytest.raises(TypeError, match=r"Module takes ids of int32 or int64: got torch\.int16"):
        check_ids(torch.tensor([1], dtype=torch.int16), "Module")
    refuse_outside(torch.tensor([0, 4]), 5, "Module")
    for ids, first in (([0, 5], 5), ([-1, 9], -1)):
        with pytest.raises(IndexError, match=f"Module has 5 embeddings: got id {first}, expected 0 to 4"):
            refuse_outside(torch.tensor(ids), 5, "Module")
