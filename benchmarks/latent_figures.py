"""What is measured of a latent system, and of those beside it.

likelihood     bits per token with its kind, and what of it is reading (recon) and path (diffusion)
latents        tokens and texts read back from clean latents; nats per token from their own latents, those of another
               text (shuffled), their mean, and noise (random)
samples        judge's bits per character (ar, trained on three quarters of the validation split); the rest is in
               logosphere/evaluation/sample_metrics.py. MAUVE is measured with n-grams, which no generator uses, and
               with MiniLM where the generator did not use it
decoder alone  the same judge on what the decoder makes of noise: what the path adds is the difference
slots          on E2E, the share of slots of the meaning that are mentioned, as learnt and with guidance 2
"""

from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

import logosphere as ls
from logosphere.autoencoders.pretrained import MiniLM, embed_texts, load_word_pieces, minilm_folder
from logosphere.codecs.base import Autoencoder
from logosphere.data.batches import eval_batches, train_batches
from logosphere.data.corpus import Corpus, split_off, take_first_tokens
from logosphere.evaluation.likelihood import measure_reconstruction
from logosphere.evaluation.sample_metrics import encoder_mauve, find_metrics, measure_samples, scorer_metric
from logosphere.evaluation.scorers import ModelScorer
from logosphere.evaluation.texts import TRAIN_TOKENS, Metric, Reference, Texts
from logosphere.evaluation.validators import slot_accuracy
from logosphere.types import NO_TOKEN, Batch

SEQUENCES, DRAWS, SAMPLES, STEPS, JUDGE_STEPS = 256, 2, 256, 32, 300
CHOSEN = ("entropy", "distinct-4", "overlap-4", "frontier")
GUIDANCE = (1.0, 2.0)
SHOWN = 3


class Bench:
    """The text that rows of one corpus are measured on, and the measures, made once."""

    def __init__(self, corpus: Corpus, split: str, length: int, judge: Path):
        self.corpus, self.length, self._judge_folder = corpus, length, judge
        self.judges_text, held = split_off(corpus.valid, 4)
        """What the judge learns from, and what is left to choose rows by."""
        self.text = corpus.test if split == "test" else held
        both = next(iter(eval_batches(self.text, length, 2 * SAMPLES, 2 * SAMPLES)))
        self.reference = Reference(corpus.tokenizer, take_first_tokens(corpus.train, TRAIN_TOKENS),
                                   Texts.from_tokens(both.tokens[::2], corpus.tokenizer))  # fmt: skip
        self.given = Batch.of(
            both.tokens[1::2],
            condition=None if both.condition is None else both.condition.map(lambda field: field[1::2]),
        )

    def figures(self, model: ls.Model, pretrained: bool) -> dict[str, Any]:
        """All figures of a trained row."""
        held_out = list(eval_batches(self.text, self.length, 32, SEQUENCES))
        report = ls.evaluate(model, held_out, draws=DRAWS, rng=0)
        row: dict[str, Any] = {"kind": report.kind, "bits": report.bits, "error": report.error}
        row |= {"recon": report.recon, "diffusion": report.diffusion}
        latent = isinstance(model.process.codec, Autoencoder)
        if latent:
            found = measure_reconstruction(model, held_out, torch.Generator().manual_seed(0))
            row |= {"accuracy": found.accuracy, "whole": found.exact_match}
            row |= {f"nats, {name}": value for name, value in found.nats.items()}
        for guidance in GUIDANCE if self.given.condition is not None else GUIDANCE[:1]:
            texts = self._written(model, guidance)
            if guidance == 1:
                row |= self._measured(texts, self._metrics(pretrained))
            row |= self._slots(texts, "" if guidance == 1 else f", guidance {guidance:g}")
            row.setdefault("texts", list(texts.strings[:SHOWN]))
        return row | (self._alone(model) if latent else {})

    def real_text(self) -> dict[str, Any]:
        """The same figures of real text, where it has them."""
        texts = Texts.from_tokens(self.given.tokens, self.corpus.tokenizer)
        return self._measured(texts, self._metrics(pretrained=False)) | self._slots(texts, "")

    def _written(self, model: ls.Model, guidance: float) -> Texts:
        drawn = ls.generate(model, SAMPLES, STEPS, torch.Generator().manual_seed(1),
                            condition=self.given.condition, guidance=guidance)  # fmt: skip
        return Texts.from_tokens(drawn.tokens, self.corpus.tokenizer)

    def _alone(self, model: ls.Model) -> dict[str, float]:
        """What the decoder says when nothing was diffused."""
        codec = model.process.codec
        noise = torch.randn(SAMPLES, codec.latents, codec.features, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            texts = Texts.from_tokens(codec.decode(noise), self.corpus.tokenizer)
        figures = self._measured(texts, [scorer_metric(self.judge), *find_metrics(["distinct-4"])])
        return {f"{name}, decoder alone": value for name, value in figures.items()}

    def _measured(self, texts: Texts, chosen: list[Metric]) -> dict[str, float]:
        return {name: figure.value for name, figure in measure_samples(texts, self.reference, chosen).items()}

    def _metrics(self, pretrained: bool) -> list[Metric]:
        return [scorer_metric(self.judge), *find_metrics(CHOSEN), *([] if pretrained else [self._by_minilm])]

    @cached_property
    def _by_minilm(self) -> Metric:
        spell = load_word_pieces(str(minilm_folder() / "tokenizer.json"))
        return encoder_mauve("minilm", partial(embed_texts, MiniLM(6), spell))

    def _slots(self, texts: Texts, how: str) -> dict[str, float]:
        if self.given.condition is None or self.given.condition.source is None:
            return {}
        decode = self.corpus.tokenizer.decode
        meanings = [decode(source[source != NO_TOKEN]) for source in self.given.condition.source.numpy()]
        return {f"slots{how}": slot_accuracy(meanings, texts.strings)}

    @cached_property
    def judge(self) -> ModelScorer:
        """An autoregressive model that has seen nothing but its part of the validation split."""
        if not (self._judge_folder / "recipe.json").exists():
            torch.manual_seed(0)
            model = ls.build(
                "ar", vocab_size=self.corpus.tokenizer.size, length=self.length, width=128, depth=3, heads=4
            )
            picks = train_batches(self.judges_text, self.length, 32, 0)
            batches = (replace(picks.at(step), condition=None) for step in range(JUDGE_STEPS))
            for _ in ls.fit(model, batches, steps=JUDGE_STEPS, ema=0.98):
                pass
            model.save(self._judge_folder)
        return ModelScorer(ls.load(self._judge_folder), self.corpus.tokenizer, "ar", "the validation split")
