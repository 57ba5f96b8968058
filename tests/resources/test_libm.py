"""Another C library, or another choice of its code, is another environment."""

from __future__ import annotations

import json
import os
import sys

import pytest
from processes import finished

from feedline.blocks import environment
from feedline.blocks.environment import check_environment, environment_differences, local_environment
from feedline.errors import ClusterError
from feedline.resources.libm import libc, libm

ENVIRONMENT = (
    "import json; from feedline.blocks.environment import local_environment; print(json.dumps(local_environment()))"
)


@pytest.mark.skipif("glibc" not in libc(), reason="GLIBC_TUNABLES is glibc's")
def test_another_choice_by_glibc_is_another_environment():
    variables = {**os.environ, "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-AVX2"}
    done = finished(sys.executable, "-c", ENVIRONMENT, env=variables)
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(done.stdout))
    if found["libm"] == libm():
        pytest.skip("glibc computes the same without FMA here")
    assert environment_differences(dict(local_environment()), found) == [("libm", libm(), found["libm"])]


def test_another_c_library_is_refused(monkeypatch: pytest.MonkeyPatch):
    expected = local_environment()
    monkeypatch.setattr(environment, "libc", lambda: "musl 1.2")
    with pytest.raises(ClusterError, match=r"another libc: got musl 1\.2, expected .* from the same image"):
        check_environment(expected)
