"""Domains whose samples can be checked: descriptions, sudokus, chorales and molecules. Used by domains.py."""

import math
from functools import cached_property

import numpy as np
import torch
from domain_metrics import Domain, Figures

import logosphere as ls
from logosphere.evaluation import validators
from logosphere.types import NO_TOKEN


class Restaurants(Domain):
    """E2E: the fraction of slots of a meaning that its description mentions, without and with guidance."""

    GUIDANCE = 2.0

    def references(self) -> dict[str, Figures]:
        half = self.samples // 2  # consecutive examples describe the same restaurant
        shifted = self._meanings()[half:] + self._meanings()[:half]
        references = self.decode(self.targets.tokens)
        rows: dict[str, Figures] = {"references": {"slots": validators.slot_accuracy(self._meanings(), references)}}
        rows["references of other meanings"] = {"slots": validators.slot_accuracy(shifted, references)}
        return rows | self.baselines(by_position=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        found: Figures = {}
        for name, guidance in {"slots": 1.0, f"guidance {self.GUIDANCE:g}: slots": self.GUIDANCE}.items():
            made, cost = self.sample(model, guidance=guidance)
            texts = self.decode(made)
            pairs = zip(self._meanings(), texts, strict=True)
            self.save_texts(f"{row} {guidance:g}", (f"{meaning}\n  {text}" for meaning, text in pairs))
            found |= {name: validators.slot_accuracy(self._meanings(), texts)} | ({} if "NFE" in found else cost)
        return found

    def _meanings(self) -> list[str]:
        rows = self.targets.condition.source.tolist()  # type: ignore[union-attr]
        return [self.corpus.tokenizer.decode([i for i in row if i != NO_TOKEN]) for row in rows]


class Sudokus(Domain):
    """The fraction of solved puzzles. Clues are a source text and, for systems that allow it, known cells.

    Ancestral sampling draws several dependent cells in one step, so mdlm is also sampled in the order of confidence.
    """

    def references(self) -> dict[str, Figures]:
        rng, clues = np.random.default_rng(0), self._clues()
        guessed = np.where(clues > 0, clues - 1, rng.integers(0, 9, clues.shape))
        bits: Figures = {"bits": float((clues == 0).mean()) * math.log2(9), "kind": "exact"}
        return {
            "solutions": self._measure(self.targets.tokens.numpy()),
            "random guesses": bits | self._measure(guessed),
        }

    def scores(self, model: ls.Model, row: str) -> Figures:
        known = torch.from_numpy(self._clues() > 0) if model.block == model.length else None
        made, cost = self.sample(model, known)
        self.save_texts(row, ("".join(str(cell + 1) for cell in cells) for cells in made.tolist()))
        found = self._measure(made.numpy()) | cost
        if row.startswith("mdlm"):
            by_confidence = self._measure(self.sample(model, known, sampler="confidence")[0].numpy())
            found |= {f"likeliest cells first: {name}": by_confidence[name] for name in ("solved", "open cells right")}
        return found

    def _clues(self) -> np.ndarray:
        return self.targets.condition.source.numpy()  # type: ignore[union-attr]

    def _measure(self, cells: np.ndarray) -> Figures:
        clues, truth = self._clues(), self.targets.tokens.numpy()
        solved = validators.is_sudoku_solved(cells) & validators.has_kept_clues(cells, clues)
        return {
            "solved": float(solved.mean()),
            "groups right": float(validators.check_sudoku_groups(cells).mean()),
            "open cells right": float((cells == truth)[clues == 0].mean()),
            "clues kept": float((cells + 1 == clues)[clues > 0].mean()),
        }


class Chorales(Domain):
    """Four voices: complete beats, ordered voices, notes in range, chords that occur in the training split."""

    def references(self) -> dict[str, Figures]:
        rng = np.random.default_rng(0)
        real = [np.asarray(song, dtype=np.int64) for song in self.corpus.test.sequences]  # type: ignore[union-attr]
        return {
            "real songs": self._measure(real),
            "shuffled notes": self._measure([rng.permutation(s) for s in real]),
        } | self.baselines(by_position=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.sample(model)
        songs = [_cut_at_end(song, self.corpus.tokenizer.size - 1) for song in made.numpy()]
        self.save_texts(row, (" ".join(map(str, song)) for song in songs))
        return self._measure(songs) | cost

    def _measure(self, songs: list[np.ndarray]) -> Figures:
        return dict(validators.check_chorales(songs, self.corpus.train.sequences))  # type: ignore[union-attr, arg-type]


class Molecules(Domain):
    """Valid, unique and novel molecules, by RDKit."""

    @cached_property
    def known(self) -> set[str]:
        return set(validators.canonicalise_smiles(map(self.corpus.tokenizer.decode, self.corpus.train.sequences)))  # type: ignore[union-attr]

    def references(self) -> dict[str, Figures]:
        rng, real = np.random.default_rng(0), self.decode(self.targets.tokens)
        shuffled = ["".join(rng.permutation(list(text))) for text in real]
        rows = {"real molecules": real, "shuffled characters": shuffled}
        figures: dict[str, Figures] = {name: self._measure(texts) for name, texts in rows.items()}
        return figures | self.baselines(by_position=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.sample(model)
        self.save_texts(row, self.decode(made))
        return self._measure(self.decode(made)) | cost

    def _measure(self, texts: list[str]) -> Figures:
        return dict(validators.check_molecules(texts, self.known))


def _cut_at_end(song: np.ndarray, end: int) -> np.ndarray:
    """Return the song up to its first end token."""
    ends = np.flatnonzero(song == end)
    return song[: ends[0]] if len(ends) else song
