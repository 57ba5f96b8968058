"""Workers that do not see what the feeder sees are told apart from a table that is gone."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipelines import Place, furnished, image, oracle
from processes import DaskCluster

from feedline import FeedlineDataset
from feedline.errors import ClusterError, FeedlineError


def namespaces(*flags: str) -> bool:
    """Whether this user may make namespaces of these kinds."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", *flags, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("d")
    shutil.copytree(clicks, folder / "table")
    with furnished(folder, folder / "table") as place:
        yield place


def hiding(folder: Path) -> list[str]:
    """A command's beginning that runs the rest of it where a folder is empty."""
    script = f'mount -t tmpfs none {shlex.quote(str(folder))} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


@pytest.mark.skipif(not namespaces("--mount"), reason="needs the right to make mount namespaces")
def test_workers_that_do_not_see_the_table_are_named(place: Place, tmp_path: Path):
    with DaskCluster(tmp_path / "dask", workers=0) as dask:
        dask.start_worker(within=hiding(place.table))
        cluster = {"scheduler": dask.address, "wait_s": 20}
        path = place.write("blind.yaml", cluster=cluster)
        blind = r"cannot read the table: .*(does not exist|is gone).*; but the feeder on .* reads it\. Mount it"
        with FeedlineDataset(path) as dataset, pytest.raises(ClusterError, match=f"worker tcp://.* {blind}"):
            len(dataset)  # by its footers, which the workers read
        oracle(path)
        with FeedlineDataset(path) as dataset, pytest.raises(ClusterError, match=f"a worker on .* {blind}"):
            len(dataset)  # before the first block

        dask.start_worker()
        with FeedlineDataset(path) as dataset:
            assert [image(batch) for batch in dataset] == oracle(path)

        shutil.rmtree(place.table)
        fresh = place.write("gone.yaml", work_dir="fresh", cluster=cluster)
        with FeedlineDataset(fresh) as dataset, pytest.raises(FeedlineError, match="does not exist") as gone:
            len(dataset)
        assert "but the feeder" not in str(gone.value)
