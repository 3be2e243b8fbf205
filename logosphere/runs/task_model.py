"""What a run answers to the requests of the lm-evaluation-harness, without the harness.

A likelihood is exact for `ar`; for diffusion it is minus the bound, a lower bound of log p that is good for ranking
choices. Surrogates are refused. Texts are cut into windows of the model's length; what a
window is conditioned on is known text (t = 0), where the model can see it. Shorter texts are evaluated at their own
length: a model that attends to its right would condition on padding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from logosphere.errors import UserError
from logosphere.evaluation.likelihood import estimate_bounds
from logosphere.model import Model
from logosphere.parallel.process_group import find_device
from logosphere.runs.config import parse_options
from logosphere.runs.run import Run
from logosphere.sampling.generate import generate
from logosphere.sampling.registry import default_sampler
from logosphere.sampling.steppers import as_stepper
from logosphere.types import Batch, TextTokenizer

BATCH = 16
DRAWS = 32


class TaskModel:
    """A model that measures continuations and texts, and continues prompts."""

    def __init__(
        self,
        model: Model,
        tokenizer: TextTokenizer,
        *,
        draws: int = DRAWS,
        steps: int = 64,
        seed: int = 0,
        batch: int = BATCH,
        renoise: bool = False,
    ):
        self.model, self.tokenizer, self.kind = model, tokenizer, model.process.kind
        self.draws, self.steps, self.seed, self.batch, self.renoise = draws, steps, seed, batch, renoise

    @staticmethod
    def of(
        run: Run,
        *,
        draws: int = DRAWS,
        steps: int = 64,
        seed: int = 0,
        batch: int = BATCH,
        weights: str = "ema",
        options: tuple[str, ...] = (),
    ) -> "TaskModel":
        """The model of a run; surrogates are refused. `options` (name=value) change options of its system."""
        model = run.model(weights, parse_options(options)).place(find_device(run.config.device))
        if model.process.kind == "surrogate":
            raise UserError(f"{run.path} has a surrogate and no likelihood, so the harness cannot evaluate it.")
        renoise = run.needs_renoise(model)
        return TaskModel(model, run.tokenizer, draws=draws, steps=steps, seed=seed, batch=batch, renoise=renoise)

    def score_continuations(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """log p(continuation | context) in nats, and whether greedy decoding would generate it."""
        tokens = [self.pair(*pair) for pair in pairs]
        return [(-value, self.is_greedy(*pair)) for value, pair in zip(self.nats(tokens), tokens, strict=True)]

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        """log p(text), window by window; every token counts once."""
        windows: list[tuple[list[int], list[int]]] = []
        owner = []
        for number, text in enumerate(texts):
            row = self.tokenizer.encode(text).tolist()
            for start in range(0, len(row), self.model.length):
                windows.append(([], row[start : start + self.model.length]))
                owner.append(number)
        totals = [0.0] * len(texts)
        for number, value in zip(owner, self.nats(windows), strict=True):
            totals[number] -= value
        return totals

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both; the context is cut at its beginning so that they fit into one sequence."""
        before, after = self.tokenizer.encode(context).tolist(), self.tokenizer.encode(continuation).tolist()
        if len(after) > self.model.length:
            raise UserError(
                f"A continuation has {len(after)} tokens, but the model has {self.model.length}; use a longer model."
            )
        return before[max(0, len(before) + len(after) - self.model.length) :], after

    def batch_of(self, pairs: Sequence[tuple[list[int], list[int]]], length: int) -> Batch:
        """Rows of one length; a causal model does not see the padding at their end."""
        tokens = torch.zeros(len(pairs), length, dtype=torch.long)
        known, valid = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens, dtype=torch.bool)
        for i, (before, after) in enumerate(pairs):
            row = before + after
            tokens[i, : len(row)] = torch.tensor(row, dtype=torch.long)
            known[i, : len(before)], valid[i, : len(row)] = True, True
        place = torch.arange(len(pairs))
        return Batch(tokens, known, valid, place, place, len(pairs))

    def nats(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """-log p(tokens | context) of each pair, or its bound."""
        found = [0.0] * len(pairs)
        groups: dict[int, list[int]] = {}
        for number, (before, after) in enumerate(pairs):
            if after:  # an empty continuation has likelihood 1
                groups.setdefault(self.length_of(len(before) + len(after)), []).append(number)
        for length, numbers in groups.items():
            for first in range(0, len(numbers), self.batch):
                some = numbers[first : first + self.batch]
                batch = self.batch_of([pairs[number] for number in some], length)
                for part in estimate_bounds(self.model, [batch], draws=self.draws, seed=self.seed):
                    for number, nats in zip(some, part.total.tolist(), strict=True):
                        found[number] = nats
        return found

    def length_of(self, tokens: int) -> int:
        """The length at which a text of so many tokens is evaluated."""
        model = self.model
        if model.block == 1 or tokens == model.length:
            return model.length
        if model.block == model.length and model.process.codec.local:
            return tokens
        if model.block < model.length and tokens % model.block == 0:
            return model.length
        raise UserError(
            f"This model evaluates whole {'blocks' if model.block < model.length else 'sequences'} of {model.block} "
            f"tokens, and a text has {tokens}; use a model such as ar or mdlm, which evaluates texts of any length."
        )

    def is_greedy(self, before: list[int], after: list[int]) -> bool:
        """Is every token the most likely one, given those before it? Only evaluated where the likelihood is exact."""
        if self.kind != "exact" or not after:
            return False
        batch = self.batch_of([(before, after)], self.model.length)
        assert self.model.denoiser is not None
        u = self.model.process.codec.encode(batch.tokens)
        with torch.no_grad():
            out = self.model.denoiser(u, torch.zeros_like(batch.tokens, dtype=torch.float32), context=u)
        span = slice(len(before), len(before) + len(after))
        return out[0, span].argmax(-1).tolist() == after

    def _filters(self) -> bool:
        """Can sampling be restricted to the most likely token?"""
        return self.model.process.predicts_tokens and not as_stepper(default_sampler(self.model).stepper).unfiltered

    def continue_text(self, prompt: str, how: Mapping[str, Any]) -> str:
        """Text after a prompt, up to the first stop, with the settings of a task of the harness."""
        stops = how.get("until") or []
        stops = [stops] if isinstance(stops, str) else stops
        most = int(how.get("max_gen_toks", self.model.length // 2))
        room = self.model.length - max(1, min(most, self.model.length - 1))
        row = self.tokenizer.encode(prompt).tolist()
        row = row[max(0, len(row) - room) :]
        given = self.batch_of([(row, [])], self.model.length)
        known = given.known if row else None
        temperature = float(how.get("temperature") or 0.0)
        sampled = bool(how.get("do_sample", True)) and temperature > 0  # as everywhere in the harness, else greedy
        rng = torch.Generator(self.model.device).manual_seed(self.seed)
        drawn = generate(
            self.model, n=1, steps=self.steps, rng=rng, known=known, tokens=given.tokens if row else None,
            temperature=temperature if sampled else 1.0,
            top_k=None if sampled or not self._filters() else 1,
            renoise_known=bool(row) and self.renoise,
        )  # fmt: skip
        text = self.tokenizer.decode(drawn.tokens[0, len(row) : len(row) + most].cpu().numpy())
        ends = [text.index(stop) for stop in stops if stop and stop in text]
        return text[: min(ends)] if ends else text
