"""logosphere data, launch, completion: commands that need no torch"""

from logosphere.cli import COMMANDS
from logosphere.cli.arguments import Completion, Data, Launch
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.cli.train_options import parse_train
from logosphere.data.catalogue import CATALOGUE
from logosphere.data.locate import locate
from logosphere.errors import UserError
from logosphere.io import cache_folder, write_atomic
from logosphere.parallel.launch import batch_script
from logosphere.terminal import show

TITLES = {
    "here": "On this machine:",
    "download": "Downloaded on first use, or with: logosphere data get NAME",
    "package": "With another package:",
}
"""Of the parts of the list, by the state of the corpora in them."""


def data(arguments: Data, argv: list[str]) -> int:
    """logosphere data"""
    if arguments.action == "list":
        _list_corpora(json=arguments.json)
        return 0
    from logosphere.data.corpus import count_tokens  # these load torch, which a list does not need
    from logosphere.runs.train_data import open_with_display

    corpus = open_with_display(arguments.name, arguments.tokenizer, DISPLAY, arguments.column)
    sizes = {split: count_tokens(corpus.split(split)) for split in ("train", "valid", "test")}
    place = locate(arguments.name, cache_folder()).place if arguments.name in CATALOGUE else ""
    if arguments.json:
        about = {"name": corpus.name, "tokens": sizes, "vocabulary": corpus.tokenizer.size, "sha256": corpus.sha256}
        print_json(about | {"column": corpus.column, "place": place})
    else:
        counts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        show(f"{corpus.name}: {corpus.tokenizer.size} symbols; tokens: {counts}")
        if place:
            log(f"Its licence: {CATALOGUE[arguments.name].licence}. It is here: {place}")
    return 0


def _list_corpora(*, json: bool) -> None:
    """Print every corpus with a name: whether it is on this machine, its size, licence and content."""
    places = {name: locate(name, cache_folder()) for name in CATALOGUE}
    if json:
        rows = {
            name: {"about": one.about, "licence": one.licence, "state": places[name].state}
            | {"place": places[name].place, "bytes": one.size, "note": one.note}
            for name, one in CATALOGUE.items()
        }
        print_json({"corpora": rows})
        return
    width = max(map(len, CATALOGUE))
    for state, title in TITLES.items():
        names = [name for name in CATALOGUE if places[name].state == state]
        if names:
            show(title)
        for name in names:
            one = CATALOGUE[name]
            size = f"{one.size / 1e6:.1f} MB " if state == "download" else ""
            show(f"  {name:<{width}}  {one.about}")
            show(f"  {'':<{width}}  {size}{places[name]}; licence: {one.licence}")
            if one.note:
                show(f"  {'':<{width}}  {one.note}")
    show("Files, folders and tables of yours, and hf:OWNER/NAME, need no entry here: logosphere train --data FILE")


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
    show(script.format(commands=" ".join(COMMANDS), lines="\n".join(lines)), end="")
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
