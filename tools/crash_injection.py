"""Kill processes at random points and check that nothing is lost: python tools/crash_injection.py --kills 200.

A training runs in a forked process: it tokenises its text, computes its bridge tables, creates its run folder and
trains. It is killed (SIGKILL) after a random time, or immediately before or after the n-th call that syncs, renames,
links or removes a file; these calls occur in checkpointing, tokenisation and the caching of tables. It is then
restarted. After each kill every checkpoint that was reported as saved must be readable, and no partial file may have a
final name. At the end metrics, weights and EMA weights must equal those of an uninterrupted training bit by bit.

Processes that save, export or import a model are killed in the same way. Their folder must be complete or absent, the
model that they read must be unchanged, and the next process must write what an uninterrupted one writes. So it is with
a server, which is killed while it starts or answers requests; its answers are what is written.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from tiny_run import RECIPE as SMALLEST
from tiny_run import TEXT

from logosphere import build, load
from logosphere.checkpoints.ddit_export import export_ddit
from logosphere.data.corpora import open_corpus
from logosphere.data.token_cache import verify_hashes
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.io import read_tensors
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import create_run
from logosphere.runs.evaluate import export_run
from logosphere.runs.import_checkpoint import import_checkpoint
from logosphere.runs.loop import Saved, run_training
from logosphere.runs.run import Run
from logosphere.runs.settings import EvaluateConfig
from logosphere.training.checkpoint import latest

RECIPE = replace(
    SMALLEST, validations=6, validation_sequences=4, network=replace(SMALLEST.network, dropout=0.1), data="text.txt"
)
CRASH_CALLS = ("fsync", "replace", "link", "unlink", "mkdir")
"""Functions of `os` before or after which a process may be killed."""
SERVED = 4
"""Requests that a server answers."""


@dataclass(frozen=True)
class Kill:
    """The point at which a process is killed: after some seconds, or at the n-th of the calls."""

    seconds: float | None = None
    call: int | None = None
    after: bool = False

    @staticmethod
    def draw(chance: random.Random) -> "Kill":
        if chance.random() < 0.4:
            return Kill(seconds=chance.expovariate(1 / 0.25))
        # Tokens and tables are cached early, so early calls are drawn more often.
        return Kill.draw_call(chance, chance.choice((16, 60)))

    @staticmethod
    def draw_call(chance: random.Random, calls: int) -> "Kill":
        """Before or after one of this many calls."""
        return Kill(call=chance.randrange(1, calls), after=chance.random() < 0.5)


class Job(Protocol):
    """What a process does in a folder."""

    folder: Path

    def work(self) -> None:
        """Do it, or go on with it."""


class TrainingProcess:
    """A training with its own folder, text and caches."""

    def __init__(self, folder: Path, recipe: TrainConfig = RECIPE):
        self.folder, self.config = folder, recipe
        folder.mkdir(parents=True)
        (folder / "text.txt").write_text(TEXT)

    @property
    def run(self) -> Run:
        return Run(self.folder / "run")

    def work(self) -> None:
        """Train from the last checkpoint to the end, and log the steps reported as saved."""
        os.environ["LOGOSPHERE_CACHE"] = str(self.folder / "cache")
        os.chdir(self.folder)
        corpus = open_corpus(self.config.data, "characters")
        fresh = not (self.folder / "run" / "recipe.json").exists()
        run = create_run(self.config, corpus, self.folder / "run") if fresh else self.run
        with run.lock():
            for event in run_training(run, corpus):
                if isinstance(event, Saved):
                    with (self.folder / "reported").open("a") as file:
                        file.write(f"{event.step}\n")

    def check_files(self) -> None:
        """Check what must hold after every kill."""
        reported = [int(line) for line in self._lines("reported")]
        for tokens in (self.folder / "cache" / "tokens").glob("[!.]*"):
            verify_hashes(tokens)
        for table in (self.folder / "cache" / "bridge_tables").glob("[!.]*"):
            read_tensors(table)
        if not (self.folder / "run").exists():
            assert not reported
            return
        found = latest(self.run.state)
        step = -1 if found is None else json.loads((found / "state.json").read_bytes())["step"]
        assert step >= max(reported, default=-1), "a checkpoint that was reported as saved is lost"
        if found is not None:
            for name in ("model", "ema", "optimizer"):
                read_tensors(found / f"{name}.safetensors")
            if reported:
                self.run.model("ema"), self.run.model("model"), self.run.model("best")

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return [line for line in path.read_text().splitlines() if line] if path.exists() else []

    def result(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Return the metrics and weights, which must not depend on kills."""
        lines = [{key: value for key, value in line.items() if "seconds" not in key} for line in self.run.metrics()]
        names = ("model", "ema", "best")
        tensors = [sorted(read_tensors(self.run.path / f"{name}.safetensors").items()) for name in names]
        return lines, [tensor.numpy().tobytes() for part in tensors for _, tensor in part]


