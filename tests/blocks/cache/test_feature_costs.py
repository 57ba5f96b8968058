"""Are features priced as they were injected, whatever order and share of their cost is common to all?"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.cache.cached_features import CachedFeatures
from feedline.blocks.cache.feature_costs import FeatureMeasurements, MeasuredFeatures, feature_classes
from feedline.config.features import FeatureSpec, OpCall
from feedline.transforms.compile.compiled import compile_features
from feedline.warehouse.cache.cache_folder import CachedColumn

ROWS = 100


def features_of(names: Collection[str]) -> CachedFeatures:
    return CachedFeatures({name: CachedColumn({"values": np.zeros(ROWS, np.int32)}, {}) for name in names}, {})


class Machine:
    """Computes features in injected seconds, of CPU and of waiting, and knows the time."""

    def __init__(self, cpu_s: Mapping[str, float], *, shared_s: float, wait_s: float = 0.0) -> None:
        self.cpu_s, self.shared_s, self.wait_s = cpu_s, shared_s, wait_s
        self.now_cpu_s = self.now_s = 0.0
        self.disturbed_s = 0.0
        self.prepared: list[frozenset[str]] = []

    def clock(self) -> tuple[float, float]:
        return self.now_cpu_s, self.now_s

    def spend(self, cpu_s: float, wait_s: float = 0.0) -> None:
        self.now_cpu_s += cpu_s
        self.now_s += cpu_s + wait_s

    def prepare(self, names: Collection[str]) -> None:
        self.prepared.append(frozenset(names))
        self.spend(100.0)  # of compiling, which counts as nothing

    def compute(self, names: Collection[str]) -> CachedFeatures:
        self.spend(self.shared_s + sum(self.cpu_s[name] for name in names) + self.disturbed_s, self.wait_s * len(names))
        return features_of(names)

    def find(self, names: Collection[str]) -> CachedFeatures:
        self.spend(0.25 * len(names))
        return features_of(names)

    def lay(self, found: CachedFeatures) -> None:
        self.spend(0.5 * len(found.columns))


def measured(
    machine: Machine, classes: list[frozenset[str]], store_bytes: float = 0.0
) -> tuple[FeatureMeasurements, MeasuredFeatures]:
    measurements = FeatureMeasurements(classes, machine.clock)
    names = frozenset[str]().union(*classes)
    for segment in range(6):
        assert measurements.costs(store_bytes) is None or segment == 5
        machine.disturbed_s = 50.0 if segment in (2, 4) else 0.0
        assert set(measurements.compute(names, ROWS, machine.compute, machine.prepare).columns) == names
        if segment == 0:
            assert measurements.needs_hits(names)
            measurements.read_back(ROWS, 1000, 2.0, machine.find, machine.lay)
        assert not measurements.needs_hits(names)
    costs = measurements.costs(store_bytes)
    assert costs is not None
    return measurements, costs


@given(st.lists(st.floats(0.5, 50), min_size=2, max_size=5), st.floats(0, 5))
def test_each_class_costs_what_it_takes_and_what_is_common_counts_once(seconds: list[float], shared_s: float):
    """As long as a class is no tiny part of what it shares."""
    classes = [frozenset({f"a{index}", f"b{index}"}) for index in range(len(seconds))]
    machine = Machine({name: seconds[int(name[1:])] for each in classes for name in each}, shared_s=shared_s)
    _, costs = measured(machine, classes)
    total = costs.shared.cpu_s + sum(each.cpu_s for each in costs.features)
    assert total * ROWS == pytest.approx(shared_s + 2 * sum(seconds))
    for each in costs.features:
        assert each.cpu_s * ROWS == pytest.approx(seconds[int(each.name[1:])], rel=0.15)
        assert each.bytes == 4
        assert each.hit_cpu_s * ROWS == pytest.approx(0.75)
        assert costs.found_s[each.name] * ROWS == pytest.approx(0.25)
    assert costs.write_bytes_per_s == 500


def test_waiting_is_computing_of_a_local_table_and_bytes_of_a_remote_one():
    classes = [frozenset({"a"}), frozenset({"b", "c"})]
    _, local = measured(Machine(dict.fromkeys("abc", 1.0), shared_s=0.0, wait_s=3.0), classes)
    assert [each.cpu_s * ROWS for each in local.features] == pytest.approx([4, 4, 4])
    assert (local.wait_s, local.features[0].store_bytes) == (0, 0)
    _, remote = measured(Machine(dict.fromkeys("abc", 1.0), shared_s=0.0, wait_s=3.0), classes, store_bytes=30.0)
    assert [each.store_bytes for each in remote.features] == pytest.approx([10, 10, 10])
    assert (remote.wait_s * ROWS, remote.features[0].cpu_s * ROWS) == pytest.approx((9, 1))


def test_segments_of_which_something_was_found_are_not_measured():
    machine = Machine({"a": 1.0, "b": 2.0}, shared_s=0.0)
    measurements = FeatureMeasurements([frozenset({"a"}), frozenset({"b"})], machine.clock)
    for _ in range(9):
        assert set(measurements.compute({"a"}, ROWS, machine.compute, machine.prepare).columns) == {"a"}
        assert not measurements.needs_hits({"a"})
    assert not machine.prepared
    assert measurements.costs() is None


def test_entries_that_are_gone_at_once_are_measured_later():
    machine = Machine({"a": 1.0}, shared_s=0.0)
    measurements = FeatureMeasurements([frozenset({"a"})], machine.clock)
    measurements.read_back(ROWS, 1, 1.0, lambda names: features_of(()), machine.lay)
    assert measurements.needs_hits({"a"})


def test_features_alike_are_a_class_and_small_classes_one():
    ops = {"log1p": (OpCall(op="log1p"),), "log": (OpCall(op="log"),), "plain": ()}
    features = [
        FeatureSpec(name=f"{name}{k}", group="dense", column=f"x{k}", ops=ops[name]) for name in ops for k in "01"
    ]
    features += [FeatureSpec(name=f"s{k}", group="categorical", column=f"i{k}", ops=()) for k in range(3)]
    features += [
        FeatureSpec(name="label", group="label", column="x0"),
        FeatureSpec(name="e", group="extra", column="i0"),
    ]
    features += [
        FeatureSpec(name="f", group="dense", expr="x0 + 1.0"),
        FeatureSpec(name="hidden", group="dense", column="x0"),
    ]
    schema = pa.schema([*((f"x{k}", pa.float32()) for k in "01"), *((f"i{k}", pa.int64()) for k in range(3))])
    names = {feature.name for feature in features} - {"hidden"}
    classes = feature_classes(compile_features(tuple(features), schema), names)
    assert classes[0] == {"s0", "s1", "s2"}
    assert sorted(map(sorted, classes[1:4])) == [["log0", "log1"], ["log1p0", "log1p1"], ["plain0", "plain1"]]
    assert len(classes) == 6
    assert sorted(name for each in classes for name in each) == sorted(names)
