"""A pipeline over a table with a log of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines import CLICKS

from feedline import Pipeline


def pipeline(folder: Path, **source: Any) -> Pipeline:
    document = {
        **CLICKS,
        "source": source,
        "features": {"dense": {"price": [{"fill_null": 0}]}, "sparse": {"tags": []}, "extra": ["id"]},
        "batch": {"size": 4, "tail": "partial"},
        "work_dir": str(folder / "work"),
    }
    (folder / "p.yaml").write_text(json.dumps(document))
    return Pipeline.from_yaml(folder / "p.yaml")
