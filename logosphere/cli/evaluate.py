"""logosphere evaluate"""

from logosphere.cli.arguments import Evaluate
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.parallel.launch import launch, must_launch
from logosphere.parallel.process_group import init_distributed
from logosphere.runs.evaluate import evaluate_run, save_report
from logosphere.runs.run import Run


def run(arguments: Evaluate, argv: list[str]) -> int:
    if must_launch(arguments.nproc):
        return launch(["evaluate", *argv], arguments.nproc)
    trained = Run(arguments.run)
    with init_distributed() as group:
        report = evaluate_run(trained, arguments.measure, options=arguments.options, display=DISPLAY, group=group)
        if not group.is_main:
            return 0
    if arguments.json:
        print_json(report.summary())
    else:
        print(f"{report.name} on {report.data}: {report}")
        terms = f"reconstruction {report.recon:.4f}, diffusion {report.diffusion:.4f}, prior {report.prior:.4f}"
        print(f"  {terms}; {report.tokens:,} tokens counted")
    # Printed before it is saved: a folder that cannot be written must not cost the figure.
    log(f"Saved as {save_report(trained, report, arguments.options)}")
    return 0
