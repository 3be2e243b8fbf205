"""logosphere publish"""

from logosphere.cli.arguments import Publish
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.runs.publish import CardConfig, Publication, stage, upload
from logosphere.runs.run import Run
from logosphere.terminal import show


def publish(arguments: Publish, argv: list[str]) -> int:
    """logosphere publish"""
    samples = arguments.samples if arguments.with_samples else 0
    config = CardConfig(arguments.license or None, samples, arguments.steps)
    with stage(Run(arguments.run, trained=False), arguments.target, config, arguments.weights, DISPLAY) as publication:
        if not arguments.json:
            describe(publication)
        if not arguments.dry_run:
            publication = upload(publication, private=arguments.private)
    if arguments.json:
        print_json(publication.summary())
    elif arguments.dry_run:
        log("Nothing was uploaded; leave out --dry-run to upload it.")
    else:
        show(f"Published: {publication.address}")
    return 0


def describe(publication: Publication) -> None:
    """Print the files with their sizes, and the card."""
    width = max(len(name) for name in publication.files)
    show(f"hf:{publication.repository}")
    for name, size in publication.files.items():
        show(f"  {name:{width}}  {size:>15,} bytes")
    show(f"\n{publication.card}", end="")
    for remark in publication.remarks:
        log(remark)
