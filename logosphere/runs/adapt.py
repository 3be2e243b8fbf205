"""The verb adapt: an autoregressive model becomes a masked or block diffusion, in a run folder like any other."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from logosphere.data.corpus import Corpus
from logosphere.model import Model
from logosphere.runs.adaptation import AdaptConfig
from logosphere.runs.config import TrainConfig
from logosphere.runs.run import Run
from logosphere.runs.settings import SILENT, Display
from logosphere.runs.train import OnEvent, create, finish, ignore, never, run_to_end


def create_adapted(
    source: str | Path,
    config: TrainConfig,
    out: str | Path | None = None,
    how: AdaptConfig | None = None,
    display: Display = SILENT,
) -> tuple[Run, Corpus, Model]:
    """The folder of an adaptation before its first step, its data and its initial model."""
    return create(replace(config, begin=str(source)), out, display, how or AdaptConfig())


def adapt(
    source: str | Path,
    config: TrainConfig,
    out: str | Path | None = None,
    how: AdaptConfig | None = None,
    *,
    display: Display = SILENT,
    on_event: OnEvent = ignore,
    should_stop: Callable[[], bool] = never,
) -> Run:
    """Adapt an autoregressive model to a diffusion, and train it; `resume` continues the run.

    `source` is a run of system ar in a published layout, a checkpoint folder, a .gguf file, hf:OWNER/NAME or smollm2.
    """
    run, corpus, model = create_adapted(source, config, out, how, display)
    outcome = run_to_end(run, corpus, display, on_event=on_event, should_stop=should_stop, model=model)
    return finish(outcome, corpus)
