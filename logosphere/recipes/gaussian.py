"""Builders of Gaussian diffusion: which codec, schedule, prediction, loss and network make which system."""

import math

from logosphere.errors import UserError, suggest
from logosphere.model import Model
from logosphere.networks.config import NetworkConfig
from logosphere.recipes.gaussian_parts import LEARNED, Settings, assembled

# Paths end where the two nearest tokens are about 8 deviations apart, log-SNR ≈ log(64/distance²): nothing is left to
# tell after that. Diffusion-LM alone keeps the published end; preset="paper" has the published ones of all.


def plaid(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    embedding: int = 16,
    norm: float | None = 1.0,
    schedule: str = "learned",
    highest: float | None = 3.0,
    lowest: float | None = -6.0,
    posterior_head: bool = True,
    input: str = "state",
    self_conditioning: float = 0.0,
    spacing: str = "angle",
    clock: str | None = None,
    head_warmup: float = 0.0,
    self_conditioned: str = "batches",
    embeddings_from: str = "all",
) -> Model:
    """Plaid: the whole bound is trained, with the embeddings, both ends of the schedule and its shape.

    embedding           width of the embeddings; norm: their length (None: free)
    schedule            learned (a line and 32 units), learned-network (Plaid's own, 1024 units), or cosine, sqrt,
                        linear-beta, sigmoid, linear; highest, lowest: its log-SNR at the ends
    posterior_head      adds what a state says of its own token to the network's logits (the output prior)
    head_warmup         fraction of the training over which the posterior head is scaled from 0 to 1
    input               state; scaled: states of variance 1; belief: what each state says of its token, in place of it
    self_conditioning   probability with which training shows the network its own estimate; 0: never
    self_conditioned    batches: whole batches by chance; rows: every n-th sequence of each batch
    embeddings_from     all sequences, or plain: embeddings and schedule learn from unconditioned sequences only
    spacing             of the sampler's steps: angle, logsnr, information or time
    clock               even (a sixteenth of the draws reads the token), split (Plaid's fraction, by deviations; an
                        eighth in a bound), information; None: even for learned schedules, else information
    """
    if embeddings_from not in (words := ("all", "plain")):
        raise UserError(f"'{embeddings_from}' is not a choice for embeddings_from.{suggest(embeddings_from, words)}")
    if embeddings_from == "plain" and self_conditioned != "rows":
        raise UserError("embeddings_from=plain needs plain sequences in every batch; use self_conditioned=rows.")
    has = Settings(
        embedding=embedding, norm=norm, schedule=schedule, highest=highest, lowest=lowest,
        clock=clock or ("even" if schedule in LEARNED else "information"), posterior_head=posterior_head, input=input,
        self_conditioning=self_conditioning, spacing=spacing, head_warmup=head_warmup,
        self_conditioned=self_conditioned, holds=embeddings_from == "plain",
    )  # fmt: skip
    return assembled(vocab_size, length, network, has)


def gaussian_ce(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    codec: str = "embeddings",
    embedding: int = 16,
    norm: float | None = 1.0,
    schedule: str = "cosine",
    shift: float = 0.0,
    highest: float | None = 3.5,
    lowest: float | None = None,
    clock: str = "information",
    loss: str = "cross-entropy",
    posterior_head: bool = False,
    input: str = "belief",
    self_conditioning: float = 0.0,
    spacing: str = "angle",
) -> Model:
    """Gaussian diffusion of any codec, trained on plain cross-entropy and measured by its bound.

    codec      embeddings, bits, one-hot, logits
    schedule   cosine, sqrt, linear-beta, sigmoid, linear, moved by `shift` (tan-d: -2 log d), from highest to lowest
    clock      information (times where there is something to learn), entropy (CDCD's warp), even
    loss       cross-entropy, bound, or the squared error of the clean state

    The posterior head is exact, yet a network that reads beliefs learns a little faster without it (docs/results.md).
    """
    has = Settings(
        codec=codec, embedding=embedding, norm=norm, schedule=schedule, shift=shift, highest=highest, lowest=lowest,
        clock=clock, loss=loss, posterior_head=posterior_head, input=input, self_conditioning=self_conditioning,
        spacing=spacing,
    )  # fmt: skip
    return assembled(vocab_size, length, network, has)


CLEAR, DARK = 32.0, 300.0
"""CDCD: |e|²/t² at the smallest of its noise levels t, and how many times larger the largest is.

The paper's |e|² = 256 at t = 1 is for tens of thousands of tokens. Two tokens are 8 deviations apart at 32 already, and
beyond that a network without a posterior head pays in the bound for digits that nobody needs.
"""


