"""Mistakes in the words of a command, said in one sentence; tyro draws a box around several."""

import re

from logosphere.errors import UserError

TYPES = {"INT": "a whole number", "FLOAT": "a number", "BOOL": "True or False", "PATH": "a path", "STR": "a word"}
RULE = re.compile(r"─{3,}|-{3,}")
"""Between parts; boxes are drawn with dashes where the terminal knows no better, and titled in a part of their own."""


class Misuse(UserError):
    """Words that are no command at all; what a command refuses is an error of another kind."""


def in_a_sentence(boxed: str, command: str) -> str:
    """What a box of tyro's says, and where to read more."""
    parts = _parts(boxed)
    said = parts[0] if parts else "These options cannot be read."
    return f"{_translated(said)}{_suggestion(parts[1:])} See: logosphere {command.split(' [')[0]} --help"


def _parts(boxed: str) -> list[str]:
    """The text between rules, each part on one line; its first paragraph is what matters."""
    lines = [line.strip().strip("│").strip() for line in boxed.splitlines() if not line.startswith(("╭", "╰"))]
    parts: list[list[str]] = [[]]
    ended = False
    for line in lines:
        if line and RULE.fullmatch(line):
            parts.append([])
            ended = False
        elif not line:
            ended = bool(parts[-1])
        elif not ended:
            parts[-1].append(line)
    found = [" ".join(part) for part in parts if part]
    return found if "╭" in boxed else found[1:]


def _translated(said: str) -> str:
    if found := re.fullmatch(
        r"Error parsing (\S+): no type matching (\S+) could be instantiated from \[(.*)\]\.", said
    ):
        name, kinds, given = found.groups()
        known = [TYPES.get(kind, kind) for kind in kinds.split("|")]
        return f"{name} must be {' or '.join(known).replace('{None}', 'None')}, not {given}."
    if found := re.fullmatch(
        r"Error parsing (\S+): (?:invalid literal for|could not convert string to) (int|float).*: (.*)", said
    ):
        name, kind, given = found.groups()
        return f"{name} must be {TYPES[kind.upper()]}, not {given}."
    if found := re.fullmatch(r"invalid choice (.+) for argument '(\S+)'\. Expected one of \((.*)\)\.", said):
        given, name, choices = found.groups()
        return f"{name} must be one of {choices.replace(chr(39), '').rstrip(',')}, not {given}."
    if found := re.fullmatch(r"Missing value for argument '(\S+)'\..*", said):
        return f"{found[1]} needs a value."
    if found := re.fullmatch(r"Missing from logosphere \S+.*?: (\S+) (.*?)\.? \(required\).*", said):
        return f"{found[1]} is missing: {found[2][:1].lower()}{found[2][1:]}."
    if found := re.fullmatch(r"Unrecognized options: (.*)", said):
        words = found[1].split(", ")
        options = [word for word in words if word.startswith("-")] or words
        return f"There is no option {', '.join(options)}."
    return said if said.endswith(".") else f"{said}."


def _suggestion(parts: list[str]) -> str:
    for part in parts:
        if found := re.match(r"Perhaps you meant: (--\S+)", part):
            return f" Did you mean {found[1]}?"
    return ""
