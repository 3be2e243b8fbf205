"""logosphere launch"""

from logosphere.cli.arguments import Launch, parse_train
from logosphere.cli.console import log
from logosphere.errors import UserError
from logosphere.io import write_atomic
from logosphere.parallel.slurm import batch_script


def run(arguments: Launch, argv: list[str]) -> int:
    training = argv[argv.index("--") + 1 :] if "--" in argv else []
    # Mistakes are found now and not after a night in the queue.
    out = parse_train(training).out if training else None
    if out is None:
        raise UserError("Say what to train and where, for example: logosphere launch slurm -- text8 --out runs/text8")
    if arguments.file.exists():
        raise UserError(f"{arguments.file} exists already; choose another --file.")
    kept = _without(training, "--out")
    write_atomic(arguments.file, batch_script(arguments.job, str(out), kept).encode())
    log(f"Wrote {arguments.file}. Next: sbatch {arguments.file}")
    return 0


def _without(argv: list[str], option: str) -> list[str]:
    """Arguments without an option and its value."""
    kept, skip = [], False
    for word in argv:
        if not skip and word != option and not word.startswith(f"{option}="):
            kept.append(word)
        skip = word == option
    return kept
