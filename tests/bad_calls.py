"""Wrong calls of the public functions, as a program: it prints the name of each and what it raised, as JSON.

It is a program of its own because the annotations of the package are checked in the test process, and not for users.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import logosphere as ls

V, L = 5, 8
SIZE = {"vocab_size": V, "length": L, "width": 16, "depth": 1, "heads": 2}
TOKENS = torch.arange(2 * L).view(2, L) % V
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".")


class Constant(nn.Module):
    """Predicts zeros of a given shape, or anything else that a function of the states returns."""

    def __init__(self, make: Callable[[torch.Tensor], object]):
        super().__init__()
        self.make = make
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, z: torch.Tensor, t: torch.Tensor) -> object:
        return self.make(z)


class Foreign(ls.Denoiser):
    """A denoiser that no recipe names."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.reads_time = L, False
        self.table = nn.Embedding(V + 1, V)

    def forward(self, z, t, context, where=None):
        return self.table(z) if where is None else self.table(z)[where]


def wrong(shape: Callable[[torch.Tensor], object]) -> nn.Module:
    return Constant(shape)


model, ar = ls.build("mdlm", **SIZE), ls.build("ar", **SIZE)
sphere = ls.build("rdlm", **SIZE)
latent = ls.build("tencdm", **SIZE)
texts = ls.build("mdlm", tokenizer=ls.make_tokenizer("characters", ["abcde"]), **SIZE)
ending = ls.build("mdlm", tokenizer=ls.make_tokenizer("characters", ["abcd"], end=True), **SIZE)


def fit(data: object, steps: object = 1, of: ls.Model = model, **more: object) -> object:
    return list(ls.fit(of, data, steps=steps, **more))  # type: ignore[arg-type]


def with_module(make: Callable[[torch.Tensor], object]) -> ls.Model:
    return ls.build("mdlm", **SIZE, denoiser=wrong(make))


def sample(**arguments: object) -> object:
    return ls.sample(model, **{"n": 2, "steps": 2, "rng": 0} | arguments)  # type: ignore[arg-type]


