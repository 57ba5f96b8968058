"""Tell Parquet files by their suffixes, and say what makes a table of other files.

Runs where a snapshot is taken, once per job.
"""

from __future__ import annotations

from feedline.errors import TableNotFoundError

_SUFFIXES = (".parquet", ".parq", ".pq")
# How Polars reads files of text, as they come beside or instead of Parquet.
_TEXTS = {
    **dict.fromkeys((".csv", ".csv.gz", ".csv.zst", ".txt", ".data"), "scan_csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "scan_ndjson"),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), "scan_ipc"),
}


def is_parquet_name(name: str) -> bool:
    """Whether a file of a folder belongs to its table."""
    if name.endswith("_$folder$"):  # Hadoop's marker of a folder on an object store
        return False
    return name.lower().endswith(_SUFFIXES) or "." not in name


def no_parquet_error(where: str, ignored: list[str]) -> TableNotFoundError:
    """The error of a folder without Parquet files. ignored: the paths of others below it."""
    if not ignored:
        return TableNotFoundError(f"{where} is empty: expected at least one Parquet file below it")
    example = ignored[0].rpartition("/")[2]
    if remedy := _remedy_of_suffix(example):
        found = f"got {len(ignored)} files with other suffixes ({example})"
        return TableNotFoundError(f"{where} holds no Parquet file: {found}. {remedy}")
    return TableNotFoundError(
        f"{where} holds no Parquet file: got {len(ignored)} files with other suffixes ({example}), "
        f"expected names ending in {', '.join(_SUFFIXES)}, or without a suffix"
    )


def _remedy_of_suffix(name: str) -> str:
    """What makes a table of files like this one; empty where the name does not tell."""
    lower = name.lower()
    if any(f"{suffix}." in lower for suffix in _SUFFIXES):  # x.parquet.snappy
        return "Rename them to end in .parquet, such as part-0.snappy.parquet, or list them one by one"
    kind = next((reader for ends, reader in _TEXTS.items() if lower.endswith(ends)), None)
    if kind is None:
        return ""
    return (
        'Convert them: python -c "import polars; '
        f'polars.{kind}({name!r}).sink_parquet({name.partition(".")[0] + ".parquet"!r})"'
    )
