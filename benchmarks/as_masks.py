"""A network trained on the noise of the sphere, asked as a masked model: starts stand for masks, vertices for tokens.

    python benchmarks/as_masks.py --sequences 1000 runs/rdlm-heat runs/mdlm

Around each network of the sphere a masked diffusion is built that shows it starts in place of masks and vertices in
place of tokens, as if all positions were staggered one by one. Its bound is one like any other: that of `mdlm` with
this network. Runs of other systems are measured as they are, on the same sequences.
"""

import argparse
import math
from pathlib import Path

import torch
from harness import present

import logosphere as ls
from logosphere.data.batches import windows
from logosphere.denoisers.base import Denoiser
from logosphere.likelihood import Estimate, bounds, joined
from logosphere.processes.spherical import Spherical
from logosphere.runs.folder import RunFolder
from logosphere.types import Logits, Positions, State, Times


class OnVertices(Denoiser):
    """Shows a network of the sphere the start where tokens are hidden, and their vertices elsewhere."""

    def __init__(self, inner: Denoiser, process: Spherical):
        super().__init__()
        self.inner, self.process, self.block, self.reads_time = inner, process, inner.block, False

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        hidden = z == self.process.choices
        vertices = self.process.codec.encode(torch.where(hidden, 0, z))
        states = torch.where(hidden[..., None], self.process.origins[0], vertices)
        return self.inner(states, hidden.float(), states, where)


def as_masked(model: ls.Model) -> ls.Model:
    assert isinstance(model.process, Spherical) and model.denoiser is not None
    asked = OnVertices(model.denoiser, model.process)
    return ls.build("mdlm", vocab_size=model.vocab_size, length=model.length, denoiser=asked)


def measured(model: ls.Model, sequences: int, draws: int) -> Estimate:
    test = ls.open_corpus("text8").test
    return joined(list(bounds(model, windows(test, model.length, 50, sequences), draws=draws, seed=0)))


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("runs", nargs="+", type=Path)
    read.add_argument("--sequences", type=int, default=1000)
    read.add_argument("--draws", type=int, default=4)
    given = read.parse_args()
    rows = {}
    for run in given.runs:
        model = RunFolder(run).model("ema")
        models = {run.name: model}
        if isinstance(model.process, Spherical):
            models[f"{run.name}, as masks"] = as_masked(model)
        for name, asked in models.items():
            nats, error = measured(asked, given.sequences, given.draws).per_token()
            rows[name] = {"bits per character": nats / math.log(2), "s.e.": error / math.log(2)}
    present("bounds on text8 (test)", rows)


if __name__ == "__main__":
    main()
