"""Propose deduplicated groups for the features of a plan that are in none, for `feedline plan --dedup`.

Runs in: the process of the command. Groups are found on the sample of `group_measure`, in the order in which
`shuffle.by` would cluster it: the rows of a session are near each other in a log, so sorting a few ten thousand rows
shows what a clustered table would give. Without `shuffle.by` it is the table's order.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from feedline.blocks.jobs import compile_job
from feedline.blocks.request import Job
from feedline.config.column_ranges import join_names
from feedline.config.dedup_section import DedupSpec
from feedline.loader.encoding.encode import encode
from feedline.planning.dedup.column_changes import find_changes, propose_groups
from feedline.planning.dedup.group_measure import (
    Frames,
    bytes_by_column,
    feature_bytes,
    job_of,
    measure_groups,
    parts_by_column,
    rows_to_measure,
    sample_facts,
)
from feedline.planning.histories import list_columns
from feedline.planning.source_plan import SourcePlan
from feedline.transforms.compile.dedup_groups import PLAIN_GROUPS, assign_groups
from feedline.warehouse.parquet.dedup_columns import is_group_name
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT

_RANGED = re.compile(r"(.*?)(0|[1-9][0-9]*)$")
_NOT_IN_A_GROUP_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def describe_proposals(plan: SourcePlan) -> dict[str, Any]:
    """The plan's groups and the proposed ones, measured, as plain values.

    proposals: those that are worth it, with `factor` in sessions and `factor_now` in the table's order. yaml: the
    section for pipeline.yaml. optimize: the command that stores all groups that are worth it once per run; None where
    the table stores them so.
    """
    features = tuple(feature for feature in plan.features.features if feature.group not in PLAIN_GROUPS)
    job = job_of(plan, features)
    frames = rows_to_measure(plan, job)
    by = plan.job.by
    clustered = frames if by is None else [(frame.sort(by, maintain_order=True), []) for frame, _ in frames]
    present = replace(job, features=tuple(feature for feature in features if feature.dedup is not None))
    plain = replace(job, features=tuple(feature for feature in features if feature.dedup is None))
    taken = {feature.dedup for feature in present.features if feature.dedup is not None}
    not_stored = {*plan.snapshot.partition_columns, SAMPLE_WEIGHT, *list_columns(plan.spec)}
    groups = _propose(plain, clustered, taken, not_stored) if plain.features else []
    assigned = assign_groups(plain.features, groups, out_of_fold=plan.spec.fit.out_of_fold)
    proposed = replace(job, features=tuple(feature for feature in assigned if feature.dedup is not None))
    measures = measure_groups(proposed, clustered)
    factors = {measure.name: measure.factor for measure in measure_groups(proposed, frames)}
    worthwhile = [measure for measure in measures if measure.worth_it is not False]
    columns = {each.name: each.columns for each in worthwhile}
    facts = sample_facts(plan, frames)
    stored = [*(each for each in measure_groups(present, clustered) if each.worth_it is not False), *worthwhile]
    to_store = {each.name: [name for name in each.columns if name not in not_stored] for each in stored}
    is_stored = all(set(names).issubset(facts["stored_once"]) for names in to_store.values())
    return {
        "table": plan.spec.source.table,
        **facts,
        "needs_runs": plan.spec.shuffle is not None and plan.spec.shuffle.rows and by is None,
        "groups": [measure.facts() for measure in measure_groups(present, frames)],
        "proposals": [{**measure.facts(), "factor_now": factors[measure.name]} for measure in worthwhile],
        "yaml": yaml_section(columns) if columns else None,
        "optimize": None if is_stored else _optimize(plan, to_store),
    }


def _propose(job: Job, frames: Frames, taken: Collection[str], excluded: Collection[str]) -> list[DedupSpec]:
    """Groups of columns for features that are in none. Raises DataError where a row of the sample has no features."""
    compiled = compile_job(job)
    frame = frames[0][0]
    encoded = encode(compiled.features.apply(frame), compiled.layout.schema)
    nbytes = feature_bytes(encoded, compiled.layout.schema, np.ones(frame.height, np.int64))
    per_row = {name: total / max(frame.height, 1) for name, total in nbytes.items()}
    row_bytes = bytes_by_column(compiled.features, per_row)
    columns = parts_by_column(compiled.features)
    marks = compiled.features.marks
    candidates = {name: row_bytes[name] for name in columns if name not in excluded and name not in marks}
    found = propose_groups(find_changes(frames, columns, job.by), candidates)
    return [DedupSpec(name=name, columns=group) for name, group in _name_groups(found, taken).items()]


def _name_groups(groups: Sequence[tuple[str, ...]], taken: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Each group under the beginning that its columns' names share, or its first column's name, as far as that may name
    a stored group."""
    named: dict[str, tuple[str, ...]] = {}
    for columns in groups:
        same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*columns, strict=False))
        shared = "".join(letters[0] for letters in same).rstrip("_0123456789")
        name = _group_name(shared if len(shared) > 1 and len(columns) > 1 else columns[0])
        number = 2
        unique = name
        while unique in named or unique in taken:
            unique, number = f"{name}_{number}", number + 1
        named[unique] = columns
    return named


def _group_name(text: str) -> str:
    name = _NOT_IN_A_GROUP_NAME.sub("_", text)
    return name if is_group_name(name) else f"_{name}"


def yaml_section(groups: Mapping[str, Sequence[str]]) -> str:
    """The section `dedup` of pipeline.yaml, with ranges for columns that are numbered in turn."""
    lines = [
        f"  {_word(name)}: {{columns: [{', '.join(map(_word, with_ranges(columns)))}]}}"
        for name, columns in groups.items()
    ]
    return "\n".join(["dedup:", *lines])


def with_ranges(columns: Sequence[str]) -> list[str]:
    """`[user, h_0, h_1, h_2]` as `[user, h_{0..2}]`: three or more columns that are numbered in turn."""
    runs: list[tuple[str, list[int]]] = []  # of names with a stem, the numbers
    for name in columns:
        match = _RANGED.fullmatch(name)
        stem, numbers = (name, []) if match is None else (match[1], [int(match[2])])
        if numbers and runs and runs[-1][0] == stem and runs[-1][1][-1:] == [numbers[0] - 1]:
            runs[-1][1].append(numbers[0])
        else:
            runs.append((stem, numbers))
    words = []
    for stem, numbers in runs:
        if len(numbers) > 2:
            words.append(f"{stem}{{{numbers[0]}..{numbers[-1]}}}")
        else:
            words += [f"{stem}{number}" for number in numbers] or [stem]
    return words


def _word(text: str) -> str:
    plain = _PLAIN_WORD.fullmatch(text) and text.lower() not in _YAML_WORDS
    return text if plain else "'" + text.replace("'", "''") + "'"


def _optimize(plan: SourcePlan, groups: Mapping[str, Sequence[str]]) -> str:
    """The command that writes the table with each group's columns once per run, an option per line."""
    table = plan.spec.source.table
    options = [] if plan.job.by is None else [["--cluster-by", join_names([plan.job.by])]]
    options += [
        ["--dedup", f"{_group_name(name)}={join_names(columns)}"] for name, columns in groups.items() if columns
    ]
    command = ["feedline", "optimize", table if isinstance(table, str) else "TABLE", "OUT"]
    return " \\\n  ".join(shlex.join(words) for words in [command, *options])
