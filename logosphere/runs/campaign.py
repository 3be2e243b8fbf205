"""Campaigns: comparisons that a file describes, too long for one sitting, of which every finished row is a record.

A campaign has parts, each with a budget, rows and seeds. All rows have one recipe; the learning rate alone is chosen,
for one row of each family on the validation split, and used for the other rows of that family and for all budgets.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from logosphere.errors import UserError, plural, shorten, suggest
from logosphere.networks.config import NetworkConfig
from logosphere.runs.config import MAX_RECIPE, parse_plain
from logosphere.runs.settings import Budget
from logosphere.untrusted import read_regular

LARGEST_DEVIATION = 0.02
"""How far, as a fraction, a training may be from its budget before its row is marked."""


@dataclass(frozen=True)
class CampaignRow:
    """A row: a system with its options as `logosphere compare` takes it, and settings of its network."""

    name: str
    system: str
    """For example mdlm, mdlm:preset=paper or bd3lm:block=4."""
    network: dict[str, Any] = field(default_factory=dict)
    """Settings of its network that differ from the recipe."""


@dataclass(frozen=True)
class Samples:
    """Samples of a row that are measured as in a report."""

    samples: int = 256
    sampling_steps: tuple[int, ...] = (8, 32, 128)
    scorer: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("entropy", "frontier", "memorised")


@dataclass(frozen=True)
class Part:
    """A part of a campaign: rows trained alike, with one budget."""

    name: str
    rows: tuple[CampaignRow, ...]
    budget: Budget
    seeds: dict[str, tuple[int, ...]]
    """The seeds of each row."""
    data: str = ""
    tokenizer: str = ""
    samples: Samples | None = None


@dataclass(frozen=True)
class Rates:
    """How learning rates are chosen."""

    factors: tuple[float, ...]
    """Multiples of the recipe's learning rates that are tried."""
    part: str
    """The part whose budget and data the trials have."""
    sequences: int
    """Sequences of the validation split that they are compared on."""
    families: dict[str, tuple[str, ...]]
    """Rows that share a learning rate; the first of each family is the one it is chosen for."""

    def tuned_row(self, row: str) -> str | None:
        """The row whose learning rate a row has; None for that of the recipe."""
        return next((rows[0] for rows in self.families.values() if row in rows), None)


@dataclass(frozen=True)
class Campaign:
    """What is trained and measured."""

    path: Path
    recipe: str
    data: str
    sequences: int
    """Sequences of the test split."""
    draws: int
    validations: int
    """Points of the curve of each training."""
    rates: Rates | None
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        found = next((part for part in self.parts if part.name == name), None)
        if found is None:
            raise UserError(f"{self.path} has no part '{name}'.{suggest(name, [part.name for part in self.parts])}")
        return found

    def select(self, only: tuple[str, ...]) -> list[tuple[Part, list[CampaignRow]]]:
        """The parts with the rows to do: all, or those that are named as PART or PART/ROW."""
        if not only:
            return [(part, list(part.rows)) for part in self.parts]
        chosen: dict[str, list[CampaignRow]] = {}
        for word in only:
            name, slash, row = word.partition("/")
            part = self.part(name)
            rows = [one for one in part.rows if not slash or one.name == row]
            if not rows:
                raise UserError(f"The part '{name}' has no row '{row}'.{suggest(row, [r.name for r in part.rows])}")
            chosen.setdefault(name, []).extend(row for row in rows if row not in chosen.get(name, []))
        return [(part, chosen[part.name]) for part in self.parts if part.name in chosen]


def read_campaign(path: Path) -> Campaign:
    """A campaign from its YAML file; every entry is checked before anything is trained."""
    try:
        content = parse_plain(read_regular(path, MAX_RECIPE).decode())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as problem:
        reason = (str(problem) or "empty").splitlines()[0]
        raise UserError(f"The campaign {path} cannot be read ({reason}).") from None
    reader = _Reader(path)
    top = reader.entries(
        content, "the campaign", {"recipe", "data", "sequences", "draws", "validations", "rates", "rows", "parts"}
    )
    rows = reader.rows(top.get("rows"))
    parts = reader.parts(top.get("parts"), rows)
    return Campaign(
        path=path,
        recipe=reader.text(top.get("recipe", "text8-tiny"), "recipe"),
        data=reader.text(top.get("data", ""), "data"),
        sequences=reader.count(top.get("sequences", 1000), "sequences"),
        draws=reader.count(top.get("draws", 4), "draws"),
        validations=reader.count(top.get("validations", 16), "validations"),
        rates=reader.rates(top["rates"], rows, parts) if top.get("rates") else None,
        parts=parts,
    )


