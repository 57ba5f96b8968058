"""The smallest pipeline.yaml, whose lines complete fragments of others, and one that runs on generated clicks."""

from __future__ import annotations

MINIMAL = """\
version: 1
name: small
work_dir: work
source: {table: data}
features: {dense: {price: []}}
batch: {size: 8}
"""

OF_CLICKS = """\
version: 1
name: small
source: {table: clicks}
features: {dense: {price: {column: dense_0, ops: [{fill_null: 0}]}}, label: {clicked: []}}
batch: {size: 256}
cluster: {threads: 1}
memory: 64MiB
"""


def completed(fragment):
    """Complete a fragment to a whole pipeline."""
    keys = {line.split(":")[0] for line in fragment.splitlines() if line[:1].isalpha()}
    keys |= {"source"} if "sources" in keys else set()
    return fragment + "".join(f"{line}\n" for line in MINIMAL.splitlines() if line.split(":")[0] not in keys)
