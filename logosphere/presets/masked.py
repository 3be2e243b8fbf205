"""Published configurations of masked diffusion in continuous time."""

from dataclasses import replace

from logosphere.presets.preset import Aspect, Preset

CHECKED, SAMPLERS = "tests/parity/test_discrete.py", "tests/parity/test_discrete_samplers.py"
NO_SELF_CONDITIONING = Aspect("self-conditioning", "None.")
MDLM_OPTIM = {"lr": 3e-4, "warmup": 2500, "min_lr_ratio": 1.0, "beta2": 0.999, "weight_decay": 0.0, "clip": 1.0}
FAST = "Learns faster in the few CPU minutes that models of this package are trained for."
FEW = "p(z_1) of the bound has a few tokens where the schedule leaves signal."
CALM = "The same expectation with a lower variance."


def optimiser_aspect(paper: str) -> Aspect:
    """The optimiser of a paper beside that of the recipes."""
    return Aspect("optimiser", paper, "AdamW, step size 2e-3 with cosine decay, β₂ 0.99, weight decay 0.01.", FAST)


def network_aspect(paper: str, **options: float | int | bool) -> Aspect:
    """The network aspect; the published ones have no layer of their own for neighbouring positions."""
    return Aspect("network", paper, "One neighbour on each side is read directly; no dropout.", FAST, options)


MDLM_TIME = Aspect(
    "time",
    "t uniform on [0.001, 1], stratified over the batch; the network is not conditioned on t. The evaluation leaves "
    "out "
    "t < 0.001 and the signal left at t = 1.",
    "As many masks as the stratified quantile asks for; bounds over all of (0, 1].",
    CALM,
    {"times": "uniform", "t_min": 1e-3, "exact_count": False},
)
DIT = network_aspect("DiT of 12 blocks, width 768, dropout 0.1.", neighbours=0, dropout=0.1)
ADAMW = optimiser_aspect(
    "AdamW, 3e-4 after 2,500 steps of warm-up, then constant; β₂ 0.999, no weight decay, norm 1; EMA 0.9999."
)
MASKED_ASPECTS = (
    Aspect("parameterisation", "SUBS: the network predicts the token, never the mask; revealed tokens are copied."),
    Aspect("weighting", "The bound: cross-entropy of masks times 1/t.", "Cross-entropy of masks without the weight "
                                                                        "1/t.",
           FAST, {"loss": "bound"}),
    Aspect("schedule", "Log-linear: a_t = 1 - (1 - 0.001) t.", "Linear, a_t = 1 - t.",
           "No signal is left at t = 1, so that the prior term is 0 and masks can be counted.",
           {"schedule": "log-linear"}),
    MDLM_TIME,
    NO_SELF_CONDITIONING,
    Aspect("sampler", "Ancestral steps with a cache to t = 1e-5, then the likeliest token at what is still a mask "
           "(sampler mdlm). Samples begin with masks alone.", "Ancestral steps to t = 0.",
           "A draw from the model, up to the last step and from the first: p(z_1) of the bound has a few tokens where "
           "signal is left.", {"all_masked": True}),
    ADAMW,
    DIT,
)  # fmt: skip
MDLM = Preset(
    "mdlm",
    "paper",
    "Sahoo et al. 2024, arXiv:2406.07524, and the authors' code (openwebtext)",
    MASKED_ASPECTS,
    CHECKED,
    MDLM_OPTIM,
    0.9999,
    "mdlm",
    "adaLN-zero and zero-initialised heads of DiT; the evaluation on [0.001, 1], which is no bound.",
)


def _remasking(system: str, source: str, sampler: str, paper: str, missing: str = "") -> Preset:
    """A system that is trained as MDLM and sampled in its own way."""
    own = Aspect("sampler", f"{paper} Samples begin with masks alone.", "The same sampler from p(z_1).",
                 FEW, {"all_masked": True})  # fmt: skip
    aspects = tuple(own if aspect.name == "sampler" else aspect for aspect in MASKED_ASPECTS)
    kept = f"{missing} {MDLM.missing}".strip()
    return replace(MDLM, system=system, source=source, aspects=aspects, sampler=sampler, missing=kept, checked=SAMPLERS)


