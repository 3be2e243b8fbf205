"""New runs: the initial model of a configuration, warm starts from another run, and the run folder."""

import json
import math
import shutil
from collections.abc import Sequence, Set
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from logosphere.data.batches import find_task, train_batches
from logosphere.data.columns import TEXT_COLUMN
from logosphere.data.corpora import is_named
from logosphere.data.corpus import Corpus, Examples, check_length
from logosphere.data.tokenizer_registry import tokenizer_from_description
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.io import file_sha256, load_strict, read_tensors
from logosphere.model import Model, Spec
from logosphere.networks.backbone import Backbone
from logosphere.networks.convolution import ConvolutionBackbone, UNetStage
from logosphere.networks.heads import LinearHead, TiedHead
from logosphere.networks.precision import find_precision, precision_name
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.registry import build_network
from logosphere.origin import check_encoder
from logosphere.parallel.process_group import find_device
from logosphere.runs.config import TrainConfig
from logosphere.runs.run import BEGIN, Run
from logosphere.runs.stage_budgets import check_stages
from logosphere.runs.training_records import ParentCheckpoint
from logosphere.systems import build
from logosphere.systems import options as option_defaults
from logosphere.systems.latent import default_encoder
from logosphere.systems.latent_defaults import NAMED, PROSE, VOCABULARY
from logosphere.systems.registry import complete_options
from logosphere.training.checkpoint import latest
from logosphere.training.stages import CARD as AUTOENCODER_CARD
from logosphere.training.stages import check_autoencoder, load_autoencoder, read_autoencoder

FREE = {"dropout", "block", "any_order_fraction"}
"""Options that may differ from the parent: networks of whole sequences and of blocks can have the same weights, which
is checked when they are loaded, and the others have none."""


def create_run(config: TrainConfig, corpus: Corpus, path: str | Path) -> Run:
    """Check a configuration against its data and create the folder of its run."""
    return create_run_and_model(config, corpus, path)[0]


def create_run_and_model(config: TrainConfig, corpus: Corpus, path: str | Path) -> tuple[Run, Model]:
    """A new run and its initial model, which need not be built again to train it."""
    for split in (corpus.train, corpus.valid):
        check_length(split, config.length)
    model = build_model(config, corpus, None if config.begin is None else Run(config.begin).spec)
    batches = train_batches(corpus.train, config.length, config.batch, config.seed, config.order)
    task = find_task(config.task)
    if task.shortens and (model.block < model.length or not model.process.codec.local or config.network.axes):
        raise UserError(
            f"The task '{config.task}' cuts sequences, which blocks, latents and networks with a shape do not allow; "
            "use another task, or a system such as mdlm."
        )
    model.check_known(task.apply(batches.at(0), config.seed).known.to(model.device))
    assert model.spec is not None
    parent = None if config.begin is None else load_parent(config.begin, model, corpus.tokenizer, corpus.labels)
    check_stages(model, config)
    trained = None if config.autoencoder is None else load_autoencoder(model, config.autoencoder)
    run = Run.create(path, resolve_precision(record_column(config, corpus)), model.spec, corpus, parent)
    if trained is not None:  # so that the run does not depend on the place of the autoencoder
        for file in (trained.weights, trained.folder / AUTOENCODER_CARD):
            shutil.copy2(file, run.path / file.name)
    return run, model


def complete_config(config: TrainConfig, corpus: Corpus) -> tuple[TrainConfig, str]:
    """The configuration with options that depend on the tokenizer and on installed packages, and a remark about them.

    A training that continues another has the options of that one.
    """
    if config.begin is not None:
        return config, ""
    own = config.system_options()
    if config.autoencoder is not None:
        return _with_autoencoder(config, corpus, own)
    completed, remark = complete_options(config.system, own, corpus.tokenizer.describe(), config.preset)
    added = {name: value for name, value in completed.items() if name not in own or own[name] != value}
    kept = [word for word in config.options if word.partition("=")[0] not in added]
    words = (*kept, *(f"{name}={json.dumps(value)}" for name, value in added.items()))
    return replace(config, options=words), remark


