"""Self-attention over the lists of a feature, computed once per unique row.

Runs in: the trainer. A stack of `torch.nn.TransformerEncoderLayer`s over lists of embeddings, then pooling. What is
computed per element (projections, feed-forward, norms) runs on the V embeddings as they lie, without padding, in
O(V D (D + F)). Attention pads: the lists are sorted by length, and each class of lengths (up to 8, 16, 32, ...) is
padded to the longest that it may hold, so that a list of n > 8 elements costs less than four times its own O(n^2 D).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from feedline.modules.row_features import check_ragged, expand_rows

POOLINGS = ("mean", "sum", "first", "last")
_SHORTEST_CLASS = 8  # shorter lists are one class with these: padding them costs less than another class's calls


class _Padding(NamedTuple):
    """Matrices of padded lists, one per class of lengths, one after the other: P places in all.

    classes: (lists, places of each list). source: int64 [P], the element in each place, V where there is none.
    attended: bool [P], the places that are attended to. places: int64 [V], the place of each element.
    """

    classes: Sequence[tuple[int, int]]
    source: torch.Tensor
    attended: torch.Tensor
    places: torch.Tensor


class DedupSequenceEncoder(torch.nn.Module):
    """Transformer layers over each list of a feature, pooled to one row: [B, D], computed once per unique row.

    d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias, device and dtype are those
    of `torch.nn.TransformerEncoderLayer`, of which there are num_layers. Parameters, states and what is computed are
    those of a `torch.nn.TransformerEncoder` of num_layers of them (`layers.0.linear1.weight`): an element attends to
    all elements of its list, with causal=True to itself and those before it.

    pooling: "mean", "sum", "first" or "last" element; an empty list gives zeros. positions: the first so many places of
    a list have a learned embedding each (`positions.weight`), which is added to the element first; later places share
    the last. 0: none. max_length: no list is longer. All lists are then padded to it: shapes follow from those of the
    input alone, so that `torch.compile` makes one graph, and nothing waits for a GPU. Without it, lists are padded by
    classes of their lengths, which are read once per call.

    Dropout is drawn once per unique row, and shared by the rows that repeat it; with dropout=0 results and gradients
    are those of the expanded feature.

    Examples:
        >>> lists = Sparse(torch.rand(3, 8), torch.tensor([2, 0, 1]), torch.tensor([0, 2, 2, 3]))
        >>> DedupSequenceEncoder(d_model=8, nhead=2, pooling="last")(lists).shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        num_layers: int = 1,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[torch.Tensor], torch.Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        pooling: str = "mean",
        causal: bool = False,
        positions: int = 0,
        max_length: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(
                f"pooling of a DedupSequenceEncoder: got {pooling!r}, expected one of {', '.join(POOLINGS)}."
            )
        if d_model % nhead:
            raise ValueError(f"nhead of a DedupSequenceEncoder divides d_model: got {nhead} heads and {d_model}.")
        self.d_model, self.nhead = d_model, nhead
        self.pooling, self.causal, self.max_length = pooling, causal, max_length
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                d_model,
                nhead,
                dim_feedforward,
                dropout,
                activation,
                layer_norm_eps,
                batch_first=True,
                norm_first=norm_first,
                bias=bias,
                device=device,
                dtype=dtype,
            )
            for _ in range(num_layers)
        )
        self.positions = torch.nn.Embedding(positions, d_model, device=device, dtype=dtype) if positions else None

    def forward(self, features: Any, *, expand: bool = True) -> torch.Tensor:
        """Encode and pool the lists of `features`, whose values are embeddings [V, D], as `DedupEmbedding` gives them.

        [B, D]; with `expand=False` a row per row of the feature, [U, D], for `expand_rows` after further layers.
        TypeError: no such feature. ValueError: embeddings of another width, or a weighted feature. RuntimeError: a list
        longer than max_length.
        """
        lists = check_ragged(features, "DedupSequenceEncoder")
        values, lengths, offsets = lists.values, lists.lengths, lists.offsets
        self._check(values, lists.weights)
        if self.max_length is None:
            lengths, order = torch.sort(lengths, stable=True)
            starts = offsets.index_select(0, order)
            offsets = functional.pad(torch.cumsum(lengths, 0), (1, 0))
            classes = _length_classes(lengths)
        else:
            torch._assert_async((lengths <= self.max_length).all(), _TOO_LONG)
            order, starts, classes = None, offsets, [(len(lengths), self.max_length)]
        numbers = torch.arange(len(lengths), device=values.device)
        rows = torch.repeat_interleave(numbers, lengths, output_size=len(values))
        within = torch.arange(len(values), device=values.device) - offsets.index_select(0, rows)
        if order is not None:
            values = values.index_select(0, starts.index_select(0, rows) + within)
        if self.positions is not None:
            values = values + self.positions(within.clamp(max=self.positions.num_embeddings - 1))
        padding = _pad(lengths, offsets, rows, within, classes)
        for layer in self.layers:
            values = self._encode(layer, values, padding)
        pooled = self._pool(values, lengths, offsets, rows)
        if order is not None:
            pooled = pooled.index_select(0, torch.empty_like(order).scatter(0, order, numbers))
        return expand_rows(pooled, features) if expand else pooled

    def _check(self, values: torch.Tensor, weights: torch.Tensor | None) -> None:
        if values.dim() != 2 or values.shape[1] != self.d_model:
            raise ValueError(
                f"DedupSequenceEncoder(d_model={self.d_model}) takes embeddings [V, {self.d_model}]: got "
                f"values of shape {list(values.shape)}. Pass a "
                "feature that DedupEmbedding of that width has embedded."
            )
        if weights is not None:
            raise ValueError(
                "DedupSequenceEncoder has no use for weights: got a weighted feature. Pool it with DedupEmbeddingBag"
                '(mode="sum"), or read its ids as a feature without weights.'
            )

    def _encode(self, layer: Any, values: torch.Tensor, padding: _Padding) -> torch.Tensor:
        """One layer, [V, D] to [V, D]."""
        if layer.norm_first:
            values = values + self._attend(layer, layer.norm1(values), padding)
            return values + _feed_forward(layer, layer.norm2(values))
        values = layer.norm1(values + self._attend(layer, values, padding))
        return layer.norm2(values + _feed_forward(layer, values))  # type: ignore[no-any-return]

    def _attend(self, layer: Any, values: torch.Tensor, padding: _Padding) -> torch.Tensor:
        """Self-attention within each list, [V, D] to [V, D]."""
        attention = layer.self_attn
        projected = functional.linear(values, attention.in_proj_weight, attention.in_proj_bias)
        # Places without an element hold zeros: a NaN of one list must not reach another.
        places = functional.pad(projected, (0, 0, 0, 1)).index_select(0, padding.source)
        sizes = [count * width for count, width in padding.classes]
        results = []
        for (count, width), part, attended in zip(
            padding.classes, torch.split(places, sizes), torch.split(padding.attended, sizes), strict=True
        ):
            query, key, value = part.view(count, width, 3, self.nhead, self.d_model // self.nhead).permute(
                2, 0, 3, 1, 4
            )
            result = functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=None if self.causal else attended.view(count, 1, 1, width),  # elements lie before padding
                dropout_p=attention.dropout if self.training else 0.0,
                is_causal=self.causal,
            )
            results.append(result.transpose(1, 2).reshape(count * width, self.d_model))
        result = torch.cat(results).index_select(0, padding.places)
        return layer.dropout1(attention.out_proj(result))  # type: ignore[no-any-return]

    def _pool(
        self, values: torch.Tensor, lengths: torch.Tensor, offsets: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """[V, D] to a row per list, [R, D]."""
        if self.pooling in ("mean", "sum"):
            sums = values.new_zeros(len(lengths), self.d_model).index_add(0, rows, values)
            return sums if self.pooling == "sum" else sums / lengths.clamp(min=1)[:, None]
        element = offsets[:-1] if self.pooling == "first" else offsets[1:] - 1
        padded = functional.pad(values, (0, 0, 0, 1))
        return padded.index_select(0, torch.where(lengths > 0, element, len(values)))

    def extra_repr(self) -> str:
        """What `print` shows of it, as torch's modules have it."""
        return f"pooling={self.pooling!r}, causal={self.causal}, max_length={self.max_length}"


_TOO_LONG = "a list is longer than max_length of the DedupSequenceEncoder. Cut lists with first_x, or raise max_length"


def _feed_forward(layer: Any, values: torch.Tensor) -> torch.Tensor:
    hidden = layer.dropout(layer.activation(layer.linear1(values)))
    return layer.dropout2(layer.linear2(hidden))  # type: ignore[no-any-return]


def _length_classes(lengths: torch.Tensor) -> list[tuple[int, int]]:
    """(lists, places of each) of the classes of ascending lengths; at least one."""
    # lengths 0, 3, 9, 20 -> widths 8, 16, 20 -> (2, 8), (1, 16), (1, 20)
    longest = int(lengths[-1]) if len(lengths) else 1
    widths = [_SHORTEST_CLASS]
    while widths[-1] < longest:
        widths.append(2 * widths[-1])
    widths[-1] = max(longest, 1)
    ends = torch.searchsorted(lengths, torch.tensor(widths, dtype=lengths.dtype, device=lengths.device), right=True)
    return [(end - start, width) for (start, end), width in zip(pairwise([0, *ends.tolist()]), widths, strict=True)]


def _pad(
    lengths: torch.Tensor,
    offsets: torch.Tensor,
    rows: torch.Tensor,
    within: torch.Tensor,
    classes: Sequence[tuple[int, int]],
) -> _Padding:
    """rows, within: of each element, its list and its place there."""
    sources, attended, starts = [], [], []
    row = place = 0
    for count, width in classes:
        lists = slice(row, row + count)
        columns = torch.arange(width, device=lengths.device)
        real = columns < lengths[lists, None]
        sources.append(torch.where(real, offsets[lists, None] + columns, len(rows)).view(-1))
        attended.append((columns < lengths[lists, None].clamp(min=1)).view(-1))  # attending to nothing is NaN
        starts.append(place + width * torch.arange(count, device=lengths.device))
        row, place = row + count, place + count * width
    return _Padding(classes, torch.cat(sources), torch.cat(attended), torch.cat(starts).index_select(0, rows) + within)
