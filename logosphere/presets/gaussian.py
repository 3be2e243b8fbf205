"""Published configurations of the gaussian systems.

`simplex` has none: SSD-LM writes blocks of 25 tokens from left to right with a pretrained RoBERTa, which it is not.
"""

import math

from logosphere.presets.preset import Aspect, Preset

CHECKED = "tests/parity/test_gaussian_presets.py"


def _cosine(place: float) -> float:
    """The log-SNR of α = cos(πt/2) at t = place, by whichever end is nearer."""
    angle = math.pi / 2 * min(place, 1 - place)
    return math.copysign(2 * math.log(math.tan(angle)), 0.5 - place)


SHIFT, STRETCH = 0.0002, 1.00025
"""Bit Diffusion's α² = cos²(π/2 · (t + 0.0002)/1.00025)."""

PLAID = Preset(
    system="plaid",
    name="paper",
    source="Gulrajani and Hashimoto 2023, arXiv:2305.18619; github.com/igul222/plaid (train.py, sample.py)",
    aspects=(
        Aspect(
            "parameterisation",
            paper="x̂ = Σ_k p_k e_k over unit embeddings of width 16; logits are the network's plus the output prior "
            "(α/σ²) z·e_k, which is scaled from 0 to 1 over the first 5,000 of 92,000 steps; states are scaled to "
            "variance 1 before the network reads them",
            default="the output prior counts in full from the first step; states are read as they are",
            reason="the head starts at zero, so that the prior alone is right at first; trainings here are too short "
            "to spend steps without it",
            options={"head_warmup": 5000 / 92000, "input": "scaled"},
        ),
        Aspect("weighting", paper="the bound itself: cross-entropy at the end, prior, and -½ SNR'(t)|e - x̂|²"),
        Aspect(
            "schedule",
            paper="a monotone network of 1,024 tanh units between two learned ends, at first γ = -3 and 6; the shape "
            "follows the gradient of E[loss²], the ends that of the bound",
            default="a line plus 32 tanh units, with the same ends and the same gradients",
            reason="it starts straight and costs less at equal CPU",
            options={"schedule": "learned-network"},
        ),
        Aspect(
            "time",
            paper="spread evenly over the batch; a fraction of it reads the token at γ_0, by the running deviations "
            "of both terms in training and 1/8 in a bound",
            default="1/16 of the draws reads the token in training; bounds are measured at times in proportion to "
            "what they cost",
            reason="lower variance of the measured bound",
            options={"clock": "split"},
        ),
        Aspect(
            "self-conditioning",
            paper="every fourth sequence in training, and these give no gradient to embeddings and schedule; always "
            "in a bound (two evaluations at the same z_t, so that it is one) and in samples",
            default="none",
            reason="a bound costs two evaluations, and at equal CPU a small network learns more from plain steps",
            options={"self_conditioning": 0.25, "self_conditioned": "rows", "embeddings_from": "plain"},
        ),
        Aspect(
            "sampler",
            paper="ancestral, 4,096 equal steps of the schedule's time, ε̂ divided by 0.9, likeliest tokens at the end",
            default="ancestral in equal steps of the angle arccos α, tokens drawn at the end",
            reason="samples of the model itself, and fewer steps at equal quality",
            options={"spacing": "time"},
        ),
        Aspect(
            "optimiser",
            paper="AdamW, 1.4e-3 for the network and 1e-2 for embeddings and schedule, betas 0.9 and 0.99, warm-up of "
            "2,500 steps, linear decay to 0, no average of the weights",
            default="one step size, cosine decay, averaged weights",
            reason="shorter trainings",
        ),
    ),
    checked=CHECKED,
    optim={
        "lr": 1.4e-3,
        "warmup": 2500,
        "decay": "linear",
        "min_lr_ratio": 0.0,
        "codec_lr": 1e-2,
        "schedule_lr": 1e-2,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": 4e-5 / 1.4e-3,
    },  # fmt: skip
    ema=0.0,
    sampler="plaid",
    missing="its network (RMSNorm, μP, γ in place of t), short sequences in each batch, clipping at the 95% quantile "
    "of the last 1,000 norms (here at 1), no weight decay of embeddings, and 0.1 of it for the ends of the schedule; "
    "the deviations of the time aspect are those of tokens, taken together for sequences",
)

