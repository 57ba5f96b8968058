"""The benchmark's tensors from a batch: the user's history and the candidate, as KeyedJaggedTensors.

Runs in: the trainer's process. Keys, their order and their meaning are those of recommendation_v4.
"""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

CONTEXT = (
    "uid",
    "user_x_artist",
    "user_x_album",
    "user_x_hour",
    "item_x_hour",
    "artist_x_hour",
    "user_x_is_organic",
    "user_x_artist_x_hour",
)
SEQUENCES = {  # of the key, the feature; watch times are zeros
    "item_id": "uih.item_id",
    "artist_id": "uih.artist_id",
    "album_id": "uih.album_id",
    "action_weight": "uih.action_weight",
    "action_timestamp": "uih.timestamp",
    "dummy_watch_time": None,
}
QUERY_TIME = "dummy_query_time"
CANDIDATE = (
    "item_candidate_id",
    "item_candidate_artist_id",
    "item_candidate_album_id",
    "item_query_time",
    "item_action_weight",
    "item_dummy_watchtime",
)
LISTENED = 1  # the bit of a listen to half of the track or more


def history(batch) -> KeyedJaggedTensor:
    """Context (one id per row), sequences (equal lengths in a row), and the time of the last event."""
    lengths = batch.sparse["uih.item_id"].lengths.long()
    ones = torch.ones_like(lengths)
    sequences = [None if name is None else batch.sparse[name].values for name in SEQUENCES.values()]
    zeros = torch.zeros_like(sequences[0])
    values = [batch[name] for name in CONTEXT]
    values += [zeros if sequence is None else sequence for sequence in sequences]
    return KeyedJaggedTensor(
        keys=[*CONTEXT, *SEQUENCES, QUERY_TIME],
        values=torch.cat([*values, query_time(batch)]),
        lengths=torch.cat([ones] * len(CONTEXT) + [lengths] * len(SEQUENCES) + [ones]),
    )


def candidate(batch) -> KeyedJaggedTensor:
    """The sample's item, one of each key per row. The query time is that of the last event: its own would tell when it
    was played."""
    listened = LISTENED * batch["listen_plus"].long()
    items = [batch[name] for name in ("item_id", "artist_id", "album_id")]
    values = [*items, query_time(batch), listened, torch.ones_like(listened)]
    return KeyedJaggedTensor(
        keys=list(CANDIDATE),
        values=torch.cat(values),
        lengths=torch.ones(len(CANDIDATE) * batch.rows, dtype=torch.long),
    )


def query_time(batch) -> torch.Tensor:
    """int64 [rows]: the time of the last event of the history; the sample's, where it is empty."""
    times = batch.sparse["uih.timestamp"]
    own = torch.as_tensor(batch.extra["timestamp"])
    if not len(times.values):
        return own.clone()
    last = times.values[(times.offsets[1:] - 1).clamp(min=0)]
    return torch.where(times.lengths > 0, last, own)
