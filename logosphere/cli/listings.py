"""logosphere systems, samplers and data: commands that list, without torch."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from logosphere.cards import CARDS
from logosphere.cli.arguments import Data, Samplers, Systems
from logosphere.cli.console import DISPLAY, print_json
from logosphere.data.sources import CORPORA, DATASETS
from logosphere.presets import DEFAULT, Preset, presets
from logosphere.sampling.catalogue import LISTINGS
from logosphere.systems import system


def systems(arguments: Systems, argv: list[str]) -> int:
    """logosphere systems"""
    if arguments.name:
        return _show_presets(arguments.name, arguments.json)
    if arguments.json:
        print_json({"systems": [asdict(card) | {"presets": list(presets(card.name))} for card in CARDS]})
        return 0
    for card in CARDS:
        print(f"{card.name:<16} {card.title} ({card.paper}; {card.kind})\n{'':<16} {card.difference}")
    print("\nHow a default differs from its paper: logosphere systems NAME")
    return 0


def _show_presets(name: str, as_json: bool) -> int:
    card, published = system(name), [preset for key, preset in presets(name).items() if key != DEFAULT]
    if as_json:
        print_json(asdict(card) | {"presets": [_as_dict(preset) for preset in published]})
        return 0
    print(f"{card.name}: {card.title} ({card.paper}; {card.kind})\n{card.difference}")
    if not published:
        print("\nIts only preset is default: it follows no paper exactly.")
    output = Console(highlight=False)
    for preset in published:
        print(f"\npreset {preset.name}: {preset.source}")
        output.print(_side_by_side(preset))
        if preset.missing:
            output.print(f"Not reproduced: {preset.missing}", markup=False)
        output.print(f"Checked by {preset.checked}", markup=False)
        print(f"Train it: logosphere train --system {name} --preset {preset.name}")
    return 0


def _side_by_side(preset: Preset) -> Table:
    table = Table("", preset.name, DEFAULT, "why the default differs", show_lines=True)
    for aspect in preset.aspects:
        table.add_row(aspect.name, aspect.paper, aspect.default or "the same", aspect.reason)
    return table


def _as_dict(preset: Preset) -> dict[str, Any]:
    return asdict(preset) | {"options": preset.options}


def samplers(arguments: Samplers, argv: list[str]) -> int:
    """logosphere samplers"""
    if arguments.json:
        print_json({"samplers": [asdict(listing) for listing in LISTINGS]})
        return 0
    for listing in LISTINGS:
        kind = "draws from the model" if listing.draw else "not a draw from the model"
        print(f"{listing.name:<17} {listing.about}\n{'':<17} for {listing.fits}; {kind}")
    return 0


def data(arguments: Data, argv: list[str]) -> int:
    """logosphere data"""
    if arguments.action == "list":
        known = CORPORA | DATASETS
        if arguments.json:
            print_json({"corpora": known})
        else:
            print("\n".join(f"{name:<{max(map(len, known))}}  {line}" for name, line in known.items()))
        return 0
    from logosphere.data.corpus import count_tokens  # these load torch, which a list does not need
    from logosphere.runs.train import open_with_display

    corpus = open_with_display(arguments.name, arguments.tokenizer, DISPLAY)
    sizes = {split: count_tokens(corpus.split(split)) for split in ("train", "valid", "test")}
    if arguments.json:
        print_json({"name": corpus.name, "tokens": sizes, "vocabulary": corpus.tokenizer.size, "sha256": corpus.sha256})
    else:
        counts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        print(f"{corpus.name}: {corpus.tokenizer.size} symbols; tokens: {counts}")
    return 0
