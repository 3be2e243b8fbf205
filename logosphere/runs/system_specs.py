"""Systems as a comparison names them: with options, a preset and a learning rate of their own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from logosphere.errors import UserError, suggest
from logosphere.networks.config import NetworkConfig
from logosphere.runs.config import TrainConfig
from logosphere.runs.settings import Budget
from logosphere.systems import DEFAULT, find_preset, system
from logosphere.systems import options as option_defaults


@dataclass(frozen=True)
class SystemSpec:
    """A system with options of its own: mdlm, mdlm:preset=paper, or mdlm:schedule=cosine:optim.lr=1e-3."""

    name: str
    system: str
    options: tuple[str, ...]
    lr: float | None
    preset: str = DEFAULT

    @staticmethod
    def parse(word: str) -> "SystemSpec":
        name, *rest = word.split(":")
        system(name)
        lr, options, preset = None, [], DEFAULT
        for option in rest:
            key, separator, value = option.partition("=")
            if not separator or not value:
                raise UserError(f"'{option}' in '{word}' is not an option of the form name=value.")
            if key == "optim.lr":
                try:
                    lr = float(value)
                except ValueError:
                    raise UserError(
                        f"'{value}' is not a learning rate; write for example {name}:optim.lr=2e-3"
                    ) from None
            elif key == "preset":
                preset = find_preset(name, value).name
            else:
                _check_own_option(word, name, key)
                options.append(option)
        return SystemSpec(word, name, tuple(options), lr, preset)

    def with_preset(self, name: str) -> "SystemSpec":
        """The system with this preset, unless it names one of its own."""
        return self if self.preset != DEFAULT else replace(self, preset=find_preset(self.system, name).name)

    def configure(self, common: TrainConfig, fixed: Sequence[str] = ()) -> TrainConfig:
        """The common recipe for this system; a preset brings its model, but the optimiser is the same for all.

        It leaves the `fixed` settings of the network as they are.
        """
        optim = common.optim if self.lr is None else replace(common.optim, lr=self.lr)
        if self.preset != DEFAULT:
            kept = {name: getattr(common.network, name) for name in fixed}
            common = replace(common, system=self.system).with_preset(self.preset, optimiser=False)
            common = replace(common, network=replace(common.network, **kept))
        return replace(common, system=self.system, options=(*common.options, *self.options), optim=optim)


def _check_own_option(word: str, name: str, key: str) -> None:
    """Raise UserError for a setting that all systems of a comparison share, or one that a system does not have."""
    own = option_defaults(name).keys() - vars(NetworkConfig()).keys()
    if key in own:
        return
    shared = vars(NetworkConfig()).keys() | vars(TrainConfig()).keys()
    if key in shared or key.startswith(("network.", "optim.")):
        raise UserError(
            f"'{key}' in '{word}' must be the same for all systems of a comparison; {_where_to_set(key)}. A system may "
            "have its own options, preset and optim.lr."
        )
    raise UserError(f"'{name}' has no option '{key}'." + (suggest(key, own) if own else " It has none."))


def _where_to_set(key: str) -> str:
    """How a setting that all systems of a comparison share is given to `logosphere compare`."""
    network = key.removeprefix("network.")
    if network in vars(NetworkConfig()):
        return f"set it with --network.{network.replace('_', '-')}"
    if key in ("length", "tokenizer", "data", "column") or key in vars(Budget()):
        return f"set it with --{key.replace('_', '-')}"
    return "set it in the recipe (--recipe FILE)"


def parse_systems(words: str) -> list[SystemSpec]:
    """Systems separated by commas; commas inside brackets belong to an option."""
    found = [SystemSpec.parse(word.strip()) for word in re.split(r",(?![^\[]*\])", words) if word.strip()]
    names = [spec.name for spec in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"'{twice[0]}' is named twice; name each system once, and use --seeds to repeat trainings.")
    return found
