"""Each framework trains on the planned rows of its rank, and after a stop continues after its checkpoint."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from pipelines import Place, furnished
from processes import SUPPORT, ended_here, free_port, running

from feedline import FeedlineDataset, Pipeline

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "frameworks"
EPOCHS, STEPS, SAVE_EVERY = 2, 10, 5
ONCE, TWICE = (7,), (12, 7)  # steps until a start is stopped: it resumes in mid-epoch; where one began, and then so
LIMIT_S = 170.0

# Programs that run in the same processes, one after the other, with the package that each needs; the first on one rank.
TOGETHER = [
    {"train_plain": "tensorboard", "train_stateful_dataloader": "torchdata"},
    {"train_ddp": "torch", "train_fsdp": "torch", "train_dcp": "torch"},
    {"train_accelerate": "accelerate", "train_hf_trainer": "transformers"},
    {"train_lightning": "lightning"},  # with two stops, so not with the others
]


STARTS = [
    (program, stops)
    for programs in TOGETHER
    for program in programs
    for stops in (ONCE, TWICE)
    if stops is TWICE or program != "train_lightning"  # whose own counters are wrong after the first of two
]

Step = tuple[int, int, list[int]]


def commands() -> list[list[str]]:
    """The README's commands as words."""
    return [
        shlex.split(line) for line in re.findall(r"^    (\w.*)$", (EXAMPLE / "README.md").read_text(), re.MULTILINE)
    ]


def missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


