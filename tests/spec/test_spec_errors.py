"""What a wrong pipeline.yaml is told: every kind of error with its place, and typos that hypothesis makes."""

import string

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from minimal_pipeline import MINIMAL
from test_pipeline_spec import COMPLETE, REFERENCE, parse, refused

from feedline.errors import SpecError
from feedline.spec import PipelineSpec


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "version: 1",
            "version: 2",
            "p.yaml:1:10: version: must be 1: got 2. This release reads version 1 of the format",
        ),
        ("version: 1", "version: true", "p.yaml:1:10: version: must be 1: got true"),
        ("version: 1", "version: '1'", "p.yaml:1:10: version: must be 1: got '1'"),
        ("name: small", "name: 5", "p.yaml:2:7: name: must be a string: got 5. Quote it"),
        ("name: small", "name: ''", "p.yaml:2:7: name: must be a non-empty string: got ''"),
        ("name: small", "name: ' '", "p.yaml:2:7: name: must be a non-empty string: got ' '"),
        ("name: small", "name:", "p.yaml:2:1: name: must be a string: got nothing"),
        ("name: small\n", "", "p.yaml:1:1: name: missing key: expected a value. Name of the job."),
        ("table: data", "tabel: data", "p.yaml:5:3: source.tabel: unknown key: got 'tabel', expected one of 'table'"),
        (
            "table: data",
            "table: []",
            "p.yaml:5:3: source.table: must be a path or URI, or a non-empty list of them: got a list",
        ),
        (
            "table: data",
            "table: [a, 3]",
            "source.table: must be a path or URI, or a non-empty list of them: got a list",
        ),
        ("where: price > 0", "where: ''", "p.yaml:6:10: source.where: must be a non-empty string: got ''"),
        ("where: price > 0", "where: true", "p.yaml:6:10: source.where: must be a string: got true. Quote it"),
        ("where: price > 0", "where: [a]", "p.yaml:6:3: source.where: must be a string: got a list"),
        ("split_rows: 100", "split_rows: 0", "p.yaml:7:15: source.split_rows: must be at least 1: got 0"),
        (
            "split_rows: 100",
            "split_rows: 65_536",
            "must be an integer: got '65_536'. Write 65536, without quotes or underscores",
        ),
        ("split_rows: 100", "split_rows: 1e5", "must be an integer: got 100000.0. Write 100000"),
        ("split_rows: 100", "split_rows: 1.5", "must be an integer: got 1.5"),
        ("split_rows: 100", "split_rows: true", "must be an integer: got true"),
        ("split_rows: 100", "split_rows: 18446744073709551615", "must be at most 9223372036854775807"),
        ("size: 8", "size: '8'", "p.yaml:25:9: batch.size: must be an integer: got '8'. Write 8, without quotes"),
        ("size: 8", "size:", "p.yaml:25:3: batch.size: must be an integer: got nothing"),
        ("size: 8", "size: -1", "batch.size: must be at least 1: got -1"),
        ("size: 8", "size: {a: 1}", "batch.size: must be an integer: got a mapping"),
        (
            "tail: pad",
            "tail: dorp",
            "p.yaml:26:9: batch.tail: must be one of drop, pad, partial: got 'dorp'. Did you mean drop?",
        ),
        ("tail: pad", "tail: [pad]", "batch.tail: must be one of drop, pad, partial: got a list"),
        ("seed: 3", "seed: -1", "p.yaml:28:9: shuffle.seed: must be at least 0: got -1"),
        ("seed: 3", "seed: 9223372036854775808", "shuffle.seed: must be at most 9223372036854775807"),
        ("window_rows: 1000", "window_rows: 0", "shuffle.window_rows: must be at least 1: got 0"),
        ("rows: true", "rows: yes", "shuffle.rows: must be true or false: got 'yes'. YAML 1.2 has no other booleans"),
        ("rows: true", "rows: 1", "shuffle.rows: must be true or false: got 1"),
        ("rows: true", "rows: false", "p.yaml:31:7: shuffle.by: contradicts `rows: false`"),
        ("by: session_id", "by: 3", "shuffle.by: must be a string: got 3"),
        ("lanes: 4", "lanes: 0", "p.yaml:32:8: lanes: must be at least 1: got 0"),
        ("epochs: 2", "epochs: 0", "p.yaml:33:9: epochs: must be at least 1: got 0"),
        ("epochs: 2", "epochs:", "p.yaml:33:1: epochs: must be an integer: got nothing"),
        (
            "memory: 500 MB",
            "memory: 4G",
            "p.yaml:44:9: memory: must be a size in bytes such as 4GiB, 500MB or 1073741824: got '4G'",
        ),
        (
            "allow_code: false",
            "allow_code: yes",
            "p.yaml:45:13: allow_code: must be true or false: got 'yes'",
        ),
        ("wait_s: 5", "wait_s: soon", "p.yaml:41:11: cluster.wait_s: must be a number: got 'soon'"),
        (
            "  tls:\n    ca: ca.pem\n    cert: cert.pem\n    key: key.pem\n",
            "  tls: forever\n",
            "p.yaml:36:8: cluster.tls: must be a mapping, or the word temporary: got 'forever'",
        ),
        ("    key: key.pem\n", "", "p.yaml:36:3: cluster.tls.key: missing key: expected a value"),
        (
            "on_nonfinite: zero",
            "on_nonfinite: drop",
            "p.yaml:46:15: on_nonfinite: must be one of error, zero, keep: got 'drop'",
        ),
        (
            "on_expect: error",
            "on_expect: stop",
            "p.yaml:47:12: on_expect: must be one of warn, error: got 'stop'",
        ),
        (
            "lanes: 4",
            "fit: always",
            "p.yaml:32:6: fit: must be a mapping, or the word auto: got 'always'. Leave the key",
        ),
        ("lanes: 4", "fit: {where: 3}", "fit.where: must be a string: got 3. Quote it"),
        ("lanes: 4", "fit: {auto: 1}", "fit.auto: must be true or false: got 1"),
        (
            "lanes: 4",
            "fit: {out_of_fold: no}",
            "fit.out_of_fold: must be true or false: got 'no'. YAML 1.2 has no other",
        ),
        (
            "lanes: 4",
            "fit: {memory: 2G}",
            "fit.memory: must be a size in bytes such as 4GiB, 500MB or 1073741824: got '2G'",
        ),
        ("lanes: 4", "fit: {golden: silver}", "fit.golden: must be one of rows, none: got 'silver'"),
        ("lanes: 4", "fit: {were: a}", "p.yaml:32:7: fit.were: unknown key: got 'were', expected one of 'where'"),
        (
            "lanes: 4",
            "artifacts: 5",
            "p.yaml:32:12: artifacts: must be a path or URI, or a mapping with the keys folder, from: got 5. Quote it",
        ),
        ("lanes: 4", "tail: pad", "p.yaml:32:1: tail: unknown key: got 'tail'"),
        ("lanes: 4", "tail: pad", "It is a key of batch"),
    ],
)
def test_errors_name_position_and_remedy(old, new, line):
    assert old in COMPLETE
    messages = refused(COMPLETE.replace(old, new, 1))
    assert any(line in message for message in messages), messages


