"""logosphere systems, samplers"""

from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from logosphere.cli.arguments import Samplers, Systems
from logosphere.cli.console import print_json, show_table
from logosphere.sampling.registry import sampler_info
from logosphere.sampling.registry import samplers as sampler_names
from logosphere.systems import DEFAULT, Preset, infos, network_docs, option_docs, options, presets, system
from logosphere.terminal import show


def systems(arguments: Systems, argv: list[str]) -> int:
    """logosphere systems"""
    if arguments.name:
        return _show_system(arguments.name, arguments.json)
    if arguments.json:
        print_json({"systems": [asdict(info) | {"presets": list(presets(info.name))} for info in infos()]})
        return 0
    for info in infos():
        show(f"{info.name:<16} {info.title} ({info.paper}; {info.kind})\n{'':<16} {info.summary}")
    show("\nOptions of a system, and how its default differs from its paper: logosphere systems NAME")
    return 0


def _show_system(name: str, as_json: bool) -> int:
    info, published = system(name), [preset for key, preset in presets(name).items() if key != DEFAULT]
    if as_json:
        defaults, docs = options(name), option_docs(name)
        described = [{"name": option, "default": defaults[option], "help": text} for option, text in docs.items()]
        network = [
            {"name": option, "default": defaults[option], "help": text} for option, text in network_docs().items()
        ]
        shown = {"options": described, "network_options": network, "presets": [_as_dict(one) for one in published]}
        print_json(asdict(info) | shown)
        return 0
    show(f"{info.name}: {info.title} ({info.paper}; {info.kind})\n{info.summary}")
    show(f"Presets: {', '.join(presets(name))}. Sampler: {info.sampler}.")
    print_options(name)
    show("\nOptions of its network (--network.NAME VALUE; in Python options of ls.build as well):")
    show_table(_option_table(network_docs(), options(name)))
    if not published:
        show("\nIts only preset is default: it follows no paper exactly.")
    for preset in published:
        show(f"\npreset {preset.name}: {preset.source}")
        show_table(_side_by_side(preset))
        if preset.missing:
            show(f"Not reproduced: {preset.missing}")
        show(f"Checked by {preset.checked}")
        show(f"Train it: logosphere train --system {name} --preset {preset.name}")
    return 0


def print_options(name: str) -> None:
    """Print the options of a system with their defaults and documentation."""
    if docs := option_docs(name):
        show(f"\nOptions of {name} (--options NAME=VALUE), in addition to those of the network:")
        show_table(_option_table(docs, options(name)))


def _as_dict(preset: Preset) -> dict[str, Any]:
    return asdict(preset) | {"options": preset.options}


def samplers(arguments: Samplers, argv: list[str]) -> int:
    """logosphere samplers"""
    listed = [sampler_info(name) for name in sampler_names()]
    if arguments.json:
        print_json({"samplers": [info.as_dict() for info in listed]})
        return 0
    for info in listed:
        kind = "samples" if info.samples_model else "does not sample"
        show(f"{info.name:<17} {info.description}\n{'':<17} for {info.supports.description}; {kind} from the model")
    return 0


def _option_table(docs: dict[str, str], defaults: dict[str, Any]) -> Table:
    table = Table("option", "default", "", show_lines=True)
    for option, text in docs.items():
        table.add_row(option, escape(str(defaults[option])), escape(text))
    return table


def _side_by_side(preset: Preset) -> Table:
    table = Table("", preset.name, DEFAULT, "why the default differs", show_lines=True)
    for aspect in preset.aspects:
        table.add_row(*map(escape, (aspect.name, aspect.paper, aspect.default or "the same", aspect.reason)))
    return table
