"""Decide which features belong to the deduplicated groups that pipeline.yaml names by their columns.

Runs in: every process that compiles features. Pure. A feature belongs to a group if it reads no column outside of it. A
feature of several groups stays plain, as do labels and extras, and as does a `target_encoding` whose `fold_by` is no
column of the group: its values differ between rows with the same key.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from feedline.config.dedup_section import DedupSpec
from feedline.config.features import FeatureInput, FeatureSpec
from feedline.expressions import parse
from feedline.transforms.ops import bind
from feedline.transforms.registry.op import OpError
from feedline.transforms.registry.user_functions import calls_of

PLAIN_GROUPS = ("label", "extra")  # labels belong to rows, extras are passed through
_SHOWN = 3  # features in one message

StoredColumns: TypeAlias = Callable[[Iterable[str]], Iterable[str]]


def named_columns(feature: FeatureSpec) -> set[str]:
    """The columns that a feature names as its inputs, without those that its ops name."""
    sources: list[FeatureSpec | FeatureInput] = [feature, *feature.inputs]
    columns = {source.column for source in sources if source.column is not None}
    for expr in [source.expr for source in sources if source.expr is not None]:
        with contextlib.suppress(ValueError):  # compiling reports it
            columns |= parse(expr).columns
    return columns


def deciding_columns(feature: FeatureSpec, *, out_of_fold: bool, stored: StoredColumns = tuple) -> set[str]:
    """The columns whose values decide a feature's: its inputs, and what its ops read of each row besides.

    out_of_fold: rows that a fit has seen are left out of their own statistics, so `fold_by` is read. stored: gives the
    columns of a table that others, such as lists of histories, are made of (default: all are a table's).
    """
    columns = set(stored(named_columns(feature)))
    if out_of_fold:
        for call in calls_of([feature]):
            with contextlib.suppress(OpError):  # compiling reports it
                bound = bind(call)
                if bound.op.learns is not None:
                    side_columns = bound.op.learns.side_columns(bound.parameters)
                    columns |= {side_columns[role] for role in bound.op.learns.row_roles(bound.parameters)}
    return columns


def assign_groups(
    features: Sequence[FeatureSpec],
    groups: Sequence[DedupSpec],
    *,
    out_of_fold: bool,
    stored: StoredColumns = tuple,
) -> tuple[FeatureSpec, ...]:
    """The features, those that belong to one of the groups with its name in `dedup`. stored: as of
    `deciding_columns`."""
    group_of = {column: group.name for group in groups for column in group.columns}
    assigned = []
    for feature in features:
        if feature.group not in PLAIN_GROUPS:
            names = {
                group_of.get(column) for column in deciding_columns(feature, out_of_fold=out_of_fold, stored=stored)
            }
            feature = replace(feature, dedup=names.pop()) if len(names) == 1 else feature
        assigned.append(feature)
    return tuple(assigned)


def refuse_empty_groups(
    features: Sequence[FeatureSpec],
    groups: Sequence[DedupSpec],
    *,
    out_of_fold: bool,
    stored: StoredColumns = tuple,
) -> None:
    """Raise OpError, with the path of the group, for a group that none of the assigned features belongs to."""
    filled = {feature.dedup for feature in features}
    for group in groups:
        if group.name not in filled:
            raise OpError((*group.path, "columns"), _empty_group(group, features, out_of_fold, stored))


def _empty_group(group: DedupSpec, features: Sequence[FeatureSpec], out_of_fold: bool, stored: StoredColumns) -> str:
    reads = {each.name: deciding_columns(each, out_of_fold=out_of_fold, stored=stored) for each in features}
    own = {feature.name: feature for feature in features}
    words = []
    for name, columns in reads.items():
        used = columns.intersection(group.columns)
        if used and (feature := own[name]).group in PLAIN_GROUPS:
            words.append(f"{name} is {'a label' if feature.group == 'label' else 'passed through'}")
        elif used:
            words.append(f"{name} reads {', '.join(sorted(columns.difference(group.columns)))} as well")
    if words:
        more = f"; and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
        reason = f"{'; '.join(words[:_SHOWN])}{more}. Name all columns of a feature in one group"
    else:
        every = sorted(set().union(*reads.values()))
        near = next((near[0] for name in group.columns if (near := difflib.get_close_matches(name, every, n=1))), None)
        shown = ", ".join(group.columns[:_SHOWN]) + (", …" if len(group.columns) > _SHOWN else "")
        reason = f"no feature reads {shown}" + (f". Did you mean {near!r}?" if near else ". Remove the group")
    return f"no feature belongs to the group {group.name!r}: {reason}"
