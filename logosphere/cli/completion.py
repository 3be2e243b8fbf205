"""logosphere completion"""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from logosphere.cli.console import parse

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
ZSH = "autoload -U +X bashcompinit && bashcompinit\n" + BASH


@dataclass(frozen=True)
class Arguments:
    """Print a script that completes commands, options and files; use it with: source <(logosphere completion bash)."""

    shell: Annotated[Literal["bash", "zsh"], tyro.conf.Positional] = "bash"


def run(words: list[str]) -> int:
    from logosphere.cli import COMMANDS

    shell = parse(Arguments, words, "completion").shell
    print((BASH if shell == "bash" else ZSH).format(commands=" ".join(COMMANDS)), end="")
    return 0
