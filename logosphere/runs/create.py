"""New runs: the initial model of a configuration, also one that begins with another run, and the run folder."""

import math
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from logosphere.data.batches import find_task, train_batches
from logosphere.data.columns import TEXT_COLUMN
from logosphere.data.corpus import Corpus, Examples, check_length
from logosphere.data.packing import PackedSampler
from logosphere.errors import UserError
from logosphere.io import file_sha256, load_strict, read_tensors, write_tensors
from logosphere.model import Model, Spec
from logosphere.networks.backbone import Backbone
from logosphere.networks.convolution import ConvolutionBackbone, UNetStage
from logosphere.networks.heads import LinearHead, TiedHead
from logosphere.networks.precision import find_precision, precision_name
from logosphere.networks.published.lora import LoRAConfig
from logosphere.parallel.process_group import find_device
from logosphere.pretrained.adapters import build_adapted, find_base, load_base
from logosphere.runs.adaptation import AdaptConfig
from logosphere.runs.config import TrainConfig
from logosphere.runs.parents import begin_adapters, child_spec, differences, open_parent, parent_weights
from logosphere.runs.pretrained_parts import copy_autoencoder, read_own_autoencoder
from logosphere.runs.run import BEGIN, Run
from logosphere.runs.stage_budgets import check_stages
from logosphere.runs.training_records import ParentCheckpoint
from logosphere.systems import build
from logosphere.systems import options as option_defaults
from logosphere.training.checkpoint import latest
from logosphere.training.stages import load_autoencoder


def create_run(config: TrainConfig, corpus: Corpus, path: str | Path) -> Run:
    """Check a configuration against its data and create the folder of its run."""
    return create_run_and_model(config, corpus, path)[0]


def create_run_and_model(
    config: TrainConfig, corpus: Corpus, path: str | Path, adapt: AdaptConfig | None = None
) -> tuple[Run, Model]:
    """A new run and its initial model, which need not be built again to train it.

    With `adapt` it begins with an autoregressive network, whose attention, masks and shift become those of a diffusion.
    """
    for split in (corpus.train, corpus.valid):
        check_length(split, config.length)
    if config.begin is None:
        if config.lora:
            raise UserError("--lora adapts the weights of another model; name it by --begin (--init-from).")
        model = build_model(config, corpus)
        check_data(config, corpus, model)
        check_stages(model, config)
        assert model.spec is not None
        trained = None if config.autoencoder is None else load_autoencoder(model, config.autoencoder)
        run = Run.create(path, _recorded(config, corpus), model.spec, corpus)
        if trained is not None:
            copy_autoencoder(trained, run)
        return run, model
    parent = open_parent(config.begin)
    with parent_weights(parent) as weights, TemporaryDirectory(prefix="logosphere-begin-") as scratch:
        file, digest = weights, file_sha256(weights)
        model = begin_model(config, corpus, parent, weights, digest, adapt)
        check_stages(model, config)
        assert model.spec is not None
        if adapt is not None and not config.lora:
            file = Path(scratch) / BEGIN
            write_tensors(file, model.state_dict())
            digest = file_sha256(file)
        begun = ParentCheckpoint(config.begin, file, digest, parent.trainings)
        return Run.create(path, _recorded(config, corpus), model.spec, corpus, begun), model


def begin_model(
    config: TrainConfig, corpus: Corpus, parent: Run, weights: Path, sha256: str, adapt: AdaptConfig | None
) -> Model:
    """The initial model of a training that begins with these weights of a parent."""
    model = build_model(config, corpus, child_spec(parent, config, adapt, sha256))
    assert model.spec is not None
    if found := differences(parent, model.spec, corpus, adapted=adapt is not None):
        raise UserError(f"A training cannot begin with {config.begin}, which differs from it in {'; '.join(found)}.")
    if adapt is None and not config.lora:
        load_strict(model, read_tensors(weights), weights)
    else:
        load_base(model, weights, sha256)
        begin_adapters(model, config)
    check_data(config, corpus, model)
    return model


def check_data(config: TrainConfig, corpus: Corpus, model: Model) -> None:
    """Raise UserError for a task that a model does not allow."""
    batches = train_batches(corpus.train, config.length, config.batch, config.seed, config.order, pack=config.pack)
    task = find_task(config.task)
    if task.shortens and (model.block < model.length or not model.process.codec.local or config.network.axes):
        raise UserError(
            f"The task '{config.task}' cuts sequences, which blocks, latents and networks with a shape do not allow; "
            "use another task, or a system such as mdlm."
        )
    model.check_known(task.apply(batches.at(0), config.seed).known.to(model.device))
    if config.pack:
        check_packing(model, batches)


def check_packing(model: Model, batches: object) -> None:
    """Raise UserError where documents cannot be packed."""
    if not isinstance(batches, PackedSampler):
        raise UserError("--pack packs separate texts into rows; use pairs:FILE or lines:FILE, or leave it out.")
    if model.block < model.length or model.spec is None or model.spec.published is None:
        raise UserError(
            "--pack needs a published network with full attention, whose attention can be kept within documents; leave "
            "it out, or use the system mdlm."
        )


def _recorded(config: TrainConfig, corpus: Corpus) -> TrainConfig:
    return resolve_precision(record_column(config, corpus))


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
    if config.lora:
        raise UserError(
            "--lora adapts the linear layers of networks in published layouts, and the network of this model has none "
            "that can be adapted; leave it out to train all weights."
        )
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
    """A model with a published network, whose weights the caller reads; it takes no conditions.

    A network with adapters has no memory before its base is read.
    """
    check_own_options(config.system, options.keys())
    if given := sorted(name for name, count in corpus.conditions.items() if count):
        raise UserError(f"A published network takes no conditions, and this data has {given[0]}; use other data.")
    network = build_adapted(parent, "cpu" if parent.adapters is None else "meta")
    network.recompute = config.recompute
    model = build(
        config.system, vocab_size=corpus.tokenizer.size, length=config.length, preset=config.preset,
        published=network, checkpoint=parent.checkpoint, **options,
    )  # fmt: skip
    assert model.spec is not None
    model.spec = replace(model.spec, adapters=parent.adapters)
    return model if parent.adapters is not None else model.place(find_device(config.device))


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
    if run.spec.adapters is not None:
        adapters = LoRAConfig.from_dict(run.spec.adapters)
        load_base(model, find_base(run.path, adapters, trusted=run.trusted), adapters.base_sha256)
        begin_adapters(model, run.config)
    elif run.config.begin is not None and latest(run.state) is None:
        begun = run.content.get("begun")
        sha256 = begun.get("weights_sha256") if isinstance(begun, dict) else None
        load_strict(model, read_tensors(run.path / BEGIN, sha256), run.path / BEGIN)
    if latest(run.state) is None:
        read_own_autoencoder(model, run)
    return model
