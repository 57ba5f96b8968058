"""What there is of the compiled kernels, and what the program `python -m feedline.native.kernels` says of it."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from feedline.native import kernels, parquet, ring, rows
from feedline.native.kernels import (
    KERNELS,
    compiled_kernels,
    kernels_text,
    main,
    missing_kernels,
    missing_tools,
    warn_of_missing_kernels,
)


@pytest.fixture(params=[(), ("ring",), tuple(KERNELS)], ids=["none", "ring", "all"])
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    for name, module in KERNELS.items():
        monkeypatch.setattr(module, "COMPILED", name in request.param)
    return request.param


def test_kernels_are_named(there: tuple[str, ...]):
    assert compiled_kernels() == there
    assert kernels_text() == {0: "none", 1: "ring", 3: "parquet, ring, rows"}[len(there)]


def test_missing_kernels_are_said_with_a_remedy(there: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    complaint = missing_kernels()
    assert bool(complaint) is (there != tuple(KERNELS))
    assert main([]) == bool(complaint)
    printed = capsys.readouterr().err
    if complaint:
        assert printed.startswith(f"warning: Feedline's compiled kernels are missing: got {kernels_text()}, expected")
        assert "apt install gcc python3-dev" in printed
    else:
        assert printed == ""


def test_a_process_is_warned_once(there: tuple[str, ...]):
    warn_of_missing_kernels.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            warn_of_missing_kernels()
    assert [str(each.message) for each in caught] == ([missing_kernels()] if missing_kernels() else [])


@pytest.mark.parametrize("compiler", ["cc-1", "no-such-compiler"])
@pytest.mark.parametrize("has_headers", [True, False])
def test_kernels_are_built_only_where_compiler_and_headers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, has_headers: bool, there: tuple[str, ...]
):
    monkeypatch.setenv("CC", f"{compiler} -pipe")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "cc-1" else None)
    monkeypatch.setattr(kernels.sysconfig, "get_path", lambda name: str(tmp_path / name))
    if has_headers:
        (tmp_path / "include").mkdir()
        (tmp_path / "include" / "Python.h").touch()
    header = str(tmp_path / "include" / "Python.h")
    lacking = [f"a C compiler ({compiler})"] * (compiler != "cc-1") + [header] * (not has_headers)
    assert missing_tools() == lacking
    assert (main(["--buildable"]) == 0) is (len(there) < 3 and not lacking)


def test_an_older_build_is_none():
    """Compiled functions of another release, left in a checkout, are not called."""
    for module in (parquet, ring, rows):
        compiled = module._compiled
        assert module.COMPILED is (compiled is not None and compiled.VERSION == module.VERSION)
