"""Metrics of latent systems and of the systems they are compared with.

likelihood     bits per token with their kind, and their parts: reconstruction (recon) and path (diffusion)
latents        accuracy of tokens and whole texts decoded from clean latents; nats per token given a text's own latents,
               those of another text (shuffled), their mean, and noise (random)
samples        bits per character under a scorer (ar, trained on three quarters of the validation split); the others are
               in logosphere/evaluation/sample_metrics.py. MAUVE is measured with n-grams, which no generator uses, and
               with MiniLM for generators that do not use it
decoder alone  the same scorer on texts decoded from noise; the difference to samples is the effect of the diffusion
slots          on E2E, the fraction of slots of the meaning that are mentioned, without and with guidance 2
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

SEQUENCES, DRAWS, SAMPLES, STEPS, SCORER_STEPS = 256, 2, 256, 32, 300
METRICS = ("entropy", "distinct-4", "overlap-4", "frontier")
GUIDANCE = (1.0, 2.0)
SHOWN = 3


class LatentMetrics:
    """The evaluation text and the metrics of one corpus, prepared once for all rows."""

    def __init__(self, corpus: Corpus, split: str, length: int, scorer_folder: Path):
        self.corpus, self.length, self._scorer_folder = corpus, length, scorer_folder
        self.scorer_text, held = split_off(corpus.valid, 4)
        """Training text of the scorer; the rest of the validation split serves the choice of rows."""
        self.text = corpus.test if split == "test" else held
        both = next(iter(eval_batches(self.text, length, 2 * SAMPLES, 2 * SAMPLES)))
        self.reference = Reference(corpus.tokenizer, take_first_tokens(corpus.train, TRAIN_TOKENS),
                                   Texts.from_tokens(both.tokens[::2], corpus.tokenizer))  # fmt: skip
        self.conditioned = Batch.of(
            both.tokens[1::2],
            condition=None if both.condition is None else both.condition.map(lambda field: field[1::2]),
        )

    def measure(self, model: ls.Model, pretrained: bool) -> dict[str, Any]:
        """Return all figures of a trained row."""
        held_out = list(eval_batches(self.text, self.length, 32, SEQUENCES))
        report = ls.evaluate(model, held_out, draws=DRAWS, rng=0)
        row: dict[str, Any] = {"kind": report.kind, "bits": report.bits, "error": report.error}
        row |= {"recon": report.recon, "diffusion": report.diffusion}
        latent = isinstance(model.process.codec, Autoencoder)
        if latent:
            found = measure_reconstruction(model, held_out, torch.Generator().manual_seed(0))
            row |= {"accuracy": found.accuracy, "whole": found.exact_match}
            row |= {f"nats, {name}": value for name, value in found.nats.items()}
        for guidance in GUIDANCE if self.conditioned.condition is not None else GUIDANCE[:1]:
            texts = self._sample(model, guidance)
            if guidance == 1:
                row |= self._measure_texts(texts, self._list_metrics(pretrained))
            row |= self._measure_slots(texts, "" if guidance == 1 else f", guidance {guidance:g}")
            row.setdefault("texts", list(texts.strings[:SHOWN]))
        return row | (self._measure_decoder_alone(model) if latent else {})

    def measure_real_text(self) -> dict[str, Any]:
        """Return the figures that apply to real text."""
        texts = Texts.from_tokens(self.conditioned.tokens, self.corpus.tokenizer)
        return self._measure_texts(texts, self._list_metrics(pretrained=False)) | self._measure_slots(texts, "")

    def _sample(self, model: ls.Model, guidance: float) -> Texts:
        drawn = ls.generate(model, SAMPLES, STEPS, torch.Generator().manual_seed(1),
                            condition=self.conditioned.condition, guidance=guidance)  # fmt: skip
        return Texts.from_tokens(drawn.tokens, self.corpus.tokenizer)

    def _measure_decoder_alone(self, model: ls.Model) -> dict[str, float]:
        """Measure texts decoded from noise."""
        codec = model.process.codec
        noise = torch.randn(SAMPLES, codec.latents, codec.features, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            texts = Texts.from_tokens(codec.decode(noise), self.corpus.tokenizer)
        figures = self._measure_texts(texts, [scorer_metric(self.scorer), *find_metrics(["distinct-4"])])
        return {f"{name}, decoder alone": value for name, value in figures.items()}

    def _measure_texts(self, texts: Texts, chosen: list[Metric]) -> dict[str, float]:
        return {name: figure.value for name, figure in measure_samples(texts, self.reference, chosen).items()}

    def _list_metrics(self, pretrained: bool) -> list[Metric]:
        return [scorer_metric(self.scorer), *find_metrics(METRICS), *([] if pretrained else [self._minilm_mauve])]

    @cached_property
    def _minilm_mauve(self) -> Metric:
        tokenize = load_word_pieces(str(minilm_folder() / "tokenizer.json"))
        return encoder_mauve("minilm", partial(embed_texts, MiniLM(6), tokenize))

    def _measure_slots(self, texts: Texts, suffix: str) -> dict[str, float]:
        if self.conditioned.condition is None or self.conditioned.condition.source is None:
            return {}
        decode = self.corpus.tokenizer.decode
        meanings = [decode(source[source != NO_TOKEN]) for source in self.conditioned.condition.source.numpy()]
        return {f"slots{suffix}": slot_accuracy(meanings, texts.strings)}

    @cached_property
    def scorer(self) -> ModelScorer:
        """An autoregressive model trained on its part of the validation split only."""
        if not (self._scorer_folder / "recipe.json").exists():
            torch.manual_seed(0)
            model = ls.build(
                "ar", vocab_size=self.corpus.tokenizer.size, length=self.length, width=128, depth=3, heads=4
            )
            picks = train_batches(self.scorer_text, self.length, 32, 0)
            batches = (replace(picks.at(step), condition=None) for step in range(SCORER_STEPS))
            for _ in ls.fit(model, batches, steps=SCORER_STEPS, ema=0.98):
                pass
            model.save(self._scorer_folder)
        return ModelScorer(ls.load(self._scorer_folder), self.corpus.tokenizer, "ar", "the validation split")
