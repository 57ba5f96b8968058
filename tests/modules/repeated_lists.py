"""Lists of unique rows with the row of each row of a batch, and gradients to compare."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from feedline.loader.tensors.slot_tensors import InverseSparse, Sparse

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