@pytest.mark.parametrize("section", ["source", "batch", "cluster"])
@pytest.mark.parametrize(("value", "got"), [("", "nothing"), ("[a]", "a list"), ("word", "'word'")])
def test_sections_are_mappings(section, value, got):
    lines = [line for line in MINIMAL.splitlines() if not line.startswith(f"{section}:")]
    [message] = refused("\n".join([*lines, f"{section}: {value}"]))
    assert f"{section}: must be a mapping with the keys " in message
    assert f"got {got}" in message


@pytest.mark.parametrize(
    "line",
    ["artefacts: x", "cache: {}", "Batch: {}", "source.table: x"],
)
def test_keys_of_later_versions_are_unknown(line):
    [message] = refused(MINIMAL + line)
    assert message.startswith("p.yaml:7:1: ")
    assert "unknown key: got " in message


@pytest.mark.parametrize("key", ["cache", "schema_rules", "on_bad_files", "Table", "rows"])
def test_keys_of_source_that_are_unknown(key):
    [message] = refused(MINIMAL.replace("{table: data}", f"{{table: data, {key}: 1}}"))
    assert message.startswith(
        f"p.yaml:4:23: source.{key}: unknown key: got {key!r}, expected one of 'table', 'format', "
    )


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("", "an empty document"),
        ("# nothing\n", "an empty document"),
        ("- a", "a list"),
        ("word", "'word'"),
        ("3", "3"),
    ],
)
def test_the_document_is_a_mapping(text, got):
    [message] = refused(text)
    assert message.startswith(f"p.yaml:1:1: must be a mapping: got {got}, expected the keys version, name, work_dir")


def test_several_errors_are_reported_in_the_order_of_the_text():
    text = MINIMAL.replace("size: 8", "size: no").replace("price: []", "price:").replace("name", "nmae") + "lanes: 0\n"
    assert [line.split(": ")[0] for line in refused(text)] == [
        "p.yaml:1:1",  # name is missing
        "p.yaml:2:1",
        "p.yaml:5:20",
        "p.yaml:6:15",
        "p.yaml:7:8",
    ]


