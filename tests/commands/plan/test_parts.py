"""The costs of maps and structs of which a plan reads parts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline
from feedline.commands.plan.parts import part_costs, part_rows


def test_parts_of_maps_and_structs_cost_what_their_columns_hold(tmp_path: Path):
    table = pa.table(
        {
            "scores": pa.array([[("a", 1.0), ("b", 2.0)]] * 50, pa.map_(pa.string(), pa.float64())),
            "user": pa.array([{"age": 3, "city": 4}] * 50),
        }
    )
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "a.parquet")
    features = {"dense": {"a": {"expr": "scores['a']"}, "age": {"expr": "user['age']"}}}
    document = {
        "version": 1,
        "name": "parts",
        "work_dir": str(tmp_path / "work"),
        "batch": {"size": 5},
        "source": {"table": str(tmp_path / "t")},
        "features": features,
    }
    costs = part_costs(Pipeline.from_dict(document).plan().source)
    metadata = pq.ParquetFile(tmp_path / "t" / "a.parquet").metadata.row_group(0)
    sizes = {metadata.column(index).path_in_schema: metadata.column(index).total_compressed_size for index in range(4)}
    [(column, of_map)] = costs["maps"].items()
    assert (column, of_map["keys"], of_map["keys_with_columns"], of_map["row_groups"]) == ("scores", 1, 0, 1)
    assert of_map["bytes"] == sum(size for name, size in sizes.items() if name.startswith("scores"))
    [(column, of_struct)] = costs["structs"].items()
    assert (column, of_struct["fields"], of_struct["whole"]) == ("user", 1, False)
    assert [name for name, _ in part_rows(costs)] == ["maps", "structs"]
