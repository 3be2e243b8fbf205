"""The registry of the systems: their descriptions, their options, their presets and the models that they build.

A system is registered by decorating its build function, which takes the size of the vocabulary, the length, the
configuration of the network (None: no network) and the settings, a frozen dataclass whose fields are the options of the
system. The docstring below a field is the documentation of the option.

Presets are published configurations of the systems, read from the YAML files in presets/. A file maps
systems to presets by name. A preset with `extends: SYSTEM` takes every entry that it leaves out from the preset `paper`
of that system, aspect by aspect.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from logosphere.errors import UserError, check_count, shorten, suggest
from logosphere.migration import check_current_option
from logosphere.networks.config import NetworkConfig
from logosphere.networks.registry import NETWORKS, is_registered
from logosphere.plugins import check_name, is_outside, load_plugins, missing, place_of
from logosphere.systems.option_fields import check_option_type, check_settings, field_docs

if TYPE_CHECKING:
    from torch import nn

    from logosphere.model import Model, Spec
    from logosphere.networks.published.base import PublishedNetwork
    from logosphere.types import Kind, TextTokenizer

DEFAULT = "default"
"""The preset with the settings that work best at small scale; every system has it."""
PAPER = "paper"
"""The preset with the published settings."""

AspectName = Literal[
    "parameterisation", "weighting", "schedule", "time", "self-conditioning", "sampler", "optimiser", "network"
]
ASPECTS: tuple[AspectName, ...] = get_args(AspectName)


@dataclass(frozen=True)
class Aspect:
    """One aspect of a published system, and the same aspect of the default."""

    name: AspectName
    paper: str
    """The published form."""
    default: str = ""
    """The form of the default; empty where it is the same."""
    reason: str = ""
    """Why the default differs."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the system or of its network that select the published form."""


