"""Does it matter where the blocks are computed? Never: threads, worker processes and a cluster by address agree."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pipelines import Place, eventually, furnished, image, oracle
from processes import DaskCluster, ended_here, feedline, role_files
from proxy import Proxy

from feedline import FeedlineDataset
from feedline.errors import ClusterError
from feedline.resources.instructions import active_instructions, level_instructions

STEPS = 79


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path_factory.mktemp("dask") / "d", workers=2) as dask:
        yield dask


WHERE = {"where": 'dwell is not None and ds != "2026-01-02"', "split_rows": 512}  # counted on the cluster


@pytest.fixture(scope="module")
def expected(place: Place) -> list[list[bytes]]:
    path = place.write("oracle.yaml", name="other", source=WHERE, batch={"tail": "pad"}, lanes=2)
    return [oracle(path, epoch=epoch) for epoch in range(2)]


def written(place: Place, name: str, cluster: dict) -> Path:
    """The same pipeline for every cluster, with counts of its own."""
    return place.write(f"{name}.yaml", work_dir=name, source=WHERE, batch={"tail": "pad"}, lanes=2, cluster=cluster)


def delivered(place: Place, name: str, cluster: dict) -> list[list[bytes]]:
    """Two epochs, counted and computed on that cluster."""
    with FeedlineDataset(written(place, name, cluster)) as dataset:
        assert dataset.stats().feeders == 1
        return [[image(batch) for batch in dataset] for _ in range(2)]


def test_threads_in_the_feeder(place: Place, expected: list[list[bytes]]):
    """A state that another processor saved is loaded with a warning."""
    path = written(place, "threads", {"threads": 2})
    with FeedlineDataset(path) as dataset:
        assert [[image(batch) for batch in dataset] for _ in range(2)] == expected
        assert dataset.stats().feeders == 1
        state = dataset.state_dict()
        elsewhere, _, _ = state["environment"].partition("cpu ")
        with pytest.warns(UserWarning, match="saved in another environment: got cpu X86_V2, expected cpu"):
            dataset.load_state_dict({**state, "environment": f"{elsewhere}cpu X86_V2"})


def test_worker_processes(place: Place, expected: list[list[bytes]]):
    """That come and go: of two, one has to stay."""
    assert delivered(place, "workers", {"workers": {"min": 1, "max": 2}, "threads": 1}) == expected


@pytest.mark.nightly  # with certificates, by default: test_log_lines.py
def test_a_scheduler_and_workers_started_separately(place: Place, dask: DaskCluster, expected: list[list[bytes]]):
    assert delivered(place, "scheduler", {"scheduler": dask.address}) == expected


@pytest.mark.nightly
def test_two_ranks_on_one_cluster(place: Place, dask: DaskCluster, expected: list[list[bytes]]):
    path = place.write("two.yaml", source=WHERE, batch={"tail": "pad"}, lanes=2, cluster={"scheduler": dask.address})
    with (
        FeedlineDataset(path, rank=0, world_size=2) as zero,
        FeedlineDataset(path, rank=1, world_size=2) as one,
    ):
        for rank, dataset in enumerate((zero, one)):
            seen = [image(batch) for batch in dataset]
            assert seen == oracle(path, rank=rank, world_size=2)
        assert len(zero) == len(one) == len(expected[0])


def test_two_jobs_that_want_the_same_blocks_at_once(place: Place, dask: DaskCluster):
    """The same keys on one scheduler: neither gets the other's errors, nor waits for what the other let go."""
    paths = [place.write(f"job{n}.yaml", source=WHERE, cluster={"scheduler": dask.address}) for n in range(2)]
    with FeedlineDataset(paths[0]) as one, FeedlineDataset(paths[1]) as other:
        first, second = iter(one), iter(other)
        seen = [], []
        for step in range(len(one)):
            seen[0].append(image(next(first)))
            if step == 10:
                one.set_epoch(0)
            if step % 3 == 0:
                seen[1].append(image(next(second)))
        seen[1].extend(image(batch) for batch in second)
        assert seen[0] == seen[1] == oracle(paths[0])


