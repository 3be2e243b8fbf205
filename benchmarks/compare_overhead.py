"""What a comparison costs beyond its trainings: CPU seconds of `logosphere compare` over those of the bare trainings.

The trainings are the same ones, by seed and recipe, and are run alternately. The comparison also measures each system
on a few held-out sequences, so that only its bookkeeping is left; measuring well and sampling are work of their own.
"""

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path

from harness import present

from logosphere.cli import main as logosphere
from logosphere.data.corpora import open_corpus
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.recipes import recipe

SYSTEMS = ("ar", "mdlm")


def trained(settings: Path, folder: Path) -> float:
    """CPU seconds of the trainings alone."""
    from dataclasses import replace

    began = time.process_time()
    common = recipe(str(settings))
    corpus = open_corpus(common.data, common.tokenizer)
    for system in SYSTEMS:
        for _ in run_training(create_run(replace(common, system=system), corpus, folder / system), corpus):
            pass
    return time.process_time() - began


def compared(settings: Path, folder: Path) -> float:
    """CPU seconds of a comparison that trains the same."""
    began = time.process_time()
    words = ["compare", "--systems", ",".join(SYSTEMS), "--recipe", str(settings), "--out", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()):
        assert logosphere([*words, "--sequences", "4"]) == 0
    return time.process_time() - began


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--steps", type=int, default=60)
    read.add_argument("--rounds", type=int, default=3)
    given = read.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as place:
        settings = Path(place) / "recipe.yaml"
        settings.write_text(
            f"length: 128\nbatch: 32\nsteps: {given.steps}\nvalidations: 1\nvalidation_sequences: 16\n"
            "network: {width: 128, depth: 3, heads: 4}\n"
        )
        for number in range(-1, given.rounds):  # the first round warms up
            alone = trained(settings, Path(place) / f"alone{number}")
            whole = compared(settings, Path(place) / f"whole{number}")
            if number >= 0:
                rows[f"round {number + 1}"] = {"trainings": alone, "comparison": whole, "ratio": whole / alone}
    present("CPU seconds of a comparison and of its trainings", rows)


if __name__ == "__main__":
    main()
