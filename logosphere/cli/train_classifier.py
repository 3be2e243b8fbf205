"""logosphere train-classifier"""

import math

from logosphere.cli.arguments import TrainClassifier
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.networks.config import NetworkConfig
from logosphere.runs.auxiliary import train_classifier_of
from logosphere.runs.run import Run


def run(arguments: TrainClassifier, argv: list[str]) -> int:
    trained = Run(arguments.run)
    shape = trained.config.network.shape
    network = NetworkConfig(width=arguments.width, depth=arguments.depth, heads=arguments.heads, shape=shape)
    found = train_classifier_of(
        trained, arguments.config, network, out=arguments.out, data=arguments.data, display=DISPLAY
    )
    if arguments.json:
        figures = {"loss": found.loss, "valid_loss": found.valid_loss, "valid_right": found.valid_right}
        about = {"run": str(trained.path), "classifier": str(found.folder), "steps": arguments.config.steps}
        print_json(about | {"labels": list(found.labels)} | figures)
    else:
        log(
            f"Validation, over all of the noise: {found.valid_loss:.3f} nats per label "
            f"({math.log(len(found.labels)):.3f} is knowing nothing), right in {found.valid_right:.0%}; "
            f"saved in {found.folder}"
        )
    return 0
