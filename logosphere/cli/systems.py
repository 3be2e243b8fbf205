"""logosphere systems"""

from dataclasses import asdict, dataclass

from logosphere.cards import CARDS
from logosphere.cli.console import parse, print_json


@dataclass(frozen=True)
class Arguments:
    """List the systems that can be trained."""

    json: bool = False
    """Print as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "systems")
    if arguments.json:
        print_json({"systems": [asdict(card) for card in CARDS]})
        return 0
    for card in CARDS:
        print(f"{card.name:<16} {card.title} ({card.paper}; {card.kind})\n{'':<16} {card.difference}")
    return 0
