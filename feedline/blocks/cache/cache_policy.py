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

from collections.abc import Iterator, Mapping, Sequence
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
from feedline.dataclass import dataclass

CacheMode = Literal["off", "source", "features"]

TIE = 0.03  # of the least cost: a gain below it is not worth writing for


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePrediction:
    """What a way to run the epochs that are left takes. first_s, epoch_s: this epoch, and each later one. cost_s: of
    all that are left and the further readings of others. bytes_written: 0 where only what is there is read. kept: how
    many features of the ranking."""

    mode: CacheMode
    first_s: float
    epoch_s: float
    cost_s: float
    bytes_written: float = 0.0
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDecision:
    """The chosen mode with its reason. writes: whether missing entries are written; else those that are there are read.
    kept: of features that are kept, the share of their row groups. predictions: the best of each mode, `off` first."""

    mode: CacheMode
    writes: bool
    kept: Mapping[str, float]
    predictions: tuple[ModePrediction, ...]
    reason: str

    def cost_s(self, mode: CacheMode) -> float | None:
        """Predicted seconds; None: the mode is not to be had."""
        return next((each.cost_s for each in self.predictions if each.mode == mode), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A feature in the ranking: the share that fits, and of that what is there. bytes: of all its rows."""

    feature: FeatureCost
    share: float
    there: float
    bytes: float


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
    chosen = min(tied, key=lambda each: each.bytes_written)
    return CacheDecision(
        mode=chosen.mode,
        writes=chosen.bytes_written > 0,
        kept={each.feature.name: each.share for each in ranking[: chosen.kept]},
        predictions=predictions,
        reason=_reason(inputs, predictions, chosen),
    )


def _predictions(inputs: PolicyInputs, ranking: Sequence[_Ranked]) -> tuple[ModePrediction, ...]:
    """Predict the best candidate of each mode; a mode that can keep nothing is left out."""
    off_s = epoch_seconds(inputs, computing(inputs, (*inputs.features, inputs.shared)))
    best = {"off": _predict(inputs, "off", off_s, off_s)}
    if inputs.epochs_left:
        for prediction in (*_source_candidates(inputs, off_s), *_feature_candidates(inputs, ranking, off_s)):
            present = best.setdefault(prediction.mode, prediction)
            if (prediction.cost_s, prediction.bytes_written) < (present.cost_s, present.bytes_written):
                best[prediction.mode] = prediction
    return tuple(best.values())


def _predict(
    inputs: PolicyInputs, mode: CacheMode, first_s: float, epoch_s: float, bytes_written: float = 0.0, kept: int = 0
) -> ModePrediction:
    seconds = first_s + max(0, inputs.epochs_left - 1) * epoch_s if inputs.epochs_left else 0.0
    cost_s = seconds + inputs.further_readings * epoch_s
    return ModePrediction(
        mode=mode, first_s=first_s, epoch_s=epoch_s, cost_s=cost_s, bytes_written=bytes_written, kept=kept
    )


def _source_candidates(inputs: PolicyInputs, off_s: float) -> Iterator[ModePrediction]:
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

    written_bytes = (share - there) * needed_bytes
    loads = read(share), read(there).plus(writing(inputs, written_bytes)), read(there) if there else None
    yield from _filled_or_read(inputs, "source", off_s, loads, written_bytes)


def _feature_candidates(inputs: PolicyInputs, ranking: Sequence[_Ranked], off_s: float) -> Iterator[ModePrediction]:
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
        loads = later, read.plus(writing(inputs, written_bytes, laid_s)), read if hits_there.features else None
        yield from _filled_or_read(inputs, "features", off_s, loads, written_bytes, count)


def _filled_or_read(
    inputs: PolicyInputs,
    mode: CacheMode,
    off_s: float,
    loads: tuple[EpochLoad, EpochLoad, EpochLoad | None],
    written_bytes: float,
    kept: int = 0,
) -> Iterator[ModePrediction]:
    """Missing entries written in this epoch, or those that are there read. Neither counts on bottlenecks that overlap.
    loads: of an epoch from the cache, of one that fills it, and of one that reads what is there (None: nothing)."""
    later, filling, read = loads
    later_s = epoch_seconds(inputs, later)
    least_s = min(later_s, off_s)
    yield _predict(inputs, mode, max(epoch_seconds(inputs, filling), least_s), later_s, written_bytes, kept)
    if read is not None:
        read_s = max(epoch_seconds(inputs, read), least_s)
        yield _predict(inputs, mode, read_s, read_s, kept=kept)


def _ranking(inputs: PolicyInputs) -> list[_Ranked]:
    """As many features as fit: those that are worth reading, of these those that are there, then by seconds saved per
    byte. The last ones save something only in that nothing is left to be computed."""
    ranked = [(each, _saved_s(inputs, each)) for each in inputs.features]
    ranked.sort(key=lambda pair: (pair[1] <= 0, pair[0].warm < 0.5, -pair[1] / max(pair[0].bytes, 1e-3)))
    ranking, left_bytes = [], inputs.capacity_bytes
    for feature, _ in ranked:
        total = inputs.rows * feature.bytes
        share = min(1.0, left_bytes / total) if total else 1.0
        if not share or not inputs.capacity_bytes:
            break
        left_bytes = max(0.0, left_bytes - share * total)
        there = min(share, feature.warm)
        ranking.append(_Ranked(feature=feature, share=share, there=there, bytes=total))
    return ranking


def _saved_s(inputs: PolicyInputs, feature: FeatureCost) -> float:
    """Thread seconds that reading a feature saves in an epoch, where memory holds it: the same for every disk."""
    copied_s = inputs.rows * feature.bytes / inputs.cache.memory_bytes_per_s
    hit_s = copied_s + decoding_s(inputs, inputs.rows * feature.bytes, inputs.rows * feature.hit_cpu_s)
    return computing(inputs, (feature,)).thread_s - hit_s - inputs.row_groups * inputs.cache.feature_s


def _reason(inputs: PolicyInputs, predictions: Sequence[ModePrediction], chosen: ModePrediction) -> str:
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