KNOWN = torch.zeros(L, dtype=torch.bool).index_fill(0, torch.tensor([0]), True)
CALLS: dict[str, Callable[[], object]] = {
    # ---- build
    "build: no size": lambda: ls.build("mdlm", length=L),
    "build: vocab_size 5.5": lambda: ls.build("mdlm", vocab_size=5.5, length=L),
    "build: vocab_size '5'": lambda: ls.build("mdlm", vocab_size="5", length=L),
    "build: length 8.5": lambda: ls.build("mdlm", vocab_size=V, length=8.5),
    "build: length True": lambda: ls.build("mdlm", vocab_size=V, length=True),
    "build: width 'wide'": lambda: ls.build("mdlm", **SIZE | {"width": "wide"}),
    "build: width 16.0": lambda: ls.build("mdlm", **SIZE | {"width": 16.0}),
    "build: width 0": lambda: ls.build("mdlm", **SIZE | {"width": 0}),
    "build: dropout 'much'": lambda: ls.build("mdlm", **SIZE, dropout="much"),
    "build: loss 3": lambda: ls.build("mdlm", **SIZE, loss=3),
    "build: body 'gru'": lambda: ls.build("mdlm", **SIZE, body="gru"),
    "build: preset 'best'": lambda: ls.build("mdlm", **SIZE, preset="best"),
    "build: system 3": lambda: ls.build(3, **SIZE),
    "build: denoiser 'gpt2'": lambda: ls.build("mdlm", **SIZE, denoiser="gpt2"),
    "build: module in blocks": lambda: ls.build("bd3lm", **SIZE, denoiser=wrong(lambda z: z)),
    "build: tokenizer 'byte'": lambda: ls.build("mdlm", length=L, vocab_size=256, tokenizer="byte"),
    "build: tokenizer of another size": lambda: ls.build("mdlm", **SIZE, tokenizer=ls.make_tokenizer("byte")),
    "wrap: a function": lambda: ls.wrap(lambda z, t: z),
    # ---- sequences
    "nelbo: float tokens": lambda: model.nelbo(TOKENS.float(), 0),
    "nelbo: bool tokens": lambda: model.nelbo(TOKENS.bool(), 0),
    "nelbo: one sequence": lambda: model.nelbo(TOKENS[0], 0),
    "nelbo: three axes": lambda: model.nelbo(TOKENS[None], 0),
    "nelbo: no sequences": lambda: model.nelbo(TOKENS[:0], 0),
    "nelbo: empty list": lambda: model.nelbo([], 0),
    "nelbo: too long": lambda: model.nelbo(torch.zeros(2, L + 1).long(), 0),
    "nelbo: too short": lambda: model.nelbo(torch.zeros(2, L - 1).long(), 0),
    "nelbo: ids too large": lambda: model.nelbo(TOKENS + V, 0),
    "nelbo: ids negative": lambda: model.nelbo(TOKENS - 1, 0),
    "nelbo: huge ids in lists": lambda: model.nelbo([[1 << 70] * L], 0),
    "nelbo: ragged lists": lambda: model.nelbo([[1, 2], [1, 2, 3]], 0),
    "nelbo: lists of floats": lambda: model.nelbo([[0.5] * L], 0),
    "nelbo: lists of None": lambda: model.nelbo([None, None], 0),
    "nelbo: a float array": lambda: model.nelbo(np.zeros((2, L)), 0),
    "nelbo: an array of objects": lambda: model.nelbo(np.array([["a"] * L]), 0),
    "nelbo: None": lambda: model.nelbo(None, 0),
    "nelbo: a number": lambda: model.nelbo(3, 0),
    "nelbo: a string": lambda: model.nelbo("abc", 0),
    "nelbo: texts without tokenizer": lambda: model.nelbo(["abcdeabc"], 0),
    "nelbo: a text too short": lambda: texts.nelbo(["abc"], 0),
    "nelbo: a text too long": lambda: ending.nelbo(["abcdabcda"], 0),
    "nelbo: a foreign character": lambda: texts.nelbo(["abcdeabz"], 0),
    "nelbo: unknown field": lambda: model.nelbo({"input": TOKENS}, 0),
    "nelbo: no field": lambda: model.nelbo({"attention_mask": TOKENS}, 0),
    "nelbo: mask of another shape": lambda: model.nelbo({"input_ids": TOKENS, "attention_mask": TOKENS[:, 1:]}, 0),
    "nelbo: mask of other numbers": lambda: model.nelbo({"input_ids": TOKENS, "attention_mask": TOKENS}, 0),
    "nelbo: labels of masked tokens": lambda: model.nelbo({"input_ids": TOKENS, "labels": TOKENS.flip(1)}, 0),
    "nelbo: labels of another shape": lambda: model.nelbo({"input_ids": TOKENS, "labels": TOKENS[:1]}, 0),
    "nelbo: padding of latents": lambda: latent.nelbo({"input_ids": TOKENS, "attention_mask": TOKENS * 0}, 0),
    "nelbo: text and ids": lambda: texts.nelbo({"input_ids": TOKENS, "text": ["abcdeabc"]}, 0),
    "nelbo: text of a string": lambda: texts.nelbo({"text": "abcdeabc"}, 0),
    "nelbo: known of another shape": lambda: model.nelbo(TOKENS, 0, known=KNOWN[1:]),
    "nelbo: known of numbers": lambda: model.nelbo(TOKENS, 0, known=TOKENS),
    "nelbo: known later in ar": lambda: ar.nelbo(TOKENS, 0, known=~KNOWN),
    "nelbo: draws 0": lambda: model.nelbo(TOKENS, 0, draws=0),
    "nelbo: draws 1.5": lambda: model.nelbo(TOKENS, 0, draws=1.5),
    "nelbo: rng 'a'": lambda: model.nelbo(TOKENS, "a"),
    "nelbo: rng 0.5": lambda: model.nelbo(TOKENS, 0.5),
    "nelbo: rng of numpy": lambda: model.nelbo(TOKENS, np.random.default_rng(0)),
    "nelbo: rng -1": lambda: model.nelbo(TOKENS, -1),
    "nelbo: no denoiser": lambda: ls.build("mdlm", **SIZE, denoiser=None).nelbo(TOKENS, 0),
    "nelbo: denoiser 3": lambda: model.nelbo(TOKENS, 0, denoiser=3),
    # ---- denoisers
    "denoiser: too few logits": lambda: model.nelbo(TOKENS, 0, denoiser=wrong(lambda z: torch.zeros(*z.shape, V - 1))),
    "denoiser: with the mask": lambda: model.nelbo(TOKENS, 0, denoiser=wrong(lambda z: torch.zeros(*z.shape, V + 1))),
    "denoiser: one position": lambda: model.nelbo(TOKENS, 0, denoiser=wrong(lambda z: torch.zeros(len(z), V))),
    "denoiser: integers": lambda: model.nelbo(TOKENS, 0, denoiser=wrong(lambda z: torch.zeros(*z.shape, V).long())),
    "denoiser: a tuple": lambda: model.nelbo(TOKENS, 0, denoiser=wrong(lambda z: (z, z))),
    "denoiser: a function": lambda: model.nelbo(TOKENS, 0, denoiser=lambda z, t, context, where: torch.zeros(3, V)),
    "denoiser: in sampling": lambda: sample(denoiser=wrong(lambda z: torch.zeros(*z.shape, V + 1))),
    "denoiser: on the sphere": lambda: sphere.nelbo(TOKENS, 0, denoiser=wrong(lambda z: z)),
    "denoiser: 3 in sampling": lambda: sample(denoiser=3),
    # ---- corrupt and log_posterior
    "corrupt: t 2": lambda: model.corrupt(TOKENS, 2.0, 0),
    "corrupt: t nan": lambda: model.corrupt(TOKENS, float("nan"), 0),
    "corrupt: t 'late'": lambda: model.corrupt(TOKENS, "late", 0),
    "corrupt: t of another shape": lambda: model.corrupt(TOKENS, torch.zeros(3, 3), 0),
    "log_posterior: z of another length": lambda: model.log_posterior(TOKENS[:, 1:], 0.5),
    "log_posterior: z flat": lambda: model.log_posterior(TOKENS[0], 0.5),
    "log_posterior: z None": lambda: model.log_posterior(None, 0.5),
    "log_posterior: ids too large": lambda: model.log_posterior(TOKENS + V + 1, 0.5),
    "log_posterior: float ids": lambda: model.log_posterior(TOKENS.float(), 0.5),
    # ---- sample
    "sample: steps 8.5": lambda: sample(steps=8.5),
    "sample: steps 0": lambda: sample(steps=0),
    "sample: steps -1": lambda: sample(steps=-1),
    "sample: steps '8'": lambda: sample(steps="8"),
    "sample: steps None": lambda: sample(steps=None),
    "sample: n 0": lambda: sample(n=0),
    "sample: n 1.5": lambda: sample(n=1.5),
    "sample: rng 'a'": lambda: sample(rng="a"),
    "sample: rng 0.5": lambda: sample(rng=0.5),
    "sample: known alone": lambda: sample(known=KNOWN),
    "sample: tokens alone": lambda: sample(tokens=TOKENS),
    "sample: known of another length": lambda: sample(known=KNOWN[1:], tokens=TOKENS),
    "sample: known of other rows": lambda: sample(known=KNOWN.expand(3, L), tokens=TOKENS),
    "sample: tokens of other rows": lambda: sample(known=KNOWN, tokens=TOKENS.repeat(2, 1)),
    "sample: three axes": lambda: sample(known=KNOWN.expand(2, 2, L), tokens=TOKENS),
    "sample: float tokens": lambda: sample(known=KNOWN, tokens=TOKENS.float()),
    "sample: float known": lambda: sample(known=KNOWN.float() / 2, tokens=TOKENS),
    "sample: ids too large": lambda: sample(known=KNOWN, tokens=TOKENS + V),
    "sample: a string as tokens": lambda: sample(known=KNOWN, tokens="abc"),
    "sample: sampler 'fast'": lambda: sample(sampler="fast"),
    "sample: sampler 3": lambda: sample(sampler=3),
    "sample: sampler of the sphere": lambda: sample(sampler="bridge"),
    "sample: stepper 'ddim'": lambda: sample(stepper="ddim"),
    "sample: grid 'squared'": lambda: sample(grid="squared"),
    "sample: grid 3": lambda: sample(grid=3),
    "sample: temperature 0": lambda: sample(temperature=0.0),
    "sample: temperature 'hot'": lambda: sample(temperature="hot"),
    "sample: temperature nan": lambda: sample(temperature=float("nan")),
    "sample: top_k 1.5": lambda: sample(top_k=1.5),
    "sample: top_p 2": lambda: sample(top_p=2.0),
    "sample: min_p None": lambda: sample(min_p=None),
    "sample: guidance alone": lambda: sample(guidance=2.0),
    "sample: guidance 'strong'": lambda: sample(guidance="strong"),
    "sample: precision 'half'": lambda: sample(precision="half"),
    "sample: precision 16": lambda: sample(precision=16),
    "sample: a condition": lambda: sample(condition=ls.Condition.of(labels=torch.zeros(2).long())),
    "sample: condition 'cat'": lambda: sample(condition="cat"),
    # ---- texts
    "generate_text: no tokenizer": lambda: ls.generate_text(model, "abc"),
    "generate_text: prompt 3": lambda: ls.generate_text(texts, prompt=3),
    "generate_text: prompt too long": lambda: ls.generate_text(texts, "abcdeabc"),
    "generate_text: foreign prompt": lambda: ls.generate_text(texts, "xyz"),
    "generate_text: both": lambda: ls.generate_text(texts, "a", infill="b[..]"),
    "generate_text: n 0": lambda: ls.generate_text(texts, "a", n=0),
    "generate_text: length 0": lambda: ls.generate_text(texts, "a", length=0),
    "generate_text: length 2.5": lambda: ls.generate_text(texts, "a", length=2.5),
    "generate_text: length of end": lambda: ls.generate_text(ending, length=L + 1),
    "tokenizer: unknown": lambda: ls.make_tokenizer("letters"),
    "tokenizer: no texts": lambda: ls.make_tokenizer("characters"),
    "tokenizer: one text": lambda: ls.make_tokenizer("characters", "abc"),
    "tokenizer: 3": lambda: ls.make_tokenizer(3),
    "tokenizer: of another size": lambda: setattr(model, "tokenizer", ls.make_tokenizer("byte")),
    # ---- fit
    "fit: steps 0": lambda: fit([TOKENS], 0),
    "fit: steps 1.5": lambda: fit([TOKENS], 1.5),
    "fit: too few batches": lambda: fit([TOKENS], 2),
    "fit: no batches": lambda: fit([], 1),
    "fit: None": lambda: fit(None),
    "fit: a string": lambda: fit("abc"),
    "fit: a number": lambda: fit(3),
    "fit: an iterator of sequences": lambda: fit(iter(TOKENS)),
    "fit: an iterator of texts": lambda: fit(iter(["abcdeabc"]), of=texts),
    "fit: texts without tokenizer": lambda: fit(["abcdeabc"]),
    "fit: too little text": lambda: fit(["abc"], of=texts),
    "fit: an empty text": lambda: fit([""], of=texts),
    "fit: float tokens": lambda: fit([TOKENS.float()]),
    "fit: ids too large": lambda: fit([TOKENS + V]),
    "fit: too long": lambda: fit([torch.zeros(2, L + 1).long()]),
    "fit: too long in a Batch": lambda: fit([ls.Batch.of(torch.zeros(2, L + 1).long())]),
    "fit: a flat Batch": lambda: fit([ls.Batch.of(torch.zeros(2).long())]),
    "fit: all known": lambda: fit([{"input_ids": TOKENS, "known": torch.ones(2, L)}]),
    "fit: all padding": lambda: fit([{"input_ids": TOKENS, "attention_mask": torch.zeros(2, L)}]),
    "fit: columns": lambda: fit([list(torch.zeros(L, 3).long())]),
    "fit: batch 0": lambda: fit(TOKENS, batch=0),
    "fit: seed 'a'": lambda: fit([TOKENS], seed="a"),
    "fit: ema 2": lambda: fit([TOKENS], ema=2.0),
    "fit: ema 'slow'": lambda: fit([TOKENS], ema="slow"),
    "fit: optim 'adam'": lambda: fit([TOKENS], optim="adam"),
    "fit: precision 'half'": lambda: fit([TOKENS], precision="half"),
    "fit: accumulate 0": lambda: fit([TOKENS], accumulate=0),
    "fit: no denoiser": lambda: fit([TOKENS], of=ls.build("mdlm", **SIZE, denoiser=None)),
    "fit: a denoiser that cannot be saved": lambda: fit([TOKENS], of=ls.build("mdlm", **SIZE, denoiser=Foreign())),
    "fit: a module of another shape": lambda: fit([TOKENS], of=with_module(lambda z: torch.zeros(1))),
    # ---- evaluate
    "evaluate: draws 0": lambda: ls.evaluate(model, [TOKENS], draws=0),
    "evaluate: draws 1.5": lambda: ls.evaluate(model, [TOKENS], draws=1.5),
    "evaluate: rng 'a'": lambda: ls.evaluate(model, [TOKENS], rng="a"),
    "evaluate: nothing": lambda: ls.evaluate(model, []),
    "evaluate: None": lambda: ls.evaluate(model, None),
    "evaluate: one sequence": lambda: ls.evaluate(model, TOKENS[0]),
    "evaluate: float tokens": lambda: ls.evaluate(model, TOKENS.float()),
    "evaluate: too short": lambda: ls.evaluate(model, [TOKENS[:, 1:]]),
    "evaluate: all padding": lambda: ls.evaluate(model, [{"input_ids": TOKENS, "attention_mask": torch.zeros(2, L)}]),
    "evaluate: units 0": lambda: ls.evaluate(model, [TOKENS], units_per_token=0.0),
    "evaluate: order 'best'": lambda: ls.evaluate(model, [TOKENS], order="best"),
    "evaluate: order of ar": lambda: ls.evaluate(ar, [TOKENS], order="entropy"),
    "evaluate: denoiser 3": lambda: ls.evaluate(model, [TOKENS], denoiser=3),
    "evaluate: batch 0": lambda: ls.evaluate(model, TOKENS, batch=0),
    # ---- save and load
    "save: onto a file": lambda: (FOLDER.joinpath("file").write_text(""), model.save(FOLDER / "file")),
    "save: a denoiser that cannot be saved": lambda: ls.build("mdlm", **SIZE, denoiser=Foreign()).save(FOLDER / "x"),
    "save: no denoiser": lambda: ls.build("mdlm", **SIZE, denoiser=None).save(FOLDER / "x"),
    "load: nowhere": lambda: ls.load(FOLDER / "nowhere"),
    "load: None": lambda: ls.load(None),
    # ---- languages
    "language: rng 'a'": lambda: ls.languages.independent([0.5, 0.5], 3).sample(2, "a"),
    "language: n 1.5": lambda: ls.languages.independent([0.5, 0.5], 3).sample(1.5, 0),
    # ---- registration
    "register_network: a name of the package": lambda: ls.register_network("transformer")(Constant),
    "register_network: an invalid name": lambda: ls.register_network("My Net")(Constant),
    "register_network: no builder": lambda: ls.register_network("net")(3),
    "register_sampler: a name of the package": lambda: ls.register_sampler("ancestral", "")(lambda model: None),
    "register_sampler: no builder": lambda: ls.register_sampler("slow", "")(3),
    "register_system: no info": lambda: ls.register_system("mine", object),
}  # fmt: skip


def outcome(call: Callable[[], object]) -> str:
    """'UserError: …', another exception, or 'no error'."""
    try:
        call()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return "no error"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: outcome(call) for name, call in CALLS.items()}))
