"""Summaries of fits, for `feedline fit` and `feedline fit --show`.

Runs in: the process that fits, and that of `feedline fit --show`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from feedline.artifacts.fit_origin import FitOrigin
from feedline.artifacts.store import Fit, StoredArtifactSet
from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.planning.table_features import artifact_set_ref, set_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFacts:
    """Summary of one fit. when: ISO time.

    types: the columns it was learnt from. shown: a readable summary of the artifact. rows: how many rows, of all
    sources; table, snapshot, where, sample: which ones, of the first source. pipeline: the one that fitted. fit_where:
    its `fit.where`. further: the same of further sources.
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
    pipeline: str
    fit_where: str | None
    sample: Mapping[str, Any] | None
    when: str
    digest: str
    further: tuple[FitOrigin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """Summary of fitting. fits: those of the current artifact set; made: how many of them are new.

    rows: rows learnt from. nbytes_read: bytes of compressed column chunks, over all passes. folder, manifest: of the
    current artifact set; manifest: None if there was nothing to fit. vectors: rows of the golden vectors.
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


def load_fit_facts(spec: PipelineSpec) -> tuple[FitFacts, ...]:
    """Summarize the fits in a pipeline's current artifact set.

    Raises SpecError, with both values, if the only sets belong to other rows or pipelines; else as `load_manifest`
    does.
    """
    stored = StoredArtifactSet(artifact_set_ref(spec), newest=True)
    manifest, record = stored.manifest, stored.record
    if manifest is None or record is None:
        refusal = set_refusal(stored)
        if refusal is not None:
            remedy = refusal.remedy_for(spec.command("fit"))
            raise spec.error(("artifacts",), f"nothing is fitted: {refusal.mismatch}. {remedy}")
        return ()
    fits = sorted(manifest.fits.values(), key=lambda fit: (fit.features, fit.chain))
    return tuple(fit_facts(fit, record.fit_times[fit.key]) for fit in fits)


def fit_facts(fit: Fit, when: str) -> FitFacts:
    """Summarize a fit made at `when`."""
    origin = fit.fitted_on
    return FitFacts(
        op=fit.op,
        parameters=json.loads(fit.parameters),
        features=fit.features,
        chain=fit.chain,
        types=fit.types,
        shown=fit.shown,
        rows=sum(each.rows for each in (origin, *fit.also_on)),
        table=origin.table,
        snapshot=origin.snapshot,
        where=origin.where,
        pipeline=origin.pipeline,
        fit_where=origin.fit_where,
        sample=origin.sample,
        when=when,
        digest=fit.digest,
        further=fit.also_on,
    )
