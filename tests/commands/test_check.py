"""`feedline check` finds every bad file and every other problem, and records them for later plans."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from combinations import combinations
from damage import ROWS, damage_a_page, flip_a_page, truncate, write
from pipelines import CLICKS
from processes import ended_here

from feedline import Pipeline
from feedline.commands.check import CheckReport, run_check
from feedline.commands.plan.report import describe
from feedline.config import load_spec
from feedline.errors import CorruptFileError, SpecError, StoreError, TableError, TableNotFoundError
from feedline.native import parquet as native
from feedline.progress import Progress, on_progress
from feedline.warehouse.bad_files import load_findings
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.snapshot import footer_tasks

FEATURES = {"dense": {"x": []}, "sparse": {"ids": []}, "label": {"y": []}}


def pipeline(folder: Path, **changes: Any) -> Path:
    document = {
        **CLICKS,
        "features": FEATURES,
        "source": {"table": str(folder / "t"), **changes.pop("source", {})},
        "work_dir": str(folder / "work"),
        **changes,
    }
    path = folder / "p.yaml"
    path.write_text(json.dumps(document))
    return path


def part(folder: Path, number: int) -> Path:
    return folder / "t" / f"part={number}" / "data.parquet"


def checked(path: Path, **options: Any) -> CheckReport:
    return run_check(load_spec(path, options.pop("set", {})), **options)


def test_a_clean_table_is_reported_clean(tmp_path: Path):
    write(tmp_path / "t")
    path = pipeline(tmp_path)
    for flags in ((), ("--deep",), ("--deep", "--all-columns")):
        done = ended_here("check", path, *flags)
        assert (done.returncode, "4 files, 16,384 rows" in done.stdout) == (0, True), done.stderr
        assert "nothing found" in done.stdout
    report = checked(path, deep=True)
    assert (set(report.columns), report.clean) == ({"x", "ids", "y"}, True)
    assert set(checked(path, deep=True, all_columns=True).columns) == {"id", "x", "y", "ids"}
    more = checked(path, deep=True, set={"source.where": "id > 3", "shuffle.by": "id"})
    assert set(more.columns) == {*report.columns, "id"}


def test_every_problem_of_every_file_is_reported(tmp_path: Path):
    """All of them: two corrupt footers, two columns of another kind, and a corrupt page in a fifth file."""
    write(tmp_path / "t", 7)
    truncate(part(tmp_path, 0))
    part(tmp_path, 1).write_bytes(b"no Parquet")
    for number in (2, 3):
        texts = pa.table({"id": np.arange(ROWS), "x": ["x"] * ROWS, "y": np.zeros(ROWS, np.int64)})
        pq.write_table(texts, part(tmp_path, number))
    flip_a_page(part(tmp_path, 6))
    path = pipeline(tmp_path)
    done = ended_here("check", path, "--deep", "--json")
    assert done.returncode == 1, done.stderr
    facts = json.loads(done.stdout)
    assert [bad["path"] for bad in facts["bad_files"]] == [str(part(tmp_path, number)) for number in (0, 1, 6)]
    assert [bad["rows"] for bad in facts["bad_files"]] == [None, None, ROWS]
    assert "row group 5 is not valid Parquet" in facts["bad_files"][2]["reason"]
    problems = {problem["path"]: problem["reason"] for problem in facts["problems"]}
    assert set(problems) == {str(part(tmp_path, number)) for number in (2, 3)}
    assert all("column 'x' changed its kind" in reason for reason in problems.values())
    done = ended_here("check", path, "--deep")
    assert done.returncode == 1
    for number in (0, 1, 2, 3, 6):
        assert str(part(tmp_path, number)) in done.stdout
    assert "3 bad files, 2 with other problems" in done.stdout


def test_the_rules_of_the_schema_are_checked_in_every_file(tmp_path: Path):
    write(tmp_path / "t", 5)
    for number in (1, 3):
        table = pq.read_table(part(tmp_path, number), partitioning=None)
        pq.write_table(
            table.drop_columns(["x"]) if number == 1 else table.append_column("z", table["x"]), part(tmp_path, number)
        )
    assert checked(pipeline(tmp_path, features={"label": {"y": []}})).clean
    report = checked(pipeline(tmp_path, source={"schema": {"missing": "error"}}))
    assert [problem.file for problem in report.problems] == [str(part(tmp_path, 1))]
    assert "lacks 'x', which the pipeline reads" in report.problems[0].reason
    columns = {"id": "int64", "x": "float32", "y": "int64", "ids": "list<int64>"}
    report = checked(pipeline(tmp_path, source={"schema": {"extra": "error", "columns": columns}}))
    assert [problem.file for problem in report.problems] == [str(part(tmp_path, 3))]
    report = checked(pipeline(tmp_path, source={"schema": {"columns": {"y": "int32"}}}))
    assert len(report.problems) == 5
    assert not report.bad_files


def test_columns_of_a_row_key_are_read_too(tmp_path: Path):
    """Blocks read these columns, although no feature does: the damage is in a page of a key column."""
    write(tmp_path / "t")
    flip_a_page(part(tmp_path, 1))
    features = {"dense": {"y": []}, "label": {"clicked": {"column": "y"}}}
    assert checked(pipeline(tmp_path, features=features, shuffle="off"), deep=True).clean
    path = pipeline(tmp_path, features=features, shuffle="off", source={"row_key": ["x"]})
    report = checked(path, deep=True)
    assert ([bad.file for bad in report.bad_files], set(report.columns)) == ([str(part(tmp_path, 1))], {"x", "y"})
    plan = Pipeline.from_yaml(path).plan()
    assert set(plan.source.columns) == set(report.columns)
    for number in (0, 2):
        lesser = pq.read_table(part(tmp_path, number), partitioning=None).drop_columns(["x"])
        pq.write_table(lesser, part(tmp_path, number))
    path = pipeline(tmp_path, features=features, source={"row_key": ["x"], "schema": {"missing": "error"}})
    report = checked(path)
    assert [problem.file for problem in report.problems] == [str(part(tmp_path, number)) for number in (0, 2)]
    assert not report.bad_files
    assert not report.clean
    with pytest.raises(SpecError, match=r"column 'x' is not in .*part=0/data\.parquet: got 2 files"):
        Pipeline.from_yaml(path).plan()


def test_a_check_and_a_plan_agree_on_what_is_missing(tmp_path: Path):
    """A map's key may have a column of its own, a struct must have the field, and a partition may exclude a file."""
    maps, prices = pa.array([[("price", 1.0)]], pa.map_(pa.string(), pa.float64())), [2.0]
    whole, less = pa.array([{"a": 1, "b": 2}]), pa.array([{"a": 1}])
    kinds = {"map": {"m": maps, "u": whole}, "flat": {"m.price": prices, "u": whole}, "less": {"m": maps, "u": less}}
    kinds["neither"] = {"u": whole}
    for number, kind in enumerate(kinds):
        (tmp_path / "t" / f"kind={kind}").mkdir(parents=True)
        pq.write_table(pa.table(kinds[kind]), tmp_path / "t" / f"kind={kind}" / f"{number}.parquet")
    features = {"dense": {"p": {"expr": 'm["price"]', "ops": []}, "b": {"expr": 'u["b"]', "ops": []}}}
    for where, lacking in (
        (None, {"less": """'u["b"]'""", "neither": """'m["price"]'"""}),
        ('kind != "less"', {"neither": """'m["price"]'"""}),
        ('kind == "flat" or kind == "map"', {}),
        ('kind == "less"', {"less": """'u["b"]'"""}),
    ):
        source = {"schema": {"missing": "error"}} | ({} if where is None else {"where": where})
        path = pipeline(tmp_path, features=features, source=source, batch={"size": 1, "tail": "partial"})
        problems = {Path(found.file).parent.name: found.reason for found in checked(path).problems}
        assert problems.keys() == {f"kind={kind}" for kind in lacking}, where
        for kind, name in lacking.items():
            assert f"lacks {name}, which the pipeline reads" in problems[f"kind={kind}"]
        if lacking:
            with pytest.raises(SpecError, match=r"is not in .*kind="):
                Pipeline.from_yaml(path).plan()
        else:
            plan = Pipeline.from_yaml(path).plan()
            assert (int(plan.source.selection.rows.sum()), where is not None) == (2, True)