def _with_autoencoder(config: TrainConfig, corpus: Corpus, own: dict[str, Any]) -> tuple[TrainConfig, str]:
    """The configuration with the options of a trained autoencoder."""
    found = read_autoencoder(str(config.autoencoder))
    size = (corpus.tokenizer.size, config.length)
    if found.tokenizer is not None and corpus.tokenizer.describe() != found.tokenizer:
        raise UserError(
            f"The autoencoder in {found.folder} was trained with another tokenizer than {corpus.tokenizer.name} of "
            f"{size[0]:,} tokens; leave out --tokenizer to have its own."
        )
    check_autoencoder(found, config.system, own, size)
    check_encoder(
        {name: value for name, value in found.options.items() if name not in own}, found.folder, trusted=False
    )
    words = tuple(f"{name}={json.dumps(value)}" for name, value in found.options.items() if name not in own)
    return replace(config, options=(*config.options, *words)), f"the autoencoder is that of {found.folder}"


def record_column(config: TrainConfig, corpus: Corpus) -> TrainConfig:
    """The configuration with the column that the text was found in, so that a resumed run reads the same."""
    return config if corpus.column in ("", TEXT_COLUMN) else replace(config, column=corpus.column)


def resolve_precision(config: TrainConfig) -> TrainConfig:
    """The configuration with "auto" replaced by the precision of its device, so that a resumed run has the same."""
    return replace(config, precision=precision_name(find_precision(config.precision, find_device(config.device))))


def build_model(config: TrainConfig, corpus: Corpus, parent: Spec | None = None) -> Model:
    """A fresh model for the texts and conditions of a corpus, its weights determined by the seed.

    The network of a `parent` that is a published one is that of the model, too.
    """
    size = vars(config.network) | corpus.conditions
    options = config.system_options()
    if parent is not None and parent.published is not None:
        return build_published(config, corpus, options, parent)
    check_own_options(config.system, options.keys())
    if clash := sorted(options.keys() & size.keys()):
        raise UserError(f"Set the size of the network with --network.{clash[0]}, not as an option of the system.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = build(
            config.system, vocab_size=corpus.tokenizer.size, length=config.length, preset=config.preset,
            **size, **options,
        )  # fmt: skip
    if isinstance(corpus.train, Examples):
        predict_padding(model, corpus.train)
    if config.recompute:
        for blocks in stacks_of_blocks(model):
            blocks.recompute = True
    return model.place(find_device(config.device))


def build_published(config: TrainConfig, corpus: Corpus, options: dict[str, Any], parent: Spec) -> Model:
    """A model with a published network, whose weights the caller reads; it takes no conditions."""
    check_own_options(config.system, options.keys())
    if given := sorted(name for name, count in corpus.conditions.items() if count):
        raise UserError(f"A published network takes no conditions, and this data has {given[0]}; use other data.")
    network = build_network(PublishedConfig.from_dict(parent.published))
    model = build(
        config.system, vocab_size=corpus.tokenizer.size, length=config.length, preset=config.preset,
        published=network, checkpoint=parent.checkpoint, **options,
    )  # fmt: skip
    return model.place(find_device(config.device))


def check_own_options(system: str, names: Set[str]) -> None:
    """Raise UserError for an option of a system that is a setting of the training, or is determined by the data."""
    for name in sorted(names - option_defaults(system).keys()):
        if name in vars(TrainConfig()):
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"'{name}' is a setting of the training and not an option of '{system}'; set it by {option}."
            )
        if name in ("vocab_size", "denoiser", "name"):
            raise UserError(f"'{name}' is not an option of '{system}'; leave it out: data and tokenizer determine it.")


@torch.no_grad()
def predict_padding(model: Model, texts: Examples) -> None:
    """Let the first predictions give EOS its frequency among all positions, and other tokens equal parts of the rest.

    Short texts are padded with EOS up to the length of the model. A uniform prediction costs log₂ V bits at each of
    these positions, while bits are counted per token of the text: 40 bits per token of 1,024 word pieces where a
    quarter of the length is text, rather than 12, and it takes some hundred steps to learn this one frequency.
    """
    if texts.eos is None or model.denoiser is None or not model.process.predicts_tokens:
        return
    filled = sum(min(len(row), model.length) for row in texts.sequences) / (len(texts) * model.length)
    if not 0 < filled < 1:
        return
    bias = math.log((1 - filled) / filled * (model.vocab_size - 1))
    for head in model.denoiser.modules():
        if isinstance(head, LinearHead | TiedHead) and len(head.bias) == model.vocab_size and bias > 0:
            head.bias[texts.eos] = bias


