"""logosphere export"""

from logosphere.cli.arguments import Export
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.runs.export import RECORD_SEQUENCES, export_run
from logosphere.runs.run import Run


def run(arguments: Export, argv: list[str]) -> int:
    report, record = export_run(
        Run(arguments.run), arguments.out, arguments.measure, samples=arguments.samples, steps=arguments.steps,
        display=DISPLAY,
    )  # fmt: skip
    if arguments.json:
        print_json({"box": str(arguments.out), **vars(record)})
    else:
        print(f"{arguments.out}: {report}")
        log(f"Its record: {record.bits:.6f} bits per {report.unit} on {RECORD_SEQUENCES} sequences that lie inside it")
    return 0
