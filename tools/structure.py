"""Figures of the structure of the package: its size, and how much of it a reader meets on the way of one action.

    python tools/structure.py            a table
    python tools/structure.py --json     the same as JSON
    python tools/structure.py --static   only what can be counted without running anything

Sizes are counted in the source. Actions are traced with sys.setprofile on a tiny run of rdlm-heat: the functions of the
package that are called, the files they are in, and the depth of the stack, counted in frames of the package, at the
formula that the action is about (the loss in training, nats of the bound in evaluation, a reverse step in sampling).
"""

import argparse
import ast
import io
import json
import os
import statistics
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = Path(__file__).parent.parent / "logosphere"
SHELL = ("studio", "report", "cli")
"""Folders that are not the core."""
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Frames that Python inlines since 3.12."""
TINY = (
    "--length 8 --batch 4 --validations 1 --validation-sequences 4 --network.width 16 --network.depth 1 "
    "--network.heads 2 --device cpu"
).split()


@dataclass(frozen=True)
class Size:
    """The size of a part of the package."""

    modules: int
    lines: int
    """All lines, as wc -l counts them."""
    code_lines: int
    """Lines without blank lines, comments and docstrings."""
    median_function: float
    """Lines of the median function."""


@dataclass
class Trace:
    """What an action calls."""

    files: int = 0
    functions: int = 0
    frames: int = 0
    """Depth of the stack at the formula that the action is about."""
    names: list[str] = field(default_factory=list)
    """The files."""


# ---- counted in the source ---------------------------------------------------------------------------------------


def sources(*, core: bool = False) -> list[Path]:
    """The modules of the package; `core` leaves out the command line, the report and the studio."""
    found = sorted(PACKAGE.rglob("*.py"))
    return [path for path in found if not core or path.relative_to(PACKAGE).parts[0] not in SHELL]


def count_code_lines(text: str) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):  # docstrings, also those of attributes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def measure_size(paths: list[Path]) -> Size:
    """The size of some modules together."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    lines = sum(text.count("\n") for text in texts)
    return Size(len(paths), lines, sum(map(count_code_lines, texts)), statistics.median(lengths))


def local_imports() -> list[str]:
    """Imports inside functions."""
    found = []
    for path in sources():
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                nodes = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
                found += [f"{path.relative_to(PACKAGE)}:{node.lineno}" for node in nodes]
    return sorted(set(found))


def family_of(roots: tuple[str, ...]) -> dict[str, Path]:
    """The subclasses of some classes, each with the folder in which it is defined."""
    classes: dict[str, tuple[set[str], Path]] = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = {ast.unparse(base).split("[")[0] for base in node.bases}, path.parent
    family = {name: classes[name][1] for name in roots}
    while more := {name: at for name, (bases, at) in classes.items() if name not in family and bases & family.keys()}:
        family |= more
    return family


def foreign_checks() -> list[str]:
    """isinstance checks of processes and codecs in other folders than the one of the class."""
    family, found = family_of(("Process", "Codec")), []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and len(node.args) == 2:
                names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                if any(name in family and family[name] != path.parent for name in names):
                    found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}")
    return found


def process_interface() -> dict[str, int]:
    """How many members of Process are abstract and how many are public."""
    from torch import nn

    from logosphere.processes.base import Process

    members = {*vars(Process), *Process.__annotations__}
    public = [name for name in members if not name.startswith("_") and name not in dir(nn.Module)]
    return {"abstract": len(Process.__abstractmethods__), "public": len(public)}


# ---- traced ------------------------------------------------------------------------------------------------------


class Tracer:
    """Notes the functions of the package that are called, and the depth of the stack at functions of some names."""

    def __init__(self, landmarks: tuple[str, ...] = (), within: str = ""):
        self.landmarks, self.within = landmarks, within
        self.codes: set[CodeType] = set()
        self.inside, self.frames = not within, 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(PACKAGE)):
            return
        if self.within and code.co_name == self.within:
            self.inside = event == "call"
            if self.inside:  # of several calls the last one counts, when caches are filled
                self.codes, self.frames = {code}, 0
        if event == "call" and self.inside and not code.co_name.startswith("<"):
            self.codes.add(code)
            if code.co_name in self.landmarks and "processes" in code.co_filename:
                self.frames = max(self.frames, depth(frame))

    def result(self) -> Trace:
        names = sorted({str(Path(code.co_filename).relative_to(PACKAGE)) for code in self.codes})
        return Trace(len(names), len(self.codes), self.frames, names)


