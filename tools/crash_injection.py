"""Kill trainings at random moments and check that nothing is lost: python tools/crash_injection.py --kills 200.

A training runs in a forked process: it builds its tokens, tabulates its bridge, sets up its folder and trains. It is
killed (SIGKILL) after a random time, or just before or after the n-th time it syncs, renames, links or removes a file,
which hits savings, the building of tokens and the caching of tables. Then it is started again. After each kill

    everything that was reported as saved is there and readable, and no half-written file carries a real name;

and at the end metrics, weights and averages are those of a training that was left alone, to the last bit.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tiny_run import RECIPE as SMALLEST
from tiny_run import TEXT

from logosphere.data.corpora import open_corpus
from logosphere.data.token_cache import verify_hashes
from logosphere.io import read_tensors
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import create_run
from logosphere.runs.loop import Saved, run_training
from logosphere.runs.run import Run
from logosphere.training.checkpoint import latest

RECIPE = replace(
    SMALLEST, validations=6, validation_sequences=4, network=replace(SMALLEST.network, dropout=0.1), data="text.txt"
)
MOMENTS = ("fsync", "replace", "link", "unlink", "mkdir")
"""Calls of `os` before and after which a process may die."""


@dataclass(frozen=True)
class Kill:
    """When a process dies: after some seconds, or at the n-th of the moments."""

    seconds: float | None = None
    moment: int | None = None
    after: bool = False

    @staticmethod
    def draw(chance: random.Random) -> "Kill":
        if chance.random() < 0.4:
            return Kill(seconds=chance.expovariate(1 / 0.25))
        # Tokens and tables are written early, so early moments are drawn more often.
        return Kill(moment=chance.randrange(1, chance.choice((16, 60))), after=chance.random() < 0.5)


class Subject:
    """A run in a folder of its own, with text and caches of its own."""

    def __init__(self, place: Path, recipe: TrainConfig = RECIPE):
        self.place, self.config = place, recipe
        place.mkdir(parents=True)
        (place / "text.txt").write_text(TEXT)

    @property
    def run(self) -> Run:
        return Run(self.place / "run")

    def live(self) -> None:
        """From wherever it stands to the end, noting what is reported as saved."""
        os.environ["LOGOSPHERE_CACHE"] = str(self.place / "cache")
        os.chdir(self.place)
        corpus = open_corpus(self.config.data, "characters")
        fresh = not (self.place / "run" / "recipe.json").exists()
        run = create_run(self.config, corpus, self.place / "run") if fresh else self.run
        with run.lock():
            for event in run_training(run, corpus):
                if isinstance(event, Saved):
                    with (self.place / "reported").open("a") as file:
                        file.write(f"{event.step}\n")

    def examine(self) -> None:
        """What must hold after every death."""
        reported = [int(line) for line in self._lines("reported")]
        for tokens in (self.place / "cache" / "tokens").glob("[!.]*"):
            verify_hashes(tokens)
        for table in (self.place / "cache" / "laws").glob("[!.]*"):
            read_tensors(table)
        if not (self.place / "run").exists():
            assert not reported
            return
        found = latest(self.run.state)
        step = -1 if found is None else json.loads((found / "state.json").read_bytes())["step"]
        assert step >= max(reported, default=-1), "a saved step is lost"
        if found is not None:
            for name in ("model", "ema", "optimizer"):
                read_tensors(found / f"{name}.safetensors")
            if reported:
                self.run.model("ema"), self.run.model("model")

    def _lines(self, name: str) -> list[str]:
        path = self.place / name
        return [line for line in path.read_text().splitlines() if line] if path.exists() else []

    def result(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        """What is the same however often it died."""
        lines = [{key: value for key, value in line.items() if "seconds" not in key} for line in self.run.metrics()]
        names = ("model", "ema", "best")
        tensors = [sorted(read_tensors(self.run.path / f"{name}.safetensors").items()) for name in names]
        return lines, [tensor.numpy().tobytes() for part in tensors for _, tensor in part]


def was_killed(patient: Subject, death: Kill | None) -> bool:
    """Let the patient live in a process of its own; did it die before its time?"""
    process = multiprocessing.get_context("fork").Process(target=_life, args=(patient, death))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forks of processes with threads: here they are idle
        process.start()
    if death is not None and death.seconds is not None:
        process.join(death.seconds)
        process.kill()
    process.join(120)
    if process.is_alive():
        process.kill()
        raise AssertionError("the training hangs")
    assert process.exitcode in (0, -signal.SIGKILL), (patient.place / "problem").read_text()
    return process.exitcode != 0


def _life(patient: Subject, death: Kill | None) -> None:
    torch.set_num_threads(1)
    if death is not None and death.moment is not None:
        _count_down(death.moment, death.after, patient.place)
    try:
        patient.live()
    except BaseException as problem:
        (patient.place / "problem").write_text(repr(problem))
        sys.exit(1)


def _count_down(moments: int, after: bool, place: Path) -> None:
    left = [moments]

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*given: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                with (place / "last").open("w") as file:
                    file.write(_busy_with(given[0], place))
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*given, **more)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return instead

    for name in MOMENTS:
        setattr(os, name, watched(getattr(os, name)))


def _busy_with(target: Any, place: Path) -> str:
    """What a file that is just being written belongs to."""
    named = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fsdecode(target)
    part = "/".join(Path(os.path.relpath(named, place)).parts[1:2])
    return {"tokens": "tokens", "surveys": "tokens", "laws": "tables", "state": "saves"}.get(part, "folder")


def inject_crashes(
    folder: Path, kills: int, seed: int = 0, recipes: tuple[TrainConfig, ...] = (RECIPE,)
) -> dict[str, float]:
    """Kill so many times; the figures of how it went."""
    chance, done, deaths = random.Random(seed), 0, 0
    busy = Counter[str]()
    wanted = []
    for number, recipe in enumerate(recipes):
        healthy = Subject(folder / f"healthy-{number}", recipe)
        assert not was_killed(healthy, None)
        wanted.append(healthy.result())
    while deaths < kills:
        number = done % len(recipes)
        patient = Subject(folder / f"patient-{done}", recipes[number])
        while deaths < kills and was_killed(patient, death := Kill.draw(chance)):
            deaths += 1
            busy["at any time" if death.moment is None else (patient.place / "last").read_text()] += 1
            patient.examine()
        if was_killed(patient, None):
            raise AssertionError("killed without a reason")
        patient.examine()
        assert patient.result() == wanted[number], f"patient {done} ended otherwise"
        left = [path.name for path in patient.run.state.iterdir() if path.name.startswith(".")]
        assert not left, f"drafts are left behind: {left}"
        shutil.rmtree(patient.place)
        done += 1
    return {"kills": deaths, "runs": done, **busy}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    begun = time.monotonic()
    systems = (RECIPE, replace(RECIPE, system="rdlm"))
    with tempfile.TemporaryDirectory() as place:
        figures = inject_crashes(Path(place), chosen.kills, chosen.seed, systems)
    print(json.dumps(figures | {"seconds": round(time.monotonic() - begun, 1)}))
