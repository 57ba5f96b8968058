"""Failures are blamed on the block or on its worker; pure, with the test's clock."""

from __future__ import annotations

import pytest

from feedline.errors import ClusterError, CorruptFileError, DataError, FeedlineError, StoreError
from feedline.service.cluster.attempts import failure_of
from feedline.service.cluster.blame import (
    ATTEMPTS,
    EXCLUDED_S,
    BlockFailure,
    Exclusions,
    Retry,
    decide_retry,
    elsewhere,
    host_of,
)

A1, A2, B1, C1 = "tcp://10.0.0.1:1001", "tcp://10.0.0.1:1002", "tls://10.0.0.2:1001", "tcp://[fe80::1]:1001"


def failed(error: Exception, worker: str) -> BlockFailure:
    return failure_of(error, worker, host_of(worker))


def test_the_host_of_an_address():
    assert [host_of(worker) for worker in (A1, A2, B1, C1)] == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "[fe80::1]"]
    assert elsewhere({A1}, {A1, A2, B1}) == {B1}
    assert elsewhere({A1}, {A1, A2}) == {A2}
    assert elsewhere({A1, B1}, {A1, B1}) == frozenset()
    assert elsewhere({""}, {A1}) == {A1}


@pytest.mark.parametrize("error", [DataError("d"), CorruptFileError("c"), StoreError("s"), OSError("o"), KeyError("k")])
def test_one_failure_is_retried_elsewhere_and_two_equal_ones_are_the_blocks(error: Exception):
    first = failed(error, A1)
    assert decide_retry("b", [first], {A1, A2, B1}) == Retry(workers=frozenset({B1}))
    raised = decide_retry("b", [first, failed(error, B1)], {A1, A2, B1})
    assert type(raised) is (type(error) if isinstance(error, FeedlineError) else ClusterError)
    assert isinstance(decide_retry("b", [first, failed(error, A2)], {A1, A2}), FeedlineError), "all are on one host"
    assert decide_retry("b", [first, failed(ValueError(), B1)], {A1, B1, C1}) == Retry(workers=frozenset({C1}))


def test_two_workers_of_a_host_count_once():
    failures = [failed(KeyError("k"), A1), failed(KeyError("k"), A2)]
    assert decide_retry("b", failures, {A1, A2, B1}) == Retry(workers=frozenset({B1}))


def test_without_another_worker_the_error_is_raised():
    for error in (DataError("d"), StoreError("s"), ClusterError("c"), KeyError("k")):
        assert isinstance(decide_retry("b", [failed(error, A1)], {A1}), FeedlineError)
    for number in range(1, ATTEMPTS + 1):
        decision = decide_retry("b", [failed(OSError("o"), A1)] * number, {A1})
        expected = Retry(workers=None, after_s=2.0 ** (number - 1))  # the store, or the mount, may be away
        assert decision == expected if number < ATTEMPTS else isinstance(decision, ClusterError)
    assert decide_retry("b", [failed(OSError("o"), A1)], ()) == Retry(workers=None, after_s=1.0), (
        "threads in this process"
    )


def test_unfit_workers_do_not_outvote_the_job():
    """Other versions on three hosts of many say nothing of the block."""
    failures = [failed(ClusterError("another polars"), worker) for worker in (A1, B1, C1)]
    fit = "tcp://10.0.0.9:1"
    assert decide_retry("b", failures, {A1, B1, C1, fit}) == Retry(workers=frozenset({fit}))
    assert str(decide_retry("b", failures, {A1, B1, C1})) == "another polars"


def test_a_block_that_kills_its_workers_is_retried_anywhere():
    killed = BlockFailure(kind="killed", ours=False, name="KilledWorker", message="again", worker="", host="")
    assert decide_retry("b", [killed] * 3, {A1, B1}) == Retry(workers=None)
    assert str(decide_retry("b", [killed] * 4, {A1, B1})) == "block b failed 4 times: KilledWorker: again"


def test_exclusions_end_and_never_exclude_all():
    exclusions = Exclusions()
    members = {A1, A2, B1}
    assert exclusions.eligible_workers(members, 0) is None
    assert exclusions.exclude(A1, members, 100)
    assert not exclusions.exclude(A2, members, 110), "the host is left out already"
    assert exclusions.eligible_workers(members, 120) == {B1}
    assert exclusions.eligible_workers({A1, A2}, 120) is None, "rather these than nobody"
    assert exclusions.eligible_workers(members, 110 + EXCLUDED_S) is None
    assert not exclusions.any(110 + EXCLUDED_S)
    alone = Exclusions()
    assert alone.exclude(A1, {A1, A2}, 0)
    assert alone.eligible_workers({A1, A2, B1}, 1) == {A2, B1}, "one host only: the worker itself"
