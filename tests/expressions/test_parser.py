"""Texts outside the language are refused quickly, with a reason and a position; no hostile text ever runs."""

from __future__ import annotations

import ast
import gc
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import ExpressionError
from feedline.expressions import bind_expression, parse
from feedline.expressions.parser import python_tree
from feedline.expressions.row_preservation import offending_node

SCHEMA = pa.schema([("x", pa.float32()), ("y", pa.float64()), ("n", pa.int64()), ("s", pa.struct([("s", pa.int8())]))])
FRAME = pl.DataFrame({"x": [1.0, None], "y": [2.0, 0.5], "n": [1, 2], "s": [{"s": 1}, None]}).cast({"x": pl.Float32})


def nested(outer: str, inner: str, times: int) -> str:
    text = inner
    for _ in range(times):
        text = outer.replace("@", text)
    return text


# The lines of each refusal, by the first characters of its text: message and place are the same on every Python.
# Hostile texts, those that leave the brackets around the text, Python and SQL that are not of the language, literals.
REFUSALS: dict[str, list[str]] = {
    ast.literal_eval(key): lines
    for key, lines in json.loads(Path(__file__).with_name("refusals.json").read_text(encoding="utf-8")).items()
}
SHOWN = 60  # characters
LONG = [
    "x < " + "9" * 60_000,
    "x < 0x" + "f" * 60_000,
    "x == '" + "a" * 2**20 + "'",
    "a" * 2**20,
    "(" * 5_000 + "x" + ")" * 5_000,
    "[" * 30_000,
    "x[" * 30_000,
    "not " * 15_000 + "x",
    "-" * 60_000 + "x",
    "-(" * 200 + "x" + ")" * 200,
    "x" + "**x" * 20_000,
    "x" + "+x" * 500,
    "x" + "+x" * 9_000,
    "x" + ".a" * 9_000,
    "x" + ".a" * 30_000,
    "x" + '["s"]' * 4_000,
    "x" + '["s"]' * 200,
    "x" + "<x" * 9_000,
    nested("when(@ > y, x, y)", "x", 30),
    "'" * 65_000,
    "\\" * 60_000,
    '"""' * 20_001,
]
REFUSED = [*(text for text in REFUSALS if len(text) < SHOWN), *LONG]


def test_refused_with_a_reason_and_in_bounded_time():
    """Without a warning, too, of which Python has some for literals: they would be errors of other words."""
    assert set(REFUSALS) == {text[:SHOWN] for text in REFUSED}
    wrong = []
    for text in REFUSED:
        start = time.process_time()
        try:
            bind_expression(parse(text), SCHEMA)
            message = "accepted"
        except ExpressionError as error:
            message = str(error)
        # The worst take 0.2 s; a parser that backtracks would take minutes.
        if message.splitlines() != REFUSALS[text[:SHOWN]] or time.process_time() - start > 10.0:
            wrong.append((text[:SHOWN], message[:1_000]))
    assert not wrong


ACCEPTED = {
    "deep brackets": "(" * 60 + "x > 1" + ")" * 60,
    "deep not": "not " * 90 + "x > 1",
    "deep sum": "x" + " + x" * 95,
    "deep methods": "x" + ".abs()" * 48,
    "deep choices": nested("when(@ > 1, x, y)", "x", 31),
    "many conditions": "x > 1" + " or x < 0.5" * 3_500,
    "many values": f"n in [{', '.join(str(i) for i in range(9_000))}]",
    "long chain": "x" + " < x" * 95,
    "long text": f'n > 1 and s["s"] == 1 # {"é" * 20_000}',
    "several lines": "x > 1  # first\n\tand\r\n y < 2\r and n == 1\n",
    "continued": "x \\\n > 1",
    "large integer": "n < " + "9" * 38,
    "powers": "n < 10**6 and x > 2**-3",
    "names of methods": 'col("x") > 1',
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_the_largest_allowed_expressions_run(text: str):
    failures: list[BaseException] = []

    def run() -> None:  # in a thread, whose stack is smaller and starts elsewhere
        try:
            bound = bind_expression(parse(text), SCHEMA)
            assert len(FRAME.lazy().select(bound.polars).collect(engine="in-memory")) == 2
            assert offending_node(bound.polars) is None
        except BaseException as error:
            failures.append(error)

    start = time.process_time()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failures
    assert time.process_time() - start < 5.0


PIECES = [
    *"()[]{},.:;=+-*/%<>!&|~^@#?$`\\'\"\n\r\t \x00é",
    *[
        "x",
        "y",
        "n",
        "s",
        "and ",
        " or ",
        "not ",
        " in ",
        " is ",
        "None",
        "True",
        "**",
        "//",
        "==",
        "!=",
        "1",
        "2.5",
        "0x",
    ],
    *["1e9", '"a"', "b'a'", "lambda ", "if ", " else ", ".dt", ".abs()", ".mean()", "when(", "col(", "__class__", "f'"],
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=40))
def test_any_text_binds_or_is_refused(text: str):
    try:
        bound = bind_expression(parse(text), SCHEMA)
    except ExpressionError:
        return
    assert bound.columns <= set(SCHEMA.names)
    assert offending_node(bound.polars) is None


AUDIT = """
import json, sys
import pyarrow as pa
from feedline.errors import ExpressionError
from feedline.expressions.bind import bind_expression, parse

texts, schema, events = json.load(sys.stdin), pa.schema([("x", pa.float32())]), []

def refuse(text):
    try:
        bind_expression(parse(text), schema)
    except ExpressionError:
        return
    raise SystemExit(f"accepted: {text[:100]!r}")

for text in texts:  # what is loaded or made on first use is so now
    refuse(text)
sys.addaudithook(lambda event, arguments: events.append(event))
for text in texts:
    refuse(text)
print(json.dumps(sorted(set(events))))
"""


def test_hostile_texts_run_open_and_import_nothing():
    texts = [text for text in REFUSED if text.isascii()]
    done = subprocess.run(
        [sys.executable, "-c", AUDIT], input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=120
    )
    seen = set(json.loads(done.stdout))
    assert "compile" in seen  # `ast.parse`, so the hook does listen
    assert not seen & {
        "exec",
        "import",
        "open",
        "os.system",
        "os.exec",
        "subprocess.Popen",
        "socket.connect",
        "ctypes.dlopen",
    }


def test_threads_parse_at_once_while_the_collector_runs_callbacks():
    """Dask adds such callbacks; CPython 3.11 then mixes up the depths of trees that threads parse at once."""
    text = "(" + " + ".join(f"f(a{n}, [b{n}, (c{n} and d{n})])" for n in range(60)) + ")"
    expected = ast.dump(ast.parse(text, mode="eval"))

    def callback(_phase: str, _info: object) -> None:
        sum(range(50))

    gc.callbacks.append(callback)
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            trees = list(pool.map(python_tree, [text] * 60))
    finally:
        gc.callbacks.remove(callback)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert {ast.dump(tree) for tree in trees} == {expected}