def stacks_of_blocks(model: Model) -> list[Backbone | ConvolutionBackbone | UNetStage]:
    """Every stack of blocks of the networks."""
    return [m for m in model.modules() if isinstance(m, Backbone | ConvolutionBackbone | UNetStage)]


def initial_model(run: Run, corpus: Corpus) -> Model:
    """The model of a run before its first step; where a checkpoint will replace its weights, they are arbitrary."""
    model = build_model(run.config, corpus, run.spec)
    if run.config.begin is not None and latest(run.state) is None:
        begun = run.content.get("begun")
        sha256 = begun.get("weights_sha256") if isinstance(begun, dict) else None
        load_strict(model, read_tensors(run.path / BEGIN, sha256), run.path / BEGIN)
    if run.config.autoencoder is not None and latest(run.state) is None:
        load_autoencoder(model, run.path if (run.path / AUTOENCODER_CARD).exists() else run.config.autoencoder)
    return model


# ---- warm starts ---------------------------------------------------------------------------------------------


def load_parent(name: str, model: Model, tokenizer: Tokenizer, labels: Sequence[str]) -> ParentCheckpoint:
    """Load the weights of a parent into a fresh model; raises if the parent does not fit, with the reason."""
    parent = Run(name)
    weights = parent.weights_file()
    assert model.spec is not None
    if differences := _differences(parent, model.spec, tokenizer, labels):
        raise UserError(f"A training cannot begin with {name}, which differs from it in {'; '.join(differences)}.")
    load_strict(model, read_tensors(weights), weights)
    return ParentCheckpoint(name, weights, file_sha256(weights), parent.trainings)


def config_from_parent(name: str) -> TrainConfig:
    """The configuration of a parent as the default of a training that starts from it.

    The seed changes, so that the data come in another order; settings of the parent's machine are not taken over.
    """
    parent, plain = Run(name), TrainConfig()
    config = parent.config
    check_encoder(config.system_options(), parent.path, trusted=parent.trusted)
    if not parent.trusted and not is_named(config.data):
        config = replace(config, data=plain.data, column=plain.column)  # a stranger's path is not opened unasked
    return replace(
        config, begin=name, seed=config.seed + 1, precision=plain.precision, device=plain.device,
        compile=plain.compile, shard=plain.shard, recompute=plain.recompute,
    )  # fmt: skip


def tokenizer_for(config: TrainConfig) -> str | Tokenizer:
    """The parent's own tokenizer, unless another is requested: a new one would number its tokens differently.

    Of a system with a pretrained encoder, on a corpus of English, auto is the tokenizer of the encoder.
    """
    if config.begin is None:
        if config.tokenizer == "auto" and config.autoencoder is not None:
            own = read_autoencoder(config.autoencoder).tokenizer
            return config.tokenizer if own is None else tokenizer_from_description(own)
        if config.tokenizer == "auto" and config.data in PROSE:
            encoder = default_encoder(config.system, config.system_options(), config.preset)
            return f"{encoder}:{VOCABULARY}" if encoder in NAMED else config.tokenizer
        return config.tokenizer
    parent = Run(config.begin)
    return parent.tokenizer if config.tokenizer in ("auto", parent.config.tokenizer) else config.tokenizer


def _differences(parent: Run, spec: Spec, tokenizer: Tokenizer, labels: Sequence[str]) -> list[str]:
    """How the parent differs from the model to be trained, as phrases of an error message."""
    theirs: dict[str, Any] = asdict(parent.spec)
    ours: dict[str, Any] = asdict(spec)
    names = {"system": "system", "vocabulary": "vocab_size", "length": "length"}
    rows = [(what, theirs[key], ours[key]) for what, key in names.items()]
    one, two = theirs["options"], ours["options"]
    rows += [(name, one.get(name), two.get(name)) for name in sorted((one.keys() | two.keys()) - FREE)]
    rows += [("published network", theirs["published"], ours["published"])]
    rows += [("labels", ", ".join(parent.labels), ", ".join(labels))]
    found = [f"{what} ({_format(a)} there, {_format(b)} here)" for what, a, b in rows if a != b]
    if not found and parent.tokenizer.fingerprint != tokenizer.fingerprint:
        found = [f"tokenizer ({parent.tokenizer.name} there, {tokenizer.name} here, of equal size)"]
    return found


def _format(value: object) -> str:
    return "nothing" if value is None or value == "" else str(value)
