"""logosphere samplers"""

from logosphere.cli.arguments import Samplers
from logosphere.cli.console import print_json
from logosphere.sampling.registry import SAMPLERS


def run(arguments: Samplers, argv: list[str]) -> int:
    if arguments.json:
        print_json({"samplers": [info.as_dict() for info in SAMPLERS.values()]})
        return 0
    for info in SAMPLERS.values():
        kind = "samples" if info.samples_model else "does not sample"
        print(f"{info.name:<17} {info.description}\n{'':<17} for {info.supports.description}; {kind} from the model")
    return 0
