"""logosphere completion"""

from logosphere.cli import COMMANDS
from logosphere.cli.arguments import Completion

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


def run(arguments: Completion, argv: list[str]) -> int:
    lines = [
        f"complete -c logosphere -n __fish_use_subcommand -a {name} -d '{command.about}'"
        for name, command in COMMANDS.items()
    ]
    script = {"bash": BASH, "zsh": ZSH, "fish": FISH}[arguments.shell]
    print(script.format(commands=" ".join(COMMANDS), lines="\n".join(lines)), end="")
    return 0
