"""One bound for every training objective: the network of a run of rdlm on the exact bridge from one start.

The number that protocol=published reports is a surrogate. Its network reads states X and the paper's time τ, so it can
be evaluated by the protocol of this package: exact bridges from a constant start, a path that ends at s*, and a
reconstruction term. Only the time that the network reads has to be converted, from that of the tabulated bridge to τ.
"""

import torch

import logosphere as ls
from logosphere.data.batches import train_batches
from logosphere.data.corpus import Corpus
from logosphere.model import Model
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.processes.capabilities import OnlineStatistics
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.runs.run import Run
from logosphere.types import Logits, State, Times, Where

CALIBRATION_PASSES, CALIBRATION_SEQUENCES = 2, 32
"""Sequences of the training split that the time sampler of the evaluation is fitted to; it has no other influence."""


class PaperTime(Wrapper):
    """A network that was trained in the time 1 - τ of RDLM's schedule, for a process with tabulated times."""

    def __init__(self, inner: Denoiser, process: SphericalDiffusion):
        super().__init__(inner)
        self.process = (process,)  # in a tuple: the process is a module, and not a part of the network

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        tau = self.process[0].schedule_time(t.flatten()).view_as(t)
        return self.inner(z, torch.where(t > 0, 1 - tau, 0.0).float(), context, where)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return PaperTime(inner, self.process[0])


def bound_model(trained: Model, start: str) -> Model:
    """Return a model with the network and the noise of a published run, whose value is a bound from this start."""
    spec, process = trained.spec, trained.process
    assert spec is not None and trained.denoiser is not None and isinstance(process, SphericalDiffusion)
    if spec.options.get("input", "belief") != "state":
        raise ValueError("Only a network that reads states and the paper's time is evaluated in that time.")
    noise = process.bridge.total_noise
    model = ls.build(
        "rdlm", vocab_size=spec.vocab_size, length=spec.length, start=start, total_noise=noise, denoiser=None
    )
    assert isinstance(model.process, SphericalDiffusion)
    model.denoiser = PaperTime(trained.denoiser, model.process)
    return model.eval()


def calibrate(model: Model, corpus: Corpus) -> Model:
    """Fit the time sampler of an evaluation, which changes the variance of the bound and not its mean."""
    batches = train_batches(corpus.train, model.length, CALIBRATION_SEQUENCES, seed=1)
    model.process.train()
    for step in range(CALIBRATION_PASSES):
        model.nelbo(batches.at(step).tokens, step, draws=4)
        assert isinstance(model.process, OnlineStatistics)
        model.process.update_statistics()
    model.process.eval()
    return model


def load_bound_model(run: Run, corpus: Corpus, start: str) -> Model:
    """Return the averaged weights of a run as a model whose value is a bound, from this start where it has another."""
    trained = run.model("ema")
    if trained.process.kind == "bound":
        return trained
    if run.spec.options.get("protocol") == "published":
        return calibrate(bound_model(trained, start), corpus)
    return run.model("ema", {"start": start})  # beliefs are those of the start
