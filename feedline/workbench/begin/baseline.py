"""Compare the model of train.py with a logistic regression on the same rows and features, for `feedline init --check`.

Runs in: the process of the command, with torch and scikit-learn; train.py runs in a process of its own, as it will. The
regression (linear, of numbers) has ids one by one, as 0 and 1, and the mean of those of a list.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from feedline.errors import FeedlineError
from feedline.loader.batch import Batch
from feedline.pipeline import Pipeline

_MOST_ROWS = 200_000  # learnt from, and predicted: the first of a shuffled epoch
_ROUNDS = 1_000  # of the solver


def train_and_compare(folder: Path, pipeline: str, script: str) -> str:
    """Fit, run train.py, and return the figure of the regression. Raises FeedlineError where train.py fails."""
    spec = folder / pipeline
    Pipeline.from_yaml(spec).fit()
    done = subprocess.run([sys.executable, str(folder / script), "--restart"], check=False)
    if done.returncode:
        raise FeedlineError(f"{folder / script} failed: got exit status {done.returncode}, expected 0")
    return _regression_figure(spec, _loaded(folder / script))


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("begun_train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _regression_figure(spec: Path, script: Any) -> str:
    learnt, labels = _examples(spec, {}, script.LABEL)
    others, expected = _examples(spec, {**script.HELD_OUT, "shuffle": "off"}, script.LABEL)
    if script.TASK == "regression":
        predicted = Ridge().fit(learnt, (labels - script.MEAN) / script.STD).predict(others)[:, None]
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may not have converged after all rounds
            model = LogisticRegression(max_iter=_ROUNDS).fit(learnt, labels.astype(np.int64))
        if script.TASK == "binary":
            predicted = model.decision_function(others)[:, None]
        else:
            predicted = np.zeros((len(expected), script.CLASSES))
            predicted[:, model.classes_] = model.predict_proba(others)
    figure: str = script.figure_of(torch.from_numpy(predicted), torch.from_numpy(expected))
    return figure


def _examples(spec: Path, overrides: Mapping[str, object], label: str) -> tuple[Any, npt.NDArray[np.float32]]:
    """Features as a sparse matrix [rows, columns], and labels [rows]."""
    pipeline = Pipeline.from_yaml(spec, {**overrides, "batch.tail": "pad"})
    parts, labels = [], []
    for batch in islice(pipeline.batches(), -(-_MOST_ROWS // pipeline.spec.batch.size)):
        valid = batch.valid.numpy()
        parts.append(scipy.sparse.hstack([*_columns(batch)]).tocsr()[valid])
        labels.append(batch[label].numpy()[valid].astype(np.float32))
    return scipy.sparse.vstack(parts), np.concatenate(labels)


def _columns(batch: Batch) -> Iterator[Any]:
    """The features of a batch: sparse matrices of its rows."""
    yield scipy.sparse.csr_matrix(batch.all_dense.numpy())
    rows = np.arange(len(batch.all_dense))
    for index, column in enumerate(batch.schema.group("categorical")):
        ids = batch.all_categorical[:, index].numpy()
        yield scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, ids)), (len(rows), column.num_embeddings))
    for column in batch.schema.group("sparse"):
        if column.dtype != "int64":
            continue
        values = batch.sparse[column.name]
        offsets = values.offsets.numpy()
        counts = np.diff(offsets)
        weights = np.repeat(1 / np.maximum(counts, 1), counts)
        shape = (len(counts), column.num_embeddings)
        lists = scipy.sparse.csr_matrix((weights, values.values.numpy()[: offsets[-1]], offsets), shape)
        yield lists[values.inverse.numpy()] if hasattr(values, "inverse") else lists
