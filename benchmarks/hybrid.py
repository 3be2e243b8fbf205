"""Masks and random tokens together: where the bits of `gidd` go, by kind of position, beside `mdlm` and `udlm`.

    python benchmarks/hybrid.py --steps 200            # text8; about 3 minutes of processor time in all

Small networks learn alike (96 × 3, length 64, 32 sequences a step). The bound of each on the validation split is split
by what the network sees: a mask, a random token, the right token. Beside it stands what unigrams would pay at the same
states; differences of the two scatter far less than either. `gidd, own embedding in the head` is the network as it was
before (Backbone, `subtract_input`), `trained at masks alone` leaves the other positions out of its loss. The last
columns are bits at masks with 9% of the text hidden: with random tokens around them as `gidd` has them, and with none.
"""

import argparse
import math
import sys
from collections.abc import Callable

import harness
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import logosphere as ls
from logosphere.data.batches import windows
from logosphere.networks.base import PosteriorHead
from logosphere.networks.config import NetworkConfig
from logosphere.networks.transformer import FullTransformer
from logosphere.rng import GeneratorNoise

LENGTH, BATCH, V, SEQUENCES, DRAWS, LITTLE = 64, 32, 27, 512, 4, 0.1
SIZE = NetworkConfig(width=96, depth=3, heads=3)


def carrying(model: ls.Model) -> None:
    """Embeddings run straight into the head."""
    network = FullTransformer(model.process.codec, LENGTH, SIZE, reads_time=True)
    model.denoiser = PosteriorHead(network, model.process.add_evidence)


def masks_alone(model: ls.Model) -> None:
    carrying(model)
    model.process.weighting = lambda law, x, z, t: torch.where(law.is_mask(z), 2.0, 0.0)


VARIANTS = {
    "mdlm": ("mdlm", None),
    "udlm": ("udlm", None),
    "gidd": ("gidd", None),
    "gidd, own embedding in the head": ("gidd", carrying),
    "… trained at masks alone": ("gidd", masks_alone),
}


def trained(
    system: str, change: Callable[[ls.Model], None] | None, text: np.ndarray, steps: int, seed: int
) -> ls.Model:
    torch.manual_seed(seed)
    model = ls.build(system, vocab_size=V, length=LENGTH, width=SIZE.width, depth=SIZE.depth, heads=SIZE.heads)
    if change is not None:
        change(model)
    crops = ls.Crops(text, length=LENGTH, batch=BATCH, seed=seed)
    optim = ls.OptimizerConfig(lr=3e-3, warmup=40)
    list(ls.fit(model, map(crops.at, range(steps)), steps=steps, optim=optim, seed=seed))
    return model.eval()


@torch.no_grad()
def by_kind(model: ls.Model, tokens: Tensor, unigrams: Tensor) -> Tensor:
    """Bits per token of the network and of unigrams, [B, 2, 3]: at masks, random tokens and right ones."""
    process, everywhere = model.process, torch.ones_like(tokens, dtype=torch.bool)
    noise = GeneratorNoise(torch.Generator().manual_seed(0), len(tokens))
    found = torch.zeros(len(tokens), 2, 3)
    for w in noise.low_discrepancy_times(DRAWS, 1).unbind(1):
        z, t, weight = process.sample_zt(tokens, w, everywhere, noise)
        where = process.needs_prediction(z, everywhere)
        x, picked, times = tokens[where], z[where], t[where]
        kind = torch.where(picked == V, 0, torch.where(picked == x, 2, 1))
        of_unigrams = process.add_evidence(unigrams.log().expand(len(x), -1).clone(), picked, times)
        for which, out in enumerate((model.denoiser(z, t, context=tokens, where=where), of_unigrams)):
            bits = process.elbo_rate(out, x, picked, times) * weight[where] / math.log(2) / LENGTH / DRAWS
            found[:, which].index_put_((where.nonzero()[:, 0], kind), bits, accumulate=True)
    return found


@torch.no_grad()
def at_masks(model: ls.Model, tokens: Tensor) -> tuple[float, float]:
    """Bits at masks among random tokens, and with none of these."""
    t = torch.full(tokens.shape, LITTLE)
    law = ls.build("gidd", vocab_size=V, length=LENGTH, denoiser=None).process
    z = law.corrupt(tokens, t, GeneratorNoise(torch.Generator().manual_seed(1), len(tokens)))
    hidden = z == V
    states = z, torch.where(hidden, V, tokens)
    among, alone = (
        float(F.cross_entropy(model.denoiser(one, t, one, hidden), tokens[hidden])) / math.log(2) for one in states
    )
    return among, alone


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("variants", nargs="*", default=list(VARIANTS))
    read.add_argument("--steps", type=int, default=200)
    read.add_argument("--seed", type=int, default=0)
    given = read.parse_args()
    corpus = ls.open_corpus("text8")
    counts = torch.from_numpy(np.bincount(np.asarray(corpus.train[:2_000_000]), minlength=V)).float()
    unigrams = counts / counts.sum()
    tokens = next(iter(windows(corpus.valid, LENGTH, SEQUENCES, SEQUENCES))).tokens
    alone = float(-unigrams.log()[tokens].mean()) / math.log(2)
    rows = {}
    for name in given.variants:
        system, change = VARIANTS[name]
        model = trained(system, change, corpus.train, given.steps, given.seed)
        found = by_kind(model, tokens, unigrams)
        network, reference = found.mean(0)
        gain, each = network - reference, (found[:, 0] - found[:, 1]).sum(1)
        row = {"bound": alone + float(gain.sum()), "s.e.": float(each.std()) / len(each) ** 0.5}
        for kind, value, of in zip(("masks", "random", "right"), gain.tolist(), reference.tolist(), strict=True):
            row[kind] = value / of if of else 0.0
        row["noisy"], row["clean"] = at_masks(model, tokens) if system != "udlm" else (0.0, 0.0)
        rows[name] = row
        print(name, row, file=sys.stderr, flush=True)
    harness.present(f"text8, {given.steps} steps; unigrams {alone:.3f} bits; bits of each kind against unigrams", rows)


if __name__ == "__main__":
    main()
