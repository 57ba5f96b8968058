"""The ring and a GPU: pinned once, one copy per batch, a slot free only after its copy. Needs a CUDA device."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from feedline import FeedlineDataset
from feedline.errors import FeedlineError
from feedline.loader.ring.pinning import Pinning, devices_in_use
from feedline.workbench.generate.generate import clicks_pipeline

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


@pytest.fixture
def pipeline(clicks, tmp_path):
    path = tmp_path / "pipeline.yaml"
    columns = {"dense": 4, "ids": 4, "strings": 1, "histories": 2}
    path.write_text(clicks_pipeline(str(clicks), **columns, batch_size=512, tail="partial"))
    return path


def test_every_tensor_is_pinned(pipeline):
    with FeedlineDataset(pipeline) as dataset:
        batch = next(iter(dataset))
        sparse = batch.sparse["hist_0"]
        for tensor in (
            batch.dense,
            batch.categorical,
            batch.labels,
            batch.valid,
            *(getattr(sparse, n) for n in ("values", "lengths", "offsets")),
        ):
            assert tensor.is_pinned()
        assert batch.is_pinned()
        assert batch.pin_memory() is batch
        del batch, sparse, tensor


def test_one_copy_moves_the_batch_and_its_bytes_are_right(pipeline, monkeypatch):
    monkeypatch.delitem(sys.modules, "torchrec", raising=False)
    with FeedlineDataset(pipeline) as dataset:
        for batch in dataset:
            host = batch.clone()
            moved = batch.to("cuda", non_blocking=True)
            del batch
            base = moved.dense.untyped_storage().data_ptr()
            assert moved.labels.untyped_storage().data_ptr() == base
            assert moved.sparse["hist_0"].values.untyped_storage().data_ptr() == base
            torch.cuda.synchronize()
            for name, value in moved.to_dict().items():
                kept = host[name]
                if hasattr(value, "values") and not torch.is_tensor(value):
                    assert torch.equal(value.values.cpu(), kept.values)
                    assert torch.equal(value.offsets.cpu(), kept.offsets)
                elif torch.is_tensor(value):
                    assert torch.equal(value.cpu(), kept)


def test_a_slot_is_not_written_while_its_copy_is_queued(pipeline):
    """Copies wait behind a long kernel; the feeder must not touch their slots before they have run."""
    with FeedlineDataset(pipeline) as dataset:
        stream = torch.cuda.Stream()
        kept, moved = [], []
        with torch.cuda.stream(stream):
            for batch in dataset:
                torch.cuda._sleep(20_000_000)
                kept.append(batch.clone())
                moved.append(batch.to("cuda", non_blocking=True))
                del batch
        gc.collect()
        stream.synchronize()
        for host, device in zip(kept, moved, strict=True):
            assert torch.equal(device.dense.cpu(), host.dense)
            assert torch.equal(device.sparse["hist_0"].values.cpu(), host.sparse["hist_0"].values)


def test_the_users_own_copies_and_streams_are_waited_for(pipeline):
    with FeedlineDataset(pipeline) as dataset:
        side = torch.cuda.Stream()
        kept, moved = [], []
        for batch in dataset:
            torch.cuda._sleep(5_000_000)
            kept.append(batch.dense.clone())
            moved.append(batch.dense.to("cuda", non_blocking=True))
            with torch.cuda.stream(side):
                torch.cuda._sleep(5_000_000)
                moved.append(batch.labels.to("cuda", non_blocking=True))
            kept.append(batch.labels.clone())
            batch.record_stream(side)
            del batch
        torch.cuda.synchronize()
        for host, device in zip(kept, moved, strict=True):
            assert torch.equal(device.cpu(), host)


def test_lists_have_memory_of_their_own_where_torchrec_is_imported(pipeline, monkeypatch):
    """Its pipelines free that memory, as soon as ids are on their way to other ranks."""
    monkeypatch.setitem(sys.modules, "torchrec", ModuleType("torchrec"))
    with FeedlineDataset(pipeline) as dataset:
        for batch in dataset:
            host = batch.clone()
            moved = batch.to("cuda", non_blocking=True)
            dense, labels, values = moved.dense, moved.labels, moved.sparse["hist_0"].values
            assert torch.equal(values.cpu(), host.sparse["hist_0"].values)
            values.untyped_storage().resize_(0)
            moved.record_stream(torch.cuda.current_stream())
            other = torch.full((moved.nbytes,), 255, dtype=torch.uint8, device="cuda")  # where the lists were
            assert torch.equal(dense.cpu(), host.dense)
            assert torch.equal(labels.cpu(), host.labels)
            with pytest.raises(FeedlineError, match="lists are gone"):
                moved.to("cpu")
            del other


@pytest.mark.parametrize("imported", [False, True], ids=["plain", "with torchrec"])
def test_copies_on_a_stream_that_is_named_hold_the_slot(pipeline, monkeypatch, imported: bool):
    """As `enable_inplace_copy_batch` calls it: memory of the current stream, filled on another one."""
    monkeypatch.delitem(sys.modules, "torchrec", raising=False)
    if imported:
        monkeypatch.setitem(sys.modules, "torchrec", ModuleType("torchrec"))
    with FeedlineDataset(pipeline) as dataset:
        copies = torch.cuda.Stream()
        kept, moved = [], []
        for batch in dataset:
            with torch.cuda.stream(copies):
                torch.cuda._sleep(20_000_000)
            kept.append(batch.clone())
            moved.append(batch.to(device=torch.device("cuda"), non_blocking=True, data_copy_stream=copies))
            del batch
        torch.cuda.current_stream().wait_stream(copies)
        for host, device in zip(kept, moved, strict=True):
            assert torch.equal(device.dense.cpu(), host.dense)
            assert torch.equal(device.sparse["hist_0"].values.cpu(), host.sparse["hist_0"].values)


@pytest.mark.parametrize("inplace", [False, True])
def test_a_torchrec_pipeline_reads_what_the_host_holds(pipeline, inplace: bool):
    """Embeddings by torch's own module, of keys of a KeyedJaggedTensor, two batches ahead on a stream of its own."""
    if importlib.util.find_spec("torchrec") is None:
        pytest.skip("torchrec is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchrec's own
        from torchrec.distributed.train_pipeline import TrainPipelineBase

    class Sums(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones((), device="cuda"))

        def forward(self, batch):
            torch.cuda._sleep(5_000_000)
            ids = batch.sparse_features
            sums = torch.stack([ids.values().double().sum(), ids.lengths().double().sum(), batch.labels.double().sum()])
            sums = torch.cat([sums, batch.dense_features.double().sum()[None]])
            return (self.scale * 0).sum(), sums.detach()

    with FeedlineDataset(pipeline) as dataset:
        ids = [name for name in dataset.schema if name.group in ("sparse", "categorical")]
        assert ids
        expected = [
            [
                sum(float(each.values.double().sum()) for each in batch.sparse.values())
                + float(batch.categorical.double().sum()),
                sum(float(each.lengths.double().sum()) for each in batch.sparse.values()) + batch.categorical.numel(),
                float(batch.labels.double().sum()),
                float(batch.dense.double().sum()),
            ]
            for batch in dataset
        ]
        model = Sums()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train = TrainPipelineBase(model, optimizer, torch.device("cuda", 0), enable_inplace_copy_batch=inplace)
        dataset.set_epoch(0)
        found, batches = [], iter(dataset)
        while True:
            try:
                found.append(train.progress(batches))
            except StopIteration:
                break
        torch.testing.assert_close(torch.stack(found).cpu(), torch.tensor(expected, dtype=torch.float64))


def test_a_pipeline_that_frees_ids_early_learns_the_same(pipeline, tmp_path):
    """TrainPipelineSparseDist on one rank; dense features and labels are read after the ids are gone."""
    kernel = "fbgemm::permute_2D_sparse_data"
    if importlib.util.find_spec("torchrec") is None or importlib.util.find_spec("fbgemm_gpu") is None:
        pytest.skip("torchrec is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchrec's own
        importlib.import_module("torchrec")
    if not torch._C._dispatch_has_kernel_for_dispatch_key(kernel, "CUDA"):
        pytest.skip("fbgemm-gpu has no kernels for CUDA here")
    text = pipeline.read_text().replace("{first_x: 20}", "{first_x: 20}, {hash_bucket: 1000}")  # tables need a size
    pipeline.write_text(text)
    program = Path(__file__).with_name("torchrec_training.py")
    line = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    line += [str(program), str(tmp_path), *(f"{kind}={pipeline}" for kind in ("sparse", "freed"))]
    run = subprocess.run(line, capture_output=True, text=True, timeout=400, check=False)
    assert run.returncode == 0, run.stderr[-5000:]
    steps = [json.loads((tmp_path / f"{kind}-0.json").read_text())["steps"] for kind in ("sparse", "freed")]
    assert [step[:2] for step in steps[0]] == [step[:2] for step in steps[1]]
    losses = [torch.tensor([loss for *_, loss in each]) for each in steps]
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)


def test_a_registration_that_fails_leaves_no_error_to_the_next_kernel():
    pinning = Pinning(None)
    assert not pinning.register(3 * 4096, 4096)  # nothing is mapped there
    assert float(torch.ones(8, device="cuda").sum()) == 8
    pinning.unregister(3 * 4096)
    assert float(torch.ones(8, device="cuda").sum()) == 8


def test_devices_in_use_are_known():
    torch.ones(1, device="cuda")
    assert torch.cuda.current_device() in devices_in_use()


def test_what_is_held_beyond_the_end_stays_pinned_and_is_waited_for(pipeline):
    with FeedlineDataset(pipeline) as dataset:
        dense = next(iter(dataset)).dense
    assert dense.is_pinned()
    kept = dense.clone()
    torch.cuda._sleep(50_000_000)
    moved = dense.to("cuda", non_blocking=True)
    del dense  # the mapping goes with it, once the copy has run
    gc.collect()
    torch.cuda.synchronize()
    assert torch.equal(moved.cpu(), kept)


two_devices = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two CUDA devices"
)


