"""Every message crosses the wire unchanged, and what is not exactly a message is refused by class, field and value."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import pkgutil
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from answers import FEEDER, plan_facts
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.errors import FeederError
from feedline.loader import wire
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.wire.codec import WIRE_VERSION, from_values, pack, to_values, unpack, unpack_kind
from feedline.loader.wire.facts import EVENT_PREFIX, FeederEvent, FeederStats, Hello
from feedline.loader.wire.ring_messages import FROM_FEEDER, FROM_TRAINER, KINDS, MESSAGES, BeginStream, GrowRing
from feedline.progress import Progress

# The digest of all messages of a wire version: a changed message needs another version.
DIGESTS = {22: "639541bbbcc4a84a"}

# The only values of any kind: a training's state, which torch's contract leaves to the dataset.
FREE_FIELDS = {("Hello", "rebase"), ("RankOutcome", "state")}

COLUMN = SlotColumn(name="x", group="dense", dtype="float32", arrow="float", offset=0)
SCHEMAS = st.sampled_from([BatchSchema(()), BatchSchema((COLUMN,))])


def message_types() -> list[type[Any]]:
    """All dataclasses of the modules of `loader/wire`, but for the codec's own."""
    names = sorted(module.name for module in pkgutil.iter_modules(wire.__path__) if module.name != "codec")
    modules = [importlib.import_module(f"{wire.__name__}.{name}") for name in names]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__
    ]


# BlockTimes and CacheCounts are a part of messages that blocks make, too; progress is what any work reports.
TYPES = [*message_types(), BlockTimes, CacheCounts, Progress]


def leaves(annotation: Any) -> list[Any]:
    """The parts of an annotation that have no parts; those of messages are checked with them."""
    parts = [part for part in get_args(annotation) if part is not ...]
    if not parts or get_origin(annotation) is Literal:
        return [annotation]
    return [leaf for part in parts for leaf in leaves(part)]


