"""The keys `metrics` and `traces`: their forms, what is refused, and that pipelines without them stay as they were."""

import pytest
from jsonschema import Draft202012Validator
from minimal_pipeline import MINIMAL

from feedline import Pipeline
from feedline.config import PipelineSpec, parse_spec
from feedline.config.monitoring_section import MetricsSpec, TracesSpec
from feedline.config.overrides import parse_overrides
from feedline.config.yaml_document import read_document
from feedline.errors import SpecError
from feedline.loader.ring.rendezvous import job_fingerprint


def parse(entry: str, *overrides: str) -> PipelineSpec:
    return parse_spec(MINIMAL + entry, file="p.yaml", overrides=parse_overrides(overrides), base_dir="/jobs")


@pytest.mark.parametrize(
    ("entry", "spec", "address"),
    [
        ("metrics: 127.0.0.1:9400", MetricsSpec(listen="127.0.0.1:9400"), ("127.0.0.1", 9400)),
        ("metrics: localhost:0", MetricsSpec(listen="localhost:0"), ("localhost", 0)),
        ('metrics: "[::1]:9400"', MetricsSpec(listen="[::1]:9400"), ("::1", 9400)),
        ("metrics: targets", MetricsSpec(dir="/jobs/targets"), ("127.0.0.1", 0)),
        ("metrics: http:/a:1", MetricsSpec(dir="/jobs/http:/a:1"), ("127.0.0.1", 0)),
        ("metrics: /mnt/a:9400/x", MetricsSpec(dir="/mnt/a:9400/x"), ("127.0.0.1", 0)),
        ("metrics: {dir: ../x, listen: '0.0.0.0:0'}", MetricsSpec(dir="/x", listen="0.0.0.0:0"), ("0.0.0.0", 0)),
    ],
)
def test_an_address_is_listened_at_and_a_path_is_a_folder(entry: str, spec: MetricsSpec, address: tuple[str, int]):
    metrics = parse(entry).metrics
    assert metrics == spec
    assert metrics is not None
    assert metrics.address == address
    assert PipelineSpec.from_canonical(parse(entry).canonical()).metrics == spec


@pytest.mark.parametrize(
    ("entry", "endpoint", "sample"),
    [
        ("traces: http://127.0.0.1:4318", "http://127.0.0.1:4318", 0.01),
        ("traces: {endpoint: 'https://otel.example.org/v1/traces'}", "https://otel.example.org/v1/traces", 0.01),
        ("traces: {sample: 1}", None, 1.0),
    ],
)
def test_a_collector_is_named_here_or_by_the_environment(entry: str, endpoint: str | None, sample: float):
    spec = parse(entry)
    assert spec.traces == TracesSpec(endpoint=endpoint, sample=sample)
    assert PipelineSpec.from_canonical(spec.canonical()).traces == spec.traces


@pytest.mark.parametrize("value", ["off", "null", "", "'off'"])
def test_without_them_the_canonical_text_is_that_of_before(value: str):
    spec = parse(f"metrics: {value}\ntraces: {value}")
    assert (spec.metrics, spec.traces) == (None, None)
    assert spec.canonical() == parse("").canonical()
    assert '"metrics"' not in spec.canonical()
    assert '"traces"' not in spec.canonical()


def test_feeders_and_trainers_that_differ_in_them_meet():
    watched = parse("metrics: 127.0.0.1:0\ntraces: {sample: 1}")
    assert watched != parse("")
    assert job_fingerprint(watched) == job_fingerprint(parse(""))


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ("metrics: 5", "p.yaml:7:10: metrics: must be HOST:PORT, the path of a folder, or a mapping with the keys"),
        ("metrics: false", "keys listen, dir: got false. Write off"),
        ("metrics: s3://b/x", "metrics.dir: must be the path of a local or mounted folder: got 's3://b/x'. Prometheus"),
        ("metrics: a:99999", "metrics.listen: must be HOST:PORT with a port up to 65535: got 'a:99999'. 127.0.0.1:0"),
        ("metrics: {port: 9400}", "metrics.port: unknown key: got 'port', expected one of 'listen', 'dir'"),
        ("metrics: a:1\nfeeder: rank", "p.yaml:7:10: metrics: one port is not enough for a feeder of each rank: got"),
        ("traces: collector", "traces.endpoint: must be the URL of an OTLP collector, http://host:port or https"),
        ("traces: 'http://a:x'", "traces.endpoint: must be the URL of an OTLP collector"),
        ("traces: false", "keys endpoint, sample: got false. Write off"),
        ("traces: {sample: 0}", "traces.sample: must be greater than 0: got 0"),
    ],
)
def test_other_values_are_refused(entry: str, line: str):
    with pytest.raises(SpecError) as caught:
        parse(entry)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "is_valid"),
    [
        ("metrics: targets", True),
        ("metrics: {port: 1}", False),
        ("metrics: {listen: '1'}", False),
        ("traces: {sample: 0.5}", True),
        ("traces: {sample: 2}", False),
        ("traces: 3", False),
    ],
)
def test_the_json_schema_has_them(entry: str, is_valid: bool):
    document = read_document(MINIMAL + entry, "p.yaml").value
    assert Draft202012Validator(Pipeline.json_schema()).is_valid(document) == is_valid
