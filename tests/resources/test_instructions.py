"""numpy's instructions are distinguished where results differ."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from processes import finished

from feedline.blocks.environment import check_environment, environment_at
from feedline.config import PipelineSpec
from feedline.errors import ClusterError
from feedline.loader.ring.launch import feeder_environment
from feedline.resources import instructions
from feedline.resources.instructions import (
    DISABLE,
    ENABLE,
    active_instructions,
    choose_cpu,
    cpu_environment,
    disabling_line,
    instructions_remedy,
    level_instructions,
)

COMPUTE = """
import hashlib, json
import numpy as np
from feedline.blocks.environment import local_environment
values = np.random.Generator(np.random.Philox(1)).random(4096) * 100
digests = [hashlib.sha256(np.log1p(values.astype(kind)).tobytes()).hexdigest() for kind in ("f4", "f8")]
digests.append(hashlib.sha256(np.exp(values.astype("f4") / 10).tobytes()).hexdigest())
print(json.dumps([digests, local_environment()]))
"""
X86_NAMES = (("X86_V2",), ("X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR"))
OLDER_NAMES = (("SSE", "SSE2", "SSE3"), ("SSSE3", "SSE41", "POPCNT", "AVX", "F16C", "FMA3", "AVX2", "AVX512F", "XOP"))
ARM_NAMES = (("NEON", "ASIMD"), ("ASIMDHP", "SVE"))


def elsewhere(set_: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """What a process with these variables computes, and what it says its environment is."""
    kept = {name: value for name, value in os.environ.items() if name not in (DISABLE, ENABLE)}
    done = finished(sys.executable, "-c", COMPUTE, env={**kept, **set_})
    assert done.returncode == 0, done.stderr
    digests, found = json.loads(done.stdout)
    return digests, dict(found)


def machine(monkeypatch: pytest.MonkeyPatch, names: Any, *, has: Any, kind: str = "x86_64") -> None:
    """From now on this is a machine with these features, and a numpy with these names."""
    baseline, dispatch = names
    every = dict.fromkeys([*baseline, *dispatch, "AVX2", "FMA3"], False) | dict.fromkeys([*baseline, *has], True)
    monkeypatch.setattr(instructions, "__cpu_baseline__", list(baseline))
    monkeypatch.setattr(instructions, "__cpu_dispatch__", list(dispatch))
    monkeypatch.setattr(instructions, "__cpu_features__", every)
    monkeypatch.setattr(instructions.platform, "machine", lambda: kind)
    for name in (DISABLE, ENABLE):
        monkeypatch.delenv(name, raising=False)


def test_environments_differ_where_results_do():
    """By the variable itself: numpy's own names for what goes beyond a level, then for all that it dispatches."""
    digests, native = elsewhere({})
    if len(native["cpu"].split()) == len(instructions.__cpu_baseline__):
        pytest.skip("this processor has nothing that numpy dispatches to")
    seen = {native["cpu"]: digests}
    beyond = [name for name in instructions.__cpu_dispatch__ if name not in level_instructions("x86-64-v3")]
    for names in (beyond, list(instructions.__cpu_dispatch__)):
        digests, found = elsewhere({DISABLE: " ".join(names)})
        assert {name for name in found if found[name] != native[name]} <= {"cpu"}
        assert seen.setdefault(found["cpu"], digests) == digests, "one environment, two results"
    assert len({json.dumps(digests) for digests in seen.values()}) == len(seen) > 1


@pytest.mark.skipif(
    len(active_instructions()) <= len(level_instructions("x86-64-v3")), reason="this processor has nothing beyond v3"
)
def test_log1p_differs_beyond_x86_64_v3():
    level = elsewhere(cpu_environment("x86-64-v3"))
    assert level[1]["cpu"] == " ".join(level_instructions("x86-64-v3"))
    native = elsewhere({})
    assert all(one != other for one, other in zip(level[0][:2], native[0][:2], strict=True))