CDCD = Preset(
    system="cdcd",
    name="paper",
    source="Dieleman et al. 2022, arXiv:2211.15089; where it is silent, the re-run of Gulrajani and Hashimoto 2023 "
    "(github.com/igul222/plaid, train_cdcd.py)",
    aspects=(
        Aspect(
            "parameterisation",
            paper="score interpolation: x̂ = Σ_k p_k e_k, embeddings of length √d, d = 256",
            default="d = 32",
            reason="embeddings of small vocabularies have room in fewer coordinates, which cost less",
            options={"embedding": 256},
        ),
        Aspect("weighting", paper="cross-entropy at the times drawn, and nothing else"),
        Aspect(
            "schedule",
            paper="z = x + t ε with t from 1 to 300, so that |e|²/t² begins at 256; inputs scaled by 1/√(1 + t²)",
            default="|e|²/t² begins at 32, with the same ratio of 300",
            reason="two tokens are 8 deviations apart at 32, and a bound charges for precision beyond that",
            options={"clear": 256.0},
        ),
        Aspect(
            "time",
            paper="warped so that the cross-entropy falls evenly: a piecewise linear F of 100 bins, fitted to the "
            "cross-entropy by weighted squared error",
            default="the same warp in 32 bins, but 8% of the draws are spread evenly and 2% are at the end of the path",
            reason="no time is forgotten while the network changes",
            options={"clock": "warp"},
        ),
        Aspect(
            "self-conditioning",
            paper="half of the sequences of each training batch; always in samples",
            default="half of the batches, as a whole",
            reason="one evaluation of whole batches is faster",
            options={"self_conditioned": "rows"},
        ),
        Aspect(
            "sampler",
            paper="Euler steps of the probability flow, with x̂ brought to the length of embeddings",
            default="ancestral",
            reason="samples of the model itself",
        ),
        Aspect(
            "optimiser",
            paper="AdamW, 1.4e-3 for the network and 1e-2 for embeddings, warm-up of 5,000, linear decay (re-run)",
            default="one step size, cosine decay",
            reason="shorter trainings",
        ),
    ),
    checked=CHECKED,
    optim={
        "lr": 1.4e-3,
        "warmup": 5000,
        "decay": "linear",
        "min_lr_ratio": 0.0,
        "codec_lr": 1e-2,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": 4e-5 / 1.4e-3,
    },  # fmt: skip
    sampler="renormalised",
    missing="its network; F is fitted by running means in 100 bins of log t, not by gradients with bins that "
    "move; prefix and random masks as conditions of a text",
)