class FolderProcess:
    """A model that is saved, exported, imported or served, and the new folder with what comes of it."""

    def __init__(self, folder: Path, activity: str):
        self.folder, self.activity, self.out = folder, activity, folder / "out"
        folder.mkdir(parents=True)
        if activity == "export":
            training = TrainingProcess(folder / "source", replace(RECIPE, steps=2, validations=1))
            assert not run_until_killed(training, None)
        else:
            torch.manual_seed(0)
            body = "ddit" if activity == "import" else "transformer"
            model = build("mdlm", vocab_size=27, length=8, width=16, depth=1, heads=2, body=body)
            if activity == "import":
                export_ddit(model, folder / "source")
            else:
                model.tokenizer = text8_tokenizer()
                model.save(folder / "source")
        self.source = read_all(folder / "source")
        assert not run_until_killed(self, None)
        self.written = self.result()
        shutil.rmtree(self.out)

    def work(self) -> None:
        """Write the folder."""
        os.environ["LOGOSPHERE_CACHE"] = str(self.folder / "cache")
        match self.activity:
            case "save":
                load(self.folder / "source").save(self.out)
            case "import":
                import_checkpoint(self.folder / "source", self.out)
            case "export":
                os.chdir(self.folder / "source")
                run = Run(self.folder / "source" / "run", trust_references=True)
                export_run(run, self.out, EvaluateConfig(sequences=2, draws=1))
            case "serve":
                draft = self.folder / f"draft-{os.getpid()}"
                draft.mkdir()
                (draft / "answers.json").write_text(json.dumps(ask_server(self.folder / "source")))
                draft.rename(self.out)

    def check_files(self) -> None:
        """Check what must hold after every kill: the folder is absent, or complete and readable."""
        assert read_all(self.folder / "source") == self.source, "what was read is changed"
        if self.out.exists():
            assert self.result() == self.written, "the folder is incomplete"
            if self.activity != "serve":
                load(self.out)

    def result(self) -> dict[str, bytes]:
        """What was written, apart from the description of the machine."""
        return {name: content for name, content in read_all(self.out).items() if name != "env.json"}


def ask_server(source: Path) -> list[str]:
    """The texts that a server of a model answers requests with."""
    from logosphere.serving.server import serve

    texts = []
    with serve([source]) as address:
        for seed in range(SERVED):
            asked = {"model": source.name, "prompt": "the", "seed": seed, "steps": 4}
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}/completions", json.dumps(asked).encode(), headers)
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                texts.append(json.load(answer)["choices"][0]["text"])
    return texts


