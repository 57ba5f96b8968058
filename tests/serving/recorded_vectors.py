"""A pipeline over rows of every type, and its golden vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from test_encoder import FEATURES, TABLE

from feedline import Pipeline
from feedline.config import PipelineSpec
from feedline.serving.golden_check import record
from feedline.warehouse.snapshot.snapshot import Snapshot

NUMBERS = pa.array(np.arange(240))
ROWS = pa.concat_tables([TABLE] * 60).append_column("number", NUMBERS).append_column("clicked", NUMBERS)


def written(folder: Path, table: Path, **features: Any) -> Path:
    path = folder / "p.yaml"
    document = {
        "version": 1,
        "name": "p",
        "work_dir": "work",
        "source": {"table": str(table)},
        "features": features or FEATURES,
        "batch": {"size": 8},
    }
    path.write_text(json.dumps(document))
    return path


def recorded(path: Path, choice: str = "rows", **changes: Any) -> tuple[PipelineSpec, Snapshot, Any]:
    pipeline = Pipeline.from_yaml(path, {"fit.golden": choice, **changes})
    snapshot = pipeline.snapshot()
    return pipeline.spec, snapshot, record(pipeline.spec, [snapshot])
