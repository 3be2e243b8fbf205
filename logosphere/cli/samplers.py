"""logosphere samplers"""

from dataclasses import asdict, dataclass

from logosphere.cli.console import parse, print_json
from logosphere.sampling.catalogue import LISTINGS


@dataclass(frozen=True)
class Arguments:
    """List the samplers that `logosphere sample --sampler NAME` knows."""

    json: bool = False
    """Print as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "samplers")
    if arguments.json:
        print_json({"samplers": [asdict(listing) for listing in LISTINGS]})
        return 0
    for listing in LISTINGS:
        kind = "draws from the model" if listing.draw else "not a draw from the model"
        print(f"{listing.name:<17} {listing.about}\n{'':<17} for {listing.fits}; {kind}")
    return 0
