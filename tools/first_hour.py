"""Replay the first hour of a new user in a fresh environment, and print what each step took.

    python tools/first_hour.py [--minutes 2] [--text FILE] [--json]

Builds the wheel, installs it into an empty environment, and then uses it as a new user does: sample, train on a text,
train longer, evaluate, continue a prompt, fill a gap, compare, export, and load the export elsewhere from Python. The
first step that fails ends the replay with its output.
"""

import argparse
import json
import os
import pydoc_data.topics
import shutil
import subprocess
import tempfile
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

from check_wheel import ROOT, build

CHILDREN = "children_user", "children_system"
PYTHON_SIDE = """
import logosphere as ls
model = ls.load("mine")
print(ls.generate_text(model, n=1, steps=32, rng=0)[0])
"""


@dataclass(frozen=True)
class Step:
    """A step of the replay, with what it took and the end of what it printed."""

    name: str
    command: str
    seconds: float
    cpu_seconds: float
    printed: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="minutes of the first training")
    parser.add_argument("--text", type=Path, help="a text file; the help topics of Python unless given")
    parser.add_argument("--json", action="store_true", help="print the steps as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = replay(Path(folder), args.minutes, args.text)
    if args.json:
        print(json.dumps([asdict(step) for step in steps], indent=2))
        return
    print(f"{'step':34} {'seconds':>8} {'CPU s':>8}")
    for step in steps:
        print(f"{step.name:34} {step.seconds:8.1f} {step.cpu_seconds:8.1f}")
        print("".join(f"    {line}\n" for line in step.printed.splitlines()[-3:]), end="")
    print(f"{'in all':34} {sum(s.seconds for s in steps):8.1f} {sum(s.cpu_seconds for s in steps):8.1f}")


def replay(folder: Path, minutes: float, text: Path | None) -> list[Step]:
    """All steps, in a folder of their own."""
    environment, work, other = folder / "env", folder / "work", folder / "elsewhere"
    for place in (work, other):
        place.mkdir()
    bin_folder = environment / ("Scripts" if os.name == "nt" else "bin")
    python, logosphere = str(bin_folder / "python"), str(bin_folder / "logosphere")
    wheel = build(folder / "dist")
    if text is None:
        topics = "\n\n".join(pydoc_data.topics.topics.values())
        (work / "mine.txt").write_text(topics, encoding="utf-8")
    else:
        shutil.copy(text, work / "mine.txt")
    venv.create(environment, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constrained = [*install, "--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    train = [logosphere, "train", "--out", "runs/mine"]
    systems = ["--systems", "rdlm,mdlm,ar", "--data", "mine.txt", "--minutes", f"{minutes / 4:g}"]
    commands: list[tuple[str, list[str], Path]] = [
        ("install", constrained, work),
        ("sample a bundled model", [logosphere, "sample"], work),
        ("train on a text", [*train, "--data", "mine.txt", "--minutes", f"{minutes:g}"], work),
        ("train longer", [*train, "--resume", "--minutes", f"{1.5 * minutes:g}"], work),
        ("evaluate", [logosphere, "evaluate", "runs/mine"], work),
        ("continue a prompt", [logosphere, "sample", "runs/mine", "-n", "2", "--prompt", "The "], work),
        ("fill a gap", [logosphere, "sample", "runs/mine", "-n", "2", "--infill", "the [....] of the"], work),
        ("compare", [logosphere, "compare", *systems, "--report", "report.html"], work),
        ("export", [logosphere, "export", "runs/mine", "--out", str(other / "mine"), "--sequences", "200"], work),
        ("load elsewhere", [python, "-c", PYTHON_SIDE], other),
    ]
    return [measure(name, command, place) for name, command, place in commands]


def measure(name: str, command: list[str], place: Path) -> Step:
    """Run a step, which must succeed."""
    started, before = time.perf_counter(), os.times()
    done = subprocess.run(command, cwd=place, capture_output=True, encoding="utf-8")
    seconds, after = time.perf_counter() - started, os.times()
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    cpu = sum(getattr(after, part) - getattr(before, part) for part in CHILDREN)
    shown = " ".join([Path(command[0]).name, *command[1:]])
    return Step(name, shown, seconds, cpu, done.stdout.strip() or done.stderr.strip())


if __name__ == "__main__":
    main()
