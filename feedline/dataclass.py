"""Dataclasses that are made quickly: the standard library's, whose methods are shared and not compiled.

`dataclasses.dataclass` compiles up to six functions for a class, 0.5 ms, and a process of Feedline has nearly 400
classes: a fourth of the time to a feeder's first batch. Here `__init__` alone is compiled, when the first instance is
made (`inspect.signature` does not know it before). Everything else is the same: fields, defaults, `__post_init__`,
slots, equality, hashes, pickles, FrozenInstanceError, and what `dataclasses.fields`, `replace` and `asdict` do with
them. There is no `order`, and no InitVar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

_NO_VALUE = object()  # the default of a parameter whose field has a factory


def _dataclass(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    eq: bool = True,
    repr: bool = True,
) -> Any:
    if cls is None:
        return partial(_dataclass, frozen=frozen, slots=slots, kw_only=kw_only, eq=eq, repr=repr)
    own = {name for name, value in vars(cls).items() if value is not None}  # `__hash__` beside an `__eq__` is None
    cls.__doc__ = cls.__doc__ or cls.__name__  # else it is made of the signature, which takes longer than the rest
    of_frozen = frozen and any(map(_is_frozen, cls.__mro__[1:]))  # which has to be frozen by the standard library, too
    made: type[Any] = dataclasses.dataclass(
        cls, init=False, repr=False, eq=False, frozen=of_frozen, slots=slots, kw_only=kw_only
    )
    made.__dataclass_params__.frozen = frozen
    methods: dict[str, Callable[..., Any] | None] = {"__init__": _first_init_of(made, frozen=frozen)}
    if frozen:
        methods |= {"__setattr__": _refuse_change, "__delattr__": _refuse_change}
    if frozen and slots:
        methods |= {"__getstate__": _get_state, "__setstate__": _set_state}
    if repr:
        methods["__repr__"] = _repr_of(made)
    if eq:
        methods["__eq__"], of_values = _comparison_of(made)
        methods["__hash__"] = of_values if frozen else None
    for name in methods.keys() - own:
        setattr(made, name, methods[name])
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


def _is_frozen(cls: type[Any]) -> bool:
    return dataclasses.is_dataclass(cls) and bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _first_init_of(cls: type[Any], *, frozen: bool) -> Callable[..., None]:
    """An `__init__` that the first instance replaces by a compiled one."""

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807
        cls.__init__ = _init_of(cls, frozen=frozen)
        cls.__init__(self, *args, **options)

    return __init__


def _init_of(cls: type[Any], *, frozen: bool) -> Callable[..., None]:
    # x: int, y: list = field(default_factory=list), keywords only, frozen:
    #     def __init__(self, *, x, y=_NO_VALUE):
    #         _set(self, 'x', x)
    #         _set(self, 'y', _default_y() if y is _NO_VALUE else y)
    scope: dict[str, Any] = {"_set": object.__setattr__, "_NO_VALUE": _NO_VALUE}
    parameters, keywords, lines = ["self"], ["*"], []
    for each in dataclasses.fields(cls):
        name, default = each.name, f"_default_{each.name}"
        has_factory = each.default_factory is not dataclasses.MISSING
        has_default = has_factory or each.default is not dataclasses.MISSING
        if not each.init and not has_default:
            continue  # `__post_init__` sets it
        scope[default] = each.default_factory if has_factory else each.default
        value = f"{default}()" if has_factory else default
        if each.init:
            value = f"{value} if {name} is _NO_VALUE else {name}" if has_factory else name
            parameter = f"{name}={'_NO_VALUE' if has_factory else default}" if has_default else name
            (keywords if each.kw_only else parameters).append(parameter)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    if len(keywords) > 1:
        parameters += keywords
    exec(f"def __init__({', '.join(parameters)}):\n " + ("\n ".join(lines) or "pass"), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _comparison_of(cls: type) -> tuple[Callable[[Any, object], bool], Callable[[Any], int]]:
    """`__eq__` and `__hash__` of the fields that are compared."""
    names = [each.name for each in dataclasses.fields(cls) if each.compare]
    values = attrgetter(*names) if names else type

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return __eq__, __hash__


def _repr_of(cls: type) -> Callable[[Any], str]:
    names = [each.name for each in dataclasses.fields(cls) if each.repr]

    def __repr__(self: Any) -> str:  # noqa: N807
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{self.__class__.__qualname__}({values})"

    return recursive_repr()(__repr__)


def _refuse_change(self: Any, name: str, *value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
