"""Does a reader of a partition that is replaced meet the old one or the new one, at every moment?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from optimized import CLUSTERED, events, in_arrow, multiset, rewrite, warehouse

from feedline import Table
from feedline.errors import TableError
from feedline.warehouse.optimize import landing
from feedline.warehouse.optimize.landing import Target, refuse_overlap, target_at
from feedline.warehouse.optimize.optimize import TaskRunner, optimize
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.optimize.rewrite import rewrite_units, scatter
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.locations import list_tree, locate
from feedline.warehouse.storage.whole_file import exchange

Files = dict[str, bytes]


class Watched:
    """A local filesystem that lets someone look after each thing that it changes."""

    def __init__(self, inner: Any, look: Callable[[], None]) -> None:
        self.inner, self.look = inner, look

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            self.look()
            return found

        return call if name in ("move", "delete_dir", "delete_file", "create_dir") else method


def visible(folder: Path) -> Files:
    """The files of one partition, as a reader would list them."""
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def rewritten_under_watch(
    monkeypatch: pytest.MonkeyPatch, source: Path, target: Path, folder: str, exchanging: Callable[[str, str], bool]
) -> tuple[Files, list[Files], Files]:
    """Rewrite the target with other settings: a partition's files before, at every moment of landing, and after."""
    before = visible(target / folder)
    seen: list[Files] = []
    land = Target.land

    def look() -> None:
        seen.append(visible(target / folder))

    def watched(self: Target, *args: Any, **kwargs: Any) -> None:
        self.filesystem = Watched(self.filesystem, look)
        land(self, *args, **kwargs)

    def exchanged(one: str, other: str) -> bool:
        done = exchanging(one, other)
        look()
        return done

    def one_by_one(change: Callable[..., None]) -> Callable[..., None]:
        def changed(self: Claim, files: Iterable[Any]) -> None:
            for file in files:
                change(self, [file])
                look()

        return changed

    monkeypatch.setattr(Target, "land", watched)
    for name in ("move", "delete"):
        monkeypatch.setattr(Claim, name, one_by_one(getattr(Claim, name)))
    monkeypatch.setattr(landing, "exchange", exchanged, raising=False)
    report = rewrite(source, target, **{**CLUSTERED, "row_group_rows": 100, "file_bytes": 6_000})
    monkeypatch.undo()
    assert report.written == 1
    assert multiset(in_arrow(target)) == multiset(in_arrow(source))
    assert not (target / landing.HIDDEN).exists()
    return before, seen, visible(target / folder)


def test_a_partition_exists_at_every_moment_of_its_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = warehouse(tmp_path / "in", days=1), tmp_path / "out"
    rewrite(source, target, **{**CLUSTERED, "file_bytes": 6_000})
    before, seen, after = rewritten_under_watch(monkeypatch, source, target, "ds=2026-01-01", exchange)
    assert min(len(before), len(after)) > 2
    turn = seen.index(after)
    assert turn > 0
    assert seen == [before] * turn + [after] * (len(seen) - turn)


def test_where_folders_cannot_be_exchanged_a_partition_is_missing_for_a_moment_and_never_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = warehouse(tmp_path / "in", days=1), tmp_path / "out"
    rewrite(source, target, **{**CLUSTERED, "file_bytes": 6_000})
    before, seen, after = rewritten_under_watch(monkeypatch, source, target, "ds=2026-01-01", lambda one, other: False)
    assert {} in seen
    assert all(files in (before, {}, after) for files in seen)


def test_one_file_without_partition_keys_is_replaced_by_one_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "one.parquet", tmp_path / "out"
    pq.write_table(events(60), source)
    rewrite(source, target, **CLUSTERED)
    before, seen, after = rewritten_under_watch(monkeypatch, source, target, ".", exchange)
    assert len(before) == len(after) == 1
    assert all(files in (before, after) for files in seen)


def test_one_file_replaces_several_without_duplicate_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "one.parquet", tmp_path / "out"
    pq.write_table(events(60), source)
    rewrite(source, target, **{**CLUSTERED, "row_group_rows": 10, "file_bytes": 1})
    before, seen, after = rewritten_under_watch(monkeypatch, source, target, ".", exchange)
    assert len(before) > 2
    assert len(after) == 1
    assert all(files == after or (files and files.items() <= before.items()) for files in seen)


