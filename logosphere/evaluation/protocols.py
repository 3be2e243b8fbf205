"""Protocols of likelihoods: the bound of the package (full), and how the papers on masked diffusion report (paper).

`paper` is the evaluation of MDLM (Sahoo et al. 2024), which SEDD, BD3-LM, UDLM and Duo share:

    time       t = ε + (1 - ε) u, ε = 10⁻³, u stratified over the batch, one draw for each sequence
    value      mean over t of -a'_t/(1 - a_t) · Σ -log p(x | z_t); nothing for t < ε, t = 0 or t = 1
    windows    documents with EOS, concatenated, in pieces of L - 2 between BOS and EOS (data/wrapping.py); all L
               positions count
    printed    perplexity exp(nats per token)

It is no bound: over [0, ε] and at both ends nothing is measured, and the mean lacks the factor 1 - ε of an integral:

    (1 - ε) · paper = full - ∫_0^ε - reconstruction at t = 0 - KL at t = 1

Exact likelihoods have no time, so that only their windows change, and their kind stays exact. The bound of a chain of T
steps is what its papers report.
"""

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.processes.capabilities import PublishedTimes

PROTOCOLS = ("full", "paper")
FIRST_TIME = 1e-3
"""ε, the first time that the papers measure."""
DEFAULT_DRAWS = {"full": 4, "paper": 1}
"""Draws of time for each sequence."""


def apply_protocol(model: Model, protocol: str = "full", first: float = FIRST_TIME) -> Model:
    """The model whose bound is measured under a protocol; its weights are shared."""
    if protocol not in PROTOCOLS:
        raise UserError(f"protocol must be one of {', '.join(PROTOCOLS)}, not '{protocol}'.")
    if protocol == "full" or model.process.kind == "exact":
        return model
    if isinstance(model.process, PublishedTimes):
        return model.with_process(model.process.with_published_times(first))
    name = "This system" if model.spec is None else f"'{model.spec.system}'"
    raise UserError(
        f"{name} has no evaluation in the protocol of masked diffusion (paper), which discrete diffusion and ar have; "
        "measure it with the full protocol, or with a preset that follows its own paper (logosphere systems NAME)."
    )
