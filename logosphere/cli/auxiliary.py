"""logosphere train-remasker and train-classifier"""

import math

from logosphere.cli.arguments import TrainClassifier, TrainRemasker
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.io import REMASKER
from logosphere.networks.config import NetworkConfig
from logosphere.runs.run import Run
from logosphere.runs.train import train_classifier_of, train_remasker_of


def train_remasker(arguments: TrainRemasker, argv: list[str]) -> int:
    """logosphere train-remasker"""
    trained, steps = Run(arguments.run), arguments.config.steps
    last = train_remasker_of(trained, arguments.config, DISPLAY)
    if arguments.json:
        print_json({"run": str(trained.path), "steps": steps, "loss": last.loss, "wrong": last.wrong})
    else:
        log(f"{last.loss:.3f} nats per token; saved as {trained.path / REMASKER}")
    return 0


def train_classifier(arguments: TrainClassifier, argv: list[str]) -> int:
    """logosphere train-classifier"""
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
            f"Validation, averaged over times: {found.valid_loss:.3f} nats per label "
            f"({math.log(len(found.labels)):.3f} at random), accuracy {found.valid_right:.0%}; saved in {found.folder}"
        )
    return 0