class Runs:
    """The programs' runs over a small table of the README's command, by a pipeline that delivers the rows' ids, too."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.example = shutil.copytree(EXAMPLE, place.folder / "examples" / "frameworks")
        [generate] = [words[1:] for words in commands() if words[:2] == ["feedline", "generate"]]
        done = ended_here(*(word.replace("20000", "11000") for word in generate), "--row-group-rows", 2048)
        assert done.returncode == 0, done.stderr
        self.path = self.example / "pipeline.yaml"
        text = self.path.read_text().replace("  label:", "  extra: [request_id]\n  label:")
        self.path.write_text(text + "cluster: {threads: 1, dashboard: false}\n")
        self.planned, self.run = cache(self.planned), cache(self.run)

    def planned(self, rank: int, ranks: int) -> list[Step]:
        """What a rank trains on, by the plan."""
        pipeline = Pipeline.from_yaml(self.path)
        batches = (batch for epoch in range(EPOCHS) for batch in pipeline.batches(epoch, rank, ranks))
        return [(batch.epoch, batch.step, batch["request_id"].tolist()) for batch in batches]

    def run(self, programs: tuple[str, ...], ranks: int, stops: tuple[int, ...]) -> Path:
        """Run programs on so many ranks, stopped and resumed; return the folder that they ran in."""
        folder = self.place.folder / f"{programs[0]}-{ranks}-{len(stops)}"
        folder.mkdir()
        ports = ",".join(str(free_port()) for _ in range(len(programs) * (len(stops) + 1)))
        words = (self.example, ranks, ports, ",".join(map(str, stops)), *programs)
        with running(sys.executable, SUPPORT / "framework_ranks.py", *words, cwd=folder) as started:
            ended = started.wait(LIMIT_S)
            (folder / "printed.txt").write_text(started.text)
            assert ended == 0, started.text
        return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with furnished(tmp_path_factory.mktemp("f"), Path()) as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place.folder / "i"))
        patch.chdir(place.folder)
        yield Runs(place)


def check(runs: Runs, program: str, folder: Path, stops: Sequence[int], ranks: int, data_ranks: int) -> None:
    """Every rank's runs are parts of its plan that follow each other by the rule of checkpoints, up to the end."""
    starts = set()
    for rank in range(ranks):
        plan = runs.planned(rank * data_ranks // ranks, data_ranks)
        assert len(plan) == EPOCHS * STEPS
        of_rank = []
        for trained in json.loads((folder / f"{program}.{rank}.json").read_text()):
            steps = [tuple(step) for step in trained]
            at = plan.index(steps[0])
            assert steps == plan[at : at + len(steps)]
            of_rank.append((at, at + len(steps)))
        starts.add(tuple(of_rank))
    [parts] = starts  # the same on all ranks
    assert (parts[0][0], parts[-1][1]) == (0, EPOCHS * STEPS)
    for (start, stopped), (resumed, _), stop in zip(parts, parts[1:], stops, strict=False):
        assert stopped - start == stop
        saved = range(start, stopped + 1, SAVE_EVERY)
        assert resumed == saved[-1] or (program == "train_dcp" and resumed in saved[-2:])  # one may be on its way


@pytest.mark.parametrize(("program", "stops"), STARTS)
def test_rows_are_those_of_the_plan_before_and_after_each_stop(runs: Runs, program: str, stops: tuple[int, ...]):
    [programs] = [programs for programs in TOGETHER if program in programs]
    if missing(programs[program]):
        pytest.skip(f"{programs[program]} is not installed: make install, or pip install 'feedline[frameworks]'")
    ranks = 1 if programs is TOGETHER[0] else 2
    folder = runs.run(tuple(name for name, package in programs.items() if not missing(package)), ranks, stops)
    check(runs, program, folder, stops, ranks, ranks)


@pytest.mark.skipif(missing("tensorboard"), reason="tensorboard is not installed")
def test_progress_bar_and_tensorboard_show_each_step(runs: Runs):
    """After resumes, too: the bar ends full, and the curve has no gap."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = runs.run(tuple(name for name, package in TOGETHER[0].items() if not missing(package)), 1, ONCE)
    bars = re.findall(r"epoch (\d): *(\d+)%\|[^|]*\| (\d+)/(\d+) ", (folder / "printed.txt").read_text())
    ends = [(int(epoch), int(at)) for epoch, share, at, of in bars if share == "100" and int(of) == STEPS]
    assert (0, STEPS) in ends
    assert ends[-1] == (1, STEPS)
    assert (0, SAVE_EVERY) in [(int(epoch), int(at)) for epoch, _, at, _ in bars], "a resumed bar starts at its step"

    events = [EventAccumulator(str(file)).Reload() for file in sorted((folder / "runs" / "plain").iterdir())]
    assert len(events) == len(ONCE) + 1
    for tag in ("loss", "data/wait_fraction"):
        assert {event.step for each in events for event in each.Scalars(tag)} == set(range(EPOCHS * STEPS))


def test_ranks_of_a_tensor_parallel_group_see_the_same_rows(runs: Runs):
    """Two such groups of two ranks each, with FSDP between the groups."""
    check(runs, "train_fsdp", runs.run(("train_fsdp",), 4, ONCE), ONCE, 4, 2)


@pytest.mark.skipif(missing("accelerate"), reason="accelerate is not installed")
def test_accelerate_cannot_share_the_rows_out_again(runs: Runs):
    """As `prepare` of a loader would on two ranks: an error, which the docs quote."""
    from accelerate.data_loader import prepare_data_loader
    from accelerate.state import AcceleratorState, PartialState
    from torch.utils.data import DataLoader

    PartialState(cpu=True)
    try:
        with FeedlineDataset(runs.path, rank=0, world_size=2) as dataset:
            loader = DataLoader(dataset, batch_size=None)
            shard = prepare_data_loader(loader, num_processes=2, process_index=0, dispatch_batches=False)
            with pytest.raises(TypeError, match=r"unsupported operand type.* 'NoneType' and 'int'"):
                next(iter(shard))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("words", [words for words in commands() if words[0] in ("python", "torchrun")], ids=" ".join)
def test_commands_of_the_readme_run(runs: Runs, words: list[str], tmp_path: Path):
    start = {"python": [], "torchrun": ["-m", "torch.distributed.run", "--standalone"]}[words[0]]
    program = [str(runs.place.folder / word) if word.startswith("examples/") else word for word in words[1:]]
    with running(sys.executable, *start, *program, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}) as run:
        assert run.wait(LIMIT_S) == 0, run.text
    assert any((tmp_path / "checkpoints").iterdir())
    for folder in runs.place.temporary.glob("torchelastic_*"):  # which torchrun leaves for logs that nobody asked for
        shutil.rmtree(folder)
