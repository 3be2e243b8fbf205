"""logosphere systems, samplers, data, launch, completion"""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from logosphere.cli import COMMANDS
from logosphere.cli.arguments import Completion, Data, Launch, Samplers, Systems
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.cli.train_options import parse_train
from logosphere.data.sources import CORPORA, DATASETS
from logosphere.errors import UserError
from logosphere.io import write_atomic
from logosphere.parallel.launch import batch_script
from logosphere.sampling.registry import SAMPLERS
from logosphere.systems import DEFAULT, Preset, infos, option_docs, options, presets, system


def systems(arguments: Systems, argv: list[str]) -> int:
    """logosphere systems"""
    if arguments.name:
        return _show_system(arguments.name, arguments.json)
    if arguments.json:
        print_json({"systems": [asdict(info) | {"presets": list(presets(info.name))} for info in infos()]})
        return 0
    for info in infos():
        print(f"{info.name:<16} {info.title} ({info.paper}; {info.kind})\n{'':<16} {info.summary}")
    print("\nOptions of a system, and how its default differs from its paper: logosphere systems NAME")
    return 0


def _show_system(name: str, as_json: bool) -> int:
    info, published = system(name), [preset for key, preset in presets(name).items() if key != DEFAULT]
    defaults, docs = options(name), option_docs(name)
    if as_json:
        described = [{"name": option, "default": defaults[option], "help": text} for option, text in docs.items()]
        print_json(asdict(info) | {"options": described, "presets": [_as_dict(preset) for preset in published]})
        return 0
    print(f"{info.name}: {info.title} ({info.paper}; {info.kind})\n{info.summary}")
    output = Console(highlight=False)
    if docs:
        print("\nOptions (--options NAME=VALUE), beside those of the network:")
        output.print(_option_table(docs, defaults))
    if not published:
        print("\nIts only preset is default: it follows no paper exactly.")
    for preset in published:
        print(f"\npreset {preset.name}: {preset.source}")
        output.print(_side_by_side(preset))
        if preset.missing:
            output.print(f"Not reproduced: {preset.missing}", markup=False)
        output.print(f"Checked by {preset.checked}", markup=False)
        print(f"Train it: logosphere train --system {name} --preset {preset.name}")
    return 0


def _option_table(docs: dict[str, str], defaults: dict[str, Any]) -> Table:
    table = Table("option", "default", "", show_lines=True)
    for option, text in docs.items():
        table.add_row(option, str(defaults[option]), escape(text))
    return table


def _side_by_side(preset: Preset) -> Table:
    table = Table("", preset.name, DEFAULT, "why the default differs", show_lines=True)
    for aspect in preset.aspects:
        table.add_row(*map(escape, (aspect.name, aspect.paper, aspect.default or "the same", aspect.reason)))
    return table


def _as_dict(preset: Preset) -> dict[str, Any]:
    return asdict(preset) | {"options": preset.options}


def samplers(arguments: Samplers, argv: list[str]) -> int:
    """logosphere samplers"""
    if arguments.json:
        print_json({"samplers": [info.as_dict() for info in SAMPLERS.values()]})
        return 0
    for info in SAMPLERS.values():
        kind = "samples" if info.samples_model else "does not sample"
        print(f"{info.name:<17} {info.description}\n{'':<17} for {info.supports.description}; {kind} from the model")
    return 0


def data(arguments: Data, argv: list[str]) -> int:
    """logosphere data"""
    if arguments.action == "list":
        known = CORPORA | DATASETS
        if arguments.json:
            print_json({"corpora": known})
        else:
            print("\n".join(f"{name:<{max(map(len, known))}}  {line}" for name, line in known.items()))
        return 0
    from logosphere.data.corpus import count_tokens  # these load torch, which a list does not need
    from logosphere.runs.train import open_with_display

    corpus = open_with_display(arguments.name, arguments.tokenizer, DISPLAY)
    sizes = {split: count_tokens(corpus.split(split)) for split in ("train", "valid", "test")}
    if arguments.json:
        print_json({"name": corpus.name, "tokens": sizes, "vocabulary": corpus.tokenizer.size, "sha256": corpus.sha256})
    else:
        counts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        print(f"{corpus.name}: {corpus.tokenizer.size} symbols; tokens: {counts}")
    return 0


BASH = """\
_logosphere() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands}" -- "$word"))
  elif [[ "$word" == -* ]]; then
    local options="$(logosphere "${{COMP_WORDS[1]}}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z.-]*')"
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _logosphere logosphere
"""
FISH = """\
function __logosphere_options
  logosphere (commandline -opc)[2] --help 2>/dev/null | string match -ar -- '--[a-z][a-z.-]*' | sort -u
end
complete -c logosphere -e
complete -c logosphere -n __fish_use_subcommand -f
{lines}
complete -c logosphere -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' \\
  -f -a '(__logosphere_options)'
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n" + BASH


def completion(arguments: Completion, argv: list[str]) -> int:
    """logosphere completion"""
    lines = [
        f"complete -c logosphere -n __fish_use_subcommand -a {name} -d '{command.about}'"
        for name, command in COMMANDS.items()
    ]
    script = {"bash": BASH, "zsh": ZSH, "fish": FISH}[arguments.shell]
    print(script.format(commands=" ".join(COMMANDS), lines="\n".join(lines)), end="")
    return 0


def launch(arguments: Launch, argv: list[str]) -> int:
    """logosphere launch"""
    training = argv[argv.index("--") + 1 :] if "--" in argv else []
    # Usage errors are reported now and not when the job starts.
    out = parse_train(training).out if training else None
    if out is None:
        raise UserError(
            "A recipe and --out are missing, for example: logosphere launch slurm -- text8 --out runs/text8"
        )
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
