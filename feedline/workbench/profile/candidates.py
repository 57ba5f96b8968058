"""Find the columns of a table that may be the label, or the time of a row, with reasons.

Runs in: the process that profiles. Pure. Scores order candidates; they are no probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

from feedline.expressions.moments import moment_text
from feedline.workbench.profile.roles import EPOCH_UNITS, epoch_unit, name_words
from feedline.workbench.profile.table_facts import ColumnProfile, LabelCandidate, TimeCandidate

_LABEL_WORDS = {"label", "labels", "target", "targets", "y", "outcome", "truth"}
_EVENT_WORDS = {"click", "clicks", "clicked", "clk", "convert", "converted", "conversion", "purchase", "purchased"}
_EVENT_WORDS |= {"bought", "buy", "order", "ordered", "like", "liked", "churn", "churned", "fraud", "default"}
_EVENT_WORDS |= {"survived", "cancelled", "canceled", "late", "delayed", "won", "attributed", "installed"}
_EVENT_WORDS |= {"subscribed", "response"}
_RATING_WORDS = {"rating", "ratings", "stars", "score", "relevance", "grade"}
_TIME_WORDS = {"time", "timestamp", "ts", "date", "datetime", "day", "ds", "dt", "hour", "at", "when"}
_BIRTH_WORDS = {"birth", "born", "birthday", "birthdate", "dob"}  # times of persons, not of rows
_LEAST_LABEL, _LEAST_TIME = 0.25, 0.3  # scores of the weakest candidates that are listed


def find_labels(columns: Sequence[ColumnProfile]) -> tuple[LabelCandidate, ...]:
    """Columns that may be the label, the best first; equal ones in the table's order."""
    found = []
    for index, column in enumerate(columns):
        score, reasons = _label_score(column, last=index == len(columns) - 1)
        if score >= _LEAST_LABEL:
            balance = column.numbers.mean if column.numbers is not None and _is_binary(column) else None
            reason = "; ".join(reasons)
            found.append(LabelCandidate(column=column.name, score=round(score, 3), reason=reason, balance=balance))
    return tuple(sorted(found, key=lambda candidate: -candidate.score))


def _is_binary(column: ColumnProfile) -> bool:
    numbers, vocabulary = column.numbers, column.vocabulary
    if numbers is None or vocabulary is None or numbers.nan_rate or numbers.inf_rate:
        return False
    return vocabulary.sample == 2 and (numbers.min, numbers.max) == (0, 1)


def _label_score(column: ColumnProfile, *, last: bool) -> tuple[float, list[str]]:
    """How much a column looks like a label (0 if it cannot be one), and the reasons that add up to it."""
    if column.role not in ("numeric", "category") or column.partition or column.constant or column.id_like:
        return 0.0, []
    if column.is_index:
        return 0.0, []
    if column.numbers is None or column.null_rate is None:
        return 0.0, []
    words, reasons, score = name_words(column.name), [], 0.0
    for vocabulary, weight in ((_LABEL_WORDS, 0.6), (_EVENT_WORDS, 0.45), (_RATING_WORDS, 0.35)):
        named = [word for word in words if word in vocabulary]
        if named:
            reasons.append(f"named {named[0]}")
            score += weight
            break
    if _is_binary(column):
        reasons.append(f"0 and 1, {column.numbers.mean:.2%} ones")
        score += 0.3 + 0.05 * (words[:1] in (["is"], ["has"], ["did"], ["was"]))
    if not score:
        return 0.0, []
    if column.null_rate:
        reasons.append(f"{column.null_rate:.2%} nulls, which no label may be")
    return (score + 0.03 * last) * (1 - column.null_rate), reasons


def find_times(columns: Sequence[ColumnProfile]) -> tuple[TimeCandidate, ...]:
    """Columns that may be the time of a row, the best first; equal ones in the table's order."""
    found = [candidate for column in columns if (candidate := _time(column)) is not None]
    return tuple(sorted(found, key=lambda candidate: -candidate.score))


def _time(column: ColumnProfile) -> TimeCandidate | None:
    named = [word for word in name_words(column.name) if word in _TIME_WORDS]
    bonus, reasons = (0.15, [f"named {named[0]}"]) if named else (0.0, [])
    if _BIRTH_WORDS.intersection(name_words(column.name)):
        return None
    first, last, unit = column.first, column.last, None
    if column.role == "time":
        is_date = column.type.startswith("date")
        score, reasons = (0.6 if is_date else 0.8), [column.type, *reasons]
    elif column.time_like is not None:
        score, reasons = 0.5, [column.time_like, *reasons]
    elif column.numbers is not None and column.role in ("numeric", "category") and column.type.startswith(("int", "u")):
        low, high = column.numbers.min, column.numbers.max
        unit = None if low is None or high is None else epoch_unit(low, high)
        if unit is None:
            return None
        first, last = (_moment(number, unit) for number in (low, high))
        score, bonus, reasons = 0.3, 2 * bonus, [f"{column.type} in the range of {unit} since 1970", *reasons]
    else:
        return None
    if column.null_rate:
        reasons.append(f"{column.null_rate:.2%} nulls")
    if column.constant:
        reasons.append("one value")
    score = (score + bonus) * (1 - (column.null_rate or 0.0)) * (0.5 if column.constant else 1.0)
    if score < _LEAST_TIME or column.all_null:
        return None
    return TimeCandidate(
        column=column.name, score=round(score, 3), reason="; ".join(reasons), first=first, last=last, unit=unit
    )


def _moment(number: float | None, unit: str) -> str | None:
    if number is None:
        return None
    return moment_text(int(number) // EPOCH_UNITS[unit], "s")
