"""Migration of recipe.json files to the current format version.

A recipe.json holds `model` (the system, its sizes and its options) and, in run folders, `recipe` (the configuration of
the training, with the options as a list of name=value). The classifier.json of a classifier has the same format. Each
step converts the content of one version to the next. Renamed options and fields are listed in tables, which also serve
for the errors about former names.

Version 2 added the network option `neighbours`; earlier networks had attention alone. Version 3 renamed options of the
systems and changed the default path of rdlm-heat from any-order to joint. Version 4 added the network option `tied` and
the name of the optimiser; earlier networks had output heads with weights of their own and were trained by AdamW. It
also changed the defaults of systems on the sphere: on the joint path networks predict from the other positions and no
training sequence is any-order.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from logosphere.errors import UserError

VERSION = 4


@dataclass(frozen=True)
class Renamed:
    """An option of systems that has another name or other values since a format version."""

    old: str
    new: str
    systems: tuple[str, ...] = ()
    """Systems that have it; empty: all."""
    values: Mapping[Any, Any] = field(default_factory=dict)
    """New values of old ones."""

    def concerns(self, system: str, option: str) -> bool:
        """Whether this is the former name of an option of a system."""
        return option == self.old and (not self.systems or system in self.systems)

    def changes(self, value: Any) -> bool:
        """Whether this is a former value of the option."""
        return isinstance(value, str | bool) and value in self.values


_MASKED = ("mdlm", "remdm", "star", "p2")
_SPHERICAL = ("rdlm", "rdlm-heat")
_GAUSSIAN = ("plaid", "gaussian-ce", "diffusion-lm", "bit-diffusion")
_LATENT = ("ld4lg", "planner", "tencdm", "cosmos")
OPTIONS_3 = (
    Renamed("clock", "time_sampler"),
    Renamed("reads_time", "time_conditional", _MASKED),
    Renamed("informed", "posterior_head", ("genmd4",)),
    Renamed("own_embedding", "subtract_input_embedding", ("gidd",), {True: False, False: True}),
    Renamed("largest_beta", "max_beta", ("multinomial",)),
    Renamed("importance", "importance_sampling", ("multinomial",)),
    Renamed("taught_in_turn", "any_order_fraction", _SPHERICAL),
    Renamed("path", "path", _SPHERICAL, {"together": "joint", "in-turn": "any-order"}),
    Renamed("anchor", "rounding_loss_weight", ("diffusion-lm",)),
    Renamed("clear", "max_snr", ("cdcd",)),
    Renamed("steps", "timesteps", ("diffusion-lm",)),
    Renamed("self_conditioned", "self_conditioning_by", ("plaid", "cdcd")),
    Renamed("highest", "max_logsnr", (*_GAUSSIAN, "simplex")),
    Renamed("last", "max_logsnr", _LATENT),
    Renamed("lowest", "min_logsnr", (*_GAUSSIAN, *_LATENT)),
    Renamed("blurred", "min_decode_logsnr", _LATENT),
    Renamed("stage_one", "autoencoder_fraction", _LATENT),
    Renamed("match", "state_loss_weight", _LATENT),
    Renamed("divergence", "kl_weight", _LATENT),
    Renamed("divergence_sum", "kl_sum", _LATENT),
    Renamed("pieces", "encoder_token_ids", _LATENT),
)
"""Options of systems that version 3 renamed."""

TRAIN_FIELDS_3: dict[str, str] = {"withhold": "cond_dropout"}
"""Fields of the training configuration that version 3 renamed: old name to new one."""
NETWORK_FIELDS_3: dict[str, str] = {}
"""Fields of the network configuration, which are options of every system as well."""
OPTIM_FIELDS_3: dict[str, str] = {"final": "min_lr_ratio", "spike": "grad_spike_factor"}
"""Fields of the optimiser's configuration."""

RENAMED_FIELDS = TRAIN_FIELDS_3 | NETWORK_FIELDS_3 | OPTIM_FIELDS_3
"""Former names of fields of configurations, for errors."""

Content = dict[str, Any]


def migrate(content: Content, place: str) -> Content:
    """The content of a recipe.json of any version as that of the current one; `content` itself is not changed."""
    version = content.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise UserError(f"{place} was written by a newer version of Logosphere; upgrade to read it.")
    for step in _STEPS[max(version, 1) - 1 :]:
        content = step(content)
    return content | {"version": VERSION}


def check_current_option(system: str, option: str, value: Any, known: Collection[str]) -> None:
    """Refuse the former name or value of an option with an error that gives the current one."""
    for renamed in OPTIONS_3:
        if not renamed.concerns(system, option) or renamed.new not in known:
            continue
        if renamed.changes(value):
            raise UserError(f"{option}={value} of '{system}' is now {renamed.new}={renamed.values[value]}.")
        if option not in known:
            raise UserError(f"The option '{option}' of '{system}' is now '{renamed.new}'.")
    if option not in known and NETWORK_FIELDS_3.get(option) in known:
        raise UserError(f"The option '{option}' is now '{NETWORK_FIELDS_3[option]}'.")


# ---- steps ----------------------------------------------------------------------------------------------------------


def _to_version_2(content: Content) -> Content:
    """Networks of version 1 had attention alone: neighbours=0."""
    return _with_parts(content, model=_model_2, recipe=_recipe_2)


def _model_2(model: Content) -> Content:
    options = model.get("options")
    return model | {"options": {"neighbours": 0} | options} if isinstance(options, dict) else model


def _recipe_2(recipe: Content) -> Content:
    network = recipe.get("network")
    return recipe | {"network": {"neighbours": 0} | network} if isinstance(network, dict) else recipe


