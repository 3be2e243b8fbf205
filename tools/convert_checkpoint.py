"""Convert a pickled checkpoint that you trust into the safetensors folder that `logosphere import` reads.

    python tools/convert_checkpoint.py mdlm.ckpt FOLDER --config config.json
    python tools/convert_checkpoint.py checkpoint.pth FOLDER --set length=256 --set n_heads=12

Reading a pickle runs code that its author chose, so the package itself never does. Use this only for files whose origin
you trust, in an environment without anything of value; the file may need the packages that it was written with
(omegaconf, lightning, transformers). The script needs torch and safetensors alone.

It understands state dicts, Lightning checkpoints (`state_dict`, with averaged weights in `ema`) and those of SEDD and
RDLM (`model` and `ema`). Averaged weights are lists of `shadow_params` in the order of the network's parameters, and
replace these unless --no-ema is given. The prefixes `_orig_mod.` of torch.compile and `module.` are removed.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

WARNING = (
    "Reading {} can run any code that its author put into it. Go on only if you trust its origin; then add --trust."
)
BUFFERS = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "sampling_eps_min",
           "sampling_eps_max")  # fmt: skip
"""Tensors of a state dict that are no parameters, by the ends of their names."""


class ConversionError(Exception):
    """A checkpoint that this script does not understand."""


def find_state(content: object) -> dict[str, Tensor]:
    """The tensors of the network in their order, by their names without the prefixes of wrappers."""
    if not isinstance(content, Mapping):
        raise ConversionError(f"the file holds a {type(content).__name__} and not a dictionary of tensors")
    inner = next((content[name] for name in ("state_dict", "model") if isinstance(content.get(name), Mapping)), content)
    tensors = {str(name): value for name, value in inner.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ConversionError(f"no tensors were found; the file has the entries {', '.join(map(str, inner))}")
    return {clean_name(name): value for name, value in tensors.items()}


def clean_name(name: str) -> str:
    """The name without `_orig_mod.` anywhere and without `module.` in front."""
    name = name.replace("_orig_mod.", "")
    return name.removeprefix("module.")


def find_average(content: object) -> list[Tensor] | None:
    """The averaged weights, in the order of the parameters; None where there are none."""
    ema = content.get("ema") if isinstance(content, Mapping) else None
    shadow = ema.get("shadow_params") if isinstance(ema, Mapping) else None
    return None if shadow is None else list(shadow)


def is_buffer(name: str) -> bool:
    """Whether a tensor is a table and no parameter, so that it has no average."""
    return name.endswith(BUFFERS)


def replace_by_average(state: Mapping[str, Tensor], average: list[Tensor]) -> dict[str, Tensor]:
    """The state with averaged parameters, matched by their order; shapes must agree one by one."""
    names = [name for name in state if not is_buffer(name)]
    if len(names) != len(average):
        raise ConversionError(
            f"there are {len(average)} averaged weights for {len(names)} parameters, so their order is not known; "
            "use --no-ema for the weights without average"
        )
    for name, value in zip(names, average, strict=True):
        if state[name].shape != value.shape:
            raise ConversionError(
                f"the average in the place of {name} has the shape {list(value.shape)}, not "
                f"{list(state[name].shape)}; use --no-ema for the weights without average"
            )
    return {**state, **dict(zip(names, average, strict=True))}


def read_config(path: Path | None, settings: list[str]) -> dict[str, Any]:
    """config.json from a file, and entries NAME=VALUE, whose values are JSON or else words."""
    config: dict[str, Any] = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
    for setting in settings:
        name, found, value = setting.partition("=")
        if not found:
            raise ConversionError(f"--set takes NAME=VALUE, not {setting}")
        try:
            config[name] = json.loads(value)
        except ValueError:
            config[name] = value
    return config


def convert(source: Path, folder: Path, config: Mapping[str, Any], *, averaged: bool = True) -> dict[str, Tensor]:
    """Read a pickle, which can run code, and write config.json and model.safetensors into a new folder."""
    if folder.exists() and any(folder.iterdir()):
        raise ConversionError(f"{folder} is not empty")
    content = torch.load(source, map_location="cpu", weights_only=False)
    state = find_state(content)
    average = find_average(content) if averaged else None
    if average is not None:
        state = replace_by_average(state, average)
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
    return tensors


def main(argv: list[str] | None = None) -> int:
    """The exit code: 1 for a file that is not trusted or not understood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the pickled checkpoint (.ckpt, .pth, .bin)")
    parser.add_argument("folder", type=Path, help="the folder to write")
    parser.add_argument("--config", type=Path, help="config.json of the model")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an entry of config.json")
    parser.add_argument("--no-ema", action="store_true", help="the weights without average")
    parser.add_argument("--trust", action="store_true", help="read the pickle, although that can run code")
    arguments = parser.parse_args(argv)
    if not arguments.trust:
        print(WARNING.format(arguments.source), file=sys.stderr)
        return 1
    try:
        config = read_config(arguments.config, arguments.set)
        tensors = convert(arguments.source, arguments.folder, config, averaged=not arguments.no_ema)
    except (ConversionError, OSError, ValueError) as problem:
        print(f"{arguments.source} cannot be converted: {problem}.", file=sys.stderr)
        return 1
    count = sum(value.numel() for value in tensors.values())
    print(f"{arguments.folder}: {len(tensors)} tensors, {count:,} numbers. Next: logosphere import {arguments.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
