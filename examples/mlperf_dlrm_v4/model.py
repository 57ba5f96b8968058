"""A small model in the manner of HSTU, over one sequence of context, history and candidate.

Runs in: the trainer's process. The layers are those of Zhai et al., "Actions Speak Louder than Words" (2024,
https://arxiv.org/abs/2402.17152), which the benchmark trains with 512 columns on GPUs. This one takes seconds on a CPU:
its tables are hashed into few rows, and it sees the last events of each history only.
"""

from __future__ import annotations

import torch
from tensors import CANDIDATE, CONTEXT
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

ITEM = ("item_id", "artist_id", "album_id")
ACTIONS = (1, 2, 4)
HOUR_S = 3600


class Layer(nn.Module):
    """Pointwise attention: every position sums up the values of earlier ones, weighted by SiLU of query times key."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 4 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """x: [rows, positions, width]; valid: bool [rows, positions]."""
        rows, positions, width = x.shape
        gate, values, queries, keys = nn.functional.silu(self.project(self.before(x))).chunk(4, dim=-1)
        values, queries, keys = (
            each.view(rows, positions, self.heads, -1).transpose(1, 2) for each in (values, queries, keys)
        )
        weights = nn.functional.silu(queries @ keys.transpose(2, 3)) / positions
        seen = torch.ones(positions, positions, dtype=torch.bool).tril() & valid[:, None, None, :]
        summed = (weights * seen) @ values
        return x + self.out(self.after(summed.transpose(1, 2).reshape(rows, positions, width)) * gate)


class Ranker(nn.Module):
    """The logit of a listen. rows: of each table. positions: events of a history, the last ones."""

    def __init__(self, *, width: int = 32, rows: int = 4_096, positions: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.rows, self.positions = rows, positions
        self.context = nn.ModuleDict({name: nn.Embedding(rows, width) for name in CONTEXT})
        self.item = nn.ModuleDict({name: nn.Embedding(rows, width) for name in ITEM})
        self.actions = nn.Parameter(torch.randn(len(ACTIONS), width) / 10)
        self.hours = nn.Embedding(24, width)
        self.layers = nn.ModuleList([Layer(width, 2) for _ in range(layers)])
        self.of_item = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.LayerNorm(width))
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, history: KeyedJaggedTensor, candidate: KeyedJaggedTensor) -> Tensor:
        """float [rows]."""
        of_user, of_item = history.to_dict(), candidate.to_dict()
        context = torch.stack([self._embed(self.context[name], of_user[name].values()) for name in CONTEXT], dim=1)
        padded = {name: self._last(of_user[name]) for name in (*ITEM, "action_weight", "action_timestamp")}
        events = sum(self._embed(self.item[name], padded[name]) for name in ITEM)
        bits = torch.stack([(padded["action_weight"] & bit) > 0 for bit in ACTIONS], dim=-1)
        events = events + bits.to(events.dtype) @ self.actions + self.hours(padded["action_timestamp"] // HOUR_S % 24)
        items = zip(ITEM, CANDIDATE[: len(ITEM)], strict=True)
        target = sum(self._embed(self.item[name], of_item[key].values()) for name, key in items)
        target = target + self.hours(of_item["item_query_time"].values() // HOUR_S % 24)
        x = torch.cat([context, events, target[:, None]], dim=1)
        lengths = of_user["item_id"].lengths().clamp(max=self.positions)
        of_events = torch.arange(events.shape[1]) >= events.shape[1] - lengths[:, None]
        valid = torch.cat([of_events.new_ones(len(x), len(CONTEXT)), of_events, of_events.new_ones(len(x), 1)], dim=1)
        for layer in self.layers:
            x = layer(x, valid)
        return self.head(x[:, -1] * self.of_item(target))[:, 0]

    def _embed(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return table(ids % self.rows)

    def _last(self, feature: JaggedTensor) -> Tensor:
        """int64 [rows, positions]: the last values of each list, at the end; zeros before them."""
        # lists of 1 and 3 values, 2 positions: [[0, a], [c, d]]
        stops = feature.offsets()[1:, None]
        places = stops - self.positions + torch.arange(self.positions)
        values = torch.cat([feature.values().new_zeros(1), feature.values()])
        return values[torch.where(places < feature.offsets()[:-1, None], 0, places + 1)]
