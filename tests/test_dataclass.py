"""Feedline's dataclasses do what the standard library's do, which is the oracle."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, field
from typing import Any, ClassVar

import pytest

from feedline.dataclass import dataclass

OPTIONS = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True, "eq": False},
    {"slots": True, "kw_only": True, "eq": False, "repr": False},
]


def classes(make: Callable[..., Any], options: dict[str, bool]) -> tuple[Any, Any]:
    """A class with every kind of field, and one that inherits from it."""

    @make(**options)
    class Point:
        x: int
        y: int = 2
        names: list[str] = field(default_factory=list)
        hidden: int = field(default=7, repr=False, compare=False)
        of_class: ClassVar[int] = 5
        twice: int = field(init=False, default=0)
        copies: list[int] = field(init=False, default_factory=list)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.x)

    @make(**options)
    class Point3(Point):  # type: ignore[misc]
        """A point with a height."""

        z: int = 3

    return Point, Point3


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_instances_are_those_of_the_standard_library(options: dict[str, bool]):
    keywords = {"x": 1, "names": ["a"], "hidden": 9}
    for own, other in zip(classes(dataclass, options), classes(dataclasses.dataclass, options), strict=True):
        mine, theirs = own(**keywords), other(**keywords)
        assert dataclasses.asdict(mine) == dataclasses.asdict(theirs)
        assert [each.name for each in dataclasses.fields(mine)] == [each.name for each in dataclasses.fields(theirs)]
        if options.get("repr", True):
            assert repr(mine) == repr(theirs)
        assert (mine == own(**keywords)) == (theirs == other(**keywords))
        assert mine != own(**keywords | {"x": 2})
        assert mine != theirs
        assert (mine == own(**keywords | {"hidden": 1})) == (theirs == other(**keywords | {"hidden": 1}))
        changed = dataclasses.replace(mine, names=["b"])
        assert (changed.names, changed.x, changed.copies) == (["b"], 1, [])
        assert own(x=1).names is not own(x=1).names
        assert hasattr(mine, "__dict__") == hasattr(theirs, "__dict__")
        assert (own.__hash__ is None) == (other.__hash__ is None)
        assert own.__match_args__ == other.__match_args__
        assert list(inspect.signature(own).parameters) == list(inspect.signature(other).parameters)
        for wrong in ({}, {"x": 1, "w": 2}, {"x": 1, "twice": 2}):
            with pytest.raises(TypeError) as mine_refuses:
                own(**wrong)
            with pytest.raises(TypeError) as theirs_refuses:
                other(**wrong)
            assert str(mine_refuses.value) == str(theirs_refuses.value)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_frozen_instance_refuses_changes_as_the_standard_library_does(options: dict[str, bool]):
    for make in (dataclass, dataclasses.dataclass):
        point = classes(make, options)[0](x=1)
        if options.get("frozen"):
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
                point.x = 2
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
                del point.x
        else:
            point.x = 2
        assert point.x == (1 if options.get("frozen") else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    name: str
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    value: int
    _: KW_ONLY
    children: list[Any] = field(default_factory=list)


def test_frozen_instances_are_keys_and_travel():
    key = Key(name="a", parts=(1, 2))
    assert {key: 1}[Key(name="a", parts=(1, 2))] == 1
    assert key not in {Key(name="b", parts=(1, 2))}
    for other in (pickle.loads(pickle.dumps(key)), copy.copy(key), copy.deepcopy(key)):
        assert other == key
        assert hash(other) == hash(key)


BOTH = [(dataclass, dataclasses.dataclass), (dataclasses.dataclass, dataclass)]


@pytest.mark.parametrize("bases", BOTH, ids=["ours first", "theirs first"])
def test_classes_of_both_kinds_inherit_from_each_other(bases: tuple[Any, Any]):
    first, second = bases

    @first(frozen=True, slots=True, kw_only=True)
    class Base:
        x: int

    @second(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        y: int = 2

    derived = Derived(x=1)
    assert dataclasses.asdict(derived) == {"x": 1, "y": 2}
    assert derived == Derived(x=1, y=2)
    assert hash(derived) == hash(Derived(x=1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        derived.x = 2  # type: ignore[misc]


def test_an_instance_may_hold_itself_and_follows_keyword_markers():
    node = Node(1, children=[])
    node.children.append(node)
    assert repr(node) == "Node(value=1, children=[...])"
    with pytest.raises(TypeError, match="positional"):
        Node(1, [])  # type: ignore[misc]


def test_methods_of_the_class_remain():
    @dataclass(frozen=True)
    class Odd:
        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Odd) and self.x % 2 == other.x % 2

        def __repr__(self) -> str:
            return "odd"

    assert Odd(1) == Odd(3)
    assert repr(Odd(1)) == "odd"
    assert hash(Odd(1)) == hash(Odd(1))
