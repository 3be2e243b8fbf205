"""logosphere adapt"""

from dataclasses import replace

from logosphere.cli.adapt_options import Adapt
from logosphere.cli.console import DISPLAY, log
from logosphere.cli.dry_run import dry_run_memory
from logosphere.cli.train import show_result
from logosphere.runs.adapt import create_adapted
from logosphere.runs.memory import predict_training
from logosphere.runs.train import finish, resume_command, run_to_end


def adapt(arguments: Adapt, argv: list[str]) -> int:
    """logosphere adapt"""
    if arguments.dry_run:
        config = replace(arguments.config, begin=arguments.source)
        return dry_run_memory(predict_training(config, arguments.how, DISPLAY), json=arguments.json)
    run, corpus, model = create_adapted(arguments.source, arguments.config, arguments.out, arguments.how, DISPLAY)
    outcome = run_to_end(run, corpus, DISPLAY, model=model)
    if outcome.stopped:
        log(f"Stopped at step {outcome.step:,} and saved. Continue with: {resume_command(run)}")
        return 130
    finish(outcome, corpus)
    assert outcome.report is not None  # the last step of a run is always validated
    show_result(run, outcome.step, outcome.report, json=arguments.json)
    return 0
