"""What is told of fits: of one that was just made, and of those that count?

Runs in: the process that fits, and `feedline fit --show`. Values for people, and for JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feedline.artifacts.store import Fit, StoredArtifactSet
from feedline.planning.binding import artifact_set_ref, set_refusal
from feedline.spec import PipelineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFacts:
    """One fit for people: by which op, for which features, `shown` what was learnt, from what, and when (ISO time).

    types: the columns that it was learnt from. rows: how many rows were; of which table, where, in which sample.
    pipeline: the name of the one that fitted. fit_where: `fit.where` as that declared it.
    """

    op: str
    parameters: Mapping[str, Any]
    features: tuple[str, ...]
    chain: str
    types: Mapping[str, str]
    shown: Mapping[str, Any]
    rows: int
    table: str
    snapshot: str
    where: str | None
    pipeline: str | None
    fit_where: str | None
    sample: Mapping[str, Any] | None
    when: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """What fitting did. `fits`: those that count now, old ones too; `made` of them were made by it.

    rows: those learnt from. nbytes_read: compressed column chunks, over all passes. folder, manifest: where the
    artifacts are, and which set of them counts; None where there was nothing to fit. vectors: rows of the golden
    vectors.
    """

    fits: tuple[FitFacts, ...] = ()
    made: int = 0
    passes: int = 0
    rows: int = 0
    nbytes_read: int = 0
    seconds: float = 0.0
    table: str = ""
    snapshot: str = ""
    folder: str = ""
    manifest: str | None = None
    vectors: int = 0


def fitted_facts(spec: PipelineSpec) -> tuple[FitFacts, ...]:
    """What was fitted for a pipeline and counts.

    Raises SpecError, with both values, where there are fits of something else only; else as `artifacts.load_manifest`.
    """
    stored = StoredArtifactSet(artifact_set_ref(spec), newest=True)
    manifest, one = stored.manifest, stored.chosen
    if manifest is None or one is None:
        refusal = set_refusal(stored)
        if refusal is not None:
            raise spec.error(("artifacts",), f"nothing is fitted: {refusal.text}. {refusal.remedy}")
        return ()
    fits = sorted(manifest.fits.values(), key=lambda fit: (fit.features, fit.chain))
    return tuple(facts_of(fit, one.fitted[fit.key]) for fit in fits)


def facts_of(fit: Fit, when: str) -> FitFacts:
    """A fit as people are told of it; `when` it was made."""
    origin = fit.fitted_on
    return FitFacts(
        op=fit.op,
        parameters=json.loads(fit.parameters),
        features=fit.features,
        chain=fit.chain,
        types=fit.types,
        shown=fit.shown,
        rows=origin.rows,
        table=origin.table,
        snapshot=origin.snapshot,
        where=origin.where,
        pipeline=origin.pipeline,
        fit_where=origin.fit_where,
        sample=origin.sample,
        when=when,
        digest=fit.digest,
    )