@pytest.mark.parametrize(
    ("names", "has", "disabled"),
    [
        (X86_NAMES, ("X86_V3", "X86_V4", "AVX512_ICL"), "X86_V4 AVX512_ICL"),  # what the machine lacks is not named
        (X86_NAMES, ("X86_V3",), ""),
        (OLDER_NAMES, ("SSSE3", "SSE41", "POPCNT", "AVX", "F16C", "AVX512F"), "AVX512F"),
    ],
)
def test_a_level_disables_other_instructions_by_numpys_names(
    monkeypatch: pytest.MonkeyPatch, names: Any, has: Any, disabled: str
):
    machine(monkeypatch, names, has=(*has, "AVX2", "FMA3"))
    assert choose_cpu(None, shared=True) == choose_cpu("x86-64-v3", shared=False) == "x86-64-v3"
    assert choose_cpu(None, shared=False) == choose_cpu("native", shared=True) == "native"
    assert cpu_environment("x86-64-v3") == {DISABLE: disabled}
    assert cpu_environment("native") == {}
    assert set(active_instructions()) - set(level_instructions("x86-64-v3")) == set(disabled.split())
    if disabled:
        assert f'{DISABLE}="{disabled}"' in instructions_remedy(" ".join(level_instructions("x86-64-v3")))


def test_variables_of_this_process_do_not_count(monkeypatch: pytest.MonkeyPatch):
    machine(monkeypatch, X86_NAMES, has=("X86_V3", "AVX2", "FMA3"))  # X86_V4 is off here by the variable
    monkeypatch.setenv(DISABLE, "X86_V4,AVX512_ICL")
    monkeypatch.setenv(ENABLE, "X86_V3")
    assert cpu_environment("x86-64-v3") == {DISABLE: "X86_V4 AVX512_ICL", ENABLE: ""}


@pytest.mark.parametrize(("names", "kind"), [(ARM_NAMES, "aarch64"), (X86_NAMES, "x86_64")])
def test_machines_below_the_level(monkeypatch: pytest.MonkeyPatch, names: Any, kind: str):
    machine(monkeypatch, names, has=names[1][:1] if kind == "aarch64" else (), kind=kind)
    assert choose_cpu(None, shared=True) == "native"
    with pytest.raises(ClusterError, match=f"cluster.cpu requests .*: got x86-64-v3 on {kind} .* `cpu: native`"):
        choose_cpu("x86-64-v3", shared=False)
    document = {"version": 1, "name": "n", "source": {"table": "t"}, "features": {}, "batch": {"size": 1}}
    spec = PipelineSpec.model_validate({**document, "cluster": {"cpu": "x86-64-v3"}}, strict=False)
    with pytest.raises(ClusterError, match="got x86-64-v3"):
        feeder_environment(spec, cores=1)


@pytest.mark.parametrize(
    ("cluster", "disabled"),
    [
        ({}, None),
        ({"workers": 2}, None),
        ({"scheduler": "tcp://127.0.0.1:8786"}, "X86_V4 AVX512_ICL"),
        ({"class": "a.B", "workers": 2}, "X86_V4 AVX512_ICL"),
    ],
)
def test_a_feeder_has_the_instructions_of_its_workers(
    monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], disabled: str | None
):
    machine(monkeypatch, X86_NAMES, has=("X86_V3", "X86_V4", "AVX512_ICL", "AVX2", "FMA3"))
    monkeypatch.delenv(DISABLE, raising=False)
    document = {"version": 1, "name": "n", "source": {"table": "t"}, "features": {}, "batch": {"size": 1}}
    spec = PipelineSpec.model_validate({**document, "allow_code": True, "cluster": cluster}, strict=False)
    assert feeder_environment(spec, cores=1).get(DISABLE) == disabled


def test_a_worker_is_refused_with_the_line_to_add(monkeypatch: pytest.MonkeyPatch):
    machine(monkeypatch, X86_NAMES, has=("X86_V3", "X86_V4", "AVX2", "FMA3"))
    expected = environment_at("x86-64-v3")
    line = "another cpu: got X86_V2 X86_V3 X86_V4, expected X86_V2 X86_V3 as in the feeder. Start it with NPY_DISABLE_"
    with pytest.raises(ClusterError, match=f'{line}CPU_FEATURES="X86_V4" in its environment'):
        check_environment(expected)
    machine(monkeypatch, X86_NAMES, has=("X86_V3", "AVX2", "FMA3"))
    check_environment(expected)
    machine(monkeypatch, X86_NAMES, has=())
    with pytest.raises(ClusterError, match=r"got X86_V2, expected X86_V2 X86_V3 .* This machine has no X86_V3, or"):
        check_environment(expected)


def test_the_line_to_add_keeps_the_order_of_numpy():
    names = list(instructions.__cpu_dispatch__)
    assert disabling_line(reversed(names)) == f'{DISABLE}="{" ".join(names)}"'
