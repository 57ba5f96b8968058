"""Define the section `batch` of a pipeline.yaml: how many rows make a batch, and by which lengths they are chosen.

Pure.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from feedline.spec.sections import MAX_INT, Count, NonEmptyString, Section, ShuffleSpec, rule_error, value_error

_OF_BUCKETS = ("buckets", "length", "longer")


class BalanceSpec(Section):
    """The list column by whose lengths rows are ordered, so that the lanes of a step hold about as many elements."""

    column: NonEmptyString = Field(description="List column whose lengths are balanced, as the table stores them.")
    most: Count | None = Field(
        default=None, alias="max", description="Length that longer lists count as (default: their own)."
    )


def _balance(value: object) -> object:
    if value is None or isinstance(value, dict | BalanceSpec):
        return value
    if not isinstance(value, str):
        raise value_error("a column, or a mapping with the keys column, max")
    return {"column": value}


def _bounds(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    bounds: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else ()
    whole = all(type(each) is int and 1 <= each <= MAX_INT for each in bounds)
    if not (bounds and whole and all(low < high for low, high in pairwise(bounds))):
        raise value_error("a list of ascending lengths such as [32, 128, 512]", "Each bounds the rows of one bucket")
    return bounds


Balance = Annotated[BalanceSpec | None, BeforeValidator(_balance)]
_BOUNDS = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "uniqueItems": True}
Bounds = Annotated[
    tuple[int, ...] | None, PlainValidator(_bounds), WithJsonSchema({"anyOf": [_BOUNDS, {"type": "null"}]})
]


class BatchSpec(Section):
    """How rows become batches."""

    size: Count = Field(
        description="Rows per lane and step; with the default lanes that is rows per rank. With max_tokens it follows."
    )
    tail: Literal["drop", "pad", "partial"] = Field(default="drop", description="What to do with the last rows.")
    balance: Balance = Field(
        default=None, description="List column whose lengths are about the same in all lanes of a step."
    )
    max_tokens: Count | None = Field(
        default=None, description="Elements of a lane and step, with padding; its rows are of one bucket."
    )
    buckets: Bounds = Field(default=None, description="The greatest length of each bucket's rows, ascending.")
    length: NonEmptyString | None = Field(
        default=None, description="List column whose lengths put rows into buckets (default: that of balance)."
    )
    longer: Literal["error", "cap"] = Field(
        default="error", description="Rows beyond the last bound: an error, or rows of the last bucket."
    )

    @model_validator(mode="before")
    @classmethod
    def _derived_size(cls, value: Any) -> Any:
        """Fill in the size: with max_tokens the rows of the bucket with the most."""
        if not isinstance(value, dict) or value.get("max_tokens") is None:
            return value
        if value.get("size") is not None:
            message = "contradicts max_tokens, which gives each bucket its own number of rows. Remove one of the two"
            raise rule_error("size", message)
        bounds, tokens = value.get("buckets"), value["max_tokens"]
        first = bounds[0] if isinstance(bounds, list | tuple) and bounds else None
        valid = type(first) is int and type(tokens) is int and first > 0
        return {**value, "size": max(1, tokens // first) if valid else 1}

    @model_validator(mode="after")
    def _consistent(self) -> BatchSpec:
        if self.max_tokens is None:
            for key in _OF_BUCKETS:
                if key in self.model_fields_set and getattr(self, key) is not None:
                    raise rule_error(key, "needs batch.max_tokens, the elements of a lane and step. Add it")
            return self
        if self.buckets is None:
            raise rule_error("buckets", "missing key: max_tokens needs the bounds of its buckets, such as [32, 128]")
        if self.max_tokens < self.buckets[-1]:
            raise rule_error(
                "max_tokens",
                f"is smaller than a bucket's bound: got {self.max_tokens}, expected at least {self.buckets[-1]}, "
                f"which one row may have. Raise it, or remove the bound",
            )
        self._check_rows(self.bucket_rows, self.buckets)
        if self.tail != "drop":
            message = f"cannot be {self.tail} with max_tokens: the last rows of a bucket make no whole step"
            raise rule_error("tail", f"{message}. Write drop, and evaluate with batch.size")
        self._check_columns()
        return self

    def _check_rows(self, rows: tuple[int, ...], bounds: tuple[int, ...]) -> None:
        for (own, bound), (next_own, next_bound) in pairwise(zip(rows, bounds, strict=True)):
            if own == next_own:
                message = f"give two buckets the same rows of a lane and step: got {own} of up to {bound} elements and"
                remedy = "Remove the smaller bound, or raise max_tokens"
                raise rule_error("buckets", f"{message} {next_own} of up to {next_bound}. {remedy}")

    def _check_columns(self) -> None:
        if self.balance is None and self.length is None:
            raise rule_error("length", "missing key: buckets need the list column whose lengths decide. Name it")
        if self.balance is None:
            return
        if self.length not in (None, self.balance.column):
            raise rule_error(
                "length",
                f"must be the column of balance: got {self.length!r}, expected {self.balance.column!r}. Remove one",
            )
        if self.balance.most is not None:
            raise rule_error("balance", "cannot have a max with buckets, whose last bound is one. Remove it")

    def stated_keys(self, content: dict[str, Any]) -> dict[str, Any]:
        """The section's content without what follows from other keys, and without keys that are not used."""
        unused = [key for key in ("balance", "max_tokens", "buckets", "length") if content[key] is None]
        unused += ["longer"] if self.max_tokens is None else ["size"]
        return {key: value for key, value in content.items() if key not in unused}

    @property
    def lengths(self) -> str | None:
        """The list column whose lengths decide which rows a step holds; None where none does."""
        return self.length if self.balance is None else self.balance.column

    @property
    def bucket_rows(self) -> tuple[int, ...]:
        """The rows of a lane and step of each bucket; empty without buckets."""
        return tuple((self.max_tokens or 0) // bound for bound in self.buckets or ())

    def refused_with(self, shuffle: ShuffleSpec | None) -> str | None:
        """Why lengths cannot decide the order of rows under this `shuffle`; None if they can."""
        if self.lengths is None:
            return None
        reason = "shuffle: off, which keeps the table's order" if shuffle is None else ""
        if shuffle is not None and not shuffle.rows:
            reason = "shuffle.rows: false, which keeps the order of rows"
        elif shuffle is not None and shuffle.by is not None:
            reason = "shuffle.by, which keeps runs of rows together"
        if not reason:
            return None
        return f"contradicts {reason}: rows are ordered one by one, by lengths. Remove one of the two"
