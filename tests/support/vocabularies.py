"""Vocabularies of drawn columns, learnt in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from hypothesis import strategies as st

from feedline.transforms.learning.learner import Artifact
from feedline.transforms.learning.value_counts import ValueCounts
from feedline.transforms.ops.vocabulary import Vocabulary, learner_of
from feedline.transforms.values.kinds import Value

TEXTS = st.text(max_size=20) | st.sampled_from(["", "a", "aa", "é", "z", "Zürich, Bahnhofstrasse 1", "\U0001f600"])
COLUMNS = st.one_of(
    st.tuples(st.just(pl.Int64()), st.lists(st.none() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just(pl.UInt64()), st.lists(st.none() | st.integers(0, 4) | st.integers(0, 2**64 - 1))),
    st.tuples(st.just(pl.String()), st.lists(st.none() | TEXTS)),
    st.tuples(st.just(pl.Binary()), st.lists(st.none() | st.binary(max_size=20))),
)
PARAMETERS = st.fixed_dictionaries(
    {"min_count": st.integers(1, 3), "max_size": st.none() | st.integers(1, 6), "oov_buckets": st.integers(0, 5)}
)


def learner(dtype: pl.DataType, **parameters: Any) -> ValueCounts:
    return learner_of(Vocabulary(**parameters), [Value(expr=pl.col("a"), dtype=dtype)])


def fitted(series: Sequence[pl.Series], **parameters: Any) -> Artifact:
    made = learner(series[0].dtype, **parameters)
    return made.finish([made.merge([made.observe([one]) for one in series])])
