"""Replay the first hour of a new user in a fresh environment, and print what each step took.

    python tools/first_hour.py [--minutes 2] [--text FILE] [--here] [--quick] [--json]

Builds the wheel, installs it into an empty environment, and then uses it as a new user does: sample, train on a text,
train longer, evaluate, continue a prompt, fill a gap, compare, export, and load the export elsewhere, by a command and
from Python. The first step that fails ends the replay with its output. With --here the package of this environment is
used instead, and with --quick networks and measurements are tiny, as in the tests.
"""

import argparse
import json
import os
import pydoc_data.topics
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

from check_wheel import ROOT, build

CHILDREN = "children_user", "children_system"
NETWORK = ["--network.width", "16", "--network.depth", "1", "--network.heads", "2"]
QUICK = {
    "train": [*NETWORK, "--validations", "1", "--validation-sequences", "8"],
    "evaluate": ["--sequences", "8", "--draws", "1"],
    "sample": ["--steps", "4"],
    "compare": [*NETWORK, "--sequences", "8", "--draws", "1", "--samples", "4", "--sampling-steps", "4"],
    "export": ["--sequences", "8", "--draws", "1"],
}
"""Options of --quick by command."""
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
    parser.add_argument("--here", action="store_true", help="use the package of this environment; install nothing")
    parser.add_argument("--quick", action="store_true", help="tiny networks and measurements")
    parser.add_argument("--json", action="store_true", help="print the steps as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = replay(Path(folder), args.minutes, args.text, here=args.here, quick=args.quick)
    if args.json:
        print(json.dumps([asdict(step) for step in steps], indent=2))
        return
    print(f"{'step':34} {'seconds':>8} {'CPU s':>8}")
    for step in steps:
        print(f"{step.name:34} {step.seconds:8.1f} {step.cpu_seconds:8.1f}")
        print("".join(f"    {line}\n" for line in step.printed.splitlines()[-3:]), end="")
    print(f"{'in all':34} {sum(s.seconds for s in steps):8.1f} {sum(s.cpu_seconds for s in steps):8.1f}")


def replay(folder: Path, minutes: float, text: Path | None, *, here: bool = False, quick: bool = False) -> list[Step]:
    """All steps, in a folder of their own."""
    work, other = folder / "work", folder / "elsewhere"
    for place in (work, other):
        place.mkdir()
    content = "\n\n".join(pydoc_data.topics.topics.values()) if text is None else text.read_text(encoding="utf-8")
    (work / "mine.txt").write_text(content, encoding="utf-8")
    words = [word for word in content.split() if word.isalpha()][:2]
    done: list[Step] = []
    python, program = sys.executable, [sys.executable, "-m", "logosphere"]
    if not here:
        python, logosphere, install = make_environment(folder)
        program = [logosphere]
        done.append(measure("install", install, work))

    def run(name: str, command: str, *options: str, place: Path = work) -> None:
        extra = QUICK.get(command, []) if quick else []
        done.append(measure(name, [*program, command, *options, *extra], place))

    run("sample a bundled model", "sample")
    run("train on a text", "train", "--out", "runs/mine", "--data", "mine.txt", "--minutes", f"{minutes:g}")
    longer = [*program, "train", "--out", "runs/mine", "--resume", "--minutes", f"{1.5 * minutes:g}"]
    done.append(measure("train longer", longer, work))
    run("evaluate", "evaluate", "runs/mine")
    run("continue a prompt", "sample", "runs/mine", "-n", "2", "--prompt", " ".join(words))
    run("fill a gap", "sample", "runs/mine", "-n", "2", "--infill", " [....] ".join(words))
    budget = ["--data", "mine.txt", "--minutes", f"{minutes / 4:g}"]
    run("compare", "compare", "--systems", "rdlm,mdlm,ar", *budget, "--report", "report.html")
    run("export", "export", "runs/mine", "--out", str(other / "mine"), *([] if quick else ["--sequences", "200"]))
    run("sample elsewhere", "sample", "mine", "-n", "1", place=other)
    done.append(measure("load elsewhere", [python, "-c", PYTHON_SIDE], other))
    return done


def make_environment(folder: Path) -> tuple[str, str, list[str]]:
    """An empty environment: its Python, the command that the package will have there, and how it is installed."""
    environment = folder / "env"
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    python = str(programs / "python")
    wheel = build(folder / "dist")
    venv.create(environment, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return python, str(programs / "logosphere"), [*install, "--constraint", str(ROOT / "constraints.txt"), str(wheel)]


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