def read_all(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def run_until_killed(job: Job, kill: Kill | None) -> bool:
    """Run a job in a new process and return whether it was killed before its end."""
    process = multiprocessing.get_context("fork").Process(target=_run_process, args=(job, kill))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forks of processes with threads, which are idle here
        process.start()
    if kill is not None and kill.seconds is not None:
        process.join(kill.seconds)
        process.kill()
    process.join(300)
    if process.is_alive():
        process.kill()
        raise AssertionError("the process did not end within 300 s")
    assert process.exitcode in (0, -signal.SIGKILL), (job.folder / "problem").read_text()
    return process.exitcode != 0


def _run_process(job: Job, kill: Kill | None) -> None:
    torch.set_num_threads(1)
    if kill is not None and kill.call is not None:
        _kill_at_call(kill.call, kill.after, job.folder)
    try:
        job.work()
    except BaseException as problem:
        (job.folder / "problem").write_text(repr(problem))
        sys.exit(1)


def _kill_at_call(number: int, after: bool, folder: Path) -> None:
    left = [number]

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                with (folder / "last").open("w") as file:
                    file.write(_find_activity(args[0], folder))
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper

    for name in CRASH_CALLS:
        setattr(os, name, wrap(getattr(os, name)))


def _find_activity(target: Any, folder: Path) -> str:
    """Return the activity that a file being changed belongs to."""
    named = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fsdecode(target)
    part = "/".join(Path(os.path.relpath(named, folder)).parts[1:2])
    return {"tokens": "tokens", "surveys": "tokens", "bridge_tables": "tables", "state": "saves"}.get(part, "folder")


def inject_crashes(
    folder: Path, kills: int, seed: int = 0, recipes: tuple[TrainConfig, ...] = (RECIPE,)
) -> dict[str, float]:
    """Kill trainings `kills` times; return the numbers of kills, of trainings, and of kills by activity."""
    chance, done, killed = random.Random(seed), 0, 0
    activities = Counter[str]()
    expected = []
    for number, recipe in enumerate(recipes):
        reference = TrainingProcess(folder / f"reference-{number}", recipe)
        assert not run_until_killed(reference, None)
        expected.append(reference.result())
    while killed < kills:
        number = done % len(recipes)
        training = TrainingProcess(folder / f"training-{done}", recipes[number])
        while killed < kills and run_until_killed(training, kill := Kill.draw(chance)):
            killed += 1
            activities["at random times" if kill.call is None else (training.folder / "last").read_text()] += 1
            training.check_files()
        if run_until_killed(training, None):
            raise AssertionError("the training was killed, although no kill was injected")
        training.check_files()
        assert training.result() == expected[number], f"training {done} has another result than the uninterrupted one"
        left = [path.name for path in training.run.state.iterdir() if path.name.startswith(".")]
        assert not left, f"temporary files remain: {left}"
        shutil.rmtree(training.folder)
        done += 1
    return {"kills": killed, "runs": done, **activities}


def inject_into_folders(folder: Path, activity: str, kills: int, seed: int = 0) -> dict[str, float]:
    """Kill processes of an activity; return the numbers of kills and of folders that were completed."""
    chance, done, killed = random.Random(f"{activity} {seed}"), 0, 0
    activities = Counter[str]()
    job = FolderProcess(folder / activity, activity)
    while killed < kills:
        random_time = activity == "serve" or chance.random() < 0.4
        mean = 0.5 if activity == "serve" else 0.1
        kill = Kill(seconds=chance.expovariate(1 / mean)) if random_time else Kill.draw_call(chance, 12)
        if run_until_killed(job, kill):
            killed += 1
            activities["at random times" if random_time else "at a call"] += 1
        else:
            done += 1
        job.check_files()
        if job.out.exists():
            shutil.rmtree(job.out)
    assert not run_until_killed(job, None)
    job.check_files()
    assert job.out.exists()
    left = [path.name for path in job.folder.iterdir() if path.name.startswith(".") and activity != "save"]
    assert not left, f"temporary files remain: {left}"
    shutil.rmtree(job.folder)
    return {"kills": killed, "folders": done + 1, **activities}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started, share = time.monotonic(), args.kills // 5
    systems = (RECIPE, replace(RECIPE, system="rdlm"))
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        figures = {"train": inject_crashes(place, args.kills - 4 * share, args.seed, systems)}
        for activity in ("save", "export", "import", "serve"):
            figures[activity] = inject_into_folders(place, activity, share, args.seed)
            print(json.dumps({activity: figures[activity]}), file=sys.stderr, flush=True)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    spent = sum(one.ru_utime + one.ru_stime for one in usage)
    print(json.dumps(figures | {"seconds": round(time.monotonic() - started), "cpu_seconds": round(spent)}))
