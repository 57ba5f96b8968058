"""The hash agrees with its definition, computed here one value at a time with Python's integers."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from reference_hash import digest_of, hash_of

from feedline import hashing
from feedline.native import rows as native
from feedline.transforms.ops import OPS


def digests_of(series: pl.Series) -> list[int]:
    """Of the compiled function, if there is one, which must be those of numpy."""
    found = hashing.digest(series).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "COMPILED", False)
        assert hashing.digest(series).tolist() == found
    return found


def buckets_of(values: np.ndarray, seed: int, buckets: int) -> list[int]:
    out = np.empty(len(values), dtype=np.int64)
    hashing.bucket_integers(values, out, seed, buckets)
    return out.tolist()


def test_published_outputs_of_splitmix64():
    # the first five outputs of the generator seeded with 1234567, as its published test vectors have them
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [hash_of(1234567, seed) for seed in range(5)] == published
    assert hashing.outputs(1234567, 0, 5).tolist() == published
    assert hashing.outputs(1234567, 3, 2).tolist() == published[3:]
    assert [hashing.hash_words(np.array([1234567], np.uint64), seed)[0] for seed in range(5)] == published


def test_vectors_of_the_documentation():
    rows = re.findall(r"\| `(.+)` \| (\d+) \| (\d+) \|", OPS["hash_bucket"].text)
    assert len(rows) == 10
    for value, seed, expected in rows:
        meant = value[1:-1] if value.startswith('"') else int(value)
        assert hash_of(meant, int(seed)) == int(expected)
        column = hashing.digest(pl.Series([meant])) if isinstance(meant, str) else np.array([meant])
        assert buckets_of(column, int(seed), 2**63 - 1) == [int(expected) % (2**63 - 1)]


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50),
    st.integers(0, 2**63 - 1),
    st.one_of(st.integers(1, 100), st.integers(1, 2**63 - 1)),
)
def test_integers(values: list[int], seed: int, buckets: int):
    found = buckets_of(np.array(values, dtype=np.int64), seed, buckets)
    assert found == [hash_of(value, seed) % buckets for value in values]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 20))
def test_outputs_from_any_position(start: int, first: int, count: int):
    expected = [hash_of(start, number) for number in range(first, first + count)]
    assert hashing.outputs(start, first, count).tolist() == expected


def test_unsigned_integers():
    values = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    assert buckets_of(np.array(values, dtype=np.uint64), 3, 1000) == [hash_of(value, 3) % 1000 for value in values]


@given(st.lists(st.one_of(st.text(max_size=20), st.text(max_size=400))), st.integers(0, 5), st.integers(0, 5))
def test_digests_of_strings(values: list[str], before: int, after: int):
    """Sliced columns too, and the way over bytes alone gives the same as the one over string views."""
    series = pl.Series(values, dtype=pl.String).slice(before, max(0, len(values) - before - after))
    expected = [digest_of(value.encode()) for value in series.to_list()]
    assert digests_of(series) == expected
    assert hashing._digest_bytes(series).tolist() == expected


@given(st.lists(st.one_of(st.binary(max_size=24), st.binary(max_size=400), st.binary(min_size=257, max_size=300))))
def test_digests_of_binary_values(values: list[bytes]):
    assert digests_of(pl.Series(values, dtype=pl.Binary)) == [digest_of(value) for value in values]


def test_digests_of_every_length_up_to_two_rounds():
    values = [bytes(range(length)) for length in range(200)] + [b"\xff" * length for length in range(250, 270)]
    assert digests_of(pl.Series(values)) == [digest_of(value) for value in values]


def test_digests_of_more_rows_than_a_block():
    values = [f"user-{index}" * (1 + index % 5) for index in range(2 * hashing.BLOCK_ROWS + 3)]
    assert digests_of(pl.Series(values)) == [digest_of(value.encode()) for value in values]


def test_a_megabyte_string_among_short_ones():
    values = ["a", "b" * 1_000_003, "", "c" * 30]
    assert digests_of(pl.Series(values)) == [digest_of(value.encode()) for value in values]


def test_nulls_do_not_disturb_their_neighbours():
    values = [None, "a", None, "a string of more than twelve bytes", None]
    found = hashing.digest(pl.Series(values)).tolist()
    assert [found[1], found[3]] == [digest_of(values[1].encode()), digest_of(values[3].encode())]


@examples(200)
@given(st.lists(st.text(max_size=20), max_size=20), st.integers(0, 2**31), st.integers(1, 2**63 - 1))
def test_buckets_of_strings_are_the_remainders_of_their_hashes(values: list[str], seed: int, buckets: int):
    series = pl.Series(values, dtype=pl.String)
    expected = [int(word) % buckets for word in hashing.hash_words(hashing.digest(series), seed)]
    for kernel in {native.COMPILED, False}:
        out = np.empty(len(values), np.int64)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "COMPILED", kernel)
            hashing.bucket_strings(series, out, seed, buckets)
        assert out.tolist() == expected


@pytest.mark.parametrize("buckets", [1, 2, 3, 2**31, 2**32 + 1, 2**62, 2**63 - 1])
def test_buckets_of_strings_fall_into_any_number_of_them(buckets: int):
    series, out = pl.Series([f"word {number}" for number in range(1000)]), np.empty(1000, np.int64)
    hashing.bucket_strings(series, out, 3, buckets)
    assert out.tolist() == [int(word) % buckets for word in hashing.hash_words(hashing.digest(series), 3)]


def test_trailing_zeros_count():
    values = [b"", b"\0", b"\0\0", b"a", b"a\0", b"12345678", b"12345678\0"]
    assert len(set(digests_of(pl.Series(values)))) == len(values)


@pytest.mark.parametrize("kind", ["counting", "multiples", "strings"])
def test_buckets_are_filled_evenly(kind: str):
    """Chi-square over 1,000 buckets: 200,000 structured values are as even as random ones."""
    count, buckets = 200_000, 1000
    numbers = np.arange(count, dtype=np.int64)
    if kind == "strings":
        values = hashing.digest(pl.Series([f"item_{number:06d}" for number in range(count)]))
    else:
        values = numbers if kind == "counting" else numbers * 4096
    filled = np.bincount(buckets_of(values, 0, buckets), minlength=buckets)
    chi_square = float(((filled - count / buckets) ** 2).sum() / (count / buckets))
    assert abs(chi_square - (buckets - 1)) < 6 * np.sqrt(2 * (buckets - 1))


def test_seeds_give_independent_buckets():
    values = np.arange(100_000, dtype=np.int64)
    same = np.array(buckets_of(values, 0, 100)) == np.array(buckets_of(values, 1, 100))
    assert abs(same.mean() - 0.01) < 0.002