def test_a_partition_inside_another_survives_its_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    for rows, folder in ((60, "a=1"), (600, "a=1/b=2")):  # the larger one is written first
        (source / folder).mkdir(parents=True)
        pq.write_table(events(rows), source / folder / "x.parquet")
        rewrite(source, target, **{**CLUSTERED, "row_group_rows": rows})
        # as if each looked before another thread made the other's folder
        monkeypatch.setattr(Target, "_has_folders", lambda *_: False)
    expected = multiset(Table(str(source)).read())
    assert multiset(Table(str(target)).read()) == expected


@pytest.mark.parametrize("kind", [pytest.param("local", marks=pytest.mark.nightly), "store"])
def test_what_tasks_of_a_replaced_run_write_stays_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A run is stopped before its first partition lands; another one writes the table as it is by now."""
    source, out = warehouse(tmp_path / "in", days=2), tmp_path / "out"
    target = str(out) if kind == "local" else f"memory:/{out}"
    land, late = Target.land, []

    def stopped(self: Target, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(Target, "land", land)
        pq.write_table(events(70, seed=9), source / "ds=2026-01-01" / "0.parquet")
        optimize(take_snapshot(str(source)), target, Settings(**CLUSTERED), runner=TaskRunner(threads=1))
        late.append(f"{self.stage('late')}/part-0000-00000.0.parquet.part")  # of a task that still runs
        with self.filesystem.open_output_stream(late[0]) as sink:
            sink.write(b"late")
        land(self, *args, **kwargs)

    snapshot = take_snapshot(str(source))
    monkeypatch.setattr(Target, "land", stopped)
    with pytest.raises(TableError, match=r"out is no longer this run's: got none, expected the claim of"):
        optimize(snapshot, target, Settings(**CLUSTERED), runner=TaskRunner(threads=1))
    assert late
    assert multiset(Table(target).read()) == multiset(Table(str(source)).read())
    assert not [info.path for info in list_tree(locate(target)) if landing.HIDDEN in info.path]


def test_a_task_of_a_replaced_run_ends_before_it_reads(tmp_path: Path) -> None:
    old, new = (target_at(str(tmp_path)) for _ in range(2))
    old.claim.take()
    new.claim.take()
    recipe = SimpleNamespace(claim=old.claim)
    for function in (rewrite_units, scatter):
        with pytest.raises(TableError, match=rf"got that of {new.claim.run}, expected the claim of {old.claim.run}"):
            function(SimpleNamespace(recipe=recipe))


def test_an_attempt_that_was_repeated_leaves_nothing_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was taken for dead writes on, below its own name."""
    source, target = warehouse(tmp_path / "in", days=1), tmp_path / "out"
    land = Target.land

    def twice(self: Target, folder: str, slug: str, names: list[str], **kwargs: Any) -> None:
        Path(self.stage(slug), "part-0000-00000.0.parquet.part").write_bytes(b"half of it")
        land(self, folder, slug, names, **kwargs)

    monkeypatch.setattr(Target, "land", twice)
    rewrite(source, target, **CLUSTERED)
    assert multiset(in_arrow(target)) == multiset(in_arrow(source))
    assert [path.name for path in target.rglob("*") if path.is_file()] == ["part-0000-00000.parquet"]


def test_a_target_in_its_source_is_refused_whatever_the_two_are_called(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    here, uri = str(tmp_path / "t"), f"file://{tmp_path}/t"
    for source, target in (
        (uri, f"{here}/out"),
        (here, f"{uri}/out"),
        (f"{here}/*", uri),
        (str(tmp_path / "link"), uri),
    ):
        with pytest.raises(TableError, match="source and target overlap"):
            refuse_overlap([str(tmp_path / "other"), source], target)
    refuse_overlap([here, "memory://t"], f"{here}-out")
    with pytest.raises(TableError, match="source and target overlap"):
        refuse_overlap(["memory://t/*.parquet"], "memory://t/out")