DIFFUSION_LM = Preset(
    system="diffusion-lm",
    name="paper",
    source="Li et al. 2022, arXiv:2205.14217; github.com/XiangLi1999/Diffusion-LM (improved_diffusion)",
    aspects=(
        Aspect(
            "parameterisation",
            paper="the network predicts x_0, a draw from N(e, s₀²) where the path begins; in the first step it "
            "predicts e; a linear head tied to the embeddings reads x_0",
            default="the network predicts e, and the head reads the state at the end of the path",
            reason="the noise of x_0 cannot be predicted, and a bound charges for it",
            options={"target": "noisy"},
        ),
        Aspect(
            "weighting", paper="mean squared error, cross-entropy of the head and mean of ᾱ_T x_0², each with weight 1"
        ),
        Aspect(
            "schedule",
            paper="ᾱ = 1 - √(t + 10⁻⁴) in 2,000 steps, β cut at 0.999",
            default="the same in continuous time, with ᾱ brought to exactly 0 before it is cut at the published ends",
            reason="the bound is an integral over continuous time",
            options={"steps": 2000, "highest": None, "lowest": None},
        ),
        Aspect(
            "time",
            paper="the 2,000 steps, all alike; one of them is the first",
            default="continuous; 1/16 of the draws are at the end of the path",
            reason="the reconstruction of a bound is drawn as often as it matters",
        ),
        Aspect("self-conditioning", paper="none"),
        Aspect(
            "sampler",
            paper="2,000 ancestral steps with variances β_t, x̂ replaced by the nearest embedding in each (clamping), "
            "likeliest tokens at the end",
            default="ancestral in equal steps of the angle arccos α, tokens drawn at the end",
            reason="samples of the model itself; clamping commits to tokens early",
            options={"spacing": "time"},
        ),
        Aspect(
            "optimiser",
            paper="AdamW, 1e-4, linear decay to 0, no warm-up, no weight decay, no clipping, average 0.9999",
            default="larger steps with warm-up, cosine decay, clipping at 1",
            reason="shorter trainings",
        ),
        Aspect(
            "network",
            paper="dropout 0.1",
            default="no dropout",
            reason="models here see too little text to overfit",
            options={"dropout": 0.1},
        ),
    ),
    checked=CHECKED,
    optim={
        "lr": 1e-4,
        "warmup": 0,
        "decay": "linear",
        "min_lr_ratio": 0.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.0,
        "clip": None,
    },  # fmt: skip
    ema=0.9999,
    sampler="diffusion-lm",
    missing="the BERT-shaped network with its projections; control by classifiers and MBR. The paper reports no bound "
    "of this form: the one here is that of its path in continuous time (docs/gaussian.md)",
)

BIT_DIFFUSION = Preset(
    system="bit-diffusion",
    name="paper",
    source="Chen et al. 2022, arXiv:2208.04202; github.com/google-research/pix2seq (diffusion_utils.py, cifar10d)",
    aspects=(
        Aspect("parameterisation", paper="x̂ of ⌈log₂ V⌉ analog bits of ±1"),
        Aspect("weighting", paper="mean squared error of x̂, all times alike"),
        Aspect(
            "schedule",
            paper="α² = cos²(π/2 · (t + 0.0002)/1.00025), log-SNR from 16.1 to -18.9",
            default="α = cos(πt/2), from log-SNR 2.8 on",
            reason="bits are 8 deviations apart at 2.8; a bound charges for precision beyond that",
            options={"highest": _cosine(SHIFT / STRETCH), "lowest": _cosine((1 + SHIFT) / STRETCH)},
        ),
        Aspect(
            "time",
            paper="uniform",
            default="uniform, but 1/16 of the draws are at the end of the path",
            reason="the clock of the bound measures that end too",
            options={"clock": "uniform"},
        ),
        Aspect(
            "self-conditioning",
            paper="with probability 0.5 (a coin for the batch), on x̂ clipped to ±1",
            default="the same, on x̂ as it is",
            reason="a clipped estimate says less of how sure it is",
            options={"clip": True},
        ),
        Aspect(
            "sampler",
            paper="ancestral with variances β (or DDIM), equal steps of time, x̂ clipped to ±1, bits of the last x̂; "
            "time may be asymmetric (the sampler `asymmetric`)",
            default="ancestral in equal steps of the angle arccos α, tokens drawn by Bayes' rule",
            reason="samples of the model itself; codes that spell no token cannot be drawn",
            options={"spacing": "time"},
        ),
        Aspect(
            "optimiser",
            paper="AdamW, 1e-4 held after a warm-up of 10,000 steps, betas 0.9 and 0.999, clipping 1, average 0.9999",
            default="larger steps with cosine decay",
            reason="shorter trainings",
        ),
    ),
    checked=CHECKED,
    optim={
        "lr": 1e-4,
        "warmup": 10000,
        "min_lr_ratio": 1.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.0,
        "clip": 1.0,
    },  # fmt: skip
    ema=0.9999,
    sampler="bit-diffusion",
    missing="its networks (U-Net, and a transformer for captions); the paper reports no bound, and the one here is "
    "loose, because the path ends at a log-SNR of 16",
)

PRESETS: list[Preset] = [PLAID, CDCD, DIFFUSION_LM, BIT_DIFFUSION]