def test_a_plan_that_skips_leaves_out_the_bad_files(tmp_path: Path):
    """The page is not read by counting, so only a deep check finds it."""
    write(tmp_path / "t")
    flip_a_page(part(tmp_path, 1))
    path = pipeline(tmp_path, source={"on_bad_file": "skip"})
    assert not Pipeline.from_yaml(path).plan().source.skipped
    assert checked(path).clean
    [bad] = checked(path, deep=True).bad_files
    plan = Pipeline.from_yaml(path).plan()
    assert plan.source.skipped == (bad,)
    assert plan.source.snapshot.files["path"].to_pylist() == [f"part={number}/data.parquet" for number in (0, 2, 3)]
    assert not checked(path).bad_files, "footers alone neither find it nor take it back"
    assert Pipeline.from_yaml(path).plan().source.skipped == (bad,)


def test_a_restored_file_is_found_sound_again(tmp_path: Path):
    """The file has its old time and size, so only reading it shows the difference."""
    write(tmp_path / "t")
    for number, deep in ((1, True), (2, False)):
        file = part(tmp_path, number)
        status, content = file.stat(), file.read_bytes()
        if deep:
            flip_a_page(file)
        else:
            file.write_bytes(content[:-4] + b"oops")
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        path = pipeline(tmp_path, source={"on_bad_file": "skip"})
        assert len(checked(path, deep=deep).bad_files) == 1
        file.write_bytes(content)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert len(Pipeline.from_yaml(path).plan().source.skipped) == 1
        assert checked(path, deep=deep).clean
        assert not load_findings(str(tmp_path / "work"))
        assert not Pipeline.from_yaml(path).plan().source.skipped


