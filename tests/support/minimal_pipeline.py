"""The smallest pipeline.yaml, and fragments of one completed with its lines."""

from __future__ import annotations

MINIMAL = """\
version: 1
name: small
work_dir: work
source: {table: data}
features: {dense: {price: []}}
batch: {size: 8}
"""


def completed(fragment):
    """The fragment with what a whole pipeline needs besides."""
    keys = {line.split(":")[0] for line in fragment.splitlines() if line[:1].isalpha()}
    return fragment + "".join(f"{line}\n" for line in MINIMAL.splitlines() if line.split(":")[0] not in keys)
