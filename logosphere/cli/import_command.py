"""logosphere import"""

from pathlib import Path
from tempfile import TemporaryDirectory

from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.cli.import_options import Import
from logosphere.errors import plural, quote_path
from logosphere.runs.check_import import Import as Checked
from logosphere.runs.check_import import check_import
from logosphere.runs.import_checkpoint import default_folder, write_import
from logosphere.systems import system
from logosphere.terminal import show

REPORT = (
    "Weights of this model were not available when the importer was written. Please report the checksum, and the bits "
    "of logosphere evaluate beside the published figure, so that others know what to expect."
)


def import_run(arguments: Import, argv: list[str]) -> int:
    """logosphere import"""
    if arguments.dry_run:
        with TemporaryDirectory(prefix="logosphere-outline-") as folder:
            checked = check_import(arguments.source, arguments.config, DISPLAY, outline=Path(folder))
        if arguments.json:
            print_json({"run": str(arguments.out or default_folder(checked.source)), **checked.summary()})
        else:
            show(describe(checked))
            log("Nothing was written; leave out --dry-run to import it.")
        return 0
    checked = check_import(arguments.source, arguments.config, DISPLAY)
    out = arguments.out or default_folder(checked.source)
    imported = write_import(checked, out, DISPLAY)
    if arguments.json:
        print_json(imported.summary())
        return 0
    show(describe(checked))
    show(f"{'checksum':<12}{imported.checksum}  (sha256 of the imported weights)")
    run = quote_path(out)
    log(REPORT)
    texts = "a text" if checked.metadata.tokenizer is not None else "a file of token numbers"
    log(f"Run: {out}   Next: logosphere sample {run}, or logosphere evaluate {run} --data FILE ({texts})")
    return 0


def describe(checked: Checked) -> str:
    """The model, its conventions, what it needs, and remarks, as lines."""
    one, network = checked.description, checked.description.network
    about = system(one.system)
    noted = [f"{name.replace('_', ' ')} {_shown(value)}" for name, value in checked.conventions.items()]
    special = ", ".join(f"{name} {token}" for name, token in checked.special.items()) or "none are named"
    kind = str(checked.dtype).removeprefix("torch.")
    rows = {
        "source": checked.source + (f" at revision {checked.revision}" if checked.revision else ""),
        "family": f"{one.family}, layout {network.layout}: {network.depth} blocks of width {network.width}",
        "system": f"{one.system}: {about.title}",
        "parameters": f"{checked.parameters:,}",
        "needs": f"{_bytes(checked.size)} on disk, and in memory {_bytes(checked.size)} for weights in {kind}",
        "sequences": f"{plural(one.length, 'token')} out of {one.vocab_size:,}; {_texts(checked)}",
        "conventions": ", ".join(noted),
        "special ids": special,
        "licence": checked.metadata.licence or "none is named",
    }
    lines = [f"{name:<12}{value}" for name, value in rows.items()]
    return "\n".join([*lines, *(f"  {remark}" for remark in checked.remarks)])


def _texts(checked: Checked) -> str:
    return "with a tokenizer" if checked.metadata.tokenizer is not None else "without a tokenizer"


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _bytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e8 else f"{size / 1e6:,.2f} MB"