def test_a_broken_connection_to_the_scheduler_is_mended(place: Place, dask: DaskCluster):
    """The scheduler lives, its clients' futures do not: the client finds it again within a moment."""
    with Proxy(dask.port) as proxy:
        path = place.write(
            "cut.yaml",
            source={"split_rows": 256},
            shuffle={"window_rows": 256},
            cluster={"scheduler": f"tcp://127.0.0.1:{proxy.port}", "window": 2},
        )
        with FeedlineDataset(path) as dataset:
            seen = []
            for batch in dataset:
                seen.append(image(batch))
                if batch.step % 20 == 5:
                    assert proxy.cut() > 0
            assert seen == oracle(path)
            assert dataset.stats().feeders == 1


def test_a_cluster_that_wants_certificates_refuses_strangers(place: Place, tmp_path: Path):
    made, others = tmp_path / "certs", tmp_path / "others"
    for folder in (made, others):
        assert ended_here("certs", folder, "--host", "127.0.0.1").returncode == 0
    with DaskCluster(tmp_path / "dask", workers=0, certs=made) as dask:
        for files, why in (
            (role_files(others, "client"), "certificate of the scheduler at tls://.* is not of the authority .*others"),
            (
                role_files(made, "worker") | {"ca": str(others / "worker" / "ca.pem")},
                "worker.pem is not of the authority .*others",
            ),
        ):
            path = place.write("no.yaml", cluster={"scheduler": dask.address, "tls": files, "wait_s": 2})
            with FeedlineDataset(path) as dataset, pytest.raises(ClusterError, match=why):
                len(dataset)


# -- what does not fit --------------------------------------------------------------------------------------------


