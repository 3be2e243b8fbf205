"""The folder of a run.

recipe.json        how the run was set up, fully resolved      model.safetensors   weights of the last checkpoint
env.json           versions and machine                        ema.safetensors     their running average
tokenizer.json     text <-> tokens                             best.safetensors    the average when it was best
metrics.jsonl      one object a line                           state/              what resuming needs
samples/, eval/    texts and reports                           remasker.safetensors  of g-star, trained afterwards
begin.safetensors  initial weights that are not random         base.safetensors    what its adapters adapt
hashes.json        of best.safetensors and remasker.safetensors
"""

import json
import os
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from logosphere.data.corpus import Corpus
from logosphere.data.tokenizer_registry import load_tokenizer, save_tokenizer
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError, quote_path
from logosphere.io import (
    EMA_WEIGHTS,
    RECIPE,
    TOKENIZER,
    WEIGHTS,
    as_file_name,
    cache_folder,
    check_folder,
    check_link,
    hash_files,
    locked,
    read_recipe,
    replace_file,
    sync,
    write_atomic,
    write_json,
    write_recipe,
)
from logosphere.model import Model, Spec
from logosphere.pretrained import (
    RECORD,
    default_pretrained,
    is_bundled,
    is_trusted,
    load_weights,
    read_spec,
    resolve_folder,
)
from logosphere.pretrained.adapters import BASE
from logosphere.pretrained.hashes import check_file, find_weights
from logosphere.runs.config import TrainConfig, config_from_dict, config_of_model
from logosphere.runs.metrics import read_metrics
from logosphere.runs.training_records import ParentCheckpoint, TrainingRecord, read_records
from logosphere.systems.registry import outside_parts
from logosphere.training.checkpoint import newest

BEST, BEGIN = "best.safetensors", "begin.safetensors"
SHORT = {"character": "bpc", "byte": "bpb", "token": "bpt", "dimension": "bpd"}
"""Names of bits per unit in metrics."""
KINDS = re.compile(r"((stream|hf|letters|lines|labelled|pairs|promoters):)+")
"""Prefixes of the name of a text."""
DRAFT = re.compile(r"\..+\.(\d+-[0-9a-f]{8}|link)|\.draft-\d+")
"""Names under which files and checkpoints are written before they get their own."""

Notify = Callable[[str], None]
"""Takes a remark for the user."""


def ignore_remark(remark: str) -> None:
    """The default of `notify`."""


