"""Pipelines over tables of which some files are bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from damage import ROWS
from pipelines import Place

from feedline import Pipeline

FEATURES = {"dense": {"x": []}, "sparse": {"ids": []}, "label": {"y": []}, "extra": ["id"]}


def pipeline_over(place: Place, table: Path, *, work: Path | None = None, **source: Any) -> Path:
    return place.write(
        "b.yaml",
        features=FEATURES,
        shuffle="off",
        batch={"size": 256, "tail": "partial"},
        work_dir=str(work or table.parent / "work"),
        source={"table": str(table), "on_bad_file": "skip", **source},
    )


def part(table: Path, number: int) -> Path:
    return table / f"part={number}" / "data.parquet"


def ids(path: Path, **options: Any) -> list[int]:
    """Every id that is delivered, with the warning about the files left out."""
    with pytest.warns(UserWarning, match="left out of the plan"):
        batches = Pipeline.from_yaml(path).batches(**options)
    return [int(value) for batch in batches for value in batch["id"]]


def of_parts(*numbers: int) -> list[int]:
    return [value for number in numbers for value in range(number * ROWS, (number + 1) * ROWS)]
