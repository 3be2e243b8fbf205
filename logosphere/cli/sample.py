"""logosphere sample"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from logosphere.cli.condensing import Condensing, check_suffix, save
from logosphere.cli.conditions import ByClassifier, condition_of
from logosphere.cli.console import messages, parse, print_json, say
from logosphere.data.gaps import Given, parse_gaps, prompt
from logosphere.errors import UserError
from logosphere.parallel.launch import launch, launched, must_launch
from logosphere.sampling.catalogue import listing

if TYPE_CHECKING:
    from logosphere.data.tokenizers import Ids
    from logosphere.model import Model
    from logosphere.parallel.team import Team
    from logosphere.runs.folder import RunFolder
    from logosphere.sampling.generate import Generation
    from logosphere.sampling.trajectory import Recorder
    from logosphere.sampling.walk import Frame


@dataclass(frozen=True)
class Arguments:
    """Generate text with a trained model; without RUN, with the one trained last, or else with a bundled checkpoint."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Folder of the run, or pretrained:NAME for a bundled checkpoint."""
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 4
    """How many texts."""
    steps: int = 64
    """Steps of the sampler; more steps, truer text."""
    prompt: str = ""
    """Begin with this text."""
    infill: str = ""
    """Fill the gaps of this text: 'the [....] of' has a gap of four, '[12]' one of twelve."""
    label: str = ""
    """Write for this label, where the model or a --classifier has learnt labels."""
    source: str = ""
    """Write from this source text, where the model has learnt pairs."""
    signal: Path | None = None
    """Write for this signal along the sequence, where the model has learnt one: a .npy file of L × C numbers, or n of
    them."""
    guidance: float = 1.0
    """How strongly to follow a label, source or signal; 1 is as learnt, more is stronger and less varied."""
    by: Annotated[ByClassifier, tyro.conf.arg(name="")] = field(default_factory=ByClassifier)
    save: Path | None = None
    """Also save how the text condenses: a page that plays it (.html), a drawing (.svg), a .gif, or numbers (.json)."""
    image: Path | None = None
    """Also write the samples as a picture (.png), where they are images."""
    watch: bool = False
    """Show the text condensing; tokens are coloured by how sure the network is."""
    length: int | None = None
    """Tokens of each text. Models of separate texts, which end, write texts of just this length; others as many tokens,
    more than their own length window by window."""
    overlap: int | None = None
    """Tokens that windows share; half of the model's length unless set."""
    sampler: str = "auto"
    """How to write; auto is the sampler of the system. `logosphere samplers` lists them all."""
    grid: Literal["auto", "uniform", "cosine"] = "auto"
    """Spacing of the steps; auto is uniform, and on the sphere equal shares of what there is to know."""
    temperature: float | None = None
    """Below 1: likelier, less varied. 1 unless set; where a bundled checkpoint is taken for want of a run, what reads
    well."""
    top_p: float = 1.0
    """Draw only from the likeliest tokens with this much probability together."""
    top_k: int | None = None
    """Draw only from so many likeliest tokens."""
    min_p: float = 0.0
    """Draw only tokens with at least this share of the likeliest one's probability."""
    greedy_end: bool = False
    """Take the likeliest tokens in the last step."""
    weights: Literal["ema", "best", "model"] = "ema"
    """Averaged weights, the best of them, or the plain ones."""
    seed: int = 0
    """Fixes the texts."""
    nproc: int = 1
    """Processes on this machine that share the texts; under torchrun it need not be given."""
    json: bool = False
    """Print as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "sample")
    if arguments.prompt and arguments.infill:
        raise UserError("Give either --prompt or --infill; an infill text may begin with a prompt.")
    arguments.by.check(arguments.label)
    if arguments.guidance != 1 and not (arguments.label or arguments.source or arguments.signal):
        raise UserError("--guidance needs something to guide by: give --label, --source or --signal, or leave it out.")
    if arguments.sampler != "auto":
        listing(arguments.sampler)
    if arguments.save is not None:
        check_suffix(arguments.save)
        if arguments.length is not None:
            raise UserError("--save keeps one window of text; leave out --length.")
    if (arguments.watch or arguments.save is not None) and (arguments.nproc > 1 or launched()):
        raise UserError("--watch and --save follow one process; leave out --nproc.")
    if must_launch(arguments.nproc):
        return launch(["sample", *words], arguments.nproc)

    from logosphere.parallel.team import assembled

    with assembled() as team:
        return _carried_out(arguments, team)


def _carried_out(arguments: Arguments, team: "Team") -> int:
    from logosphere.pretrained import PREFIX, default_pretrained, sampling_defaults
    from logosphere.runs.folder import RunFolder, newest_or_box
    from logosphere.runs.train import device_of

    folder = RunFolder(arguments.run or newest_or_box())
    if arguments.temperature is None:
        arguments = replace(arguments, temperature=1.0)
        if arguments.run is None and folder.path == default_pretrained():
            best = sampling_defaults(folder.path.name)
            name = best.sampler if arguments.sampler == "auto" else arguments.sampler
            arguments = replace(arguments, temperature=best.temperature, sampler=name)
            whose = f"the bundled checkpoint ({PREFIX}{folder.path.name})"
            way = f"at a temperature of {best.temperature}" + (f" by the sampler '{name}'" if name != "auto" else "")
            say(f"There is no run here, so {whose} writes, {way}; --temperature 1 is what it has learnt.")
    tokenizer = folder.tokenizer
    model = folder.model(arguments.weights).to(device_of(folder.recipe.device))
    given: Given | None = None
    if arguments.prompt:
        given = prompt(arguments.prompt, tokenizer, model.length)
    elif arguments.infill:
        given = parse_gaps(arguments.infill, tokenizer, model.length)
    if given is not None:
        model.check_known(given.known)
    recorder = _recorder(model) if arguments.watch or arguments.save is not None else None
    drawn = _draw(folder, model, given, recorder, arguments, team)
    if not team.leads:
        return 0
    rows = drawn.tokens.cpu().numpy()
    if arguments.save is not None and recorder is not None:
        about = f"{folder.recipe.system}: {arguments.steps} steps, seed {arguments.seed}"
        save(arguments.save, recorder.trajectory, tokenizer, [tokenizer.decode(row) for row in rows], about)
        say(f"Saved as {arguments.save}")
    if arguments.image is not None:
        _picture(arguments.image, rows, folder)
    if arguments.json:
        texts = [{"text": tokenizer.decode(row), "tokens": row.tolist()} for row in rows]
        print_json({"samples": texts, "nfe": _plain(drawn.nfe), "seconds": round(drawn.seconds, 4)})
    elif not (arguments.watch and messages.is_terminal):
        print("\n\n".join(tokenizer.decode(row) for row in rows))
    if not arguments.json:
        say(f"[dim]{_plain(drawn.nfe)} network evaluations each, {drawn.seconds:.2f} s[/]")
    return 0


def _recorder(model: "Model") -> "Recorder":
    from logosphere.sampling.trajectory import Recorder

    return Recorder(model)


def _draw(
    folder: "RunFolder",
    model: "Model",
    given: Given | None,
    recorder: "Recorder | None",
    arguments: Arguments,
    team: "Team",
) -> "Generation":
    import torch

    from logosphere.data.special import Ended
    from logosphere.sampling.generate import generate
    from logosphere.sampling.lengths import of_length
    from logosphere.sampling.plan import GRIDS
    from logosphere.sampling.samplers import sampler
    from logosphere.sampling.sliding import slide

    known, tokens = (None, None) if given is None else (given.known, given.tokens)
    denoiser, slides, tokenizer = None, arguments.length, folder.tokenizer
    if arguments.length is not None and isinstance(tokenizer, Ended):
        wanted = of_length(model, tokenizer.end, arguments.length, known, tokens)
        denoiser, known, tokens, slides = wanted.denoiser, wanted.known, wanted.tokens, None
    renoise = known is not None and bool(known.any()) and folder.approximates(model)
    if renoise:
        say(
            "This model was trained without known positions, so the text around them is approximate; "
            "train with --task infilling for exact conditioning."
        )
    watching = arguments.watch and messages.is_terminal
    shown = Condensing(folder.tokenizer, given) if watching else None

    def watch(frame: "Frame") -> None:
        if recorder is not None:
            moment = recorder.see(frame)
            if shown is not None:
                shown.show(moment)

    rng = torch.Generator(model.device).manual_seed(arguments.seed)
    way = sampler(model.sampler if arguments.sampler == "auto" else arguments.sampler, model)
    guide = arguments.by.guide(folder, model, arguments.label, arguments.n)
    told = "" if guide is not None else arguments.label  # a classifier steers in the place of what the model has learnt

    def write(known: torch.Tensor | None, tokens: torch.Tensor | None) -> "Generation":
        return generate(
            model,
            n=arguments.n,
            steps=arguments.steps,
            rng=rng,
            denoiser=denoiser,
            known=known,
            tokens=tokens,
            sampler=way,
            grid=GRIDS.get(arguments.grid),
            temperature=1.0 if arguments.temperature is None else arguments.temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            min_p=arguments.min_p,
            greedy_end=arguments.greedy_end,
            condition=condition_of(folder, told, arguments.source, arguments.signal, arguments.n),
            guidance=arguments.guidance,
            guide=guide,
            renoise_known=renoise,
            watch=None if recorder is None else watch,
            team=team,
        )

    try:
        if slides is None:
            return write(known, tokens)
        overlap = model.length // 2 if arguments.overlap is None else arguments.overlap
        return slide(write, window=model.length, length=slides, overlap=overlap, known=known, tokens=tokens)
    finally:
        if shown is not None:
            shown.close()


def _picture(path: Path, rows: "Ids", folder: "RunFolder") -> None:
    from logosphere.atomic import write_whole
    from logosphere.evaluation.images import grid, png

    axes = folder.recipe.network.axes
    if not axes:
        raise UserError("These samples are no images: the model was trained without --network.shape.")
    write_whole(path, png(grid(rows.astype("int64"), axes, folder.tokenizer.size)))
    say(f"Saved as {path}")


def _plain(nfe: float) -> float | int:
    return int(nfe) if nfe == int(nfe) else round(nfe, 2)
