"""Encoded rows as an Arrow table, for callers that want columns instead of a batch.

Runs in: Dask workers (`Pipeline.to_dask`), the process of `feedline transform`. Values are bit-equal to
those of a batch; categorical features and id lists share the memory of the encoded rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema


def arrow_table(rows: EncodedRows, schema: BatchSchema) -> pa.Table:
    """Encoded rows as an Arrow table with one column per feature, in the order of pipeline.yaml."""
    sparse = {column.name: index for index, column in enumerate(schema.sparse)}
    columns: dict[str, pa.Array] = {}
    for column in schema:
        if column.group in ("dense", "label"):
            block = column.of(rows.dense if column.group == "dense" else rows.labels)
            columns[column.name] = (
                pa.array(block)
                if column.width == 1
                else pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(block).ravel()), column.width)
            )
        elif column.group == "categorical":
            columns[column.name] = pa.array(rows.categorical[column.offset])
        elif column.group == "sparse":
            index = sparse[column.name]
            offsets, values = pa.array(rows.offsets[index]), pa.array(np.asarray(rows.values[index]))
            if column.weighted:
                values = pa.StructArray.from_arrays([values, pa.array(rows.weights[index])], ["id", "weight"])
            columns[column.name] = pa.LargeListArray.from_arrays(offsets, values)
        else:
            columns[column.name] = rows.extra[column.offset]
    return pa.table(columns)
