"""The infilling benchmark of a run, saved among its results."""

from pathlib import Path

from logosphere.data.batches import eval_batches
from logosphere.data.corpus import check_length
from logosphere.errors import UserError
from logosphere.evaluation.infilling import InfillingReport, check_infilling, infilling_report
from logosphere.evaluation.protocols import DEFAULT_DRAWS
from logosphere.io import json_safe, write_json
from logosphere.networks.precision import find_precision, precision_name
from logosphere.parallel.process_group import SINGLE, ProcessGroup, find_device
from logosphere.runs.config import parse_options
from logosphere.runs.evaluate import report_path
from logosphere.runs.run import Run
from logosphere.runs.sample import RENOISED
from logosphere.runs.settings import INFILLING_SEQUENCES, SILENT, Display, EvaluateConfig, InfillingConfig
from logosphere.runs.train_data import open_run_data


def evaluate_infilling(
    run: Run | str | Path,
    config: EvaluateConfig | None = None,
    gaps: InfillingConfig | None = None,
    *,
    options: tuple[str, ...] = (),
    display: Display = SILENT,
    group: ProcessGroup = SINGLE,
) -> InfillingReport:
    """Exact match, token accuracy and bits of gaps cut from the held-out text of a run, the same in every process."""
    config, gaps = config or EvaluateConfig(), gaps or InfillingConfig(infilling=True)
    if config.protocol != "full":
        raise UserError("--infilling has no protocol of papers; leave out --protocol paper.")
    if config.per not in ("auto", "token"):
        raise UserError(f"--infilling measures bits per token of a gap, so --per must be token, not {config.per}.")
    limit = INFILLING_SEQUENCES if config.sequences is None else config.sequences
    if limit < 0 or config.batch < 1:
        raise UserError("The number of sequences must be at least 0 and the batch at least 1.")
    run = run if isinstance(run, Run) else Run(run, trained=False, trust_references=config.trust_references)
    if remark := run.missing_average(config.weights):
        display.log(remark)
    model = run.model(config.weights, parse_options(options)).place(find_device(run.config.device))
    check_infilling(model, gaps.gaps)
    if not (config.data or run.config.data):
        raise UserError(f"The model in {run.path} was saved without a training run; name a text with --data.")
    corpus = open_run_data(run, display, config.data, config.column)
    split = corpus.split(config.split)
    check_length(split, model.length)
    renoises = run.needs_renoise(model)
    if renoises:
        display.log(RENOISED)
    with display.bar(f"infilling {run.path.name}") as bar:
        return infilling_report(
            model,
            lambda: eval_batches(split, model.length, config.batch, limit or None),
            name=run.path.name,
            gaps=gaps.gaps,
            draws=DEFAULT_DRAWS["full"] if config.draws is None else config.draws,
            steps=gaps.steps,
            seed=config.seed,
            sampler=gaps.sampler,
            temperature=gaps.temperature,
            renoise_known=renoises,
            precision=precision_name(find_precision(config.precision, model.network_device)),
            data=f"{corpus.name} {config.split}",
            tokenizer=run.tokenizer.fingerprint,
            weights=run.used_weights(config.weights),
            watch=lambda done: bar.update(done, f"{done:.0%}"),
            group=group,
        )


def save_infilling(run: Run, report: InfillingReport, options: tuple[str, ...] = ()) -> Path:
    """Save the results among those of a run, under the name of their data and options."""
    path = report_path(run, report.data, "infilling", *options)
    write_json(path, json_safe(report.summary()))
    return path
