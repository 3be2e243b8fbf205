"""Tasks of the lm-evaluation-harness on a run (extra 'eval'): their metrics, with the kind of the likelihoods below."""

import difflib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from logosphere.errors import UserError
from logosphere.io import json_safe, write_json
from logosphere.runs.evaluate import report_path
from logosphere.runs.run import Run
from logosphere.runs.settings import SILENT, Display, EvaluateConfig, TaskConfig
from logosphere.runs.task_model import DRAWS, TaskModel
from logosphere.types import Kind

BOOTSTRAP = 1000
"""Resamples of the standard errors that have no formula."""
UNREACHABLE = {
    "ConnectionError", "ConnectTimeout", "ConnectError", "ReadTimeout", "ProxyError", "MaxRetryError", "gaierror",
    "OfflineModeIsEnabled", "LocalEntryNotFoundError",
}  # fmt: skip
"""Names of errors of the libraries that fetch data, when there is no network."""
MISSING = {"DatasetNotFoundError", "RepositoryNotFoundError", "DataFilesNotFoundError", "FileNotFoundError"}
"""Names of their errors for data that is not there."""


@dataclass(frozen=True)
class Metric:
    """A metric of a task, ± one standard error over its documents."""

    task: str
    name: str
    filter: str
    """How answers were extracted; "none" as they are."""
    value: float
    error: float
    """NaN where the harness has no error."""
    higher_is_better: bool | None
    documents: int


@dataclass(frozen=True)
class TaskReport:
    """The metrics of tasks, and the settings needed to compare them."""

    name: str
    metrics: tuple[Metric, ...]
    kind: Kind
    """The kind of the likelihoods that the metrics are computed from: exact, or minus a bound."""
    draws: int
    """Draws of time and noise for each likelihood; exact ones have no draws."""
    steps: int
    """Steps of the sampler, for tasks that generate."""
    limit: int | None
    """Documents of each task at most; None for all."""
    seed: int
    weights: str
    tokenizer: str
    harness: str
    """Version of lm-eval."""

    def __str__(self) -> str:
        width = max([4, *(len(metric.task) for metric in self.metrics)])
        wide = max([6, *(len(self._label(metric)) for metric in self.metrics)])
        lines = [f"{'task':{width}}  {'metric':{wide}}  {'value':>19}  documents"]
        for metric in self.metrics:
            error = "" if math.isnan(metric.error) else f" ± {metric.error:.4f}"
            lines.append(
                f"{metric.task:{width}}  {self._label(metric):{wide}}  {metric.value:.4f}{error:<9}".ljust(
                    width + wide + 23
                )
                + f"  {metric.documents}"
            )
        return "\n".join(lines)

    @staticmethod
    def _label(metric: Metric) -> str:
        return metric.name if metric.filter == "none" else f"{metric.name} ({metric.filter})"

    @property
    def likelihoods(self) -> str:
        """What the likelihoods are, in words."""
        if self.kind == "exact":
            return "likelihoods are exact"
        return f"likelihoods are minus the bound, {self.draws} draws each"

    def summary(self) -> dict[str, Any]:
        """All fields as plain data, named as what they are."""
        return asdict(self) | {"benchmark": "tasks"}


def evaluate_tasks(
    run: Run | str | Path,
    tasks: TaskConfig,
    config: EvaluateConfig | None = None,
    *,
    options: tuple[str, ...] = (),
    display: Display = SILENT,
) -> TaskReport:
    """The metrics of tasks on a run, by the lm-evaluation-harness; `options` change options of its system."""
    config = config or EvaluateConfig()
    names = tasks.names
    tasks.check()
    if find_spec("lm_eval") is None:
        raise UserError("Tasks need the lm-evaluation-harness; install it with: pip install 'logosphere[eval]'.")
    run = run if isinstance(run, Run) else Run(run, trained=False, trust_references=config.trust_references)
    if remark := run.missing_average(config.weights):
        display.log(remark)
    draws = DRAWS if config.draws is None else config.draws
    model = TaskModel.of(
        run, draws=draws, steps=tasks.task_steps, seed=config.seed, weights=config.weights, options=options
    )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    harness, registry = import_module("lm_eval"), import_module("lm_eval.tasks")
    adapter = import_module("logosphere.runs.lm_eval_adapter").Harness(model)
    with display.bar("reading tasks") as bar:
        manager = registry.TaskManager(include_path=None if tasks.tasks_folder is None else str(tasks.tasks_folder))
        check_names(names, manager.all_tasks)
        bar.update(0.1, ", ".join(names))
        with explained(names):
            found = harness.simple_evaluate(
                adapter,
                tasks=list(names),
                task_manager=manager,
                limit=tasks.limit,
                bootstrap_iters=BOOTSTRAP,
                log_samples=False,
                random_seed=config.seed,
                numpy_random_seed=config.seed,
                torch_random_seed=config.seed,
                fewshot_random_seed=config.seed,
            )
        bar.update(1.0, ", ".join(names))
    return TaskReport(
        name=run.path.name,
        metrics=tuple(read_metrics(found)),
        kind=model.kind,
        draws=0 if model.kind == "exact" else draws,
        steps=tasks.task_steps,
        limit=tasks.limit,
        seed=config.seed,
        weights=run.used_weights(config.weights),
        tokenizer=run.tokenizer.fingerprint,
        harness=version("lm-eval"),
    )


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first name that is no task, group or tag."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise UserError(
                f"There is no task '{name}' among {len(known):,} of the harness.{hint} Definitions of your own are "
                "read with --tasks-folder."
            )


@contextmanager
def explained(names: Iterable[str]) -> Iterator[None]:
    """Errors of the harness and its data as a sentence, unless they are the package's own."""
    try:
        yield
    except UserError:
        raise
    except Exception as problem:
        tasks = ", ".join(names)
        kinds = {type(one).__name__ for one in chain_of(problem)}
        if kinds & UNREACHABLE:
            raise UserError(
                f"The data of {tasks} cannot be fetched without a network; fetch them once where there is one, or "
                "name a task that reads a local file with --tasks-folder."
            ) from problem
        line = " ".join(str(problem).split())[:200]
        what = "has no data" if kinds & MISSING else "cannot be evaluated"
        raise UserError(f"{tasks} {what} ({type(problem).__name__}: {line}).") from problem


def chain_of(problem: BaseException) -> Iterator[BaseException]:
    """An error and those it came from."""
    current: BaseException | None = problem
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def read_metrics(found: Mapping[str, Any]) -> Iterator[Metric]:
    """The metrics in the results of the harness, whose keys are "metric,filter" and "metric_stderr,filter"."""
    for task, results in found["results"].items():
        better = found.get("higher_is_better", {}).get(task, {})
        counts = found.get("n-samples", {}).get(task, {})
        for key, value in results.items():
            name, comma, chosen = key.partition(",")
            if not comma or name.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = results.get(f"{name}_stderr,{chosen}")
            yield Metric(
                task,
                name,
                chosen,
                float(value),
                float(error) if isinstance(error, int | float) else math.nan,
                better.get(name),
                int(counts.get("effective", 0)),
            )


def save_tasks(run: Run, report: TaskReport, options: tuple[str, ...] = ()) -> Path:
    """Save the metrics among the results of a run, under the names of the tasks."""
    tasks = "+".join(dict.fromkeys(metric.task for metric in report.metrics))
    limit = [] if report.limit is None else [f"limit={report.limit}"]
    path = report_path(run, f"tasks {tasks}", *limit, *options)
    write_json(path, json_safe(report.summary()))
    return path
