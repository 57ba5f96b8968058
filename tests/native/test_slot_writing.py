"""Slots are written as numpy writes them (see `test_slot`); arguments that would reach beyond them are refused."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
from kernel_calls import HEADER, PLACES, SLOT_BYTES, copied_slot, gathered_slot, piece

from feedline.native import rows

pytestmark = pytest.mark.skipif(not rows.COMPILED, reason="installed without a compiler")


def test_pieces_are_laid_end_to_end():
    target, *rest = copied_slot()
    rows.write_slot(target, *rest)
    assert target[:64].tobytes() == HEADER
    assert target[64:88].view(np.float32).tolist() == [2, 3, 4, 5, 5, 6]
    assert not target[88:128].any()
    assert target[128:140].view(np.float32).tolist() == [2, 4, 5]
    assert target[192:240].view(np.int64).tolist() == [1, 2, 5, 11, 12, 15]
    assert target[256:260].tolist() == [1, 1, 0, 7]
    assert target[320:332].view(np.int32).tolist() == [1, 0, 2]
    assert target[384:416].view(np.int64).tolist() == [0, 1, 1, 3]
    assert target[448:472].view(np.int64).tolist() == [2, 500, 501]
    assert target[576:588].view(np.float32).tolist() == pytest.approx([2 / 6, 0, 1 / 6])


def _write(arguments: list[Any]) -> None:
    target, header, gaps, own = arguments
    rows.write_slot(target, header, gaps, [(PLACES, [(*own[:-1], tuple(own[-1]))])])


def test_rows_of_parts_are_gathered():
    arguments = gathered_slot()
    _write(arguments)
    target = arguments[0]
    assert target[64:88].view(np.float32).tolist() == [6, 7, 20, 21, 22, 23]
    assert target[128:140].view(np.float32).tolist() == [6, 20, 22]
    assert target[192:240].view(np.int64).tolist() == [3, 20, 21, 13, 30, 31]
    assert target[320:332].view(np.int32).tolist() == [4, 2, 1]
    assert target[384:416].view(np.int64).tolist() == [0, 4, 6, 7]
    assert target[448:504].view(np.int64).tolist() == [3, 4, 5, 6, 2000, 2001, 2002]


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, np.array([3, 4], np.int64), "the array of parts has a wrong size"),
        (1, np.array([0, 2, 1, 1, 1], np.uint16), "a row is of part 2: expected one of 2 parts"),
        (2, np.zeros(1, np.int32), "the first rows of the parts has a wrong size"),
        (2, np.zeros(16, np.int8), "the first rows of the parts has a wrong size"),
        (2, np.zeros(1, np.int64), "a tuple with one buffer per part|a row is of part 1"),
        (3, (np.array([0, 4, 3, 7, 7, 11], np.int64),), "the offsets of lists fall"),
        (3, (np.array([0, 4], np.int64),), "the offsets of lists has a wrong size"),
        (3, (), "the rows of a slot, or its features"),
    ],
)
def test_an_order_that_does_not_fit_its_parts_is_refused(place: int, value: Any, words: str):
    arguments = gathered_slot()
    arguments[3][-1][place] = value
    with pytest.raises(ValueError, match=words):
        _write(arguments)
    assert (arguments[0] == 7).all()


def test_rows_that_a_piece_does_not_have_are_refused():
    for start, stop in ((-1, 2), (3, 6), (2, 1), (2**62, 2**62 + 3)):
        arguments = gathered_slot()
        arguments[3][:2] = start, stop
        with pytest.raises(ValueError, match="are not among the 5 of a piece"):
            _write(arguments)


def test_sources_may_lie_at_any_address():
    """As blocks that were received from other processes do."""
    found, *rest = copied_slot()
    rows.write_slot(found, *rest)
    target, header, gaps, [(places, pieces)] = copied_slot()
    moved = [tuple(_moved(each) for each in own) for own in pieces]
    rows.write_slot(target, header, gaps, [(places, moved)])
    assert (target == found).all()


def _moved(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_moved(each) for each in value)
    if not isinstance(value, np.ndarray):
        return value
    return np.frombuffer(b"x" + value.tobytes(), value.dtype, offset=1).reshape(value.shape)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.__setitem__(0, np.zeros(580, np.uint8)), "a section lies outside its slot"),
        (lambda a: a.__setitem__(1, bytes(SLOT_BYTES + 1)), "a section lies outside its slot"),
        (lambda a: a.__setitem__(2, ((600, 700),)), "a section lies outside its slot"),
        (lambda a: a.__setitem__(2, ((60, 40),)), "a section lies outside its slot"),
        (lambda a: a[3][0][1].pop(), "fewer rows than the slot"),
        (lambda a: a[3][0][1].append(piece(0, 1, 0)), "the rows of a slot"),
        (lambda a: a[3][0][1].__setitem__(0, piece(3, 5, 0)), "a source of a slot has a wrong size"),
        (lambda a: a[3][0][1].__setitem__(0, piece(-1, 1, 0)), "the rows of a slot"),
        (lambda a: a[3][0][1].__setitem__(0, piece(2**62, 2**62 + 2, 0)), "a source of a slot has a wrong size"),
        (lambda a: a[3][0][1][0][8][0].__setitem__(3, 9), "a source of a slot has a wrong size"),
        (lambda a: a[3][0][1][0][8][0].__setitem__(1, 4), "the offsets of lists fall"),
        (lambda a: a[3][0][1][0][8][0].__setitem__(1, -1), "the offsets of lists fall"),
        (lambda a: a[3].__setitem__(0, (PLACES[:7], a[3][0][1])), "seven numbers and those of its lists"),
        (lambda a: a[3].__setitem__(0, ((*PLACES[:7], ((320, 380, 448, 8, -1),)), a[3][0][1])), "not aligned"),
    ],
)
def test_what_reaches_beyond_a_slot_or_its_sources_is_refused(change: Any, words: str):
    arguments = copied_slot()
    change(arguments)
    with pytest.raises(ValueError, match=words):
        rows.write_slot(*arguments)
    assert (arguments[0] == 7).all() or not arguments[0].any()


def test_any_numbers_are_written_within_the_slot_or_refused():
    """Under AddressSanitizer this shows reads and writes out of bounds."""
    generator = random.Random(7)
    drawn = [-(2**62), -1, 0, 1, 3, 8, 64, 320, 576, 639, 640, 2**31, 2**62]
    for _ in range(2000):
        arguments = copied_slot()
        pieces = copy.deepcopy(arguments[3][0][1])
        places: list[Any] = [generator.choice([place, generator.choice(drawn)]) for place in PLACES[:7]]
        lists = tuple(generator.choice([place, generator.choice(drawn)]) for place in PLACES[7][0])
        index = generator.randrange(2)
        start, stop = (generator.choice(drawn) for _ in range(2))
        if generator.random() < 0.5:
            pieces[index] = (start, stop, *pieces[index][2:])
        pieces[index][8][0][generator.randrange(5)] = generator.choice(drawn)
        try:
            rows.write_slot(*arguments[:3], [((*places, (lists,)), pieces)])
        except ValueError:
            continue