DECODERS = ["auto", "arrow", "arrow by environment"]


def pipeline_with(decoder: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, compression: str) -> Path:
    write(folder / "t", compression=compression)
    if decoder == "arrow by environment":
        monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    features = {**FEATURES, "sparse": {"ids": [{"modulo": 1000}]}}  # computed on codes
    return pipeline(folder, features=features, source={"decoder": decoder.split()[0]}, batch={"size": 512})


def is_refused_by_run(path: Path) -> bool:
    try:
        assert sum(len(batch) for batch in Pipeline.from_yaml(path).batches()) == 4 * ROWS
    except CorruptFileError:
        return True
    return False


@pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")
@pytest.mark.parametrize(
    ("decoder", "what", "dictionary", "column"),
    combinations(DECODERS, ["body", "checksum", "size"], [False, True], ["x", "ids.list.element"]),
)
def test_a_deep_check_and_a_run_refuse_the_same_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: str, what: str, dictionary: bool, column: str
):
    path = pipeline_with(decoder, tmp_path, monkeypatch, compression="none" if what == "size" else "snappy")
    damage_a_page(part(tmp_path, 1), column, dictionary=dictionary, what=what)
    refused = is_refused_by_run(path)
    assert [bad.file for bad in checked(path, deep=True).bad_files] == [str(part(tmp_path, 1))] * refused
    assert refused or what == "size", "a checksum that does not fit is an error for both decoders"


@pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_deep_check_and_a_plan_know_the_decoder_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: str
):
    """Only the kernel notices that a page without compression has another size than its header says."""
    path = pipeline_with(decoder, tmp_path, monkeypatch, compression="none")
    damage_a_page(part(tmp_path, 1), "y", dictionary=False, what="size")
    assert is_refused_by_run(path) is (decoder == "auto")
    assert bool(checked(path, deep=True).bad_files) is (decoder == "auto")
    decoded = describe(Pipeline.from_yaml(path).plan().source, world_size=1)["decoded_by_pyarrow"]
    assert decoded == ({} if decoder == "auto" else dict.fromkeys(("x", "y", "ids"), "decoder: arrow"))


