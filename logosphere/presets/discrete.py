"""Published configurations of the discrete systems.

Every preset is the system of a paper as far as this package can build it. Numbers come from the papers and from the
authors' code; where both differ, the code was taken, because published checkpoints were trained with it. Bounds are
measured over all of (0, 1] and count what a schedule loses at its ends, also where the authors' evaluation leaves that
out: a figure of a paper may therefore be lower than a bound measured here.
"""

from dataclasses import replace

from logosphere.presets.masked import (
    ADAMW,
    CALM,
    CHECKED,
    DIT,
    MASKED,
    MDLM_OPTIM,
    NO_SELF_CONDITIONING,
    network_aspect,
    optimiser_aspect,
)
from logosphere.presets.preset import Aspect, Preset

D3PM_OPTIM = {"lr": 2e-4, "warmup": 5000, "min_lr_ratio": 1.0, "beta2": 0.999, "weight_decay": 0.0}
D3PM_TIME = Aspect(
    "time", "t uniform on 1 … T, drawn independently; the network reads t.", "Stratified over the batch.", CALM,
    {"times": "independent"},
)  # fmt: skip
D3PM_READING = Aspect(
    "parameterisation",
    "p(z_s | z_t) ∝ Σ_x q(z_t | z_s) q(z_s | x) p̃(x), and the last step draws from p̃, the network's softmax.",
    "The same, but the last step draws from p̃(x) q(z_1 | x).",
    "The network need not learn how much to trust the value seen.",
    {"reconstruction": "network"},
)
D3PM_ADAM = optimiser_aspect("Adam, 2e-4 after 5,000 steps of warm-up, then constant; norm 0.25 (text).")
D3PM_NETWORK = network_aspect("12 blocks of width 768, no dropout.", neighbours=0)
D3PM_SOURCE = "Austin et al. 2021, arXiv:2107.03006, and the authors' code"
UDLM_SOURCE = "Schiff et al. 2024, arXiv:2412.10193, and the authors' code"
SEDD_SOURCE = "Lou et al. 2024, arXiv:2310.16834, and the authors' code"
SEDD_TIME = Aspect(
    "time",
    "t uniform on [0.001, 1], drawn independently; the network reads t. The evaluation leaves out t < 0.001.",
    "A stratified lattice with more times near 0 and weights dt/dw; bounds over all of (0, 1].",
    CALM,
    {"times": "independent", "t_min": 1e-3},
)
SEDD_SAMPLER = Aspect(
    "sampler",
    "Euler steps on the network's own ratios to t = 1e-5, then one analytic step to 0 (sampler euler).",
    "The ancestral step, for which ratios are normalised first.",
    "Probabilities at every step size.",
)

