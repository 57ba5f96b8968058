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


REFUSED = {
    # running code
    '__import__("os").system("id")': "the language has no method `system`",
    "().__class__.__bases__[0].__subclasses__()": "`__subclasses__` is refused",
    "x.__class__": "`__class__` is refused: no method starts with an underscore",
    "x.__reduce__()": "`__reduce__` is refused",
    "x._pyexpr": "`_pyexpr` is refused",
    'getattr(x, "abs")()': "only functions and methods of the language can be called",
    'eval("1")': "the language has no function `eval`",
    'open("/etc/passwd")': "the language has no function `open`",
    'read_csv("/etc/passwd")': "the language has no function `read_csv`",
    'pl.sql_expr("1")': "the language has no method `sql_expr`",
    "x.map_elements(print)": "Python functions are not run row by row",
    "x.map_batches(print)": "Python functions are not run inside an expression",
    "x.pipe(print)": "the language has no method `pipe`",
    'x.deserialize(b"")': "the language has no method `deserialize`",
    "x.meta.serialize()": "the language has no method `serialize`",
    "(lambda: x)()": "the word `lambda` is not allowed",
    "[y for y in x]": "`for` is refused",
    "(y for y in x)": "`for` is refused",
    "{y: y for y in x}": "sets and dictionaries are refused",
    "(y := x)": "`:=` assigns",
    'f"{x}"': "f-strings are refused",
    'rF"{x.__class__}"': "f-strings are refused",
    '"{0.__class__}".format(x)': "the language has no method `format`",
    '"%s" % x': "`%` needs numbers: got '%s'",
    "await x": "the word `await` is not allowed",
    "(yield x)": "the word `yield` is not allowed",
    "when(*x)": "`*` before a value is refused",
    "when(**x)": "`**` before an argument is refused",
    "x.clip(lower_bound=0, lower_bound=1)": "`lower_bound` is given twice: expected it once",
    "x()()": "only functions and methods of the language can be called",
    "x[0](1)": "only functions and methods of the language can be called",
    "x()": "the language has no function `x`",
    "(1).bit_length()": "the language has no method `bit_length`",
    "(1).abs() + x": "a literal has no methods",
    # getting out of the brackets around the text
    ") or (x": "`)` closes no bracket",
    "x > 1) or (x < 2": "`)` closes no bracket",
    "(x]": "`(` is closed by `]`",
    "x[(1])": "`(` is closed by `]`",
    "((x)": "`(` is not closed",
    "x 1": "unexpected `1`: expected an operator before it",
    "x 'a'": "unexpected `'a'`",
    "x and": "the expression is incomplete",
    "x < > 1": "unexpected `>`",
    "x; y": "one string is one expression",
    "x\ny": "unexpected `y`",
    # Python, but not of the language
    "x & y": "`&` is refused: it binds tighter than a comparison. Write `and`",
    "x | y": "Write `or`",
    "~x": "Write `not`",
    "x ^ 2": "For a power write `**`",
    "x << 2": "`<<` is not allowed",
    "x @ y": "rows are not matrices",
    "x = 1": "`=` assigns, and nothing can be assigned here. To compare write `==`",
    "x[n=1]": "`=` assigns",
    "x += 1": "`+=` is not allowed",
    "x == None": "a comparison with None is never true. Write `is None`",
    "None != x": "Write `is not None`",
    "x < None": "a comparison with None",
    "x is 1": "`is` tests only for None. To compare write `==`",
    "x is not n": "To compare write `!=`",
    "x is null": "write `is None`",
    "1 if x else 2": "Write `when(condition, value, otherwise)`",
    "x, y": "a comma makes several values here",
    "x[1:2]": "`:` is refused",
    "x[n]": "a key must be a constant string or integer",
    "x[True]": "a key must be a constant string or integer",
    "x[1.5]": "a key must be a constant string or integer",
    "x[1, 2]": "a key must be a constant string or integer",
    "[x, y]": "a list is allowed only right of `in`",
    "[1] == x": "a list cannot be compared",
    "x in y": "`in` expects a list of literals",
    'x in "abc"': "`in` expects a list of literals",
    "x in {1}": "sets and dictionaries are refused",
    "x in [1, None]": "a list may not contain None",
    "x in [y]": "a list may contain only literals",
    "x in [*y]": "`*` before a value is refused",
    "x in [[1]]": "a list is allowed only right of `in`",
    "x > 1j": "complex numbers are refused",
    "x > ...": "`...` is not allowed",
    "+x": "a `+` before a column has no effect",
    "-'a' < x": "arithmetic needs numbers",
    "x.dt": "`dt` is a namespace",
    "x.abs": "a method must be called: write `.abs()`",
    "x.dt.hour": "a method must be called: write `.dt.hour()`",
    "s.country": 'Write a struct\'s field as `column["country"]`',
    "x.hour()": "write `x.dt.hour(...)`",
    "x.dt.huor()": "the language has no method `dt.huor`. Did you mean `dt.hour`?",
    "lgo1p(x)": "the language has no function `lgo1p`. Did you mean `log1p`?",
    "col(x)": "`col` takes one constant string",
    'col("a", "b")': "`col` takes one constant string",
    'col("a" + "b")': "`col` takes one constant string",
    'col(name="x")': "`col` takes one constant string",
    "x == not y": "write `(not …)`",
    "x.clip(upper_bound=)": "unexpected `)`: expected a value before it",
    "type 1 y": "unexpected `1`: expected an operator before it",
    "x + (y 1)": "unexpected `1`: expected an operator before it",
    't"{x}"': "f-strings are refused",
    "f'": "f-strings are refused",
    "1. x": "unexpected `x`: expected an operator before it",
    "x'a'": "unexpected `'a'`",
    "x * / y": "unexpected `/`",
    "(x +)": "unexpected `)`",
    "x,, y": "unexpected `,`",
    # SQL
    "type IS NULL": "SQL's `IS NULL` is written `is None`",
    "x > 1 AND y > 1": "SQL's `AND` is written `and`",
    "x IS NULL": "SQL's `IS NULL` is written `is None`",
    "x is NULL": "write `is None`",
    'x LIKE "a%"': "`LIKE` is written `.str.starts_with",
    "x BETWEEN 1 AND 2": "`x BETWEEN 1 AND 2` is written `1 <= x <= 2`",
    "x <> 1": "Write `!=`",
    "!x": "Write `not`",
    "x > 1 && y > 1": "Write `and`",
    # texts and numbers
    "": "the expression is empty",
    "  \n\t ": "the expression is empty",
    "# only a comment": "the expression is empty",
    "1 < 2": "the expression names no column",
    "True": "the expression names no column",
    "x >": "the expression is incomplete",
    "'a' b'c'": "a string and bytes cannot be joined: expected an operator or a comma between them",
    "x == b'c''a'": "a string and bytes cannot be joined",
    "x in ['a' # one\n rb'c']": "a string and bytes cannot be joined",
    "x > 'a": "a string is not closed",
    'x > """a': 'a string is not closed: expected another """',
    "x > '\\d'": "the escape `\\d` is unknown",
    "x > b'\\u0041'": "the escape `\\u` is unknown",
    "x > '\\ud800'": "a lone surrogate is not a character",
    "x > '\ud800'": "a lone surrogate is not a character",
    "x > 1\x00": "the control character '\\x00' is refused",
    "x > '\x1b[31m'": "the control character '\\x1b' is refused",
    "\ufeffx > 1": "'\\ufeff' is not allowed",
    "x\xa0> 1": "'\\xa0' is not allowed",
    "x \u202e> 1": "'\\u202e' is not allowed",
    "1and x": "the number runs into `and`",
    "0x": "the number runs into `x`",
    "007 < x": "unexpected `007`",
    "x < 1e999": "the number is too large for a float64",
    "x < " + "9" * 39: "the number is too long: expected at most 38 digits",
    "x < " + "9" * 60_000: "the number is too long",
    "x < 0x" + "f" * 60_000: "the number is too long",
    "x < 10**38": "the number is too long",
    "x < 9**9**9**9": "`**` of these two literals is refused",
    "x < (-8)**0.5": "`**` of these two literals is refused",
    "x < 1/0": "the literal divides by zero",
    "x < 1e300 * 1e300": "the number is too large for a float64",
    "x ** 10000": "the exponent is too large",
    # size and depth
    "x == '" + "a" * 2**20 + "'": "the expression is too long: got 1,048,583 characters",
    "a" * 2**20: "the expression is too long",
    "(" * 5_000 + "x" + ")" * 5_000: "the expression is nested too deeply",
    "[" * 30_000: "the expression is nested too deeply",
    "x[" * 30_000: "the expression is nested too deeply",
    "not " * 15_000 + "x": "the expression is nested too deeply",
    "-" * 60_000 + "x": "the expression is nested too deeply",
    "-(" * 200 + "x" + ")" * 200: "the expression is nested too deeply",
    "x" + "**x" * 20_000: "the expression is nested too deeply",
    "x" + "+x" * 500: "the expression is nested too deeply",
    "x" + "+x" * 9_000: "the expression is nested too deeply",
    "x" + ".a" * 9_000: "the expression is nested too deeply",
    "x" + ".a" * 30_000: "the expression is nested too deeply",
    "x" + '["s"]' * 4_000: "the expression is nested too deeply",
    "x" + '["s"]' * 200: "the expression is nested too deeply",
    "x" + "<x" * 9_000: "the expression grows too large",
    nested("when(@ > y, x, y)", "x", 30): "the expression grows too large",
    "'" * 65_000: "the expression names no column",
    "\\" * 60_000: "`\\` is not allowed",
    '"""' * 20_001: 'a string is not closed: expected another """',
}
# The whole message and place of each, by the first characters of its text; two long texts that begin alike end alike.
REFUSALS = json.loads(Path(__file__).with_name("refusals.json").read_text(encoding="utf-8"))


def test_refused_with_a_reason_and_in_bounded_time():
    """Without a warning, too, of which Python has some for literals: they would be errors of other words."""
    wrong = []
    for text, reason in REFUSED.items():
        start = time.process_time()
        try:
            bind_expression(parse(text), SCHEMA)
            message = "accepted"
        except ExpressionError as error:
            message = str(error)
        # The worst take 0.2 s; a parser that backtracks would take minutes.
        is_right = reason in message and len(message) < 1_000 and time.process_time() - start < 10.0
        # The same words and place on every Python.
        if not is_right or message.splitlines() != REFUSALS[ascii(text[:60])]:
            wrong.append((text[:60], message[:1_000]))
    assert not wrong


def test_each_refusal_is_kept():
    assert set(REFUSALS) == {ascii(text[:60]) for text in REFUSED}


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

for text in texts:  # what is loaded on first use is loaded now
    if len(text) < 200:
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
            trees = list(pool.map(python_tree, [text] * 200))
    finally:
        gc.callbacks.remove(callback)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert {ast.dump(tree) for tree in trees} == {expected}