def test_many_errors_are_truncated():
    text = MINIMAL + "".join(f"x{number}: 1\n" for number in range(50))
    lines = refused(text)
    assert len(lines) == 21
    assert lines[-1] == "… and 30 more"


def _keys():
    """Line number, column, parent path and key of every key in COMPLETE that the format (not the user) names."""
    stack, found = [], []
    for number, line in enumerate(COMPLETE.splitlines(), start=1):
        indent = len(line) - len(line.lstrip())
        key = line.strip().split(":")[0]
        del stack[indent // 2 :]
        if not (len(stack) == 2 and stack[0] == "features"):  # the names of features are free
            found.append((number, indent + 1, tuple(stack), key))
        stack.append(key)
    return found


ALTERNATIVES = {
    (): (
        "version name work_dir source features batch shuffle lanes epochs cluster memory artifacts fit allow_code "
        "on_nonfinite on_expect"
    ),
    ("source",): (
        "table format version snapshot_id as_of snapshot partitions schema where sample row_key on_bad_file "
        "max_bad_files max_bad_rows split_rows"
    ),
    ("source", "sample"): "fraction where seed key",
    ("source", "schema"): "missing extra columns",
    ("features",): "dense categorical sparse label extra",
    ("batch",): "size tail",
    ("shuffle",): "seed window_rows rows by",
    ("cluster",): "threads workers scheduler tls insecure wait_s window cpu dashboard",
    ("cluster", "tls"): "ca cert key",
    ("artifacts",): "folder from",
    ("fit",): "where auto out_of_fold memory golden",
}

FEATURE = "column expr op inputs ops on_nonfinite expect"


@st.composite
def typos(draw):
    number, column, parent, key = draw(st.sampled_from(_keys()))
    position = draw(st.integers(0, len(key) - 1))
    letter = draw(st.sampled_from(string.ascii_lowercase))
    wrong = draw(
        st.sampled_from(
            [
                key[:position] + key[position + 1 :],
                key[:position] + letter + key[position:],
                key[:position] + letter + key[position + 1 :],
                key[:position] + key[position : position + 2][::-1] + key[position + 2 :],
                key[:position] + key[position].upper() + key[position + 1 :],
            ]
        )
    )
    known = ALTERNATIVES.get(parent, FEATURE).split()
    assume(wrong and wrong not in known)
    return number, column, parent, key, wrong


def _edits(left, right):
    """Levenshtein's distance, swaps of neighbours counted as one: the measure that difflib's is checked against."""
    table = {(i, 0): i for i in range(len(left) + 1)} | {(0, j): j for j in range(len(right) + 1)}
    for i in range(1, len(left) + 1):
        for j in range(1, len(right) + 1):
            costs = [table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (left[i - 1] != right[j - 1])]
            if i > 1 and j > 1 and left[i - 1] == right[j - 2] and left[i - 2] == right[j - 1]:
                costs.append(table[i - 2, j - 2] + 1)
            table[i, j] = min(costs)
    return table[len(left), len(right)]


@settings(max_examples=100, deadline=None)
@given(typos())
def test_a_typo_in_a_key_names_the_nearest_key_at_its_line(typo):
    number, column, parent, key, wrong = typo
    lines = COMPLETE.splitlines()
    lines[number - 1] = lines[number - 1].replace(key, wrong, 1)
    path = ".".join([*parent, wrong])
    mine = [
        line for line in refused("\n".join(lines)) if line.startswith(f"p.yaml:{number}:{column}: {path}: unknown ")
    ]
    assert len(mine) == 1
    assert f"got {wrong!r}, expected one of " in mine[0]
    assert repr(key) in mine[0].split("expected one of ")[1].split(".")[0]
    known = ALTERNATIVES.get(parent, FEATURE).split()
    nearest = min(_edits(wrong, name) for name in known)
    if len(key) > 3 and sum(_edits(wrong, name) <= nearest + 1 for name in known) == 1:
        assert f"Did you mean {key!r}?" in mine[0]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(REFERENCE) - 1), st.integers(0, 3), st.sampled_from(list("{}[]:,'\"#&*-!\n\t $0a")))
def test_a_mangled_text_is_read_or_refused_line_by_line(position, removed, inserted):
    try:
        spec = parse(REFERENCE[:position] + inserted + REFERENCE[position + removed :])
    except SpecError as error:
        assert all(line.startswith("p.yaml:") for line in str(error).splitlines())  # noqa: PT017
    else:
        assert PipelineSpec.from_canonical(spec.canonical()) == spec
