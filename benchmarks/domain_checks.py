"""Domains whose samples are right or wrong: descriptions, sudokus, chorales and molecules. Used by domains.py."""

import math
from functools import cached_property

import numpy as np
import torch
from domain_measures import Domain, Figures

import logosphere as ls
from logosphere.evaluation import validators
from logosphere.types import NO_TOKEN


class Restaurants(Domain):
    """E2E: how many of the slots of a meaning does its description mention, as learnt and with guidance?"""

    GUIDANCE = 2.0

    def references(self) -> dict[str, Figures]:
        half = self.samples // 2  # neighbours are about the same restaurant
        shifted = self._meanings()[half:] + self._meanings()[:half]
        people = self.texts(self.asked.tokens)
        rows: dict[str, Figures] = {"people": {"slots": validators.slot_accuracy(self._meanings(), people)}}
        rows["people, of other meanings"] = {"slots": validators.slot_accuracy(shifted, people)}
        return rows | self.baselines(by_place=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        found: Figures = {}
        for name, guidance in {"slots": 1.0, f"guidance {self.GUIDANCE:g}: slots": self.GUIDANCE}.items():
            made, cost = self.drawn(model, guidance=guidance)
            texts = self.texts(made)
            pairs = zip(self._meanings(), texts, strict=True)
            self.keep(f"{row} {guidance:g}", (f"{meaning}\n  {text}" for meaning, text in pairs))
            found |= {name: validators.slot_accuracy(self._meanings(), texts)} | ({} if "NFE" in found else cost)
        return found

    def _meanings(self) -> list[str]:
        rows = self.asked.condition.source.tolist()  # type: ignore[union-attr]
        return [self.corpus.tokenizer.decode([i for i in row if i != NO_TOKEN]) for row in rows]


class Sudokus(Domain):
    """Is a puzzle solved? Clues are known cells where a system can take them, and a source text for all.

    Cells filled at random times are drawn together with others that they depend on; so masked systems are also asked
    to fill the surest cell first, one after another.
    """

    def references(self) -> dict[str, Figures]:
        rng, clues = np.random.default_rng(0), self._clues()
        guessed = np.where(clues > 0, clues - 1, rng.integers(0, 9, clues.shape))
        bits: Figures = {"bits": float((clues == 0).mean()) * math.log2(9), "kind": "exact"}
        return {"solutions": self._measured(self.asked.tokens.numpy()), "guesses": bits | self._measured(guessed)}

    def scores(self, model: ls.Model, row: str) -> Figures:
        known = torch.from_numpy(self._clues() > 0) if model.block == model.length else None
        made, cost = self.drawn(model, known)
        self.keep(row, ("".join(str(cell + 1) for cell in cells) for cells in made.tolist()))
        found = self._measured(made.numpy()) | cost
        if row.startswith("mdlm"):
            surest = self._measured(self.drawn(model, known, sampler="confidence")[0].numpy())
            found |= {f"surest first: {name}": surest[name] for name in ("solved", "open cells right")}
        return found

    def _clues(self) -> np.ndarray:
        return self.asked.condition.source.numpy()  # type: ignore[union-attr]

    def _measured(self, cells: np.ndarray) -> Figures:
        clues, truth = self._clues(), self.asked.tokens.numpy()
        solved = validators.is_sudoku_solved(cells) & validators.has_kept_clues(cells, clues)
        return {
            "solved": float(solved.mean()),
            "groups right": float(validators.check_sudoku_groups(cells).mean()),
            "open cells right": float((cells == truth)[clues == 0].mean()),
            "clues kept": float((cells + 1 == clues)[clues > 0].mean()),
        }


class Chorales(Domain):
    """Four voices: whole beats, voices in order, notes in range, chords that Bach has."""

    def references(self) -> dict[str, Figures]:
        rng = np.random.default_rng(0)
        real = [np.asarray(song, dtype=np.int64) for song in self.corpus.test.sequences]  # type: ignore[union-attr]
        return {
            "real songs": self._measured(real),
            "their notes shuffled": self._measured([rng.permutation(s) for s in real]),
        } | self.baselines(by_place=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.drawn(model)
        songs = [_before(song, self.corpus.tokenizer.size - 1) for song in made.numpy()]
        self.keep(row, (" ".join(map(str, song)) for song in songs))
        return self._measured(songs) | cost

    def _measured(self, songs: list[np.ndarray]) -> Figures:
        return dict(validators.check_chorales(songs, self.corpus.train.sequences))  # type: ignore[union-attr, arg-type]


class Molecules(Domain):
    """Valid, different and new, by RDKit."""

    @cached_property
    def known(self) -> set[str]:
        return set(validators.canonicalise_smiles(map(self.corpus.tokenizer.decode, self.corpus.train.sequences)))  # type: ignore[union-attr]

    def references(self) -> dict[str, Figures]:
        rng, real = np.random.default_rng(0), self.texts(self.asked.tokens)
        shuffled = ["".join(rng.permutation(list(text))) for text in real]
        rows = {"real molecules": real, "their letters shuffled": shuffled}
        measured: dict[str, Figures] = {name: self._measured(texts) for name, texts in rows.items()}
        return measured | self.baselines(by_place=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.drawn(model)
        self.keep(row, self.texts(made))
        return self._measured(self.texts(made)) | cost

    def _measured(self, texts: list[str]) -> Figures:
        return dict(validators.check_molecules(texts, self.known))


def _before(song: np.ndarray, end: int) -> np.ndarray:
    """A song up to its end."""
    ends = np.flatnonzero(song == end)
    return song[: ends[0]] if len(ends) else song
