"""CPU seconds of `logosphere compare`, relative to those of its trainings alone.

Both run the same trainings (seed and recipe), alternately. The comparison also evaluates each system, but on
only four held-out sequences, so that the difference is mostly overhead.
"""

import argparse
import contextlib
import io
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from harness import print_table

from logosphere.cli import main as logosphere
from logosphere.data.corpora import open_corpus
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.recipes import recipe

SYSTEMS = ("ar", "mdlm")


def train_alone(settings: Path, folder: Path) -> float:
    """Return the CPU seconds of the trainings alone."""
    started = time.process_time()
    common = recipe(str(settings))
    corpus = open_corpus(common.data, common.tokenizer)
    for system in SYSTEMS:
        for _ in run_training(create_run(replace(common, system=system), corpus, folder / system), corpus):
            pass
    return time.process_time() - started


def compare(settings: Path, folder: Path) -> float:
    """Return the CPU seconds of a comparison with the same trainings."""
    started = time.process_time()
    argv = ["compare", "--systems", ",".join(SYSTEMS), "--recipe", str(settings), "--out", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()):
        assert logosphere([*argv, "--sequences", "4"]) == 0
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "recipe.yaml"
        settings.write_text(
            f"length: 128\nbatch: 32\nsteps: {args.steps}\nvalidations: 1\nvalidation_sequences: 16\n"
            "network: {width: 128, depth: 3, heads: 4}\n"
        )
        for number in range(-1, args.rounds):  # the first round warms up
            alone = train_alone(settings, Path(folder) / f"alone{number}")
            whole = compare(settings, Path(folder) / f"whole{number}")
            if number >= 0:
                rows[f"round {number + 1}"] = {"trainings": alone, "comparison": whole, "ratio": whole / alone}
    print_table("CPU seconds of a comparison and of its trainings", rows)


if __name__ == "__main__":
    main()