def depth(frame: FrameType | None) -> int:
    """The number of frames of the package on the stack."""
    count = 0
    while frame is not None:
        code = frame.f_code
        count += code.co_filename.startswith(str(PACKAGE)) and code.co_name not in COMPREHENSIONS
        frame = frame.f_back
    return count


def traced(work: Callable[[], object], landmarks: tuple[str, ...] = (), within: str = "") -> Trace:
    """Trace an action; with `within`, only the last call of the function of that name."""
    tracer = Tracer(landmarks, within)
    before = sys.getprofile()
    sys.setprofile(tracer)
    try:
        work()
    finally:
        sys.setprofile(before)
    return tracer.result()


@contextmanager
def quiet_workplace() -> Iterator[Path]:
    """A temporary folder for runs and caches, with the output of commands discarded."""
    cache = os.environ.get("LOGOSPHERE_CACHE")
    with tempfile.TemporaryDirectory() as name:
        os.environ["LOGOSPHERE_CACHE"] = f"{name}/cache"
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                yield Path(name)
        finally:
            if cache is None:
                del os.environ["LOGOSPHERE_CACHE"]
            else:
                os.environ["LOGOSPHERE_CACHE"] = cache


def command(*argv: object) -> None:
    """Run a command of the package, which must succeed."""
    from logosphere.cli import main

    if code := main([str(word) for word in argv]):
        raise SystemExit(f"logosphere {argv[0]} failed with exit code {code}")


def trace_actions(system: str = "rdlm-heat") -> dict[str, Trace]:
    """One optimiser step, sampling, evaluating, comparing and building."""
    import logosphere as ls

    def build() -> None:
        ls.build(system, vocab_size=5, length=8, width=16, depth=1, heads=2)

    build()  # modules are imported when they are first needed
    found = {"build": traced(build)}
    with quiet_workplace() as place:
        text, run = place / "text.txt", place / "run"
        text.write_text("a stitch in time saves nine; " * 60, encoding="utf-8")
        words = ["train", "--system", system, "--data", text, "--steps", 2, *TINY, "--out", run]
        found["train step"] = traced(lambda: command(*words), ("loss",), within="train_step")
        short = ("--sequences", 4, "--draws", 1)
        found["sample"] = traced(lambda: command("sample", run, "-n", 2, "--steps", 3, "--json"), ("step",))
        found["evaluate"] = traced(lambda: command("evaluate", run, *short), ("nats", "elbo_rate"))
        found["compare"] = traced(lambda: command("compare", run, *short), ("nats", "elbo_rate"))
    return found


# ---- output ------------------------------------------------------------------------------------------------------


def measure(*, static: bool = False) -> dict[str, object]:
    """All figures."""
    content: dict[str, object] = {
        "core": asdict(measure_size(sources(core=True))),
        "whole": asdict(measure_size(sources())),
        "local_imports": local_imports(),
        "foreign_isinstance": foreign_checks(),
        "process": process_interface(),
    }
    if not static:
        content["actions"] = {name: asdict(trace) for name, trace in trace_actions().items()}
    return content


def table(content: dict[str, object]) -> str:
    """The figures for people; lists are shown by their length."""
    rows: list[tuple[str, object]] = []

    def add(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key != "names":
                    add(f"{name} {key}".strip(), inner)
        else:
            rows.append((name.replace("_", " "), len(value) if isinstance(value, list) else value))

    add("", content)
    build = content.get("actions", {})
    if isinstance(build, dict) and "build" in build:
        names = build["build"]["names"]
        wiring = [name for name in names if name.startswith(("systems", "migration"))]
        rows.append(("actions build files of the wiring (systems, migration)", len(wiring)))
        rows.append(
            (
                "actions build files with the parts, without networks",
                len([n for n in names if not n.startswith("networks")]),
            )
        )
    return "\n".join(f"{name:<40} {value:>8,}" for name, value in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--static", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    content = measure(static=chosen.static)
    sys.stdout.write((json.dumps(content, indent=2) if chosen.json else table(content)) + "\n")


if __name__ == "__main__":
    main()
