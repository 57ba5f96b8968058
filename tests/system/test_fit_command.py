"""`feedline fit` as a person uses it, and runs that need what it makes: on threads, Dask workers, several ranks."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import SUPPORT, Program, ended, ended_here
from toy_ops import toy_ops, written
from typer.testing import CliRunner

import feedline.artifacts.store as stored_artifacts
from feedline import Pipeline
from feedline.cli import app
from feedline.errors import SpecError, StateError
from feedline.loader.state import state_of
from feedline.loader.wire.facts import Hello

FEATURES: dict[str, Any] = {
    "dense": {"dense_0": [{"fill_null": 0}]},
    "categorical": {"id_0": ["vocabulary"], "str_0": [{"vocabulary": {"min_count": 5}}]},
    "sparse": {"hist_0": [{"vocabulary": {"max_size": 100}}]},
    "label": {"clicked": []},
}


def printed(*arguments: str, status: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status
    return result.stdout, result.stderr


def test_fit_says_what_it_does_and_shows_what_it_did(tmp_path: Path, clicks: Path):
    path = str(written(tmp_path, clicks, features=FEATURES, fit={"where": 'ds != "2026-01-03"'}))
    assert "nothing is fitted" in printed("fit", path, "--show")[0]
    out, said = printed("fit", path)
    assert not said
    assert "3 statistics of" in out
    assert "in 1 pass," in out
    assert str(tmp_path / "work" / "artifacts") in out.replace("\n", "")
    out, said = printed("fit", path, "--missing")
    assert "nothing was missing" in out
    assert not said
    out, _ = printed("fit", path, "--show")
    for text in ("vocabulary: hist_0", "max_size 100", "hist_0 list<element: int64>", f"rows of {clicks}", "w00000"):
        assert text in out
    assert ' where ds != "2026-01-03"' in out


def test_fit_in_json(tmp_path: Path, clicks: Path):
    path = str(written(tmp_path, clicks, features=FEATURES))
    report = json.loads(printed("fit", path, "--json")[0])
    assert (report["made"], report["passes"], report["rows"]) == (3, 1, 20_000)
    assert [one["features"] for one in report["fits"]] == [["id_0"], ["str_0"], ["hist_0"]]
    shown = json.loads(printed("fit", path, "--show", "--json")[0])
    assert [one["digest"] for one in shown] == [report["fits"][place]["digest"] for place in (2, 0, 1)]
    assert shown[0]["shown"]["values"] == 100
    with pytest.raises(SpecError, match="--show fits nothing: got --missing"):
        printed("fit", path, "--show", "--missing")


def test_a_fit_that_reveals_the_target_is_warned_of(tmp_path: Path, clicks: Path):
    rows = 400  # one positive and three negatives of each key
    table = pa.table({"key": np.arange(rows) // 4, "row": np.arange(rows), "clicked": np.arange(rows) % 4 == 0})
    pq.write_table(table, tmp_path / "sampled.parquet")
    encoding = {"target_encoding": {"target": "clicked", "fold_by": "row"}}
    features = {"dense": {"key": [encoding]}}
    path = str(written(tmp_path, tmp_path / "sampled.parquet", features=features))
    sentence = "the target has the same mean in every key, as where negatives are sampled"
    assert f"warning: target_encoding of key: {sentence}" in printed("fit", path)[0]
    assert sentence in printed("fit", path, "--show")[0]


def test_nothing_to_fit_is_no_error(tmp_path: Path, clicks: Path):
    path = str(written(tmp_path, clicks, features={"dense": {"dense_0": []}}))
    assert "nothing to fit: no op of the pipeline learns from data" in printed("fit", path)[0]
    assert json.loads(printed("fit", path, "--json")[0])["fits"] == []


def test_what_needs_no_values_works_before_anything_is_fitted(tmp_path: Path, clicks: Path):
    path = str(written(tmp_path, clicks, features=FEATURES))
    assert json.loads(printed("plan", path, "--json")[0])
    printed("check", path)
    with pytest.raises(SpecError, match=r"features\.categorical\.id_0: not fitted: id_0: vocabulary: got no artifact"):
        Pipeline.from_yaml(path).to_dask()


def test_dask_workers_make_the_same_and_fit_auto_fits_before_a_run(tmp_path: Path, clicks: Path):
    here = Pipeline.from_yaml(written(tmp_path, clicks, features=FEATURES)).fit()
    path = written(tmp_path, clicks, features=FEATURES, artifacts="there", cluster={"workers": 2, "threads": 1})
    fitted = ended("fit", path, "--json", "--set", "fit.memory=200kB")  # so that states go to disk
    assert fitted.returncode == 0, fitted.stderr
    assert json.loads(fitted.stdout)["manifest"] == here.manifest
    assert not list((tmp_path / "work").glob("fitting*"))
    path = written(tmp_path, clicks, features=FEATURES, artifacts="third", fit="auto")  # by threads of the feeder
    run = ended_here("run", path, "--sink", "null", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["rows"] == 19_968
    [pointer] = (tmp_path / "third").glob("pipelines/*/*.json")
    assert json.loads(pointer.read_text())["manifest"] == here.manifest


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_fit_that_is_stopped_leaves_nothing(tmp_path: Path, clicks: Path, number: int, expected: int):
    path = written(tmp_path, clicks, features=FEATURES)
    program = Program([sys.executable, str(SUPPORT / "stopped_fit.py"), "fit", str(path), str(int(number))])
    try:
        assert program.wait() == expected, program.text
    finally:
        program.close()
    if number == signal.SIGINT:
        assert "stopped: the previous artifact set is still current" in program.text
    assert not list((tmp_path / "work").glob("fitting*"))
    assert not (tmp_path / "work" / "artifacts").exists()


def test_ranks_that_start_together_use_one_set(tmp_path: Path, clicks: Path):
    with toy_ops():
        path = written(tmp_path, clicks, fit={"auto": True})
        made: list[Any] = []

        def resolve(rank: int) -> None:
            hello = Hello(rank=rank, world_size=2)
            made.append(Pipeline.from_yaml(path).resolve(hello, job="0" * 64).source.job.artifacts.manifest)

        threads = [threading.Thread(target=resolve, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made[0] == made[1] is not None
        pipeline = Pipeline.from_yaml(path)
        first = pipeline.resolve(Hello(rank=0, world_size=2), job="1" * 64)
        Pipeline.from_yaml(path, {"source.where": "id_0 > 3"}).fit()  # between the starts of two ranks
        second = pipeline.resolve(Hello(rank=1, world_size=2), job="1" * 64)
        assert second.source.job.artifacts.manifest == first.source.job.artifacts.manifest == made[0]
        assert second.source.features.fingerprint == first.source.features.fingerprint


def test_who_goes_on_does_so_with_what_was_learnt_at_the_start(tmp_path: Path, clicks: Path):
    with toy_ops():
        path = written(tmp_path, clicks)
        Pipeline.from_yaml(path).fit()
        hello = Hello(rank=0, world_size=1)
        first = Pipeline.from_yaml(path).resolve(hello, job="0" * 64).facts()
        Pipeline.from_yaml(path, {"source.where": "id_0 > 3"}).fit()
        asked = {key: getattr(first, key) for key in ("snapshot", "plan", "features", "lanes")}
        again = Pipeline.from_yaml(path).resolve(Hello(rank=0, world_size=1, **asked), job="0" * 64)
        assert again.facts().features == first.features
        assert Pipeline.from_yaml(path).resolve(hello, job="0" * 64).facts().features != first.features
        state = state_of(first, 0, 3)
        assert Pipeline.from_yaml(path).plan_for(state).facts().features == first.features
        manifest = again.source.job.artifacts.manifest
        assert manifest is not None
        (tmp_path / "work" / "artifacts" / f"fits-{manifest[:32]}.json").unlink()
        stored_artifacts._load_manifest.cache_clear()
        with pytest.raises(StateError, match="the state belongs to another features"):
            Pipeline.from_yaml(path).resolve(Hello(rank=0, world_size=1, **asked), job="0" * 64)
