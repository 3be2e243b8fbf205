"""logosphere compare --campaign and --reproduce: rows of a leaderboard, as records and from records."""

from dataclasses import asdict

from logosphere.cli.compare_options import Compare
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.cli.train_options import parse_train
from logosphere.report.row_records import RowRecord
from logosphere.runs import campaign_rows
from logosphere.runs.campaign import describe_campaign, read_campaign
from logosphere.runs.config import TrainConfig
from logosphere.runs.reproduce import find_row, load_rows, reproduce
from logosphere.terminal import show


def run_campaign(arguments: Compare) -> int:
    """Train and measure the rows of a campaign; the exit code."""
    assert arguments.campaign is not None
    campaign = read_campaign(arguments.campaign)
    records = arguments.campaign.with_suffix("") if arguments.records is None else arguments.records
    log(f"{arguments.campaign}: {describe_campaign(campaign, arguments.only)}; records in {records}")

    def report(record: RowRecord) -> None:
        show(f"{record.name:<50} {record.test}" + (f"  {record.note}" if record.note else ""))

    silent = arguments.json
    outcome = campaign_rows.run_campaign(
        campaign, arguments.out, records, arguments.only, DISPLAY, (lambda record: None) if silent else report
    )
    if arguments.json:
        print_json({"rows": [_summarise(record) for record in outcome.records], "stopped": outcome.stopped})
    return 130 if outcome.stopped else 0


def _summarise(record: RowRecord) -> dict[str, object]:
    content = asdict(record)
    return {"name": record.name} | content | {"test": content["test"] | {"nats": None, "counts": None}}


def reproduce_row(arguments: Compare) -> int:
    """Repeat a row from its record; 0 if it agrees, 1 if not."""
    assert arguments.reproduce is not None
    source, name = arguments.reproduce
    rows, problems = load_rows(source)
    for problem in problems:
        log(problem)
    record = find_row(rows, name, source)
    found = reproduce(record, rows, arguments.out, DISPLAY, _config_from_arguments(record))
    if found is None:
        return 130
    if arguments.json:
        print_json(
            {
                "row": record.name, "recorded": record.test.bits, "value": found.number.bits, "steps": found.steps,
                "difference": found.difference, "error": found.error, "paired": found.paired,
                "identical": found.identical, "agrees": found.agrees,
            }
        )  # fmt: skip
    else:
        show(str(found))
        if record.commit and (commit := campaign_rows.find_commit()) != record.commit:
            log(f"The record is of commit {record.commit}, this is {commit or 'an unknown one'}.")
    return 0 if found.agrees else 1


def _config_from_arguments(record: RowRecord) -> TrainConfig | None:
    """The training of a record that has the arguments of a command and no recipe, with the present defaults."""
    if record.recipe is not None or not record.arguments:
        return None
    log("The record has no recipe: settings that its command leaves out are those of this version.")
    return parse_train(["text8-tiny", *record.arguments, "--validations", "4"]).config