@dataclass(frozen=True)
class _Reader:
    """Reads the entries of a campaign, with errors that name the file."""

    path: Path

    def entries(self, content: object, where: str, known: set[str]) -> dict[str, Any]:
        if not isinstance(content, dict):
            raise UserError(f"{self.path}: {where} must have names and values, not {shorten(content)}.")
        for name in content:
            if name not in known:
                raise UserError(f"{self.path}: {where} has an unknown entry '{name}'.{suggest(str(name), known)}")
        return content

    def text(self, value: object, name: str) -> str:
        if not isinstance(value, str):
            raise UserError(f"{self.path}: '{name}' must be a text, not {shorten(value)}.")
        return value

    def count(self, value: object, name: str, least: int = 1) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{self.path}: '{name}' must be a whole number of at least {least}, not {shorten(value)}.")
        return value

    def list_of(self, value: object, name: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise UserError(f"{self.path}: '{name}' must be a list with at least one entry, not {shorten(value)}.")
        return value

    def rows(self, content: object) -> dict[str, CampaignRow]:
        """All rows by name: a text is the system, and settings of the network need names."""
        if not isinstance(content, dict) or not content:
            raise UserError(f"{self.path}: 'rows' must give each row its system, not {shorten(content)}.")
        rows = {}
        for key, value in content.items():
            name = self.text(key, "the name of a row")
            if "/" in name:
                raise UserError(f"{self.path}: the name of a row may not have a slash, as '{name}' has.")
            given = {"system": value} if isinstance(value, str) else value
            entry = self.entries(given, f"the row '{name}'", {"system", "network"})
            network = self.entries(entry.get("network", {}), f"the network of '{name}'", set(network_settings()))
            rows[name] = CampaignRow(name, self.text(entry.get("system", name), f"system of '{name}'"), network)
        return rows

    def parts(self, content: object, rows: dict[str, CampaignRow]) -> tuple[Part, ...]:
        parts = []
        budgets = set(vars(Budget()))
        for item in self.list_of(content, "parts"):
            known = {"name", "rows", "seeds", "fewer_seeds", "data", "tokenizer", "samples"} | budgets
            entry = self.entries(item, "a part", known)
            name = self.text(entry.get("name"), "name of a part")
            given = {key: entry[key] for key in budgets if key in entry}
            if any(isinstance(value, bool) or not isinstance(value, int | float) for value in given.values()):
                raise UserError(f"{self.path}: the budget of '{name}' must be a number, not {shorten(given)}.")
            if isinstance(given.get("steps", 1), float):
                raise UserError(f"{self.path}: the steps of '{name}' must be a whole number, not {given['steps']}.")
            given = {key: value if key == "steps" else float(value) for key, value in given.items()}
            if len(given) != 1:
                raise UserError(f"{self.path}: '{name}' must have one budget of {', '.join(sorted(budgets))}.")
            chosen = [self.known_row(row, rows) for row in self.list_of(entry.get("rows"), f"rows of '{name}'")]
            seeds = self.count(entry.get("seeds", 1), f"seeds of '{name}'")
            fewer = self.entries(entry.get("fewer_seeds", {}), f"fewer_seeds of '{name}'", {row.name for row in chosen})
            own = {row.name: self.count(fewer.get(row.name, seeds), f"seeds of '{row.name}'") for row in chosen}
            parts.append(
                Part(
                    name, tuple(chosen), Budget(**given), {row: tuple(range(n)) for row, n in own.items()},
                    self.text(entry.get("data", ""), "data"), self.text(entry.get("tokenizer", ""), "tokenizer"),
                    self.samples(entry["samples"]) if entry.get("samples") else None,
                )
            )  # fmt: skip
        names = [part.name for part in parts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(f"{self.path}: two parts have the name '{twice[0]}'.")
        return tuple(parts)

    def samples(self, content: object) -> Samples:
        entry = self.entries(content, "'samples'", set(vars(Samples())))
        lists = {
            key: tuple(self.list_of(entry[key], key)) for key in vars(Samples()) if key != "samples" and key in entry
        }
        return Samples(self.count(entry.get("samples", Samples().samples), "samples", 2), **lists)

    def known_row(self, name: object, rows: dict[str, CampaignRow]) -> CampaignRow:
        if name not in rows:
            raise UserError(f"{self.path}: there is no row {shorten(name)}.{suggest(str(name), rows)}")
        return rows[str(name)]

    def rates(self, content: object, rows: dict[str, CampaignRow], parts: tuple[Part, ...]) -> Rates:
        entry = self.entries(content, "'rates'", {"factors", "part", "sequences", "families"})
        factors = self.list_of(entry.get("factors"), "factors of the rates")
        if any(isinstance(one, bool) or not isinstance(one, int | float) or not one > 0 for one in factors):
            raise UserError(f"{self.path}: 'factors' must be numbers above 0, not {shorten(factors)}.")
        part = next((one for one in parts if one.name == entry.get("part")), None)
        if part is None:
            raise UserError(f"{self.path}: there is no part {shorten(entry.get('part'))} to choose learning rates at.")
        families = entry.get("families")
        if not isinstance(families, dict):
            raise UserError(f"{self.path}: 'families' must list the rows of each family, not {shorten(families)}.")
        shared = {
            str(family): tuple(self.known_row(row, rows).name for row in self.list_of(members, f"family '{family}'"))
            for family, members in families.items()
        }
        every = [row for members in shared.values() for row in members]
        if twice := sorted({row for row in every if every.count(row) > 1}):
            raise UserError(f"{self.path}: the row '{twice[0]}' is in two families of learning rates.")
        for members in shared.values():
            if members[0] not in [row.name for row in part.rows]:
                raise UserError(
                    f"{self.path}: '{members[0]}' has the learning rate of a family and is not in {part.name}."
                )
        sequences = self.count(entry.get("sequences", 512), "sequences of the rates")
        return Rates(tuple(float(one) for one in factors), part.name, sequences, shared)


def network_settings() -> list[str]:
    """The settings of a network that a row may have of its own."""
    return list(vars(NetworkConfig()))


def describe_budget(budget: Budget) -> dict[str, float]:
    """A budget as records name it: {"CPU minutes": 3}."""
    names = {"cpu_minutes": "CPU minutes", "flops": "FLOPs"}
    return {names.get(name, name): value for name, value in budget.given().items()}


def describe_campaign(campaign: Campaign, only: tuple[str, ...]) -> str:
    """How many trainings a campaign has."""
    chosen = campaign.select(only)
    count = sum(len(part.seeds[row.name]) for part, rows in chosen for row in rows)
    return f"{plural(len(chosen), 'part')}, {plural(count, 'training')}"