def cdcd(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    embedding: int = 32,
    clock: str = "entropy",
    posterior_head: bool = False,
    input: str = "state",
    self_conditioning: float = 0.5,
    spacing: str = "logsnr",
    clear: float = CLEAR,
    self_conditioned: str = "batches",
) -> Model:
    """CDCD: score interpolation by cross-entropy, embeddings of length √d, times warped so that entropy falls evenly.

    Its z = x + t ε with inputs scaled by 1/√(1 + t²) is the process here, with λ = -2 log t.

    clock              entropy (the warp in 32 bins, and some draws spread evenly), warp (CDCD's alone, 100 bins),
                       information, even
    clear              |e|²/t² at the smallest noise level t; the largest is 300 times as large
    self_conditioned   batches: whole batches by chance; rows: every n-th sequence of each batch
    """
    if not 0 < clear < math.inf:
        raise UserError(f"clear is a ratio of squared lengths and must be above 0, not {clear}.")
    highest = math.log(clear / embedding) if embedding > 0 else 0.0
    has = Settings(
        embedding=embedding, norm=math.sqrt(max(embedding, 1)), highest=highest, lowest=highest - 2 * math.log(DARK),
        loss="cross-entropy", clock=clock, posterior_head=posterior_head, input=input,
        self_conditioning=self_conditioning, spacing=spacing, self_conditioned=self_conditioned,
    )  # fmt: skip
    return assembled(vocab_size, length, network, has)


FIRST_STEP = 4.209
"""log-SNR of the sqrt schedule after the first of 2000 steps, where Diffusion-LM's path ends: σ = 0.121."""
LAST_STEP = -15.41
"""And after the last, whose β is cut at 0.999: ᾱ = 2·10⁻⁷, by which the prior term weighs squared embeddings."""


def diffusion_lm(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    embedding: int = 16,
    predicts: str = "x0",
    schedule: str = "sqrt",
    highest: float | None = FIRST_STEP,
    lowest: float | None = LAST_STEP,
    anchor: float = 1.0,
    self_conditioning: float = 0.0,
    spacing: str = "angle",
    target: str = "clean",
    steps: int | None = None,
) -> Model:
    """Diffusion-LM: squared error of x̂, cross-entropy of a tied linear head on the noisy end, and the prior term.

    Its decoder reads tokens off the end of the path, so that the whole is a bound, though another loss is trained.

    target   clean: the embedding is predicted; noisy: the path begins at a draw around the embedding, which is
             predicted (but the embedding itself in the first step), and from which the head reads, as published
    steps    training draws this many times, those of the published schedule; None: continuous time
    """
    if target not in (words := ("clean", "noisy")):
        raise UserError(f"'{target}' is not a choice for target.{suggest(target, words)}")
    has = Settings(
        embedding=embedding, norm=None, schedule=schedule, highest=highest, lowest=lowest, predicts=predicts,
        loss="error", clock="even", anchor=anchor, head=True, self_conditioning=self_conditioning, spacing=spacing,
        noisy_start=target == "noisy", steps=steps,
    )  # fmt: skip
    return assembled(vocab_size, length, network, has)


def bit_diffusion(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    predicts: str = "x0",
    schedule: str = "cosine",
    shift: float = 0.0,
    highest: float | None = 2.8,
    loss: str = "error",
    clock: str = "even",
    self_conditioning: float = 0.5,
    spacing: str = "angle",
    lowest: float | None = None,
    clip: bool = False,
) -> Model:
    """Bit Diffusion: ⌈log₂ V⌉ analog bits, squared error, self-conditioning; tokens are read off by Bayes' rule.

    clip    the estimate that the network is conditioned on is clipped to ±1
    clock   even spends a sixteenth of the draws on the end of the path, uniform none
    """
    has = Settings(
        codec="bits", schedule=schedule, shift=shift, highest=highest, lowest=lowest, predicts=predicts, loss=loss,
        clock=clock, self_conditioning=self_conditioning, spacing=spacing, clips=clip,
    )  # fmt: skip
    return assembled(vocab_size, length, network, has)


def simplex(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    schedule: str = "cosine",
    shift: float = 0.0,
    highest: float | None = 2.1,
    clock: str = "even",
    posterior_head: bool = False,
    input: str = "simplex",
    self_conditioning: float = 0.0,
    spacing: str = "angle",
) -> Model:
    """SSD-LM's logit simplex, all positions at once: ±1 logits, read through a softmax, trained on cross-entropy."""
    has = Settings(
        codec="logits", schedule=schedule, shift=shift, highest=highest, loss="cross-entropy", clock=clock,
        posterior_head=posterior_head, input=input, self_conditioning=self_conditioning, spacing=spacing,
    )  # fmt: skip
    return assembled(vocab_size, length, network, has)
