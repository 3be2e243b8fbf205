"""logosphere sample"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from logosphere.cli.arguments import Sample
from logosphere.cli.console import log, messages, print_json
from logosphere.cli.live_view import LiveView, check_installed, save_trajectory
from logosphere.data.tokenizers import Prompt
from logosphere.errors import UserError, plural
from logosphere.io import check_folder, json_safe, write_atomic
from logosphere.parallel.process_group import init_distributed
from logosphere.runs.run import Run
from logosphere.runs.sample import Samples, sample_run
from logosphere.sampling.trajectory import TrajectoryFrame
from logosphere.terminal import show

APPROXIMATE = "keys and values outside of a block are kept while it is decoded, so predictions are approximate"


def sample(arguments: Sample, argv: list[str]) -> int:
    """logosphere sample"""
    if arguments.save is not None:
        check_installed(arguments.save)
    for file in (arguments.save, arguments.image):
        if file is not None:
            check_folder(file.parent)
    live: LiveView | None = None

    def watch(sampled: Run, given: Prompt | None, frame: TrajectoryFrame) -> None:
        nonlocal live
        live = live or LiveView(sampled.tokenizer, given)
        live.show(frame)

    watching = arguments.watch and messages.is_terminal
    try:
        with init_distributed() as group:
            samples = sample_run(
                arguments.run, arguments.config, record=arguments.save is not None, watch=watch if watching else None,
                notify=log, group=group,
            )  # fmt: skip
            if not group.is_main:
                return 0
    finally:
        if live is not None:
            live.close()
    _show(samples, arguments, printed=watching)
    return 0


def _show(samples: Samples, arguments: Sample, *, printed: bool) -> None:
    sampled, config = samples.run, arguments.config
    _print_texts(samples, arguments, printed=printed)
    # Printed before they are saved: the texts must not be lost where a file cannot be written.
    if arguments.save is not None and samples.trajectory is not None:
        taken = samples.trajectory.frames[-1].steps  # an autoregressive model takes one for each token
        about = f"{sampled.config.system}: {plural(taken, 'step')}, seed {config.seed}"
        save_trajectory(arguments.save, samples.trajectory, sampled.tokenizer, samples.texts, about)
        log(f"Saved as {arguments.save}")
    if arguments.image is not None:
        _save_image(arguments.image, samples)


def _print_texts(samples: Samples, arguments: Sample, *, printed: bool) -> None:
    config = arguments.config
    cache = config.decoding.cache
    measured = samples.cache
    nfe = int(samples.nfe) if samples.nfe == int(samples.nfe) else round(samples.nfe, 2)
    if arguments.json:
        rows = [{"text": text, "tokens": row} for text, row in zip(samples.texts, samples.tokens.tolist(), strict=True)]
        if samples.answers is not None:
            rows = [row | {"answer": answer} for row, answer in zip(rows, samples.answers, strict=True)]
        content: dict[str, Any] = {"samples": rows, "nfe": nfe, "seconds": round(samples.seconds, 4)}
        if measured is not None:
            content |= {"cache": cache, "approximation": APPROXIMATE, "cache_report": json_safe(asdict(measured))}
        print_json(content)
        return
    if not printed:
        show("\n\n".join(samples.texts), flush=True)
    if measured is not None:
        log(f"--cache {cache}: {APPROXIMATE}; {measured}.")
    log(f"{plural(nfe, 'network evaluation')} each, {samples.seconds:.2f} s", "dim")


def _save_image(path: Path, samples: Samples) -> None:
    from logosphere.report.images import encode_png, make_image_grid  # not needed for texts

    axes = samples.run.config.network.axes
    if not axes:
        raise UserError("These samples are not images: the model was trained without --network.shape.")
    rows = samples.tokens.cpu().numpy().astype("int64")
    write_atomic(path, encode_png(make_image_grid(rows, axes, samples.run.tokenizer.size)))
    log(f"Saved as {path}")