@dataclass(frozen=True)
class Preset:
    """A configuration of a system. Sizes, batches and steps belong to recipes and are not part of it."""

    system: str
    name: str
    source: str
    """Where the published settings come from."""
    aspects: tuple[Aspect, ...]
    checked: str
    """The tests that compare this preset with the published equations."""
    optim: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the optimiser (fields of `OptimizerConfig`)."""
    ema: float | None = None
    """Decay of the moving average of the weights; None: that of the recipe."""
    sampler: str = ""
    """Name of the published sampler; empty: the sampler of the default."""
    missing: str = ""
    """What was published and is not reproduced, such as a backbone or a pretrained encoder."""

    @property
    def options(self) -> dict[str, Any]:
        """All options that select this preset."""
        return {name: value for aspect in self.aspects for name, value in aspect.options.items()}


@cache
def published_presets() -> dict[str, dict[str, Preset]]:
    """The published presets by system and name."""
    import yaml  # not needed to import the package

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: dict[str, dict[str, dict[str, Any]]] = {}
    for file in sorted(files("logosphere.systems").joinpath("presets").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            content |= _parse(loader, file.read_text(encoding="utf-8"))
    return {
        system: {name: _preset(system, name, entry, content) for name, entry in entries.items()}
        for system, entries in content.items()
    }


def _parse(loader: Any, text: str) -> Any:
    parser = loader(text)
    try:
        return parser.get_single_data()
    finally:
        parser.dispose()


def _preset(system: str, name: str, entry: dict[str, Any], content: dict[str, dict[str, dict[str, Any]]]) -> Preset:
    if "extends" in entry:
        base = content[entry["extends"]][PAPER]
        own = {key: value for key, value in entry.items() if key != "extends"}
        entry = base | own | {"aspects": base["aspects"] | entry["aspects"]}
    if unknown := entry.keys() - {f.name for f in fields(Preset)}:
        raise ValueError(f"preset {system}/{name} has the unknown entries {sorted(unknown)}")
    if unknown := entry["aspects"].keys() - set(ASPECTS):
        raise ValueError(f"preset {system}/{name} has the unknown aspects {sorted(unknown)}")
    aspects = tuple(Aspect(name=key, **entry["aspects"][key]) for key in ASPECTS if key in entry["aspects"])
    return Preset(system, name, **(entry | {"aspects": aspects}))


FAMILIES = ("discrete", "masked", "uniform", "remasking", "spherical", "gaussian", "simplex", "latent")
"""Modules that register systems, in the order in which systems are listed."""
FRESH: Any = object()
"""The default of `denoiser` in `build`: a new network. None means no network."""
MAX_SIZE = 1 << 24
"""Largest vocabulary and length; larger values come from typing errors or damaged files."""
MAX_TIMESTEPS = 100_000
"""Most steps of a process in discrete time: its tables grow with them, and times in float32 become too coarse."""

Settings = TypeVar("Settings")
Builder = Callable[[int, int, NetworkConfig | None, Settings], "Model"]
Complete = Callable[[dict[str, Any], Mapping[str, Any], bool], tuple[dict[str, Any], str]]
"""(options, description of a tokenizer, is this a published preset?) -> options with those that depend on these, and a
remark for the user."""


@dataclass(frozen=True)
class SystemInfo:
    """What a system is and what kind of number it reports."""

    name: str
    title: str
    paper: str
    family: Literal["autoregressive", "discrete", "continuous", "latent"]
    kind: "Kind"
    summary: str
    """How it differs from similar systems, in one line."""
    sampler: str = "ancestral"
    """The sampler that is used unless another is named."""
    tied: bool = False
    """Whether the default preset ties the output head to the input vectors of the tokens."""


@dataclass(frozen=True)
class _Entry:
    info: SystemInfo
    settings: type[Any]
    build: Builder[Any]
    fixed: tuple[str, ...]
    complete: "Complete | None" = None

    @property
    def place(self) -> str:
        return place_of(self.build)

    @property
    def option_fields(self) -> list["Field[Any]"]:
        return [f for f in fields(self.settings) if f.name not in self.fixed]


_ENTRIES: dict[str, _Entry] = {}


def register(
    info: SystemInfo, settings: type[Settings], *, fixed: str = "", complete: Complete | None = None
) -> Callable[[Builder[Settings]], Builder[Settings]]:
    """A decorator that registers the build function of a system together with the class of its settings.

    Settings named in `fixed`, separated by spaces, keep their defaults and are no options of the system. `complete`
    adds options that depend on the tokenizer and on what is installed.
    """
    if not isinstance(info, SystemInfo):
        raise UserError(f"A system is described by an ls.SystemInfo, not by {shorten(info)}.")
    check_settings(info.name, settings)

    def add(build: Builder[Settings]) -> Builder[Settings]:
        taken = {name: entry.place for name, entry in _ENTRIES.items()}
        if is_outside(place_of(build)):
            taken = {name: entry.place for name, entry in _entries().items()}
        check_name("system", info.name, place_of(build), taken)
        _ENTRIES[info.name] = _Entry(info, settings, build, tuple(fixed.split()), complete)
        return build

    return add


@cache
def _entries() -> dict[str, _Entry]:
    """All systems by name, family by family, and those from outside that are registered."""
    for family in FAMILIES:
        import_module(f"logosphere.systems.{family}")
    return _ENTRIES


def _all_entries() -> dict[str, _Entry]:
    """All systems, those of installed plugins among them."""
    load_plugins()
    return _entries()


def _entry(name: str) -> _Entry:
    entries = _entries()
    if name not in entries and name not in (entries := _all_entries()):
        raise missing("system", name, entries)
    return entries[name]


def systems() -> list[str]:
    """The names of all systems."""
    return sorted(_all_entries())


def outside_parts(spec: "Spec") -> dict[str, str]:
    """The parts of a model that are registered from outside of the package, and the places of what builds them."""
    network = NETWORKS.get(str(spec.options.get("body", "")))
    places = {"system": _entry(spec.system).place, "network": "" if network is None else network.place}
    return {part: place for part, place in places.items() if place and is_outside(place)}


def system(name: str) -> SystemInfo:
    """The description of a system: title, paper, family and kind of number."""
    return _entry(name).info


def infos() -> list[SystemInfo]:
    """The descriptions of all systems, family by family."""
    return [entry.info for entry in _all_entries().values()]


def build(
    name: str,
    *,
    length: int,
    vocab_size: int | None = None,
    tokenizer: "TextTokenizer | None" = None,
    denoiser: "nn.Module | None" = FRESH,
    preset: str = DEFAULT,
    published: "PublishedNetwork | None" = None,
    checkpoint: "Mapping[str, Any] | None" = None,
    **options: Any,
) -> "Model":
    """A model of a system with a fresh network, with a denoiser of your own, or (None) without any.

    Options are those of the network (width, depth, heads, dropout) and those of the system; see `options(name)`.
    preset="paper" is the published system (see `presets(name)`); options given with a preset override the preset's.
    With a `tokenizer` the model reads and writes texts, and its vocabulary is that of the tokenizer. A `published`
    network comes from a `checkpoint`, which recipe.json describes (ls.import_model makes both).
    """
    from logosphere.model import Spec
    from logosphere.networks.base import check_tied
    from logosphere.networks.own import as_denoiser

    if vocab_size is None:
        if tokenizer is None:
            raise UserError("A model needs vocab_size=…, the number of its tokens, or tokenizer=….")
        vocab_size = tokenizer.size
    vocab_size, length = check_count("vocab_size", vocab_size, 0), check_count("The length", length)
    if vocab_size < 2:
        raise UserError(f"A vocabulary needs at least 2 tokens, not {vocab_size}.")
    if max(vocab_size, length) > MAX_SIZE:
        size = max(vocab_size, length)
        raise UserError(f"A model has at most {MAX_SIZE:,} tokens and {MAX_SIZE:,} positions, not {size:,}.")
    entry, known = _entry(name), _fields(name)
    for option, value in options.items():
        check_current_option(name, option, value, known)
        if option not in known:
            raise UserError(f"'{name}' has no option '{option}'.{suggest(option, known)}")
        check_option_type(name, option, value, known[option].type)
        if option == "timesteps" and value is not None and value > MAX_TIMESTEPS:
            raise UserError(
                f"timesteps must be at most {MAX_TIMESTEPS:,}, not {value:,}; 1,000 are usual, and timesteps=None is "
                "continuous time where the system has it."
            )
    chosen = find_preset(name, preset)
    if tokenizer is not None and not isinstance(tokenizer, str):
        options = complete_options(name, options, tokenizer.describe(), preset)[0]
    options = chosen.options | options
    network_fields = {f.name for f in fields(NetworkConfig)}
    network = NetworkConfig(**{key: value for key, value in options.items() if key in network_fields})
    if network.tied is None:
        tied = entry.info.tied and preset == DEFAULT and not is_registered(network.body)
        network = replace(network, tied=tied)
    settings = entry.settings(**{key: value for key, value in options.items() if key not in network_fields})
    without = denoiser is None or published is not None
    model = entry.build(vocab_size, length, None if without else network, settings)
    if published is not None:
        _attach(name, model, published, checkpoint)
    elif network.tied and denoiser is not None and model.denoiser is not None:
        check_tied(model.denoiser)
    if denoiser is not FRESH:
        given = None if denoiser is None else as_denoiser(denoiser, model.process, length, model.block)
        model.denoiser, model.own_denoiser = given, True
    described = None if published is None else published.config.to_dict()
    origin = None if checkpoint is None else dict(checkpoint)
    model.spec = Spec(name, vocab_size, length, options, preset, described, origin)
    model.tokenizer = tokenizer
    model.plugins = outside_parts(model.spec)
    if denoiser is FRESH:  # samples of an oracle are draws from the model, so it keeps the ancestral sampler
        model.sampler = chosen.sampler or entry.info.sampler
    return model


def complete_options(
    name: str, options: Mapping[str, Any], tokenizer: Mapping[str, Any], preset: str = DEFAULT
) -> tuple[dict[str, Any], str]:
    """Options with those that depend on the tokenizer (its description) and on installed packages, and a remark.

    What it adds is stored with the model, so that nothing is resolved when the model is loaded.
    """
    complete, published = _entry(name).complete, find_preset(name, preset).options
    if complete is None:
        return dict(options), ""
    completed, remark = complete(published | dict(options), tokenizer, preset != DEFAULT)
    return {key: value for key, value in completed.items() if key in options or key not in published}, remark


def _attach(name: str, model: "Model", network: "PublishedNetwork", checkpoint: "Mapping[str, Any] | None") -> None:
    """Make a published network the denoiser of a model that was built without one."""
    from logosphere.systems.published import published_denoiser

    special = (checkpoint or {}).get("special", {})
    bos = special.get("bos") if isinstance(special, dict) else None
    if type(bos) is not int or not 0 <= bos < network.config.rows:
        bos = None
    model.denoiser = published_denoiser(name, model.process, network, model.length, model.block, bos)


def options(name: str) -> dict[str, Any]:
    """The options of a system and of its network with their defaults."""
    return {option: f.default for option, f in _fields(name).items()}


def option_docs(name: str) -> dict[str, str]:
    """The documentation of the options of a system; those of its network are documented by `NetworkConfig`."""
    entry = _entry(name)
    docs = field_docs(entry.settings)
    return {f.name: docs.get(f.name, "") for f in entry.option_fields}


def _fields(name: str) -> dict[str, "Field[Any]"]:
    return {f.name: f for f in (*fields(NetworkConfig), *_entry(name).option_fields)}


def network_docs() -> dict[str, str]:
    """The documentation of the options of a network, which every system has."""
    return field_docs(NetworkConfig)


def presets(name: str) -> dict[str, Preset]:
    """The presets of a system by name; the first is the default."""
    system(name)
    return {DEFAULT: Preset(name, DEFAULT, source="", aspects=(), checked="")} | published_presets().get(name, {})


def find_preset(name: str, preset: str) -> Preset:
    """A preset of a system."""
    if preset == DEFAULT and name in _entries():  # does not read the files of the published ones
        return Preset(name, DEFAULT, source="", aspects=(), checked="")
    known = presets(name)
    if preset not in known:
        if len(known) == 1:
            raise UserError(f"'{name}' has no preset '{preset}': it follows no paper exactly; its only one is default.")
        raise UserError(f"'{name}' has no preset '{preset}'; it has {', '.join(known)}.")
    return known[preset]


def preset_label(spec: "Spec") -> str:
    """The preset of a model with the options that override its own: "paper with loss=cross-entropy"."""
    own, options = find_preset(spec.system, spec.preset).options, spec.options
    changed = [f"{key}={options[key]}" for key in own if key in options and options[key] != own[key]]
    return f"{spec.preset} with {', '.join(changed)}" if changed else spec.preset


def check_subtraction(subtract: bool, posterior_head: bool) -> None:
    """Refuse subtract_input_embedding in a network whose output nothing else makes depend on a position's own state."""
    if subtract and not posterior_head:
        raise UserError(
            "subtract_input_embedding=True needs posterior_head=True, which adds the evidence of the state."
        )


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices of an option."""
    if value not in choices:
        raise UserError(f"'{value}' is not a choice for {option}.{suggest(str(value), choices)}")
