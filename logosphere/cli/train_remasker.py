"""logosphere train-remasker"""

from logosphere.cli.arguments import TrainRemasker
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.io import REMASKER
from logosphere.runs.auxiliary import train_remasker_of
from logosphere.runs.run import Run


def run(arguments: TrainRemasker, argv: list[str]) -> int:
    trained, steps = Run(arguments.run), arguments.config.steps
    last = train_remasker_of(trained, arguments.config, DISPLAY)
    if arguments.json:
        print_json({"run": str(trained.path), "steps": steps, "loss": last.loss, "wrong": last.wrong})
    else:
        log(f"{last.loss:.3f} nats per token; saved as {trained.path / REMASKER}")
    return 0