OTHERS = [
    Preset(
        "d3pm-absorbing",
        "paper",
        f"{D3PM_SOURCE} (text8)",
        (
            Aspect("parameterisation", "The network predicts the token; at masks p(z_s | z_t) reveals it."),
            Aspect("weighting", "KL_t + 0.01 cross-entropy at a random t."),
            Aspect("schedule", "β_t = 1/(T - t + 1), a linear signal, T = 1000."),
            D3PM_TIME,
            NO_SELF_CONDITIONING,
            Aspect("sampler", "Ancestral, T steps or jumps over several."),
            D3PM_ADAM,
            D3PM_NETWORK,
        ),
        CHECKED,
        D3PM_OPTIM | {"clip": 0.25},
        missing="Cross-entropy at revealed tokens, which are copied here; mass of the prediction on the mask itself.",
    ),
    Preset(
        "d3pm-uniform",
        "paper",
        f"{D3PM_SOURCE} (text8; uniform transitions)",
        (
            D3PM_READING,
            Aspect("weighting", "The bound alone, λ = 0."),
            Aspect("schedule", "β of cos((t/T + s)/(1 + s) π/2) with s = 0.008, at most 0.999, T = 1000.",
                   "cos(π t/2) without offset.", "One formula for every T and for continuous time.",
                   {"schedule": "offset-cosine"}),
            D3PM_TIME,
            NO_SELF_CONDITIONING,
            Aspect("sampler", "Ancestral, T steps; the last one takes the likeliest token (images)."),
            D3PM_ADAM,
            D3PM_NETWORK,
        ),
        CHECKED,
        D3PM_OPTIM | {"clip": 0.25},
        missing="Band-diagonal transitions of width 7, which the text configuration named uniform selects in the code.",
    ),
    Preset(
        "d3pm-gaussian",
        "paper",
        f"{D3PM_SOURCE} (CIFAR-10)",
        (
            replace(D3PM_READING, options={"reconstruction": "network", "head": "logistic"},
                    paper=f"{D3PM_READING.paper} p̃ is a truncated discretised logistic distribution around "
                    "tanh(shift + value seen).", default=f"{D3PM_READING.default} p̃ is a softmax."),
            Aspect("weighting", "KL_t + 0.001 cross-entropy at a random t."),
            Aspect("schedule", "Q ∝ exp(-4 d²/((V - 1)² β)), β linear from 1e-4 to 0.02, T = 1000.",
                   "T = 100 with β ten times as large; widths of few values follow the variance, not the formula.",
                   "A tenth of the memory and of the time to build; few values move at all.",
                   {"timesteps": 1000, "widths": "formula"}),
            D3PM_TIME,
            NO_SELF_CONDITIONING,
            Aspect("sampler", "Ancestral, T steps; the last one takes the likeliest value."),
            optimiser_aspect("Adam, 2e-4 after 5,000 steps of warm-up, then constant; norm 1; EMA 0.9999."),
            network_aspect("A U-Net of 35.7M parameters, dropout 0.1 (body=unet for "
                           "images).", neighbours=0, dropout=0.1),
        ),
        CHECKED,
        D3PM_OPTIM | {"clip": 1.0},
        0.9999,
        missing="The argmax of the last step (greedy_end=True); log-widths are kept within [-7, 4] here.",
    ),
    Preset(
        "multinomial",
        "paper",
        "Hoogeboom et al. 2021, arXiv:2102.05379, and the authors' code (text8)",
        (
            Aspect("parameterisation", "The network predicts x̂; p(z_s | z_t) = q(z_s | z_t, x̂), in the last step "
                                       "too."),
            Aspect("weighting", "The bound."),
            Aspect("schedule", "α² of a step is that of cos² with offset 0.008 and at least 0.001, so that the last "
                               "β is "
                   "1 - √0.001 = 0.968; T = 1000.", "The last β is 0.999.", "Less signal is left at t = 1.",
                   {"largest_beta": 0.9683772233983162}),
            Aspect("time", "Drawn independently, with probability ∝ √E[L_t²] of a running mean.",
                   "Uniform and stratified.", "No statistics are needed at the start.",
                   {"importance": True, "times": "independent"}),
            NO_SELF_CONDITIONING,
            Aspect("sampler", "Ancestral, T steps."),
            optimiser_aspect("Adam, 1e-4, times 0.99 every epoch."),
            network_aspect("12 layers of linear and local attention.", neighbours=0),
        ),
        CHECKED,
        {"lr": 1e-4, "warmup": 0, "min_lr_ratio": 1.0, "beta2": 0.999, "weight_decay": 0.0, "clip": None},
        missing="Linear and local attention; the ReZero gate before the output; the decay by 0.99 an epoch; running "
                "means "
        "for each of the T steps (here for 33 bins of them).",
    ),
    Preset(
        "udlm",
        "paper",
        f"{UDLM_SOURCE} (LM1B)",
        (
            Aspect("parameterisation", "The network predicts x̂, which is put for x in q(z_s | z_t, x)."),
            Aspect("weighting", "The bound in continuous time."),
            Aspect("schedule", "Log-linear: a_t = 1 - (1 - 0.001) t.", "Linear, a_t = 1 - t.",
                   "No signal is left at t = 1, and the prior term is 0.", {"schedule": "log-linear"}),
            Aspect("time", "t uniform on [0.001, 1], stratified over the batch; the network reads t. The "
                           "reconstruction "
                   "term is taken for 0.", "Stratified, more times near 0 with weights dt/dw; bounds over (0, "
                                           "1].", CALM,
                   {"times": "uniform", "t_min": 1e-3}),
            NO_SELF_CONDITIONING,
            Aspect("sampler", "Ancestral."),
            ADAMW,
            DIT,
        ),
        CHECKED,
        MDLM_OPTIM,
        0.9999,
        missing="adaLN-zero and zero-initialised heads of DiT.",
    ),
    Preset(
        "sedd-absorb",
        "paper",
        f"{SEDD_SOURCE} (openwebtext)",
        (
            Aspect("parameterisation", "Log ratios, scaled by 1/((e^σ - 1) V)."),
            Aspect("weighting", "Diffusion-weighted denoising score entropy, the bound."),
            Aspect("schedule", "Log-linear: a_t = 1 - (1 - 0.001) t."),
            SEDD_TIME,
            NO_SELF_CONDITIONING,
            replace(SEDD_SAMPLER, options={"all_masked": True}, paper=f"From masks alone. {SEDD_SAMPLER.paper}"),
            ADAMW,
            DIT,
        ),
        CHECKED,
        MDLM_OPTIM,
        0.9999,
        "euler",
        "adaLN-zero and zero-initialised heads of DiT.",
    ),
    Preset(
        "sedd-uniform",
        "paper",
        f"{SEDD_SOURCE} (openwebtext)",
        (
            Aspect("parameterisation", "Log ratios as the network gives them."),
            Aspect("weighting", "Diffusion-weighted denoising score entropy, the bound."),
            Aspect("schedule", "Geometric: σ_t = 1e-4^{1-t} 20^t, a_t = e^{-σ_t}, so that a_0 = e^{-1e-4}.",
                   "The same behind a ramp of 0.01 of the time from a_0 = 1.",
                   "The first tokens lost are part of the diffusion term.", {"schedule": "geometric:0.0001,20,0"}),
            SEDD_TIME,
            NO_SELF_CONDITIONING,
            SEDD_SAMPLER,
            ADAMW,
            DIT,
        ),
        CHECKED,
        MDLM_OPTIM,
        0.9999,
        "euler",
        "adaLN-zero and zero-initialised heads of DiT; the cost of the noise at t = 0, left out there, is counted "
        "here.",
    ),
    Preset(
        "gidd",
        "paper",
        "von Rütte et al. 2025, arXiv:2503.04482, and the authors' code (GIDD+, p_u = 0.1)",
        (
            Aspect("parameterisation", "The network predicts x̂ at every position; the mask is no token."),
            Aspect("weighting", "Dynamic: 2 at masks, 1 at random tokens, B/K exp(sigmoid(-t)/2) at clean ones, at "
                                "most 2 "
                   "(the code; clip-2 is its other choice). The paper's equation has u_t/a_t at clean tokens.",
                   "The paper's equation.", "Weights of clean tokens fall with their information, as derived.",
                   {"loss": "dynamic-code"}),
            Aspect("schedule", "Linear in t, with 2 p_u/(1 - p_u) √(t (1 - t)) random tokens."),
            Aspect("time", "t uniform on [1e-4, 1 - 1e-4], on a lattice with a random shift; the network reads t. The "
                   "evaluation leaves out both ends, 0.17 to 1.2 nats of a sequence, and is a surrogate.",
                   "Uniform on [0, 1]; bounds with a low-variance sampler over all of (0, 1].",
                   "Nothing is left out of the bound.",
                   {"times": "uniform", "t_min": 1e-4, "protocol": "published"}),
            NO_SELF_CONDITIONING,
            Aspect("sampler", "Ancestral from masks; self-correcting is a second stage."),
            optimiser_aspect("AdamW, 5e-4 with 10,000 steps of warm-up and cosine decay to 10%, β₂ 0.99, ε 1e-9, "
                             "weight decay "
                       "0.02, norm 1; no EMA."),
            network_aspect("DiT without dropout; the embedding of a token runs into the head.",
                         neighbours=0, own_embedding=True),
        ),
        CHECKED,
        {"lr": 5e-4, "warmup": 10_000, "min_lr_ratio": 0.1, "beta2": 0.99, "eps": 1e-9, "weight_decay": 0.02},
        0.0,
        missing="adaLN-zero of DiT.",
    ),
    Preset(
        "ar",
        "paper",
        "Brown et al. 2020, arXiv:2005.14165 (GPT-3 Small), for the optimiser; Vaswani et al. 2017 for the model",
        (
            Aspect("parameterisation", "Softmax over the next token."),
            Aspect("weighting", "Cross-entropy, the exact likelihood."),
            Aspect("schedule", "None."),
            Aspect("time", "None."),
            NO_SELF_CONDITIONING,
            Aspect("sampler", "From left to right."),
            optimiser_aspect("AdamW, 6e-4 with warm-up and cosine decay to 10%, β₂ 0.95, weight decay 0.1, norm 1; "
                             "no EMA."),
            Aspect("network", "A causal transformer of 12 blocks, width 768."),
        ),
        CHECKED,
        {"lr": 6e-4, "warmup": 2000, "min_lr_ratio": 0.1, "beta2": 0.95, "weight_decay": 0.1, "clip": 1.0},
        0.0,
        missing="Learned positions and GELU of GPT; here rotary positions and ReLU².",
    ),
]  # fmt: skip

PRESETS: list[Preset] = [*MASKED, *OTHERS]