def free_fields(types: list[type[Any]]) -> set[tuple[str, str]]:
    """The fields whose annotation leaves their values open."""
    return {
        (cls.__name__, name)
        for cls in types
        for name, annotation in get_type_hints(cls).items()
        if {Any, object, dict, list, tuple, Mapping} & {each for each in leaves(annotation) if isinstance(each, type)}
        or Any in leaves(annotation)
    }


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that a field of this annotation may have."""
    origin, parts = get_origin(annotation), get_args(annotation)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        str: st.text(),
        bytes: st.binary(),
        NoneType: st.none(),
        Any: st.one_of(st.integers(), st.text()),
        BatchSchema: SCHEMAS,
    }
    if annotation in plain:
        return plain[annotation]
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, parts))
    if origin is tuple:
        return st.lists(values_of(parts[0]), max_size=3).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(st.text(), values_of(parts[1]), max_size=3)
    return messages_of(annotation)


def messages_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: values_of(annotation) for name, annotation in get_type_hints(cls).items()})


def sample(cls: type[Any]) -> Any:
    """The simplest message of a class."""
    found: list[Any] = []

    @settings(max_examples=1, database=None, derandomize=True)
    @given(messages_of(cls))
    def draw(message: Any) -> None:
        found.append(message)

    draw()
    return found[0]


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_messages_survive_the_wire(cls: type[Any]):
    @examples(30)
    @given(messages_of(cls))
    def check(message: Any) -> None:
        packed = pack(message)
        assert unpack(cls, packed) == message
        assert unpack(cls, packed.decode()) == message
        assert json.loads(packed)["wire"] == WIRE_VERSION
        json.dumps(to_values(message))

    check()


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_a_missing_an_unknown_and_a_wrongly_typed_field_are_refused_by_name(cls: type[Any]):
    values = to_values(sample(cls))
    with pytest.raises(FeederError, match=rf"got 1 as {cls.__name__}\.surplus, expected no such field"):
        from_values(cls, {**values, "surplus": 1})
    for each in dataclasses.fields(cls):
        key = each.name.removesuffix("_")
        without = {name: value for name, value in values.items() if name != key}
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            with pytest.raises(FeederError, match=rf"got 'nothing' as {cls.__name__}\.{key}, expected "):
                from_values(cls, without)
        else:
            assert isinstance(from_values(cls, without), cls)
        for wrong in ({1, 2}, 1j):  # of no field
            with pytest.raises(FeederError, match=rf"as {cls.__name__}\.{key}, expected "):
                from_values(cls, {**values, key: wrong})


@pytest.mark.parametrize(
    ("message", "changes", "words"),
    [
        (Hello(rank=1, world_size=2), {"rank": "0"}, r"got '0' as Hello\.rank, expected an integer"),
        (Hello(rank=1, world_size=2), {"rank": 0.0}, r"got 0\.0 as Hello\.rank, expected an integer"),
        (Hello(rank=1, world_size=2), {"lanes": True}, r"got True as Hello\.lanes, expected an integer or null"),
        (Hello(rank=1, world_size=2), {"connected": 1}, r"got 1 as Hello\.connected, expected true or false"),
        (Hello(rank=1, world_size=2), {"rebase": 5}, r"got 5 as Hello\.rebase, expected a mapping or null"),
        (plan_facts(), {"schema": "[1]"}, r"got '\[1\]' as PlanFacts\.schema, expected the JSON of BatchSchema"),
        (plan_facts(), {"bad_files": 5}, r"got 5 as PlanFacts\.bad_files, expected a list"),
        (plan_facts(), {"bad_files": [5]}, r"got 5 as PlanFacts\.bad_files\[0\], expected the JSON of BadFileFacts"),
        (plan_facts(), {"nulls": ["a", 5]}, r"got 5 as PlanFacts\.nulls\[1\], expected a string"),
        (plan_facts(), {"rest": {}}, r"got 'nothing' as RestFacts\.epoch, expected an integer"),
        (FEEDER, {"imports_s": None}, r"got None as FeederFacts\.imports_s, expected a number"),
        (FeederStats(), {"delivery": {"blocks": 1.5}}, r"got 1\.5 as BlockStats\.blocks, expected an integer"),
        (
            BeginStream(stream=1, epoch=0, step=0, last=True, seen=b"x"),
            {"seen": "x"},
            r"got 'x' as BeginStream\.seen, expected base64",
        ),
        (FeederEvent(type="left", rank=0), {"type": "gone"}, r"got 'gone' as FeederEvent\.type, expected one of ready"),
    ],
)
def test_a_malformed_field_is_refused_with_its_value(message: Any, changes: dict[str, Any], words: str):
    with pytest.raises(FeederError, match=f"a message is malformed: {words}"):
        from_values(type(message), {**to_values(message), **changes})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'"text"', b"[" * 100_000])
def test_what_is_no_json_of_a_mapping_is_refused(content: bytes):
    with pytest.raises(FeederError, match=r"a message is malformed: got .*, expected the JSON of Hello"):
        unpack(Hello, content)


@pytest.mark.parametrize("version", [WIRE_VERSION - 1, WIRE_VERSION + 1, None, str(WIRE_VERSION)])
def test_another_wire_version_is_refused_before_the_fields_are_read(version: object):
    content = json.dumps({"wire": version, "type": "unheard of", "rank": []})
    for read in (lambda: unpack(Hello, content), lambda: unpack_kind(MESSAGES, content)):
        with pytest.raises(FeederError, match=rf"got a message of wire version {version}, expected {WIRE_VERSION}\."):
            read()
    unversioned = json.dumps({"type": "facts", "number": 1, "facts": {}})
    with pytest.raises(FeederError, match=r"wire version None.*Install one version of Feedline everywhere"):
        unpack_kind(MESSAGES, unversioned)


def test_kinds_name_the_messages_between_feeder_and_trainer():
    assert not FROM_TRAINER.keys() & FROM_FEEDER.keys()
    for kind, cls in MESSAGES.items():
        message = sample(cls)
        assert unpack_kind(MESSAGES, pack(message, KINDS[cls])) == message
        assert KINDS[cls] == kind
    with pytest.raises(FeederError, match="got 'grown' as type, expected one of hello, begin, grow"):
        unpack_kind(MESSAGES, pack(GrowRing(), "grown"))


def test_events_begin_as_no_line_of_a_library_does():
    assert pack(FeederEvent(type="ready", rank=0)).decode().startswith(EVENT_PREFIX)


def test_only_states_hold_values_of_any_kind():
    assert free_fields(TYPES) == FREE_FIELDS


def test_a_field_that_no_message_can_hold_is_refused_by_the_codec():
    for annotation in (dict, set[int], int | float | list, tuple[int, int], bytes | str):
        cls = dataclasses.make_dataclass("Unheld", [("value", annotation)])
        with pytest.raises(TypeError):
            to_values(cls(1))


def test_a_changed_message_has_another_wire_version():
    described = sorted(
        f"{cls.__name__}.{each.name}: {each.type} {each.default is dataclasses.MISSING}"
        for cls in TYPES
        for each in dataclasses.fields(cls)
    )
    kinds = [f"{kind} {cls.__name__}" for kind, cls in MESSAGES.items()]
    digest = hashlib.sha256("\n".join([*described, *kinds]).encode()).hexdigest()[:16]
    assert DIGESTS.get(WIRE_VERSION) == digest, f"a message differs: raise WIRE_VERSION, and note {digest} for it here"
