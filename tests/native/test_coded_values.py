"""Values that are held once per distinct value, and gathered where they are needed."""

from __future__ import annotations

import numpy as np
import pytest

from feedline.native.coded_values import CodedArray, CodedValues

CODES = np.array([2, 0, 0, 1], np.int32)


@pytest.mark.parametrize("code", [np.int32, np.uint16])
@pytest.mark.parametrize(
    ("table", "dtype"),
    [(np.array([0.5, np.nan, -1], np.float32), np.float32), (np.array([1, 2**60, 3]), np.int64)],
    ids=["floats", "integers"],
)
def test_an_array_of_codes_is_the_table_at_them(code: type, table: np.ndarray, dtype: type):
    coded = CodedArray(CODES.astype(code), table)
    assert coded.dtype == dtype
    assert len(coded) == 4
    assert coded.nbytes == CODES.astype(code).nbytes + table.nbytes
    np.testing.assert_array_equal(np.asarray(coded), table[CODES])
    np.testing.assert_array_equal(np.asarray(coded[1:3]), table[CODES[1:3]])
    np.testing.assert_array_equal(np.asarray(coded, np.float64), table[CODES].astype(np.float64))


def test_integers_of_32_bits_stand_for_64():
    coded = CodedArray(CODES, np.array([-1, 2, 3], np.int32))
    assert np.asarray(coded).dtype == coded.dtype == np.int64
    assert np.asarray(coded).tolist() == [3, -1, -1, 2]


def coded(**given: object) -> CodedValues:
    whole = {"values": np.arange(3), "index": None, "entries": 3, "used": None, "uses": None, "codes": CODES}
    return CodedValues(**{**whole, "offsets": None, **given})


def test_values_are_counted_by_codes_or_by_the_elements_of_slices():
    assert coded().count == 4
    assert coded(offsets=np.array([0, 1, 4])).count == 4
    assert coded(offsets=np.array([0, 1, 3]), slices=(1, np.array([0, 2, 4]))).count == 3