class Run:
    """The folder of a training run: its configuration, weights, metrics, samples and reports."""

    def __init__(self, path: str | Path, *, trained: bool = True, trust_references: bool = False):
        """Open a folder; unless `trained`, it may also be one that Model.save has written, without a training run.

        A folder that was not written on this machine may name data and encoders, which are opened only with
        `trust_references`.
        """
        self.path, self.name = resolve_folder(path), str(path)
        check_link(self.path)
        check_folder(self.path)
        if not self.path.is_dir():
            raise UserError(
                f"There is no run in {self.path}; train one with: logosphere train --out {quote_path(self.path)}"
            )
        self.content = read_recipe(self.path / RECIPE)
        _check_parts(self.content, self.path / RECIPE)
        self.trusted = trust_references or is_trusted(self.path)
        if trained and "recipe" not in self.content and not self.is_imported:
            place = quote_path(self.path)
            raise UserError(
                f"{self.path} holds a model but no training run, so this cannot be done with it; what can be: "
                f"logosphere sample {place}, or logosphere evaluate {place} --data FILE"
            )

    @staticmethod
    def create(
        path: str | Path, config: TrainConfig, spec: Spec, corpus: Corpus, begun: ParentCheckpoint | None = None
    ) -> "Run":
        """Set up a new run; the folder appears complete or not at all."""
        path = Path(path)
        check_link(path)
        check_folder(path)
        if path.exists() and any(path.iterdir()):
            raise UserError(f"{path} exists already; choose another --out, or continue the run in it with --resume.")
        # In containers process ids repeat, so a random part keeps drafts apart.
        draft = path.parent / f".{path.name}.draft-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            for part in ("state", "samples", "eval"):
                (draft / part).mkdir(parents=True)
            save_tokenizer(corpus.tokenizer, draft / "tokenizer.json")
            write_json(draft / "env.json", environment())
            source = {"name": corpus.name, "sha256": corpus.sha256, "tokenizer": corpus.tokenizer.fingerprint}
            content: dict[str, Any] = {"model": spec.content(), "recipe": asdict(config)}
            content["corpus"] = source | {"labels": corpus.labels}
            if begun is not None:
                _link_or_copy(begun.weights, draft / (BEGIN if spec.adapters is None else BASE))
                content["begun"] = begun.content()
            if plugins := outside_parts(spec):
                content["plugins"] = plugins
            content |= hash_files(draft, TOKENIZER, BEGIN)
            write_recipe(draft / RECIPE, content)
            sync(draft)
            if path.exists():
                path.rmdir()
            replace_file(draft, path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync(path.parent)
        return Run(path)

    @property
    def config(self) -> TrainConfig:
        if "recipe" not in self.content:
            spec, place = self.spec, str(self.path / RECIPE)
            return config_of_model(spec.system, spec.preset, spec.length, spec.options | spec.published_size, place)
        return config_from_dict(self.content["recipe"], str(self.path / RECIPE))

    @property
    def spec(self) -> Spec:
        return read_spec(self.path)

    @property
    def is_imported(self) -> bool:
        """Whether it holds a published model that was not trained by this package."""
        return "recipe" not in self.content and self.spec.published is not None

    @property
    def trainings(self) -> tuple[TrainingRecord, ...]:
        """Every training that the saved weights come from, the first one first."""
        place = self.path / RECIPE
        if "trainings" in self.content:  # a bundled checkpoint, which has no metrics
            return read_records(self.content["trainings"], place)
        begun = self.content.get("begun", {})
        before = read_records(begun.get("trainings", []), place) if isinstance(begun, dict) else ()
        saved = newest(self.state)
        last = int(saved.name.removeprefix("step-")) if saved is not None else sys.maxsize
        counted = [line for line in self.metrics() if {"tokens", "cpu_seconds"} <= line.keys()]
        lines = [line for line in counted if line.get("step", 0) <= last]
        if not lines:
            return before
        corpus, end = self.content["corpus"], lines[-1]
        own = TrainingRecord(
            corpus["name"], corpus["sha256"], end.get("step", 0), end["tokens"], end["cpu_seconds"], self.config.begin
        )
        return (*before, own)

    @property
    def tokenizer(self) -> Tokenizer:
        if "recipe" not in self.content and not (self.path / TOKENIZER).exists():
            raise UserError(
                f"The model in {self.path} was saved without a tokenizer, so it has no texts: set model.tokenizer "
                "before model.save(…), or draw token ids with ls.sample."
            )
        if (self.path / TOKENIZER).exists():
            check_file(self.path, TOKENIZER)
        return load_tokenizer(self.path / TOKENIZER)

    @property
    def labels(self) -> list[str]:
        """Names of the labels that the model was trained with, in the order of their numbers."""
        return [str(name) for name in self.content.get("corpus", {}).get("labels", [])]

    @property
    def conditions(self) -> dict[str, int]:
        """How many labels, tokens of sources and numbers of a signal the network was built for; 0 is none."""
        options = self.content["model"]["options"]
        return {name: int(options.get(name, 0)) for name in ("labels", "source", "signal")}

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def results(self) -> Path:
        """Where measurements are kept: in the run; for a bundled checkpoint in the cache."""
        return cache_folder() / "pretrained" / self.path.name if is_bundled(self.path) else self.path / "eval"

    def model(self, weights: str = "ema", options: dict[str, Any] | None = None) -> Model:
        """The trained model: its averaged weights (ema), the best of them (best) or the plain ones (model)."""
        file = self.weights_file(weights)
        file, sha256 = find_weights(self.path, file.name)
        return load_weights(self.path, file, options, sha256=sha256, trust_references=self.trusted)

    def weights_file(self, weights: str = "ema") -> Path:
        """The file of these weights."""
        files = {"ema": EMA_WEIGHTS, "best": BEST, "model": WEIGHTS}
        if weights not in files:
            raise UserError(f"weights must be one of {', '.join(files)}, not '{weights}'.")
        if not (self.path / WEIGHTS).exists():
            remedy = f"logosphere train --out {quote_path(self.path)} --resume"
            raise UserError(f"Nothing has been saved in {self.path} yet; continue with: {remedy}")
        if weights == "ema" and not (self.path / EMA_WEIGHTS).exists():
            weights = "model"  # an export has only averaged weights, under this name
        return self.path / files[weights]

    def used_weights(self, weights: str = "ema") -> str:
        """Which weights these are: those that `weights_file` takes where there are no averaged ones."""
        averaged = (self.path / EMA_WEIGHTS).exists() or (self.path / RECORD).exists()
        return "model" if weights == "ema" and not averaged else weights

    def missing_average(self, weights: str = "ema") -> str:
        """A remark that the plain weights are used in place of averaged ones; empty where they are not."""
        if not self.trainings or self.used_weights(weights) == weights or not self.config.ema:
            return ""
        return f"{self.path / EMA_WEIGHTS} is missing, so these are the plain weights of the last step, not averaged."

    def needs_renoise(self, model: Model) -> bool:
        """Whether known positions are noised like the others, so that sampling around them is only approximate.

        This holds for time-conditional networks that were not trained with clean positions among noisy ones.
        """
        return model.process.time_conditional and self.config.task == "unconditional"

    def bad_batch_path(self, step: int, rank: int) -> Path:
        """Where the batch is kept with which the training diverged in this step."""
        return self.path / f"broke-step-{step:08d}-{rank}.safetensors"

    def link_latest(self, checkpoint: Path) -> None:
        """Link the weights of a checkpoint at the top of the folder, without a second copy of them."""
        for name in (WEIGHTS, EMA_WEIGHTS):
            if (checkpoint / name).exists():
                link = self.path / f".{name}.link"
                link.unlink(missing_ok=True)
                _link_or_copy(checkpoint / name, link)
                replace_file(link, self.path / name)
        sync(self.path)

    def clean_temporary(self) -> None:
        """Remove files that a killed training has left half written; only for the holder of the lock."""
        for folder in (self.path, self.state, self.path / "samples", self.path / "eval"):
            for path in folder.glob(".*"):
                if DRAFT.fullmatch(path.name):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    # ---- metrics ----------------------------------------------------------------------------------------------

    def log(self, metrics: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(metrics) + "\n")

    def sync_metrics(self) -> None:
        """Sync the log to disk before a checkpoint is reported as saved."""
        if (path := self.path / "metrics.jsonl").exists():
            sync(path)

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines, each without values that are no finite numbers or short words.

        A run killed while writing may leave half a line at the end, and one that diverged has logged NaN.
        """
        return read_metrics(self.path / "metrics.jsonl")

    def bits(self, part: str) -> list[tuple[float, float]]:
        """The curve of a training: steps, and bits per unit in training (train) or on held-out text (val)."""
        name = f"{part}/{SHORT[self.tokenizer.unit]}"
        return [(float(line["step"]), float(line[name])) for line in self.metrics() if name in line and "step" in line]

    def truncate_metrics(self, step: int) -> None:
        """Drop metrics of steps that a resumed run will take again."""
        kept = [line for line in self.metrics() if line.get("step", 0) <= step]
        write_atomic(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept).encode())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one training at a time; the lock is released when the process ends, however that happens."""
        holder = self.path / ".holder"
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".lock", wait=False))
            except BlockingIOError:
                who = f" (process {holder.read_text(encoding='utf-8')})" if holder.exists() else ""
                raise UserError(
                    f"Another training is running in {self.path}{who}; wait for it or choose another --out."
                ) from None
            # In a file of its own: Windows lets nobody read a locked one.
            holder.write_text(str(os.getpid()), encoding="utf-8")
            stack.callback(holder.unlink, missing_ok=True)
            yield