def other_version(folder: Path, module: str, attribute: str) -> dict[str, str]:
    """The environment of a process that believes to have another version, by the interpreter's own hook."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import {module} as module\nmodule.{attribute} = '0.0.7'\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


def test_workers_of_another_version_are_refused_at_the_start(place: Place, tmp_path: Path):
    text = f"another feedline: got 0.0.7, expected {importlib.metadata.version('feedline')} as in the feeder"
    with DaskCluster(tmp_path / "dask", workers=0) as dask:
        dask.start_worker(other_version(tmp_path / "old", "feedline.version", "VERSION"))
        path = place.write("versions.yaml", cluster={"scheduler": dask.address})
        with FeedlineDataset(path) as dataset, pytest.raises(ClusterError, match=re.escape(text)):
            len(dataset)


@pytest.mark.nightly  # by default at the start, and with workers in this process: tests/service/feeder/test_delivery.py
def test_workers_of_another_version_are_refused_later(place: Place, tmp_path: Path):
    with DaskCluster(tmp_path / "dask") as dask:
        small = {"source": {"split_rows": 256}, "shuffle": {"window_rows": 256}}
        path = place.write("later.yaml", cluster={"scheduler": dask.address}, **small)
        with FeedlineDataset(path) as dataset:
            iterator = iter(dataset)
            first = [image(next(iterator)) for _ in range(3)]
            dask.kill_worker()
            dask.start_worker(other_version(tmp_path / "polars", "polars", "__version__"))
            with pytest.raises(ClusterError, match=r"another polars: got 0\.0\.7"):
                first.extend(image(batch) for batch in iterator)
        assert first == oracle(path)[: len(first)], "nothing wrong was delivered"


@pytest.mark.skipif(
    active_instructions() == level_instructions("x86-64-v3"), reason="this processor has nothing beyond x86-64-v3"
)
def test_workers_of_a_cluster_compute_at_x86_64_v3(place: Place, tmp_path: Path, expected: list[list[bytes]]):
    """By default; one that goes beyond is refused with the line that helps, and threads of a feeder agree with it."""
    changes = {"source": WHERE, "batch": {"tail": "pad"}, "lanes": 2}
    with DaskCluster(tmp_path / "dask") as dask:
        path = place.write("level.yaml", **changes, cluster={"scheduler": dask.address, "cpu": None})
        with FeedlineDataset(path) as dataset, pytest.raises(ClusterError, match="another cpu: got ") as refused:
            len(dataset)
        line = re.search(r'(NPY_DISABLE_CPU_FEATURES)="(.+?)"', str(refused.value))
        assert line is not None, refused.value
        dask.kill_worker()
        dask.start_worker({line[1]: line[2]})
        with FeedlineDataset(path) as dataset:
            seen = [image(batch) for batch in dataset]
            state = dataset.state_dict()
    assert len(seen) == len(expected[0])
    assert seen != expected[0], "log1p of another processor"
    assert state["environment"].endswith(f"cpu {' '.join(level_instructions('x86-64-v3'))}")
    with FeedlineDataset(place.write("here.yaml", **changes, cluster={"threads": 1, "cpu": "x86-64-v3"})) as dataset:
        dataset.load_state_dict({**state, "epoch": 0})
        assert [image(batch) for batch in dataset] == seen


@pytest.mark.nightly  # by default while batches are delivered: test_kill.py
def test_a_scheduler_that_dies_while_rows_are_counted(place: Place, tmp_path: Path):
    """The counting pass runs on the cluster as well, before there is a stream to look after."""
    with DaskCluster(tmp_path / "dask") as dask:
        source = {"where": "dwell > 1.5"}
        path = place.write("counted.yaml", work_dir="counted", source=source, cluster={"scheduler": dask.address})
        with feedline("run", path) as run:
            run.line("waiting for a trainer")
            dask.suspend_worker()
            with FeedlineDataset(path) as dataset, ThreadPoolExecutor(1) as other:
                length = other.submit(len, dataset)
                assert eventually(lambda: dask.tasks() > 0)
                dask.kill()
                dask.start()
                assert length.result(60) == len(oracle(path))
                assert dataset.stats().feeders == 1
            run.send(signal.SIGINT)
            assert run.wait() == 130


def test_a_cluster_without_workers_refuses_a_start(place: Place, tmp_path: Path):
    with DaskCluster(tmp_path / "dask", workers=0) as dask:
        path = place.write("idle.yaml", cluster={"scheduler": dask.address, "wait_s": 1})
        with (
            FeedlineDataset(path) as dataset,
            pytest.raises(ClusterError, match=r"has no worker: got none in 1 s .*feedline worker tcp://"),
        ):
            len(dataset)


@pytest.mark.nightly  # a start by default: the test before; an outage: test_kill.py
def test_a_cluster_without_workers_refuses_no_evaluation(place: Place, tmp_path: Path):
    """Between two epochs no block is waited for, though the next epoch's first ones are missing; within one it is an
    error that the scheduler does not come back.
    """
    with DaskCluster(tmp_path / "dask") as dask:
        path = place.write(
            "zero.yaml",
            cluster={"scheduler": dask.address, "wait_s": 1},
            source={"split_rows": 256},
            shuffle={"window_rows": 256},
        )
        with FeedlineDataset(path) as dataset:
            seen = [image(batch) for batch in dataset]
            dask.kill_worker()
            idle = place.write("idle.yaml", cluster={"scheduler": dask.address, "wait_s": 2})
            with (
                FeedlineDataset(idle) as other,  # while the trainer evaluates, longer than `wait_s`
                pytest.raises(ClusterError, match=r"has no worker: got none in 2 s .*feedline worker tcp://"),
            ):
                len(other)
            dask.start_worker()
            again = [image(batch) for batch in dataset]
            assert dataset.stats().feeders == 1
            dask.kill()  # for good
            with pytest.raises(ClusterError, match=re.escape(dask.address)):
                list(dataset)
        assert (seen, again) == (oracle(path), oracle(path, epoch=1))
