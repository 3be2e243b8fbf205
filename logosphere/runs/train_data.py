"""The data of trainings: of a new one, of one that another process has begun, of one that is resumed or measured."""

from dataclasses import replace

from logosphere.data.corpora import is_named, open_corpus
from logosphere.data.corpus import Corpus, Examples, Split
from logosphere.data.datasets import PAIRS
from logosphere.data.prompts import Prompting, check_answers
from logosphere.data.streaming import is_stream
from logosphere.data.tokenizers import Tokenizer, WithEOS
from logosphere.errors import UserError, shorten
from logosphere.origin import refuse
from logosphere.runs.config import TrainConfig
from logosphere.runs.parents import open_parent, tokenizer_for
from logosphere.runs.pretrained_parts import complete_config
from logosphere.runs.prompting import ANSWERS, find_prompting, prompting_of, with_answers
from logosphere.runs.run import Run
from logosphere.runs.settings import SILENT, Display


def open_training_data(config: TrainConfig, display: Display = SILENT) -> tuple[TrainConfig, Corpus]:
    """The data of a new training, and its configuration, which has the task `answers` where they are prompts."""
    parent = None if config.begin is None else open_parent(config.begin, display)
    config = with_answers(config, parent)
    tokenizer = tokenizer_for(config)
    prompting = find_prompting(config, parent)
    corpus = open_with_display(config.data, tokenizer, display, config.column, prompting)
    if isinstance(tokenizer, str):
        config = replace(config, tokenizer=tokenizer)  # auto may depend on what is installed
    if parent is not None:
        corpus = end_by_checkpoint(corpus, parent)
    config, remark = complete_config(config, corpus)
    if remark:
        display.log(f"{config.system}: {remark}")
    if remark := check_answers(corpus, config.length):
        display.log(remark)
    return config, corpus


def open_again(run: Run, config: TrainConfig, display: Display = SILENT) -> Corpus:
    """The data of a run that another process has created."""
    if is_stream(config.data):  # a stream has no cache that processes could share
        return open_run_data(run, display)
    return open_training_data(replace(config, column=run.config.column), display)[1]


def open_run_data(run: Run, display: Display = SILENT, data: str | None = None, column: str = "") -> Corpus:
    """The data of a run, or other data, in its tokens; its own column of text is read unless another is named."""
    if not (data or run.config.data):
        raise UserError(f"The model in {run.path} was saved without a training run; name a text with --data.")
    prompting = prompting_of(run.spec, run.tokenizer) if run.config.task == ANSWERS else None
    if data not in (None, run.config.data):
        pairs = prompting if data is not None and data.startswith(f"{PAIRS}:") else None
        return end_by_checkpoint(open_with_display(data, run.tokenizer, display, column, pairs), run)
    if data is None and not run.trusted and not is_named(run.config.data):
        raise refuse(run.path, f"names the data {shorten(run.config.data)}; name a text with --data")
    try:
        corpus = open_with_display(run.config.data, run.tokenizer, display, column or run.config.column, prompting)
        return end_by_checkpoint(corpus, run)
    except UserError as problem:
        raise UserError(
            f"The data of the run in {run.path} cannot be opened: {str(problem).rstrip('.')}. Restore them, or name a "
            "text with --data where a command has it."
        ) from None


def end_by_checkpoint(corpus: Corpus, run: Run) -> Corpus:
    """Separate texts for a published model: they end with its own token, since its vocabulary cannot have one more."""
    made, end = corpus.tokenizer, run.spec.special_token("eos")
    if (
        run.spec.published is None
        or not isinstance(made, WithEOS)
        or made.inner.fingerprint != run.tokenizer.fingerprint
    ):
        return corpus
    if end is None:
        raise UserError(
            f"The texts of {corpus.name} differ in length, and the checkpoint of this model names no token that ends a "
            "text; use a running text."
        )

    def ended(split: Split) -> Split:
        return replace(split, eos=end) if isinstance(split, Examples) else split

    train, valid, test = ended(corpus.train), ended(corpus.valid), ended(corpus.test)
    return replace(corpus, tokenizer=run.tokenizer, train=train, valid=valid, test=test)


def open_with_display(
    source: str,
    tokenizer: str | Tokenizer,
    display: Display,
    column: str = "",
    prompting: Prompting | None = None,
) -> Corpus:
    """Open a corpus and show the progress of preparing it."""
    with display.bar(source) as bar:

        def show(stage: str, done: int, total: int) -> None:
            if stage == "rebuilding a damaged cache":
                display.log("The cached tokens of this text were damaged and are rebuilt.")
            amount = f"  {done / 1e6:.1f} of {total / 1e6:.1f} MB" if stage.startswith("downloading") else ""
            bar.update(done / total if total else 0.0, stage + amount)

        return open_corpus(source, tokenizer, report=show, column=column, notify=display.log, prompting=prompting)