@two_devices
def test_a_copy_to_a_device_that_is_not_current_is_waited_for(pipeline):
    """Without set_device: the slot must not be filled again under the copy."""
    with FeedlineDataset(pipeline) as dataset:
        kept, moved = [], []
        for batch in dataset:
            with torch.cuda.device(1):
                torch.cuda._sleep(20_000_000)
            kept += [batch.dense.clone(), batch.labels.clone()]
            moved += [batch.dense.to("cuda:1", non_blocking=True), batch.to("cuda:1", non_blocking=True).labels]
            del batch
        torch.cuda.synchronize(1)
        for host, device in zip(kept, moved, strict=True):
            assert torch.equal(device.cpu(), host)


@two_devices
@pytest.mark.parametrize("chosen", ["set_device", "LOCAL_RANK", "a tensor"])
def test_no_context_is_made_on_a_device_that_the_trainer_does_not_use(pipeline, chosen: str):
    program = (
        "import sys, torch\nfrom feedline import FeedlineDataset\n"
        "if sys.argv[2] == 'set_device': torch.cuda.set_device(1)\n"
        "if sys.argv[2] == 'a tensor': torch.ones(1, device='cuda:1')\n"
        "with FeedlineDataset(sys.argv[1], rank=0, world_size=1) as dataset:\n"
        "    for batch in dataset:\n"
        "        assert batch.dense.to('cuda:1', non_blocking=True).device.index == 1 and batch.is_pinned()\n"
        "print([torch._C._cuda_hasPrimaryContext(device) for device in (0, 1)])\n"
    )
    environment = {**os.environ, **({"LOCAL_RANK": "1"} if chosen == "LOCAL_RANK" else {})}
    line = [sys.executable, "-c", program, str(pipeline), chosen]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=True, env=environment)
    assert done.stdout == "[False, True]\n"


