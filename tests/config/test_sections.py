"""Types and rules of the sections: sizes, paths, addresses, and keys that contradict each other."""

import pytest
from dask.utils import parse_bytes as dask_parse_bytes
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from feedline.config.cluster_section import ClusterSpec, TlsSpec, WorkersSpec, is_loopback, scheduler_address
from feedline.config.sections import parse_bytes, resolve_path
from feedline.config.source_section import SourceSpec

TLS = {"ca": "/ca", "cert": "/cert", "key": "/key"}


def refused(model, **values):
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    [error] = caught.value.errors()
    return error["msg"]


@examples(100)
@given(
    st.integers(1, 999_999),
    st.sampled_from(["", ".5", ".25", ".125"]),
    st.sampled_from(["B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "gib", "mb"]),
    st.sampled_from(["", " "]),
)
def test_sizes_agree_with_dask(whole, fraction, unit, space):
    text = f"{whole}{fraction}{space}{unit}"
    assert parse_bytes(text) == dask_parse_bytes(text)


@pytest.mark.parametrize(
    "value",
    [
        *(True, 1.5, 0, -1, 2**63, ["4GiB"]),
        *("4", "4G", "4 gigs", "-1GB", "1e3MB", "GiB", "", "0B", "0.1B", "99999999TiB", "4GiB4"),
    ],
)
def test_wrong_sizes(value):
    with pytest.raises(ValueError, match="a size"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("data", "/jobs/data"),
        ("./data/", "/jobs/data"),
        ("../data", "/data"),
        ("a/*.parquet", "/jobs/a/*.parquet"),
        ("/data", "/data"),
        ("s3://bucket/x", "s3://bucket/x"),
        ("file:///x", "file:///x"),
        ("abfs+x://a", "abfs+x://a"),
        ("a:b", "/jobs/a:b"),
        ("~/data", "/home/me/data"),
        ("a/~/b", "/jobs/a/~/b"),
    ],
)
def test_paths(path, resolved, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert resolve_path(path, "/jobs") == resolved


def test_hosts_of_this_machine():
    here = ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost")
    elsewhere = ("10.0.0.1", "0.0.0.0", "::", "scheduler", "localhost.example.org", "127.0.0.1.nip.io", "")
    assert [host for host in (*here, *elsewhere) if is_loopback(host)] == [*here]


def test_addresses():
    assert scheduler_address("tcp://127.0.0.1:8786") == ("tcp", "127.0.0.1", 8786)
    assert scheduler_address("tls://Scheduler:1") == ("tls", "scheduler", 1)
    assert scheduler_address("tcp://[::1]:65535") == ("tcp", "::1", 65535)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "localhost",
            "localhost:8786",
            "tcp://",
            "tcp://h",
            "tcp://h:",
            "tcp://h:0",
            "tcp://h:65536",
            "tcp://h:x",
        ),
        *("tcp://h:1/x", "tcp://h:1?x", "tcp://u@h:1", "tcp://h:1\n", "tcp://[::1:1", "http://h:1", "inproc://h:1"),
    ],
)
def test_wrong_addresses(address):
    with pytest.raises(ValueError, match="the address of a Dask scheduler"):
        scheduler_address(address)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"scheduler": "tcp://127.0.0.1:8786"},
        {"scheduler": "tcp://10.0.0.1:8786", "insecure": True},
        {"scheduler": "tls://10.0.0.1:8786", "tls": TLS},
        {"wait_s": 1, "window": 5},
        {"fork": False},
        {"fork": False, "threads": "auto"},
        {"processes": 3, "threads": 2, "fork": False},
    ],
)
def test_clusters(values):
    spec = ClusterSpec.model_validate(values)
    expected = {"tls": TlsSpec(**TLS), "workers": WorkersSpec(min=1, max=2)}
    assert all(getattr(spec, key) == expected.get(key, value) for key, value in values.items())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"threads": 0}, "a number of threads of at least 1, or the word auto"),
        ({"workers": 0}, "a number of workers of at least 1, or a mapping with the keys min, max"),
        ({"workers": {"min": 1}}, "Field required"),
        ({"workers": {"min": 3, "max": 2}}, "is more than `max`: got 3 and 2"),
        ({"options": {"a": 1}}, "has no meaning without `class`"),
        ({"class": "a.B"}, "is missing beside `class`"),
        ({"class": "a.B", "workers": 2, "threads": 1}, "contradicts `class`"),
        ({"class": "a.B", "workers": 2, "tls": TLS, "insecure": True}, "contradicts `tls`"),
        ({"class": "a.B", "scheduler": "tcp://127.0.0.1:1"}, "contradicts `scheduler`"),
        ({"scheduler": "tcp://127.0.0.1:1", "threads": "auto"}, "contradicts `scheduler`"),
        ({"scheduler": "tcp://127.0.0.1:1", "workers": 2}, "contradicts `scheduler`"),
        (
            {"scheduler": "tcp://10.0.0.1:1"},
            "Use tls:// with `tls: {ca, cert, key}`, or accept the risk with `insecure: true`",
        ),
        ({"scheduler": "tls://127.0.0.1:1"}, "tls:// needs certificates"),
        ({"scheduler": "tls://h:1", "tls": TLS, "insecure": True}, "contradicts tls://"),
        ({"scheduler": "tcp://127.0.0.1:1", "tls": TLS}, "has no meaning with tcp://"),
        ({"tls": TLS}, "has no meaning without `scheduler`"),
        ({"tls": "temporary"}, "`temporary` has no meaning without `workers`"),
        ({"tls": "temporary", "scheduler": "tls://h:1"}, "`temporary` is for `workers`"),
        ({"insecure": True}, "has no meaning without `scheduler`"),
        ({"fork": False, "threads": 2}, "has no meaning with `threads`, which asks for threads alone"),
        ({"processes": 0}, "greater than or equal to 1"),
        ({"processes": 2, "workers": 2}, "has no meaning with `workers`, which asks for Dask's workers"),
        ({"processes": 2, "scheduler": "tcp://127.0.0.1:1"}, "has no meaning with `scheduler`"),
        ({"processes": 2, "class": "a.B", "workers": 2}, "has no meaning with `class`"),
        ({"fork": False, "workers": 2}, "has no meaning with `workers`"),
        ({"fork": False, "scheduler": "tcp://127.0.0.1:1"}, "has no meaning with `scheduler`"),
        ({"fork": False, "class": "a.B", "workers": 2}, "has no meaning with `class`"),
        ({"wait_s": float("inf")}, "finite"),
    ],
)
def test_wrong_clusters(values, words):
    assert words in refused(ClusterSpec, **values)