def test_a_plan_names_columns_whose_codec_the_kernel_lacks(tmp_path: Path):
    write(tmp_path / "t", 1)
    table = pq.read_table(part(tmp_path, 0), partitioning=None)
    pq.write_table(table, part(tmp_path, 0), compression={"x": "brotli", "y": "zstd", "ids.list.element": "none"})
    decoded = describe(Pipeline.from_yaml(pipeline(tmp_path)).plan().source, world_size=1)["decoded_by_pyarrow"]
    why = "codec BROTLI" if native.COMPILED else "installed without a compiler"
    assert decoded["x"] == why
    assert native.COMPILED is (set(decoded) == {"x"})


def test_findings_are_recorded_for_every_on_bad_file(tmp_path: Path):
    write(tmp_path / "t")
    truncate(part(tmp_path, 1))
    assert len(checked(pipeline(tmp_path)).bad_files) == 1
    assert list(load_findings(str(tmp_path / "work"))) == [str(part(tmp_path, 1))]


@pytest.mark.slow
def test_on_worker_processes(tmp_path: Path):
    write(tmp_path / "t")
    truncate(part(tmp_path, 0))
    flip_a_page(part(tmp_path, 1))
    path = pipeline(tmp_path, cluster={"workers": 1, "threads": 1})
    said: list[Progress] = []
    with on_progress(said.append):
        report = checked(path, deep=True)
    assert [bad.file for bad in report.bad_files] == [str(part(tmp_path, number)) for number in (0, 1)]
    assert Progress(phase="reading footers", done=4, total=4, unit="files") in said
    assert {each.done for each in said if each.phase == "decoding pages"} == {0, said[-1].total}


def test_hundreds_of_files(tmp_path: Path):
    """In tasks of many files, in little memory."""
    table = pa.table({"x": np.arange(50, dtype=np.float32), "y": np.zeros(50, np.int64), "ids": [[1]] * 50})
    first = tmp_path / "t" / "f00000.parquet"
    first.parent.mkdir()
    pq.write_table(table, first)
    files = [first.with_name(f"f{number:05d}.parquet") for number in range(600)]
    for file in files[1:]:
        os.link(first, file)
    for number in (7, 300, 599):
        files[number].unlink()
        files[number].write_bytes(b"bad")
    path = pipeline(tmp_path)
    before = psutil.Process().memory_info().rss
    report = checked(path, deep=True)
    assert [bad.file for bad in report.bad_files] == [str(files[number]) for number in (7, 300, 599)]
    assert (report.files, report.rows) == (600, 597 * 50)
    assert psutil.Process().memory_info().rss - before < 200 * 2**20


def test_a_store_that_fails_ends_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store failure is not a finding about a file and would repeat; a file without permission is a finding."""
    write(tmp_path / "t")
    path = pipeline(tmp_path)

    def failing(error: Exception) -> Any:
        def file_facts(*_: Any) -> None:
            raise error

        return file_facts

    monkeypatch.setattr(footer_tasks, "file_facts", failing(StoreError("the store kept failing")))
    with pytest.raises(StoreError):
        checked(path)
    monkeypatch.setattr(footer_tasks, "file_facts", failing(TableError("may not be read: permission denied")))
    report = checked(path)
    assert (len(report.bad_files), len(report.problems)) == (0, 4)
    assert not load_findings(str(tmp_path / "work"))


def test_a_table_that_cannot_be_checked_is_an_error(tmp_path: Path):
    path = pipeline(tmp_path)
    with pytest.raises(TableNotFoundError):
        checked(path)
    write(tmp_path / "t")
    with pytest.raises(SpecError, match=r"features\.dense"):
        checked(path, deep=True, set={"features.dense": {"nothing": []}})
    assert ended_here("check", path, "--all-columns").returncode == 2
