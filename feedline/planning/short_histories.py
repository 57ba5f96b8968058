"""Leave out the rows that see too few events, which `min_history` of a feature says.

Runs in: the feeder, the CLI, `Pipeline`, where rows are counted. Which rows these are is found once, from the columns
that decide it and the indexes of events, and kept in work_dir as an exclusion, named by everything that decided it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from feedline.blocks.environment import environment_text, local_environment
from feedline.config import PipelineSpec
from feedline.config.histories import HistoryRead
from feedline.expressions import BoundExpression
from feedline.warehouse.histories.joined_rows import join_of
from feedline.warehouse.histories.stored_events import events_of
from feedline.warehouse.reading.fragment import Fragment, pack_mask
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.sample import Bools, BoundSample
from feedline.warehouse.selection.exclusion import FEW_EVENTS, Exclusion, ExclusionOrigin, RowFault, join_bits
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import absolute, below
from feedline.warehouse.storage.parallel import Map, in_threads

_VERSION = 1

# What a feature reads, the fewest events of a row, and the feature's name.
Least = tuple[HistoryRead, int, str]


def with_long_histories(
    spec: PipelineSpec, snapshot: Snapshot, selection: Selection, exclusion: Exclusion | None, map: Map | None
) -> Exclusion | None:
    """An exclusion, and of the rows that see fewer events than features ask for. selection: of filter and sample."""
    first: dict[tuple[HistoryRead, int], Least] = {}  # of the features of one entry
    for feature in spec.features:
        if feature.history is not None and feature.min_history:
            key = feature.history.selection, feature.min_history
            first.setdefault(key, (feature.history, feature.min_history, feature.name))
    asked = list(first.values())
    if not asked:
        return exclusion
    short = _short_rows(spec, snapshot, selection, asked, map or in_threads)
    if exclusion is None:
        return short
    return replace(short, excluded=_both(exclusion, short), faults=(*exclusion.faults, *short.faults))


def _both(first: Exclusion, second: Exclusion) -> dict[int, tuple[int, bytes]]:
    joined = dict(first.excluded)
    for group, (kept, bits) in second.excluded.items():
        joined[group] = kept, join_bits((first.bits(group), bits)) or bits
    return joined


def _short_rows(
    spec: PipelineSpec, snapshot: Snapshot, selection: Selection, asked: Iterable[Least], map: Map
) -> Exclusion:
    where, sample = selection.where, selection.sample
    origin = ExclusionOrigin(
        snapshot=snapshot.id,
        where=None if where is None else where.text,
        sample=None if sample is None else sample.sample.to_json(),
        features=json.dumps(sorted(history.version for history in snapshot.histories)),
        rules=FEW_EVENTS
        + json.dumps([_VERSION, sorted([read.selection.name, least, name] for read, least, name in asked)]),
        environment=environment_text(local_environment()),
        unfitted=(),
        types={},
        rows=int(selection.rows.sum()),
    )
    name = hashlib.sha256(json.dumps([origin.judgement, origin.snapshot], sort_keys=True).encode()).hexdigest()[:32]
    file = below(absolute(spec.work_dir), f"histories/short-{name}.arrow")
    try:
        return Exclusion.read(file)
    except FileNotFoundError:
        pass
    groups = np.flatnonzero(selection.rows).tolist()
    fragments = [selection.fragment(snapshot, np.array([group])) for group in groups]
    excluded: dict[int, tuple[int, bytes]] = {}
    faults: list[RowFault] = []
    masks = map(partial(_short_of, asked=tuple(asked), schema=snapshot.schema, where=where, sample=sample), fragments)
    for group, mask, (_, least, feature) in (
        (group, mask, one) for group, found in zip(groups, masks, strict=True) for mask, one in found
    ):
        if mask.any():
            bits = join_bits((excluded.get(group, (0, None))[1], pack_mask(mask)))
            assert bits is not None
            excluded[group] = len(mask), bits
            reason = f"fewer than {least} events"
            first = int(np.argmax(mask))
            faults.append(RowFault(row_group=group, feature=feature, reason=reason, rows=int(mask.sum()), first=first))
    short = Exclusion(origin=origin, excluded=excluded, faults=tuple(faults))
    short.write(file)
    return short


def _short_of(
    fragment: Fragment,
    *,
    asked: tuple[Least, ...],
    schema: pa.Schema,
    where: BoundExpression | None,
    sample: BoundSample | None,
) -> list[tuple[Bools, Least]]:
    """bool [kept rows] of a fragment's only row group, of each feature: which see too few events."""
    found = []
    for read, least, name in asked:
        history = next(each for each in fragment.histories if read.name in each.names)
        join = join_of(history, (read.name,), schema)
        request = ReadRequest(join.row_columns, schema, where, sample=sample)
        lengths = [join.lengths(events_of(history), chunk.frame) for chunk in read_fragment(fragment, request)]
        found.append((np.concatenate([np.empty(0, np.int64), *lengths]) < least, (read, least, name)))
    return found
