"""Decide what a pipeline keeps between epochs: nothing, what the store delivered, or finished features, and which.

Runs in: every process that computes blocks, after the first ones (`auto_choice`). Pure: measurements come in; a mode,
its features, predictions and a reason go out. Formulas of an epoch: `cache_costs`; why these:
docs/decisions/0060-what-the-cache-keeps.md.

    off        each epoch reads the store and computes everything
    source     the column chunks of a remote store are kept on local disk; features are computed each epoch
    features   finished features are kept; those that are not are computed each epoch

    cost       = first epoch + (epochs left - 1 + further readings) * epoch from the cache

In the first epoch what is there is read, the rest is computed and written; it is not predicted to be faster than both
an epoch from the cache and one without. So each candidate's cost is a line over the epochs left, and more epochs never
speak against a cache.

Candidates of `features` are the beginnings of one ranking: what is there already first, then thread seconds saved by a
hit, less those of a copy from memory, per byte. It ends at the capacity, where a feature is kept for some row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from feedline.blocks.cache.cache_costs import (
    EpochLoad,
    FeatureCost,
    PolicyInputs,
    computing,
    decoding_s,
    epoch_seconds,
    fetching,
    hitting,
    writing,
)

CacheMode = Literal["off", "source", "features"]

TIE = 0.03  # of the least cost: a gain below it is not worth writing for


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureChoice:
    """Whether a feature is kept, and for which share of its row groups. bytes: of all its rows.

    benefit_per_byte: thread seconds that a kept byte saves until the last expected reading.
    """

    name: str
    keep: bool
    share: float
    bytes: float
    benefit_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePrediction:
    """What a mode takes. seconds: until the last epoch that is left ends. cost_s: with the further readings of others.

    first_s, epoch_s: this epoch, and each later one. bytes_written: 0 where only what is there is read. kept: how many
    features of the ranking.
    """

    mode: CacheMode
    seconds: float
    cost_s: float
    first_s: float
    epoch_s: float
    bytes_written: float
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDecision:
    """The chosen mode with its reason; features in the order of the pipeline.

    writes: whether missing entries are written; else those that are there are read. predictions: the best of each mode,
    `off` first.
    """

    mode: CacheMode
    writes: bool
    features: tuple[FeatureChoice, ...]
    predictions: tuple[ModePrediction, ...]
    reason: str

    def seconds(self, mode: CacheMode) -> float | None:
        """Predicted seconds until the last epoch ends; None: the mode is not to be had."""
        return next((each.seconds for each in self.predictions if each.mode == mode), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A feature in the ranking: the share that fits, and of that what is there; thread seconds that a reading saves."""

    feature: FeatureCost
    share: float
    there: float
    bytes: float
    saved_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A way to run the epochs that are left: times of this epoch and of later ones, bytes that are written."""

    mode: CacheMode
    first_s: float
    epoch_s: float
    written_bytes: float = 0.0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class _Hits:
    """What hits of some features read in an epoch. most: the largest share of row groups of which one is there."""

    bytes: float = 0.0
    features: float = 0.0
    cpu_s: float = 0.0
    most: float = 0.0

    def plus(self, share: float, nbytes: float, hit_s: float) -> _Hits:
        """With a feature, of a share of its row groups. nbytes, hit_s: of all of them."""
        return _Hits(
            self.bytes + share * nbytes, self.features + share, self.cpu_s + share * hit_s, max(self.most, share)
        )

    def load(self, inputs: PolicyInputs, rest_hit_s: float) -> EpochLoad:
        """Their load; other features are laid out beside them, which takes as long as if they were read."""
        beside = EpochLoad(thread_s=max(0.0, rest_hit_s) * self.most)
        return hitting(inputs, self.bytes, self.features, self.cpu_s).plus(beside)


def choose_mode(inputs: PolicyInputs) -> CacheDecision:
    """Choose the mode of the least cost; of those within `TIE` of it the one that writes least."""
    ranking = _ranking(inputs)
    predictions = _predictions(inputs, ranking)
    least = min(each.cost_s for each in predictions)
    tied = [each for each in predictions if each.cost_s <= (1 + TIE) * least]
    return _decision(inputs, ranking, predictions, min(tied, key=lambda each: each.bytes_written))


def _predictions(inputs: PolicyInputs, ranking: Sequence[_Ranked]) -> tuple[ModePrediction, ...]:
    """Predict the best candidate of each mode; a mode that can keep nothing is left out."""
    off_s = epoch_seconds(inputs, computing(inputs, (*inputs.features, inputs.shared)))
    candidates = [_Candidate(mode="off", first_s=off_s, epoch_s=off_s)]
    if inputs.epochs_left:
        candidates += [*_source_candidates(inputs, off_s), *_feature_candidates(inputs, ranking, off_s)]
    best: dict[CacheMode, ModePrediction] = {}
    for prediction in (_prediction(inputs, each) for each in candidates):
        present = best.setdefault(prediction.mode, prediction)
        if (prediction.cost_s, prediction.bytes_written) < (present.cost_s, present.bytes_written):
            best[prediction.mode] = prediction
    return tuple(best.values())


def _prediction(inputs: PolicyInputs, candidate: _Candidate) -> ModePrediction:
    later = max(0, inputs.epochs_left - 1)
    seconds = candidate.first_s + later * candidate.epoch_s if inputs.epochs_left else 0.0
    return ModePrediction(
        mode=candidate.mode,
        seconds=seconds,
        cost_s=seconds + inputs.further_readings * candidate.epoch_s,
        first_s=candidate.first_s,
        epoch_s=candidate.epoch_s,
        bytes_written=candidate.written_bytes,
        kept=candidate.kept,
    )


def _source_candidates(inputs: PolicyInputs, off_s: float) -> Iterator[_Candidate]:
    """Column chunks on local disk, missing ones written or not."""
    costs = (*inputs.features, inputs.shared)
    needed_bytes = inputs.rows * sum(each.store_bytes for each in costs)
    if not inputs.store.remote or not needed_bytes or not inputs.capacity_bytes:
        return
    share = min(1.0, inputs.capacity_bytes / needed_bytes)
    there = min(share, inputs.source_warm)
    everything, fetched = computing(inputs, costs), fetching(inputs, costs)

    def read(hit: float) -> EpochLoad:
        return everything.plus(fetched, -hit).plus(hitting(inputs, hit * needed_bytes, 0.0))

    kept_s = epoch_seconds(inputs, read(share))
    written_bytes = (share - there) * needed_bytes
    filling_s = epoch_seconds(inputs, read(there).plus(writing(inputs, written_bytes)))
    read_s = epoch_seconds(inputs, read(there)) if there else None
    yield from _filled_or_read("source", off_s, kept_s, filling_s, read_s, written_bytes, 0)


def _feature_candidates(inputs: PolicyInputs, ranking: Sequence[_Ranked], off_s: float) -> Iterator[_Candidate]:
    """The first features of the ranking, one more in each, missing entries written or not."""
    shared = computing(inputs, (inputs.shared,))
    kept = there = computing(inputs, inputs.features)  # what is computed, of the entries kept and of those there
    hits, hits_there = _Hits(), _Hits()
    all_hit_s = rest_hit_s = inputs.rows * sum(each.hit_cpu_s for each in inputs.features)
    for count, each in enumerate(ranking, 1):
        load, hit_s = computing(inputs, (each.feature,)), inputs.rows * each.feature.hit_cpu_s
        kept, there, rest_hit_s = kept.plus(load, -each.share), there.plus(load, -each.there), rest_hit_s - hit_s
        hits, hits_there = hits.plus(each.share, each.bytes, hit_s), hits_there.plus(each.there, each.bytes, hit_s)
        whole = ranking if count == len(inputs.features) else ()  # a row group without missing features skips the rest
        later = kept.plus(shared, 1 - min((other.share for other in whole), default=0.0))
        read = there.plus(shared, 1 - min((other.there for other in whole), default=0.0))
        later, read = later.plus(hits.load(inputs, rest_hit_s)), read.plus(hits_there.load(inputs, rest_hit_s))
        written_bytes, laid_s = hits.bytes - hits_there.bytes, all_hit_s * (1 - hits_there.most)
        filling = read.plus(writing(inputs, written_bytes, laid_s))
        read_s = epoch_seconds(inputs, read) if hits_there.features else None
        times = epoch_seconds(inputs, later), epoch_seconds(inputs, filling)
        yield from _filled_or_read("features", off_s, *times, read_s, written_bytes, count)


def _filled_or_read(
    mode: CacheMode,
    off_s: float,
    kept_s: float,
    filling_s: float,
    read_s: float | None,
    written_bytes: float,
    count: int,
) -> Iterator[_Candidate]:
    """Missing entries written in this epoch, or those that are there read (None: none are). Neither counts on
    bottlenecks that overlap."""
    least_s = min(kept_s, off_s)
    first_s = max(filling_s, least_s)
    yield _Candidate(mode=mode, first_s=first_s, epoch_s=kept_s, written_bytes=written_bytes, kept=count)
    if read_s is not None:
        read_s = max(read_s, least_s)
        yield _Candidate(mode=mode, first_s=read_s, epoch_s=read_s, kept=count)


def _ranking(inputs: PolicyInputs) -> list[_Ranked]:
    """As many features as fit: those that are worth reading, of these those that are there, then by seconds saved per
    byte. The last ones save something only in that nothing is left to be computed."""
    ranked = [(each, _saved_s(inputs, each)) for each in inputs.features]
    ranked.sort(key=lambda pair: (pair[1] <= 0, pair[0].warm < 0.5, -pair[1] / max(pair[0].bytes, 1e-3)))
    ranking, left_bytes = [], inputs.capacity_bytes
    for feature, saved_s in ranked:
        total = inputs.rows * feature.bytes
        share = min(1.0, left_bytes / total) if total else 1.0
        if not share or not inputs.capacity_bytes:
            break
        left_bytes = max(0.0, left_bytes - share * total)
        there = min(share, feature.warm)
        ranking.append(_Ranked(feature=feature, share=share, there=there, bytes=total, saved_s=saved_s))
    return ranking


def _saved_s(inputs: PolicyInputs, feature: FeatureCost) -> float:
    """Thread seconds that reading a feature saves in an epoch, where memory holds it: the same for every disk."""
    copied_s = inputs.rows * feature.bytes / inputs.cache.memory_bytes_per_s
    hit_s = copied_s + decoding_s(inputs, inputs.rows * feature.bytes, inputs.rows * feature.hit_cpu_s)
    return computing(inputs, (feature,)).thread_s - hit_s - inputs.row_groups * inputs.cache.feature_s


def _decision(
    inputs: PolicyInputs, ranking: Sequence[_Ranked], predictions: tuple[ModePrediction, ...], chosen: ModePrediction
) -> CacheDecision:
    shares = {each.feature.name: each.share for each in ranking[: chosen.kept]}
    return CacheDecision(
        mode=chosen.mode,
        writes=chosen.bytes_written > 0,
        features=tuple(_feature_choice(inputs, each, shares.get(each.name, 0.0)) for each in inputs.features),
        predictions=predictions,
        reason=_reason(inputs, predictions, chosen),
    )


def _feature_choice(inputs: PolicyInputs, feature: FeatureCost, share: float) -> FeatureChoice:
    readings = max(0, inputs.epochs_left - 1) + inputs.further_readings
    total = inputs.rows * feature.bytes
    written_s, _ = inputs.cache.write_s((1 - feature.warm) * total)
    benefit_s = readings * _saved_s(inputs, feature) - written_s
    return FeatureChoice(
        name=feature.name,
        keep=share > 0,
        share=share,
        bytes=total,
        benefit_per_byte=benefit_s / total if total >= 1 else benefit_s,
    )


def _reason(inputs: PolicyInputs, predictions: Sequence[ModePrediction], chosen: ModePrediction) -> str:
    """Say in one line why a mode was chosen."""
    off = predictions[0]
    others = [each for each in predictions if each.mode != "off"]
    if chosen.mode == "off":
        return f"off: {_off_reason(inputs, off, others)}"
    some = chosen.mode == "features" and chosen.kept < len(inputs.features)
    name = f"features ({chosen.kept} of {len(inputs.features)})" if some else chosen.mode
    return f"{name}: {_comparison(chosen, off)}; {_remaining(inputs)}"


def _off_reason(inputs: PolicyInputs, off: ModePrediction, others: Sequence[ModePrediction]) -> str:
    if not inputs.epochs_left:
        return "no epoch is left"
    taken = f"{_seconds(off.epoch_s)} per epoch"
    if not others:
        return f"{taken}, and nothing that fits is faster to read; {_remaining(inputs)}"
    if inputs.trainer_rows_per_s and off.epoch_s <= inputs.rows / inputs.trainer_rows_per_s:
        return f"{taken}, the trainer's pace; {_remaining(inputs)}"
    best = min(others, key=lambda each: each.cost_s)
    return f"{taken}; {best.mode} would take {_comparison(best, off)}; {_remaining(inputs)}"


def _comparison(kept: ModePrediction, off: ModePrediction) -> str:
    compared = f"{_seconds(kept.epoch_s)} per epoch instead of {_seconds(off.epoch_s)}"
    if not kept.bytes_written:
        return f"{compared}, from what is there"
    return f"{compared}, written once for {_seconds(max(0.0, kept.first_s - off.epoch_s))}"


def _remaining(inputs: PolicyInputs) -> str:
    left = "1 epoch is left" if inputs.epochs_left == 1 else f"{inputs.epochs_left} epochs are left"
    return f"{left}, {inputs.further_readings:.3g} further readings" if inputs.further_readings else left


def _seconds(seconds: float) -> str:
    if 1 <= seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds:,.0f} s" if 100 <= seconds < 1e9 else f"{seconds:.2g} s"
