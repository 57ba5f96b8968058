"""`feedline jobs`, asked of schedulers in this process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from feeder_statuses import status_of
from job_reports import REPORT
from processes import ended_here
from schedulers import connected, local_cluster

from feedline.commands.cluster.list_jobs import jobs_table
from feedline.loader.wire.codec import pack
from feedline.loader.wire.job_reports import FeederShare
from feedline.service.scheduler import job_listing
from feedline.service.scheduler.job_listing import JobListing
from feedline.service.scheduler.scheduler_metrics import job_rows


def test_the_jobs_of_a_scheduler_are_listed_and_the_starved_come_first():
    with local_cluster("feedline.service.scheduler.preload") as local, connected(local) as cluster:
        client = cluster.client
        other = replace(REPORT, job="calm", feeder="c", wait_fraction=0.0, demand_threads=0.0, share=2.5)
        for report in (REPORT, other):
            client.sync(client.scheduler.feedline_report, report=pack(report))
        listed = json.loads(ended_here("jobs", local.scheduler_address, "--json").stdout)
        assert (listed["workers"], listed["threads"]) == (2, 2)
        assert [job["job"] for job in listed["jobs"]] == ["ctr", "calm"]
        assert sum(job["fair_threads"] for job in listed["jobs"]) == 2
        text = ended_here("jobs", local.scheduler_address).stdout
        assert "2 jobs on 2 workers, 4.0 of 2 threads in use" in text
        assert "starved" in text.split("ctr")[1].split("calm")[0]
        assert "starved" not in text.split("calm")[1]


def test_a_job_without_a_route_of_its_own_has_all_workers():
    members = [FeederShare(report=REPORT, threads=1.5, workers=16)]
    for workers, route in ((64, "16"), (16, "all")):
        listing = JobListing(workers=workers, threads=64, feeders=members)
        [*cells] = jobs_table(listing, job_rows(members)).columns[8].cells
        assert cells == [route]


def test_what_cannot_be_asked_is_said(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(job_listing, "_ANSWER_S", 0.2)  # Dask tries as long as it may
        nobody = ended_here("jobs", "tcp://127.0.0.1:9")
    assert (nobody.returncode, "no Dask scheduler answers at tcp://127.0.0.1:9" in nobody.stderr) == (1, True)
    with local_cluster() as local:
        plain = ended_here("jobs", local.scheduler_address)
        assert (plain.returncode, "knows of no jobs" in plain.stderr) == (1, True)
        assert "feedline scheduler" in plain.stderr
        locked = ended_here("jobs", local.scheduler_address.replace("tcp", "tls"))
        assert (locked.returncode, "needs certificates" in locked.stderr) == (2, True)
        assert "Give --tls-ca, --tls-cert and --tls-key" in locked.stderr
    far = ended_here("jobs", "tcp://10.0.0.1:1")
    assert "Use tls:// with --tls-ca, --tls-cert and --tls-key, or accept the risk with --insecure" in far.stderr
    mixed = ended_here("jobs", "tcp://10.0.0.1:1", "--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c")
    assert "--tls-ca, --tls-cert and --tls-key need tls://" in mixed.stderr


def test_the_progress_of_a_job_is_shown_as_far_as_its_feeders_say():
    share = FeederShare(report=REPORT, threads=1.5, workers=16)
    status = replace(status_of(feeder=REPORT.feeder, step=4), lost=2, epochs=3)
    ranks = tuple(replace(rank, step_s=2.0) for rank in status.ranks)
    listing = JobListing(workers=20, threads=64, feeders=[share], statuses=[replace(status, ranks=ranks)])
    table = jobs_table(listing, job_rows([share]))
    cells = {str(column.header): next(iter(column.cells)) for column in table.columns}
    assert (cells["step"], cells["left"], cells["lost"]) == ("1/3: 4/10", "0:00:52", "2")
    waiting = replace(status, ranks=tuple(replace(rank, state="waiting for files") for rank in ranks))
    waits = jobs_table(replace(listing, statuses=[waiting]), job_rows([share]))
    flags = [next(iter(each.columns[-1].cells)) for each in (table, waits)]
    assert flags == ["starved", "waiting for files"]
    before = jobs_table(replace(listing, statuses=[]), job_rows([share]))
    assert [next(iter(column.cells)) for column in before.columns[10:13]] == ["", "", ""]