def _check_parts(content: dict[str, Any], place: Path) -> None:
    """Raise UserError unless the parts of a recipe that are read one by one are tables of the right kind."""
    for part in ("model", "recipe", "corpus", "begun"):
        if not isinstance(content.get(part, {}), dict):
            raise UserError(f"{place} is damaged: '{part}' must hold names and values; restore it from a copy.")
    corpus = content.get("corpus", {})
    names = [corpus.get(name, "") for name in ("name", "sha256", "tokenizer")]
    if not all(isinstance(name, str) for name in names) or not isinstance(corpus.get("labels", []), list | tuple):
        raise UserError(f"{place} is damaged: 'corpus' must hold a name, hashes and labels; restore it from a copy.")


def _link_or_copy(file: Path, place: Path) -> None:
    """The same file at another place; files of weights are replaced and never changed."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copy2(file, place)  # not every file system has links
        sync(place)


def list_runs(parent: Path = Path("runs")) -> list[Path]:
    """The folders that have weights, the one trained last first."""
    found = [path.parent for path in parent.glob(f"*/{WEIGHTS}") if path.is_file()]  # not a link to nothing
    return sorted(found, key=lambda path: -(path / WEIGHTS).stat().st_mtime)


def usable_runs(parent: Path = Path("runs"), *, trained: bool = True, notify: Notify = ignore_remark) -> Iterator[Path]:
    """The runs with weights and a tokenizer, the one trained last first; `notify` is told why others are left out."""
    for path in list_runs(parent):
        try:
            run = Run(path, trained=trained)
            _ = run.config, run.tokenizer
        except UserError as problem:
            notify(f"{path} is left out: {problem}")
            continue
        yield path


def latest_run(parent: Path = Path("runs"), *, trained: bool = True, notify: Notify = ignore_remark) -> Path:
    """The run that was trained last, the default of commands."""
    remarks: list[str] = []
    found = next(usable_runs(parent, trained=trained, notify=remarks.append), None)
    if found is None:
        raise UserError(" ".join(["There is no run yet; train one with: logosphere train", *remarks[:1]]))
    for remark in remarks:
        notify(remark)
    return found


def latest_or_pretrained(*, infilling: bool = False, notify: Notify = ignore_remark) -> Path:
    """The run that was trained last, or else the bundled checkpoint, one that fills gaps with `infilling`."""
    bundled = default_pretrained(infilling)
    if bundled is None:
        return latest_run(trained=False, notify=notify)
    return next(usable_runs(Path("runs"), trained=False, notify=notify), bundled)


def unused_path(system: str, data: str, parent: Path = Path("runs")) -> Path:
    """A folder for a new run: runs/SYSTEM-DATA, with a number if that one is taken."""
    base = as_file_name(f"{system}-{Path(KINDS.sub('', data)).stem}")
    number, path = 1, parent / base
    while path.exists():
        number += 1
        path = parent / f"{base}-{number}"
    return path


def environment() -> dict[str, Any]:
    """The versions and the machine that the result depends on."""
    packages = ("logosphere", "torch", "numpy", "safetensors", "tokenizers")
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": versions,
        "command": ["logosphere", *sys.argv[1:]],
    }
