"""A state that was edited in any way is refused with our errors, or continues the plan that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from ringless_trainers import write_pipeline

from feedline import Pipeline
from feedline.errors import FeedlineError, StateError
from feedline.loader.state import checked_state, read_state, refuse_step_beyond, state_of
from feedline.loader.wire.facts import Hello, PlanFacts

KEYS = ("snapshot", "lanes", "plan", "features", "seed", "batch_size", "window_rows", "window_blocks")
VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 9), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=6)),
    st.sampled_from(["../../etc/passwd", "/", "\x00", "a" * 64, "0" * 64, "1e3", "x,y", "", "🙂", "." * 300]),
    st.lists(st.integers(), max_size=2) | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


class Saved:
    """A pipeline, its facts, and a state of it."""

    def __init__(self, folder: Path) -> None:
        self.pipeline = Pipeline.from_yaml(write_pipeline(folder, steps=4))
        self.facts = self.pipeline.resolve(Hello(rank=0, world_size=1), job="j" * 64).facts()
        self.state = state_of(self.facts, 0, 2)
        self.file = folder / "state.json"

    def load(self, state: dict[str, Any]) -> tuple[PlanFacts, dict[str, Any]]:
        """As a dataset loads a state."""
        resume = checked_state(state)
        hello = Hello(rank=0, world_size=1, **{key: resume[key] for key in KEYS})
        facts = self.pipeline.resolve(hello, job="j" * 64).facts()
        refuse_step_beyond(resume, facts)
        return facts, resume


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("states"))


def check(saved: Saved, state: dict[str, Any]) -> None:
    try:
        facts, resume = saved.load(state)
    except FeedlineError:
        return
    assert (facts.plan, facts.snapshot, facts.steps) == (saved.facts.plan, saved.facts.snapshot, saved.facts.steps)
    assert 0 <= resume["step"] <= facts.steps


def test_the_state_itself_is_loaded(saved: Saved) -> None:
    facts, resume = saved.load(dict(saved.state))
    assert (facts, resume) == (saved.facts, saved.state)


@examples(200)
@given(st.data())
def test_any_values_are_refused_or_harmless(saved: Saved, data: Any) -> None:
    state = dict(saved.state)
    for key in data.draw(st.lists(st.sampled_from(sorted(state)), min_size=1, max_size=3)):
        if data.draw(st.integers(0, 5)):
            state[key] = data.draw(VALUES)
        else:
            state.pop(key, None)
    check(saved, state)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"", b"\xff", b"[]", b"{}"])
def test_a_file_without_a_state_is_refused_by_its_name(saved: Saved, content: bytes) -> None:
    saved.file.write_bytes(content)
    with pytest.raises(StateError, match=r"state\.json is not a state|the state lacks"):
        read_state(saved.file)


@examples(200)
@given(st.data())
def test_any_damage_to_a_file_is_refused_or_harmless(saved: Saved, data: Any) -> None:
    content = json.dumps(saved.state).encode()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content)))
        inserted = data.draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b"{", b"9" * 30, b"[" * 2000, b"1e9", b"-"])
        )
        content = content[:place] + inserted + content[place + data.draw(st.integers(0, 4)) :]
    saved.file.write_bytes(content)
    try:
        state = read_state(saved.file)
    except StateError:
        return
    check(saved, state)
