"""Errors are what a caller would catch, and cross processes unchanged."""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Iterator

import pytest
from tblib import pickling_support

from feedline import errors
from feedline.errors import DataError, FeedlineError, from_wire

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
BUILT_IN = {
    "SpecError": ValueError,
    "ExpressionError": ValueError,
    "TableError": ValueError,
    "TableNotFoundError": FileNotFoundError,
    "TableArgumentError": ValueError,
    "CorruptFileError": ValueError,
    "TableChangedError": ValueError,
    "StoreError": OSError,
    "DataError": ValueError,
    "PlanError": ValueError,
    "NoStepError": ValueError,
    "StateError": ValueError,
    "RingError": MemoryError,
    "ClusterError": RuntimeError,
    "FeederError": RuntimeError,
    "BatchTimeoutError": TimeoutError,
}


def test_every_error_is_also_a_built_in_one():
    assert {each.__name__ for each in CLASSES} == {*BUILT_IN, "FeedlineError"}
    for each in CLASSES:
        assert issubclass(each, FeedlineError)
        assert issubclass(each, BUILT_IN.get(each.__name__, Exception))


@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.__name__)
def test_errors_pickle_with_their_message(each: type[FeedlineError]):
    copy = pickle.loads(pickle.dumps(each("price: got é")))
    assert type(copy) is each
    assert str(copy) == "price: got é"


@pytest.fixture
def own_reducers() -> Iterator[None]:
    """What the test registers for pickling is forgotten after it."""
    before = dict(copyreg.dispatch_table)
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(before)


@pytest.mark.usefixtures("own_reducers")
@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.__name__)
def test_errors_keep_their_class_as_dask_pickles_them(each: type[FeedlineError]):
    error = each("price: got é")
    error.__cause__ = OSError(2, "No such file")
    pickling_support.install(error, error.__cause__)  # as distributed.core.error_message
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is each
    assert str(copy) == "price: got é"
    assert isinstance(copy.__cause__, FileNotFoundError)


@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.__name__)
def test_errors_of_feeders_keep_their_class(each: type[FeedlineError]):
    error = from_wire(each.__name__, "price: got é")
    assert type(error) is each
    assert str(error) == "price: got é"


def test_errors_of_unknown_classes_are_of_the_base_class():
    error = from_wire("KeyboardInterrupt", "x")
    assert type(error) is FeedlineError
    assert str(error) == "x"


def test_a_data_error_may_name_its_row():
    error = DataError("x")
    assert error.row is None
    assert error.at(3) is error
    assert error.row == 3