MASKED = [
    MDLM,
    _remasking("remdm", "Wang et al. 2025, arXiv:2503.00307, on MDLM's model", "remdm-cap",
               "ReMDM-cap, σ = min(0.04, σ_max), for fewer steps than tokens (remdm-loop for more); pass top_p=0.9.",
               "The top-p of 0.9 is not part of the sampler; pass it."),
    _remasking("star", "Meshchaninov et al. 2025, arXiv:2510.08369, on MDLM's model", "star",
               "Star+: ancestral to t = 0.3, then every step masks all positions afresh (star-loop holds 0.1 masks)."),
    _remasking("g-star", "Meshchaninov et al. 2025, arXiv:2510.08369, on MDLM's model", "g-star",
               "As star, but the ceil((1 - a_s) L) positions that an error predictor trained on the frozen denoiser "
               "scores highest, with Gumbel noise of temperature 1, are masked."),
    _remasking("p2", "Peng et al. 2025, arXiv:2502.03540, on MDLM's model", "p2",
               "Self-planning, η = 1, κ linear: all positions are scored by the denoiser, the surest are kept.",
               "Counts of masks are rounded up here, and down in the authors' code."),
    Preset(
        "llada",
        "paper",
        "Nie et al. 2025, arXiv:2502.09992, and the authors' evaluation code",
        (
            Aspect("parameterisation", "The network predicts the token at masks; revealed tokens stay."),
            Aspect("weighting", "The bound: cross-entropy of masks times 1/t."),
            Aspect("schedule", "Linear, a_t = 1 - t."),
            Aspect("time", "t uniform on [0.001, 1], drawn independently, masks by chance; no conditioning on t. "
                   "Likelihoods are measured with counted masks, 128 draws.",
                   "Stratified times and counted masks, in training too.", CALM,
                   {"times": "independent", "t_min": 1e-3, "exact_count": False}),
            NO_SELF_CONDITIONING,
            Aspect("sampler", "In blocks from left to right; the likeliest tokens first (low-confidence remasking), "
                   "temperature 0 (sampler llada-greedy).", "The same order with drawn tokens (llada).",
                   "Greedy tokens repeat themselves in small models."),
            optimiser_aspect("AdamW, 4e-4 after 2,000 steps of warm-up, constant for most of the training; weight "
                             "decay 0.1."),
            network_aspect("A Llama-type transformer without causal mask, without dropout.", neighbours=0),
        ),
        CHECKED,
        {"lr": 4e-4, "warmup": 2000, "min_lr_ratio": 1.0, "weight_decay": 0.1},
        sampler="llada-greedy",
        missing="8B parameters and their training data; random lengths of 1% of the batches; fine-tuning; the two "
                "drops of "
        "the step size at the end.",
    ),
    Preset(
        "md4",
        "paper",
        "Shi et al. 2024, arXiv:2406.04329, and the authors' code (text8)",
        (
            Aspect("parameterisation", "The network predicts the token at masks; revealed tokens are copied."),
            Aspect("weighting", "The bound in continuous time."),
            Aspect("schedule", "Linear for text (md4-cosine for images), squeezed into [1e-4, 1 - 1e-4]; the constant "
                   "(1 - a_0) log V is added, a_1 log V is left out as negligible.",
                   "Linear from 1 to 0.", "Both constants are 0, and nothing has to be left out.", {"eps": 1e-4}),
            Aspect("time", "t uniform on [0, 1], on a lattice with a random shift; the network reads t.",
                   "The same lattice, t = w² with weights dt/dw.", CALM, {"times": "uniform"}),
            NO_SELF_CONDITIONING,
            Aspect("sampler", "From masks alone, ancestral on a cosine grid; masks that are left take the likeliest "
                   "token (sampler md4).", "The same grid to t = 0.", "A draw from the model up to the last step.",
                   {"all_masked": True}),
            optimiser_aspect("AdamW, 5e-4 with 2,000 steps of warm-up and cosine decay, weight decay 0.03, no "
                             "clipping; "
                       "EMA 0.9999."),
            network_aspect("12 blocks of width 768, gated feed-forward layers, dropout "
                           "0.05.", neighbours=0, dropout=0.05),
        ),
        CHECKED,
        {"lr": 5e-4, "warmup": 2000, "min_lr_ratio": 0.0, "beta2": 0.999, "weight_decay": 0.03, "clip": None},
        0.9999,
        "md4",
        "Gated feed-forward layers and their initialisation; the prior term a_1 log V, left out there, is counted "
        "here.",
    ),
    Preset(
        "genmd4",
        "paper",
        "Shi et al. 2024, arXiv:2406.04329, and the authors' code (text8)",
        (
            Aspect("parameterisation", "The network's softmax is p(x | z_t) at masks.",
                   "The likelihood t^{w_k} of a mask is added to the logits.",
                   "The network need not learn what the powers say.", {"informed": False}),
            Aspect("weighting", "The bound, with gradients for the powers from two draws (RLOO)."),
            Aspect("schedule", "a_t = 1 - (1 - 1e-4) t^{w_k}, w all 1 at first; what is hidden at t = 0.001 is read "
                               "off "
                   "by p ∝ 0.001^{w_k}.", "t^{w_k} down to 0.", "No term but the diffusion term is left.",
                   {"t_min": 1e-3, "eps": 1e-4}),
            Aspect("time", "t uniform on [0.001, 1], on a lattice with a random shift; the network reads t.",
                   "The same lattice, t = w² with weights dt/dw.", CALM, {"times": "uniform"}),
            NO_SELF_CONDITIONING,
            Aspect("sampler", "None is in the authors' code; ancestral steps of the paper, from masks alone.",
                   "The same from p(z_1).", FEW, {"all_masked": True}),
            optimiser_aspect("As md4: AdamW, 5e-4 with cosine decay, weight decay 0.03, no clipping; EMA 0.9999."),
            network_aspect("As md4, dropout 0.05.", neighbours=0, dropout=0.05),
        ),
        CHECKED,
        {"lr": 5e-4, "warmup": 2000, "min_lr_ratio": 0.0, "beta2": 0.999, "weight_decay": 0.03, "clip": None},
        0.9999,
        missing="Gated feed-forward layers; the prior term ε log V, left out there, is counted here.",
    ),
    Preset(
        "ardm",
        "paper",
        "Hoogeboom et al. 2022, arXiv:2110.02037, and the authors' code (text8)",
        (
            Aspect("parameterisation", "The network predicts the token at masks; it does not read t."),
            Aspect("weighting", "L/l times the cross-entropy of l masks (OA-ARDM)."),
            Aspect("schedule", "None: the number of masks is drawn."),
            Aspect("time", "l uniform on 1 … L, drawn independently.", "Stratified over the batch.", CALM,
                   {"times": "independent"}),
            NO_SELF_CONDITIONING,
            Aspect("sampler", "One token at a time in a random order (sampler first-hitting).", "Ancestral steps.",
                   "Any number of steps can be asked for."),
            optimiser_aspect("AdamW, 5e-4 after 5,000 steps of warm-up, then constant; weight decay 0.001, norm 0.25."),
            network_aspect("12 blocks of width 768, no dropout.", neighbours=0),
        ),
        CHECKED,
        {"lr": 5e-4, "warmup": 5000, "min_lr_ratio": 1.0, "weight_decay": 1e-3, "clip": 0.25},
        sampler="first-hitting",
        missing="A cross-entropy with the weight 1e-4 beside the bound; parallel sampling by dynamic programming.",
    ),
    Preset(
        "bd3lm",
        "paper",
        "Arriola et al. 2025, arXiv:2503.09573, and the authors' code (blocks of 4)",
        (
            Aspect("parameterisation", "SUBS, given the clean blocks before; one pass over noisy and clean text."),
            Aspect("weighting", "The bound, 1/t at masks (no weight for intervals that begin above 0.5)."),
            Aspect("schedule", "Linear; in training the mask rate is clipped to [0.45, 0.95] for blocks of 4.",
                   "Not clipped.", "The best interval depends on the block; [0, 1] holds for all.",
                   {"clip": [0.45, 0.95]}),
            Aspect("time", "One rate for each block, stratified over batch and blocks; masks by chance, drawn again "
                           "until "
                   "their fraction lies in the interval.", "Counted masks.", CALM,
                   {"exact_count": False, "times": "uniform"}),
            NO_SELF_CONDITIONING,
            Aspect("sampler", "First hitting within blocks, cached keys and values (sampler first-hitting); pass "
                   "top_p=0.9.", "Ancestral steps within blocks.", "Any number of steps can be asked for."),
            ADAMW,
            Aspect("network", "DiT of 12 blocks, dropout 0.1.", "No dropout.", FAST, {"dropout": 0.1}),
        ),
        CHECKED,
        MDLM_OPTIM,
        0.9999,
        "first-hitting",
        "850,000 steps of training with one block before 150,000 with blocks; the search for the interval during "
        "training; the rejection of samples of low entropy.",
    ),
]  # fmt: skip
