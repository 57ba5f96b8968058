"""Count the passes that a source makes through its rows while epochs go by.

Pure. Every step holds the same number of rows of each source, so a source's position is arithmetic in the
step: which pass, and which step of that pass. With `stop: first` and `all` each epoch begins new passes; with
`stop: N` they go on through epochs of N steps. A pass has a number, which is the epoch of the source's own plan: `all`
has several passes q in one epoch e, of the numbers e + q * 2**32, whatever their lengths. An only source has one pass
per epoch, of the epoch's number.

A rebase shortens one pass. It keeps the step at which that pass began, from which all later ones follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Stop = Literal["first", "all"] | int

_REPEATS = 2**32  # numbers of the passes of an epoch are so far apart


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOfPass:
    """The pass that a rebase shortened. number: of the pass. began: the step at which it began, of its epoch, or, with
    `stop: N`, of all epochs. first_step: of the pass, from which on its rest is delivered. steps: of the pass, with
    those before."""

    number: int
    began: int
    first_step: int
    steps: int

    def position(self, stop: Stop) -> tuple[int, int]:
        """Epoch and step at which the rest begins."""
        step = self.began + self.first_step
        return (self.number % _REPEATS, step) if isinstance(stop, str) else divmod(step, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlace:
    """A position in a source: the number of the pass, a step of it, and as of `RestOfPass`, when the pass began."""

    number: int
    step: int
    began: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The passes of a source in an epoch, counted from 0.

    number: of the first one. apart: the difference between numbers. begins: the epoch's step at which the first pass
    begins; negative where it began in an earlier epoch. first_steps: of the first pass. steps: of all others.
    """

    number: int
    apart: int
    begins: int
    first_steps: int
    steps: int

    def at(self, step: int) -> tuple[int, int]:
        """The pass that a step of the epoch draws from, and its step there."""
        own = step - self.begins
        if own < self.first_steps:
            return 0, own
        later, own = divmod(own - self.first_steps, self.steps)
        return 1 + later, own

    def begin_of(self, index: int) -> int:
        """The epoch's step at which a pass begins."""
        return self.begins + (self.first_steps + (index - 1) * self.steps if index else 0)

    def number_of(self, index: int) -> int:
        """The number of a pass."""
        return self.number + index * self.apart

    @property
    def is_first(self) -> bool:
        """Whether the first pass is the first one of its epoch, too."""
        return self.number < _REPEATS


def passes_of(stop: Stop, epoch: int, steps: int, rest: RestOfPass | None = None) -> Passes:
    """The passes of a source in an epoch. steps: of a whole pass."""
    if isinstance(stop, str):
        if rest is not None and rest.number % _REPEATS == epoch:
            return Passes(number=rest.number, apart=_REPEATS, begins=rest.began, first_steps=rest.steps, steps=steps)
        return Passes(number=epoch, apart=_REPEATS, begins=0, first_steps=steps, steps=steps)
    start = epoch * stop
    if rest is not None and start < rest.began + rest.steps:
        return Passes(number=rest.number, apart=1, begins=rest.began - start, first_steps=rest.steps, steps=steps)
    first, begin = (0, 0) if rest is None else (rest.number + 1, rest.began + rest.steps)
    later, own = divmod(start - begin, steps)
    return Passes(number=first + later, apart=1, begins=-own, first_steps=steps, steps=steps)


def epoch_steps(stop: Stop, passes: Sequence[Passes]) -> int:
    """The steps of an epoch. passes: of each source in it."""
    if not isinstance(stop, str):
        return stop
    firsts = [each.begins + each.first_steps for each in passes if stop == "first" or each.is_first]
    return min(firsts) if stop == "first" else max(firsts)
