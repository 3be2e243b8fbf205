"""logosphere samplers"""

from dataclasses import asdict

from logosphere.cli.arguments import Samplers
from logosphere.cli.console import print_json
from logosphere.sampling.catalogue import LISTINGS


def run(arguments: Samplers, argv: list[str]) -> int:
    if arguments.json:
        print_json({"samplers": [asdict(listing) for listing in LISTINGS]})
        return 0
    for listing in LISTINGS:
        kind = "draws from the model" if listing.draw else "not a draw from the model"
        print(f"{listing.name:<17} {listing.about}\n{'':<17} for {listing.fits}; {kind}")
    return 0
