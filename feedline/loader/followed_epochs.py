"""The plans of the epochs of a followed table, as a dataset asks for them: one per epoch, at its border.

Runs in: the trainer. Of a table that is not followed, one plan is that of all epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from feedline.loader.ring.feeder_connection import Answer
from feedline.loader.state import state_of
from feedline.loader.wire.facts import Hello

_KEPT = 3  # epochs: that of the training step, that of the batches ahead of it, and the next one


class FollowedEpochs:
    """The answers for the last epochs. ask: sends a hello and returns the feeder's answer, which may take until files
    have landed."""

    def __init__(self, ask: Callable[[Hello], Answer]) -> None:
        self._ask = ask
        self._answers: dict[int, Answer] = {}
        self._end: int | None = None  # the epoch before which the run ended

    def begin(self, answer: Answer) -> None:
        """Forget other answers: the dataset starts, or continues, with this one."""
        epoch = answer.facts.epoch
        self._answers, self._end = {} if epoch is None else {epoch: answer}, None

    def opened(self, current: Answer, at: tuple[int, int]) -> tuple[Answer | None, int, int]:
        """The answer for the epoch that a position is in, or begins, and the position; see `answer_of`."""
        epoch, step = at
        if step >= current.facts.steps_of(epoch):
            epoch, step = epoch + 1, 0
        return self.answer_of(epoch, current), epoch, step

    def answer_of(self, epoch: int, current: Answer) -> Answer | None:
        """The answer for an epoch; None where the run has ended before it. current: of the dataset."""
        if current.facts.epoch in (None, epoch):
            return current
        if epoch in self._answers:
            return self._answers[epoch]
        if self._end is not None and epoch >= self._end:
            return None
        answer = self._ask(replace(current.hello, epoch=epoch))
        if answer.facts.epoch != epoch:
            self._end = epoch
            return None
        kept = sorted({*self._answers, epoch}, key=lambda each: abs(each - epoch))[:_KEPT]
        self._answers = {each: answer if each == epoch else self._answers[each] for each in kept}
        return answer

    def state(self, current: Answer, epoch: int, step: int) -> dict[str, Any]:
        """The state before a step. The border of an epoch that has not begun is not decided for a state: that is after
        the last step of the epoch before."""
        facts = current.facts
        if facts.epoch is None:
            return state_of(facts, epoch, step)
        if epoch not in self._answers and (epoch - 1) in {*self._answers, facts.epoch} and step == 0:
            last = self._answers.get(epoch - 1, current).facts
            return state_of(last, epoch - 1, last.steps_of(epoch - 1))
        answer = self.answer_of(epoch, current)
        return state_of((current if answer is None else answer).facts, epoch, step)
