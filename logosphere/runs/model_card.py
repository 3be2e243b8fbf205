"""The card of a published model: what it is, what was measured, what it took; nothing that was not recorded."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from json import loads
from pathlib import Path
from typing import Any

import yaml

from logosphere.errors import UserError, plural
from logosphere.evaluation.report import Report
from logosphere.io import WEIGHTS
from logosphere.report.markdown import code_block, code_span, escape_text
from logosphere.runs.run import KINDS, Run
from logosphere.runs.training_records import TrainingRecord, sum_records
from logosphere.systems import preset_label, system
from logosphere.types import SIGN

LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,40}")
NOT_MEASURED = "No likelihood of these weights was measured, so none is stated."
NO_SAMPLES = "No samples are shown, because they may repeat passages of the training text."


@dataclass(frozen=True)
class Measured:
    """The reports of a run that belong to the published weights, and remarks on those that do not."""

    reports: tuple[Report, ...]
    remarks: tuple[str, ...]


def find_reports(run: Run, weights: str) -> Measured:
    """The reports that `logosphere evaluate` has saved on these weights."""
    used, written = run.used_weights(weights), run.weights_file(weights).stat().st_mtime
    reports, remarks = [], []
    for path in sorted(run.results.glob("*.json")):
        try:
            report = Report.load(path)
        except UserError:
            remarks.append(f"{path.name} is left out: it is no report of `logosphere evaluate`.")
            continue
        if not report.weights:
            remarks.append(f"{path.name} is left out: it is of the validation during the training.")
        elif report.weights != used:
            remarks.append(f"{path.name} is left out: it measured the weights '{report.weights}', not '{used}'.")
        elif path.stat().st_mtime < written:
            remarks.append(f"{path.name} is left out: the weights were written after it; evaluate them again.")
        elif not math.isfinite(report.bits):
            remarks.append(f"{path.name} is left out: its likelihood is not a finite number.")
        else:
            reports.append(replace(report, data=public_name(report.data)))
    return Measured(tuple(reports), tuple(remarks))


def public_name(source: str) -> str:
    """The name of a text, run or checkpoint without the folders of this machine."""
    kinds = KINDS.match(source)
    prefix = kinds[0] if kinds else ""
    rest = source.removeprefix(prefix)
    local = (
        rest.startswith(("/", "~", ".")) or "\\" in rest or ("/" in rest and not prefix.endswith(("hf:", "stream:")))
    )
    return prefix + re.split(r"[/\\]", rest.rstrip("/\\"))[-1] if local else source


def check_licence(licence: str | None) -> str | None:
    """The licence as the hub abbreviates it."""
    if licence is not None and not LICENCE.fullmatch(licence):
        raise UserError(f"A licence is named by its short name, such as mit or apache-2.0, not '{licence}'.")
    return licence


def front_matter(run: Run, licence: str | None) -> str:
    """The metadata of the card that the hub reads."""
    content: dict[str, Any] = {} if licence is None else {"license": licence}
    content |= {"library_name": "logosphere", "tags": ["text-diffusion", run.spec.system]}
    source = str((run.spec.checkpoint or {}).get("source", ""))
    if run.spec.system == "ar":
        content["tags"] = ["autoregressive"]
    if source.startswith("hf:"):
        content["base_model"] = source.removeprefix("hf:").partition("@")[0]
    return f"---\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}---\n"


def make_card(
    run: Run, repository: str, measured: Measured, samples: Sequence[str], *, licence: str | None, sha256: str
) -> str:
    """README.md of a published model."""
    about = system(run.spec.system)
    title = repository.partition("/")[2]
    use = f'import logosphere as ls\n\nmodel = ls.load("hf:{repository}")'
    facts = [*_model_facts(run, about.title, about.paper), *_training_facts(run)]
    facts += [("weights", f"`{WEIGHTS}`, sha256 `{sha256}`"), ("licence", licence or "not stated by the author")]
    parts = [
        f"{front_matter(run, licence)}\n# {title}",
        f"A model of Logosphere.\n\n```python\n{use}\n```",
        _table(("", ""), facts),
        "## Likelihood",
        _likelihoods(measured.reports),
        "## Samples",
        _samples(samples),
    ]
    return "\n\n".join(parts) + "\n"


def _model_facts(run: Run, title: str, paper: str) -> list[tuple[str, str]]:
    spec = run.spec
    facts = [("system", f"{code_span(spec.system)}: {title}" + (f" ({paper})" if paper else ""))]
    if spec.published is None:
        network = run.config.network
        facts.append(("preset", escape_text(preset_label(spec))))
        if not run.content.get("plugins"):
            facts.append(("network", f"{network.depth} blocks of width {network.width}, {network.heads} heads"))
    else:
        origin = spec.checkpoint or {}
        revision = f", revision {escape_text(str(origin['revision']))}" if origin.get("revision") else ""
        facts.append(("imported from", f"{escape_text(public_name(str(origin.get('source', 'unknown'))))}{revision}"))
        facts.append(
            ("licence of the source", escape_text(str(origin.get("licence") or "not recorded; see the source")))
        )
    return [*facts, ("vocabulary", plural(spec.vocab_size, "token")), ("length", plural(spec.length, "token"))]


def _training_facts(run: Run) -> list[tuple[str, str]]:
    trainings = public_records(run.trainings)
    if not trainings:
        return [("training", "not recorded")]
    whole, corpus = sum_records(trainings), run.content.get("corpus", {})
    facts = [
        (
            "data",
            escape_text(whole.data) + (f", sha256 {code_span(str(corpus['sha256']))}" if corpus.get("sha256") else ""),
        )
    ]
    facts.append(("tokens seen", f"{whole.tokens:,} in {plural(whole.steps, 'step')}"))
    spent = f"{whole.cpu_seconds / 60:.1f} CPU minutes"
    lines = [line["seconds"] for line in run.metrics() if isinstance(line.get("seconds"), int | float)]
    if lines:
        spent += f", {lines[-1] / 60:.1f} minutes of wall-clock time in the last training"
    facts.append(("compute", f"{spent}; device {code_span(run.config.device)}{_machine(run.path / 'env.json')}"))
    if trainings[-1].begin:
        facts.append(("began with", escape_text(trainings[-1].begin)))
    return facts


def _machine(path: Path) -> str:
    """The machine and the versions of a run, where they were recorded."""
    try:
        content = loads(path.read_bytes())
        versions = ", ".join(f"{name} {content['packages'][name]}" for name in ("logosphere", "torch"))
        return f"; {plural(int(content['processors']), 'processor')}; {escape_text(versions)}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def public_records(trainings: Sequence[TrainingRecord]) -> tuple[TrainingRecord, ...]:
    """Records of trainings without the folders of this machine."""
    return tuple(
        replace(one, data=public_name(one.data), begin=None if one.begin is None else public_name(one.begin))
        for one in trainings
    )


def _likelihoods(reports: Sequence[Report]) -> str:
    if not reports:
        return NOT_MEASURED
    rows = [
        (
            f"{SIGN[report.kind]} {report.bits:.4f} ± {report.error:.4f} bits per {report.unit}",
            report.kind_and_path,
            escape_text(report.data),
            f"{report.sample_size}, of {plural(report.length, 'token')}; {report.precision}",
        )
        for report in reports
    ]
    note = "± is one standard error over sequences. A bound (≤) is proven to lie above −log₂ p; a surrogate (~) is not."
    return f"{_table(('value', 'kind', 'data', 'measured on'), rows)}\n\n{note}"


def _samples(samples: Sequence[str]) -> str:
    if not samples:
        return NO_SAMPLES
    return "Not selected:\n\n" + "\n\n".join(map(code_block, samples))


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\|", " ".join(cell.split())) for cell in cells) + " |"

    return "\n".join([line(titles), "|" + "---|" * len(titles), *(line(row) for row in rows)])
