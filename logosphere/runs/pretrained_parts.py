"""Options of a training that depend on its data and on what is installed: pretrained encoders, trained autoencoders."""

import json
import shutil
from dataclasses import replace
from typing import Any

from logosphere.data.corpus import Corpus
from logosphere.data.tokenizer_registry import tokenizer_from_description
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.origin import check_encoder
from logosphere.runs.config import TrainConfig
from logosphere.runs.run import Run
from logosphere.systems.latent import default_encoder
from logosphere.systems.latent_defaults import NAMED, PROSE, VOCABULARY
from logosphere.systems.registry import complete_options
from logosphere.training.stages import CARD as AUTOENCODER_CARD
from logosphere.training.stages import AutoencoderFile, check_autoencoder, load_autoencoder, read_autoencoder


def choose_tokenizer(config: TrainConfig) -> str | Tokenizer:
    """The tokenizer of a trained autoencoder, or on English that of the system's encoder, where auto asks for it."""
    if config.tokenizer != "auto":
        return config.tokenizer
    if config.autoencoder is not None:
        own = read_autoencoder(config.autoencoder).tokenizer
        return config.tokenizer if own is None else tokenizer_from_description(own)
    if config.data in PROSE:
        encoder = default_encoder(config.system, config.system_options(), config.preset)
        return f"{encoder}:{VOCABULARY}" if encoder in NAMED else config.tokenizer
    return config.tokenizer


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


def copy_autoencoder(trained: AutoencoderFile, run: Run) -> None:
    """Keep an autoencoder in the folder of a run, which then does not depend on the place of the original."""
    for file in (trained.weights, trained.folder / AUTOENCODER_CARD):
        shutil.copy2(file, run.path / file.name)


def read_own_autoencoder(model: Model, run: Run) -> None:
    """Fill a new model with the autoencoder that its training begins with, where there is one."""
    if run.config.autoencoder is not None:
        load_autoencoder(model, run.path if (run.path / AUTOENCODER_CARD).exists() else run.config.autoencoder)
