"""The host's CPU time of copying a batch of many features: the slot at once, or tensor by tensor.

    python benchmarks/torchrec_copies.py                     500 features: 144 dense, 289 ids, 67 histories
    python benchmarks/torchrec_copies.py --features 45 --batch-size 8192
    python benchmarks/torchrec_copies.py --device meta       the calls alone: no byte is copied

On a GPU both copy from pinned memory and wait for nothing, so the time is that of queueing copies. Without one, both
copy in host memory, where moving the bytes takes most of it; torch's device `meta` leaves that out. `slot` is
`Batch.to`, one copy; `lists_apart` the same with torchrec imported, two copies; `tensors` copies what a batch of a
plain loader holds: one tensor per scalar, values and lengths of each list, and the labels. Medians over the steps in
microseconds of the thread's CPU; one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence

import torch
from waiting_batch import click_pipeline

from feedline import Batch, FeedlineDataset


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=500)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--device", choices=("cuda", "cpu", "meta"), help="default: cuda, if there is one")
    return parser.parse_args(arguments)


def tensors_of(batch: Batch, *, pinned: bool) -> list[torch.Tensor]:
    """The features and labels as tensors of their own, as a plain loader delivers them."""
    tensors = [batch.labels]
    for column in batch.schema:
        value = batch[column.name]
        if column.group == "sparse":
            tensors += [value.values, value.lengths]
        elif column.group in ("dense", "categorical"):
            tensors.append(value)
    own = [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
    return [tensor.pin_memory() for tensor in own] if pinned else own


def cpu_us(copy: Callable[[], object]) -> float:
    """Microseconds of this thread's CPU; what was queued is awaited outside."""
    began = time.thread_time()
    copied = copy()
    spent = time.thread_time() - began
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    del copied
    return spent * 1e6


def slot_copy(batch: Batch, device: str) -> Callable[[], object]:
    return batch.clone if device == "cpu" else lambda: batch.to(device, non_blocking=True)


def tensor_copies(batch: Batch, device: str) -> Callable[[], object]:
    tensors = tensors_of(batch, pinned=device == "cuda")
    if device == "cpu":
        return lambda: [tensor.clone() for tensor in tensors]
    return lambda: [tensor.to(device, non_blocking=True) for tensor in tensors]


def measure(dataset: FeedlineDataset, device: str) -> dict[str, object]:
    """Return medians of an epoch for each way, and of another one for the lists apart."""
    times: dict[str, list[float]] = {"slot": [], "tensors": []}
    tensors = 0
    for batch in dataset:
        tensors = len(tensors_of(batch, pinned=False))
        times["slot"].append(cpu_us(slot_copy(batch, device)))
        times["tensors"].append(cpu_us(tensor_copies(batch, device)))
        nbytes = batch.nbytes
    if device != "cpu" and importlib.util.find_spec("torchrec") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchrec's own
            importlib.import_module("torchrec")
        times["lists_apart"] = [cpu_us(slot_copy(batch, device)) for batch in dataset]
    medians = {f"{name}_us": round(statistics.median(each), 1) for name, each in times.items()}
    ratio = round(medians["tensors_us"] / medians["slot_us"], 2)
    return {"device": device, "copies": tensors, "batch_bytes": nbytes, **medians, "tensors_of_slot": ratio}


def main(arguments: Sequence[str]) -> int:
    """Run the program; return the exit status."""
    options = parse(arguments)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    with click_pipeline(options) as pipeline, FeedlineDataset(pipeline) as dataset:
        print(json.dumps(measure(dataset, device)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
