"""Each module `feedline/<package>/<module>.py` is tested by `tests/<package>/test_<module>.py`.

The modules that are not are listed, one a line. The list may only shrink: a module that gets its test leaves it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "feedline"
MODULES = {
    path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__")
}

WITHOUT_A_TEST = {
    "artifacts/artifact_files.py",
    "blocks/batch_schema.py",
    "blocks/block_encoder.py",
    "blocks/compute.py",
    "blocks/environment.py",
    "blocks/permutation.py",
    "blocks/single_flight.py",
    "cli.py",
    "commands/cluster/certs.py",
    "commands/cluster/connect.py",
    "commands/cluster/connection_files.py",
    "commands/cluster/scheduler.py",
    "commands/cluster/worker.py",
    "commands/display/dedup_table.py",
    "commands/display/quality_table.py",
    "commands/feed.py",
    "commands/feeder_sessions.py",
    "commands/fit.py",
    "commands/plan/ops.py",
    "commands/plan/step.py",
    "commands/plan/views.py",
    "commands/run.py",
    "commands/transform.py",
    "commands/verify.py",
    "loader/data_loaders.py",
    "loader/dataset.py",
    "loader/tensors/dedup_tensors.py",
    "loader/encoding/arrow_table.py",
    "loader/encoding/encoded_rows.py",
    "loader/encoding/layout.py",
    "loader/encoding/row_digests.py",
    "loader/encoding/shuffled_rows.py",
    "loader/plan_descriptions.py",
    "loader/ring/feeder_source.py",
    "loader/ring/host_feeder.py",
    "loader/ring/reports.py",
    "loader/ring/ring_memory.py",
    "loader/ring/room.py",
    "loader/row_arrays.py",
    "loader/tensors/slot_tensors.py",
    "loader/state.py",
    "loader/wire/job_reports.py",
    "loader/wire/ring_messages.py",
    "pipeline.py",
    "planning/artifact_choice.py",
    "planning/dedup/proposals.py",
    "planning/rows/kept_rows.py",
    "planning/skip_bad_files.py",
    "service/cluster/attempts.py",
    "service/cluster/cluster.py",
    "service/cluster/connection/fair_share.py",
    "service/cluster/connection/job_listing.py",
    "service/cluster/connection/reporting.py",
    "service/cluster/connection/scheduler_check.py",
    "service/cluster/connection/scheduler_connection.py",
    "service/cluster/connection/scheduler_echo.py",
    "service/cluster/dask_cluster.py",
    "service/cluster/fit_workers.py",
    "service/cluster/recent.py",
    "service/cluster/result_fetcher.py",
    "service/cluster/worker_checks.py",
    "service/cluster/worker_cluster.py",
    "service/dask_patches/dask_config.py",
    "service/drain.py",
    "service/feeder/feeder_process.py",
    "service/feeder/in_process.py",
    "service/feeder/steps.py",
    "service/feeder/trainer_stream.py",
    "service/log_lines.py",
    "service/plan_frame.py",
    "service/scaling/load.py",
    "service/scheduler/preload.py",
    "service/tls/refused_connection.py",
    "service/verify/receipts.py",
    "service/worker/preload.py",
    "spec/cluster_section.py",
    "spec/dedup_section.py",
    "spec/source_section.py",
}


def has_test(module: str) -> bool:
    path = Path(module)
    return (TESTS / path.parent / f"test_{path.name}").exists()


def test_each_module_has_a_test_of_its_name():
    assert not sorted(module for module in MODULES - WITHOUT_A_TEST if not has_test(module))


def test_modules_that_have_a_test_are_not_listed():
    assert not sorted(module for module in WITHOUT_A_TEST if has_test(module))


def test_listed_modules_exist():
    assert not sorted(WITHOUT_A_TEST - MODULES)


def test_names_of_test_files_are_unique():
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]