def test_batches_prefetched_for_a_slow_consumer_hold_their_bytes(pipeline):
    """The consumer computes long after each batch; the checksums are of what its kernels read, on the device."""

    def sums(batch):
        features = [batch.dense, batch.categorical, batch.labels]
        features += [part for sparse in batch.sparse.values() for part in (sparse.values, sparse.lengths)]
        return torch.stack([feature.double().sum() for feature in features])

    with FeedlineDataset(pipeline) as dataset:
        expected = [[sums(batch) for batch in dataset] for _ in range(3)]
    with FeedlineDataset(pipeline, device="cuda") as dataset:
        for epoch in range(3):
            found = []
            for batch in dataset:
                assert batch.device.type == "cuda"
                torch.cuda._sleep(20_000_000)
                found.append(sums(batch))
                del batch  # its memory may be used again, but not before these kernels have run
            for host, device in zip(expected[epoch], found, strict=True):
                torch.testing.assert_close(device.cpu(), host)


def test_the_benchmark_measures():
    program = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"
    line = [sys.executable, str(program), "--rows", "20000", "--rounds", "1", "--batch-size", "512"]
    measured = json.loads(subprocess.run(line, capture_output=True, text=True, timeout=200, check=True).stdout)
    assert measured["pinned"]
    assert measured["batch_bytes"] > 0