def _to_version_3(content: Content) -> Content:
    """Renamed options and fields, and the former defaults of rdlm-heat."""
    return _with_parts(content, model=_model_3, recipe=_recipe_3, classifier=_classifier_3)


def _model_3(model: Content) -> Content:
    options, system = model.get("options"), str(model.get("system"))
    if not isinstance(options, dict):
        return model
    renamed = dict(_option_3(system, option, value) for option, value in options.items())
    return model | {"options": renamed | _former_path(system, renamed)}


def _option_3(system: str, option: str, value: Any) -> tuple[str, Any]:
    for renamed in OPTIONS_3:
        if renamed.concerns(system, option):
            return renamed.new, renamed.values[value] if renamed.changes(value) else value
    return NETWORK_FIELDS_3.get(option, option), value


def _former_path(system: str, options: Content) -> Content:
    """The defaults of `path` and `any_order_fraction` that rdlm-heat had before version 3.

    The path was any-order, unless the start changed with time, timesteps were fixed or positions were staggered.
    Training showed half of the sequences on it, if the path was any-order and the loss plain cross-entropy.
    """
    if system != "rdlm-heat":
        return {}
    path, fraction = options.get("path"), options.get("any_order_fraction")
    if path is None:
        path = "any-order" if _has_plain_path(options) else "joint"
    if fraction is None:
        fraction = 0.5 if path == "any-order" and _has_plain_loss(options) else 0.0
    return {"path": path, "any_order_fraction": fraction}


def _has_plain_path(options: Content) -> bool:
    """Whether the start does not change with time, timesteps are not fixed and positions are not staggered."""
    mixed = str(options.get("start")).partition(":")[0] in ("step", "linear", "sqrt")
    return not mixed and options.get("timesteps") is None and not options.get("stagger")


def _has_plain_loss(options: Content) -> bool:
    """Whether the loss is unweighted cross-entropy throughout."""
    return options.get("loss", "cross-entropy") == "cross-entropy" and options.get("switch") is None


def _recipe_3(recipe: Content) -> Content:
    recipe = _rename(recipe, TRAIN_FIELDS_3)
    for part, names in (("network", NETWORK_FIELDS_3), ("optim", OPTIM_FIELDS_3)):
        if isinstance(recipe.get(part), dict):
            recipe = recipe | {part: _rename(recipe[part], names)}
    words, system = recipe.get("options", []), str(recipe.get("system"))
    if not isinstance(words, list) or not all(isinstance(word, str) and "=" in word for word in words):
        return recipe
    values: Content = {}
    texts: dict[str, str] = {}
    for word in words:
        option, text = word.split("=", 1)
        value = _parse(text)
        name, values_now = _option_3(system, option, value)
        values[name] = values_now
        texts[name] = text if values_now is value else _text(values_now)  # unchanged values keep their text: 1e-3
    former = {name: _text(value) for name, value in _former_path(system, values).items() if values.get(name) is None}
    return recipe | {"options": [f"{name}={text}" for name, text in (texts | former).items()]}


def _classifier_3(about: Content) -> Content:
    """A classifier of noisy states repeats the options of the model that it belongs to."""
    if isinstance(about.get("noise"), dict):
        about = about | {"noise": _model_3(about["noise"])}
    if isinstance(about.get("network"), dict):
        about = about | {"network": _rename(about["network"], NETWORK_FIELDS_3)}
    return about


def _to_version_4(content: Content) -> Content:
    """Networks of version 3 had output heads with weights of their own (tied=False) and were trained by AdamW."""
    return _with_parts(content, model=_model_4, recipe=_recipe_4)


def _model_4(model: Content) -> Content:
    options = model.get("options")
    if not isinstance(options, dict):
        return model
    former = _former_sphere(str(model.get("system")), options)
    return model | {"options": {"tied": False} | options | former}


def _former_sphere(system: str, options: Content) -> Content:
    """The values of unset options that systems on the sphere had before version 4."""
    if system not in _SPHERICAL:
        return {}
    former: Content = {"subtract_input_embedding": False}
    if options.get("posterior_head") is None:
        former["posterior_head"] = options.get("input") == "state" or bool(options.get("projected"))
    if options.get("any_order_fraction") is None:
        both = options.get("path") == "any-order" or (system == "rdlm-heat" and _has_plain_path(options))
        former["any_order_fraction"] = 0.5 if both and _has_plain_loss(options) else 0.0
    return former


def _recipe_4(recipe: Content) -> Content:
    for part, former in (("network", {"tied": False}), ("optim", {"name": "adamw"})):
        if isinstance(recipe.get(part), dict):
            recipe = recipe | {part: former | recipe[part]}
    words, system = recipe.get("options", []), str(recipe.get("system"))
    if not isinstance(words, list) or not all(isinstance(word, str) and "=" in word for word in words):
        return recipe
    values = {name: _parse(text) for name, text in (word.split("=", 1) for word in words)}
    added = {name: _text(value) for name, value in _former_sphere(system, values).items()}
    kept = [word for word in words if word.split("=", 1)[0] not in added]
    return recipe | {"options": [*kept, *[f"{name}={text}" for name, text in added.items()]]}


def _parse(text: str) -> Any:
    import yaml  # not needed to import the package

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rename(content: Content, names: Mapping[str, str]) -> Content:
    return {names.get(key, key): value for key, value in content.items()}


def _with_parts(content: Content, **changes: Callable[[Content], Content]) -> Content:
    """The content with these parts changed, where they are present."""
    changed = {part: change(content[part]) for part, change in changes.items() if isinstance(content.get(part), dict)}
    return content | changed


_STEPS = (_to_version_2, _to_version_3, _to_version_4)
"""Step number n, counted from 1, converts version n to version n + 1."""