def test_a_number_of_workers_is_both_limits():
    assert ClusterSpec.model_validate({"workers": 2}).workers == WorkersSpec(min=2, max=2)
    assert ClusterSpec.model_validate({"workers": {"max": 2}}).workers == WorkersSpec(min=1, max=2)
    for workers in (2, {"min": 1, "max": 2}):
        spec = ClusterSpec.model_validate({"workers": workers, "threads": 1})
        assert (spec.kind, spec.most_workers, spec.threads) == ("processes", 2, 1)
    limits = {"scheduler": "tcp://127.0.0.1:8786", "workers": {"min": 1, "max": 2}}
    provider = {"class": "a.B", "options": {"c": 1}, "workers": 2}
    kinds = [ClusterSpec.model_validate(keys).kind for keys in ({}, limits, provider)]
    assert kinds == ["pool", "scheduler", "provider"]
    elsewhere = [ClusterSpec.model_validate(keys).is_elsewhere for keys in ({}, {"workers": 2}, limits, provider)]
    assert elsewhere == [False, False, True, True]


def test_tables():
    assert SourceSpec.model_validate({"table": ["a", "s3://b"]}, context={"base_dir": "/x"}).table == ("/x/a", "s3://b")
    for wrong in ([], [1], 3, None, {}, [[]]):
        assert "a path or URI" in refused(SourceSpec, table=wrong)
    for wrong in ("", " ", "a\0b", ["a", ""]):
        assert "a non-empty string" in refused(SourceSpec, table=wrong)
