"""Routes are bounded, cover all workers about equally, and change little; compared with counts of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from job_reports import REPORT

from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.job_reports import JobAnswer
from feedline.service.scheduler.job_book import ClusterSize, JobBook
from feedline.service.scheduler.routes import HEADROOM, LEAST_WORKERS, Routes, route_digest, route_size


def addresses(count: int, first: int = 0) -> set[str]:
    return {f"tcp://10.0.{index // 256}.{index % 256}:1" for index in range(first, first + count)}


def settle(routes: Routes, needs: dict[str, float], workers: set[str]) -> dict[str, frozenset[str]]:
    """The routes when reports change them no more."""
    chosen: dict[str, frozenset[str]] = {}
    for _ in range(60):
        before, chosen = chosen, {feeder: routes.update(feeder, need, workers) for feeder, need in needs.items()}
        if before == chosen:
            return chosen
    raise AssertionError("the routes change for ever")


def counts(chosen: dict[str, frozenset[str]], workers: set[str]) -> list[int]:
    """How many routes each worker is in, by brute force."""
    return [sum(worker in route for route in chosen.values()) for worker in sorted(workers)]


def changes(before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]) -> int:
    """Workers that came to a route."""
    return sum(len(after[feeder] - before[feeder]) for feeder in before)


@given(st.floats(0, 200), st.integers(0, 500), st.integers(0, 300))
def test_a_route_has_room_for_what_its_feeder_needs(need: float, workers: int, current: int):
    size = route_size(need, workers, current)
    assert size == 0 or max(LEAST_WORKERS, HEADROOM * need - 1e-5) <= size <= workers
    assert workers > LEAST_WORKERS or size == 0, "a small cluster has none"
    assert route_size(need, workers, size) in (0, size), "nor does it change by itself"


@examples(20)
@given(
    st.lists(st.floats(0, 20), min_size=1, max_size=25),
    st.integers(60, 120),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_workers_are_covered_about_equally_whatever_joins_and_leaves(
    needs: list[float], workers: int, leaving: int, joining: int
):
    feeders = {f"f{index}": need for index, need in enumerate(needs)}
    routes, members = Routes(), addresses(workers)
    settle(routes, feeders, members)
    members = (members - addresses(leaving)) | addresses(joining, first=workers)
    chosen = settle(routes, feeders, members)
    routed = {feeder: route for feeder, route in chosen.items() if route}
    assert all(route <= members for route in routed.values())
    parts = {feeder: min(1.0, max(feeders[feeder], 4.0) / len(route)) for feeder, route in routed.items()}
    for worker in members:
        expected = sum(parts[feeder] for feeder, route in routed.items() if worker in route)
        assert routes.coverage(worker) == pytest.approx(expected, abs=len(routed) / 32)
    covered = [routes.coverage(worker) for worker in members]
    assert max(covered) - min(covered) <= 2 * (max(parts.values(), default=0.0) + 1 / 32)
    routes.forget(())
    assert len(routes) == 0
    assert not any(routes.coverage(worker) for worker in members)


def test_feeders_of_a_large_cluster_have_few_workers_each_and_keep_them():
    """1,024 places: 4.1 per worker. Hashing alone leaves 2 % of the workers without any."""
    workers = addresses(250)
    routes, needs = Routes(), {f"f{index}": 3.9 for index in range(64)}
    first = settle(routes, needs, workers)
    assert {len(route) for route in first.values()} == {16}
    assert (min(counts(first, workers)), max(counts(first, workers))) == (4, 5)
    assert len(set(first.values())) == 64, "they overlap in all ways"

    lost = addresses(25)
    after = settle(routes, needs, workers - lost)
    places = sum(len(route & lost) for route in first.values())
    assert changes(first, after) == places, "only the places of those that left"
    assert min(counts(after, workers - lost)) >= 3
    assert max(counts(after, workers - lost)) <= 6

    joined = addresses(25, first=2000)
    members = workers - lost | joined
    final = settle(routes, needs, members)
    assert changes(after, final) <= 4.1 * len(joined), "no more than the part of those that came"
    assert min(counts(final, joined)) >= 3
    assert min(counts(final, members)) >= 3


def test_a_route_grows_at_once_and_shrinks_when_it_is_twice_too_large():
    routes, workers = Routes(), addresses(200)
    small = routes.update("f", 1.0, workers)
    large = routes.update("f", 40.0, workers)
    assert (len(small), len(large)) == (16, 60)
    assert small < large
    assert routes.update("f", 20.0, workers) == large
    shrunk = routes.update("f", 15.0, workers)
    assert shrunk < large
    assert len(shrunk) == 23
    assert not routes.update("f", 110.0, workers), "it needs nearly all"


def test_answers_name_a_route_once_and_small_clusters_have_none():
    book, workers = JobBook(), addresses(40)
    size = ClusterSize(workers=40, threads=80)
    first = book.record(REPORT, 0.0, size, workers)
    assert first.route is not None
    assert len(first.route) == 16
    assert workers.issuperset(first.route)
    assert unpack(JobAnswer, pack(first)) == first
    known = replace(REPORT, route=route_digest(first.route))
    assert book.record(known, 2.0, size, workers).route is None
    left = workers - {first.route[0]}
    second = book.record(known, 4.0, ClusterSize(workers=39, threads=78), left).route
    assert second is not None
    assert set(first.route) - set(second) == {first.route[0]}, "one has left, and another has come"
    assert len(second) == 16
    assert book.record(known, 6.0, ClusterSize(workers=16, threads=32), addresses(16)).route == ()
    assert book.record(REPORT, 8.0, ClusterSize(workers=16, threads=32), addresses(16)).route is None
