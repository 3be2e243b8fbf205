"""Published configurations of the latent systems.

All of them report Mauve and the perplexity of samples under another model, and no likelihood. The number that a model
built from these presets reports is the bound of docs/latents.md on its own likelihood.
"""

from logosphere.presets.preset import Aspect, Preset

CHECKED = "tests/parity/test_latent_paths.py, tests/parity/test_latent_stages.py"
NO_DOWNLOAD = "no pretrained weights needed"
CHEAPER = "the bound pays for every number and for every bit of its precision, also for those that no decoder reads"
STAGES = "both stages share one budget of steps, of which stage_one is the autoencoder's fraction"
FROZEN = {"encoder": "minilm", "layer": -1}
"""The last layer of MiniLM, the BERT-type encoder that can be installed without a download by the program itself."""
TRIED = "set for networks of a few million parameters and short runs"
OWN = "draws from the model whose bound is reported"

LD4LG = Preset(
    system="ld4lg",
    name="paper",
    source="Lovelace et al. 2022, arXiv:2212.09462; github.com/justinlovelace/latent-diffusion-for-language",
    checked=CHECKED,
    sampler="ddpm-ld4lg",
    optim={
        "lr": 2e-4, "codec_lr": 1e-4, "warmup": 1000, "min_lr_ratio": 0.0, "decay": "cosine", "beta1": 0.9,
        "beta2": 0.999, "weight_decay": 1e-6, "clip": 1.0,
    },
    ema=0.9999,
    missing=(
        "BART-base as encoder and as decoder (MiniLM encodes here, and a decoder of its own size is trained); the "
        "Perceiver's qk-RMSNorm; GEGLU and dense connections of the denoiser; time given as 1000 α²; beam search of "
        "width 4 with a repetition penalty and blocked 3-grams."
    ),
    aspects=(
        Aspect(
            "parameterisation",
            "32 latents of 64 numbers for 64 tokens, each normalised to length √64, out of a frozen encoder; the "
            "network predicts v.",
            "One latent of 16 numbers for 4 tokens, out of an encoder trained here.",
            f"{NO_DOWNLOAD}; {CHEAPER}",
            {"compression": 2, "latent_width": 64, **FROZEN},
        ),
        Aspect("weighting", "The mean squared error of v. The autoencoder has the cross-entropy alone."),
        Aspect(
            "schedule",
            "Cosine, α = cos(πt/2), with log-SNR limited to ±15: the decoder reads latents without noise.",
            "Cosine down to a log-SNR of 3, where the decoder reads.",
            CHEAPER,
            {"last": 15.0, "lowest": -15.0},
        ),
        Aspect("time", f"t ~ U(0, 1). Stages of 50,000 and 250,000 steps; here {STAGES}."),
        Aspect(
            "self-conditioning",
            "In half of the batches, with the estimate brought back to the sphere; a learned vector stands for no "
            "estimate.",
            "The same with zeros for no estimate.",
            "zeros are what the other self-conditioned systems have",
            {"learned_null": True},
        ),
        Aspect(
            "sampler",
            "DDPM with the variance 1 - α²/α'² of the forward step, 250 steps even in t; the last returns the "
            "estimate.",
            "Ancestral with the posterior's variance, steps even in the angle arccos α.",
            OWN,
        ),
        Aspect(
            "optimiser",
            "AdamW 2e-4 (autoencoder 1e-4), β .9 and .999, weight decay 1e-6, warm-up 1,000, cosine to 0, clip 1, EMA "
            ".9999, batch 128.",
            "The settings of the recipe.",
            TRIED,
        ),
        Aspect(
            "network",
            "Dropout 0.1 in the denoiser.",
            "No dropout.",
            "the default of all networks here, meant for runs too short to overfit",
            {"dropout": 0.1},
        ),
    ),
)  # fmt: skip

PLANNER = Preset(
    system="planner",
    name="paper",
    source="Zhang et al. 2023, arXiv:2306.02531; github.com/apple/ml-planner",
    checked=CHECKED,
    sampler="ddim-planner",
    optim={
        "lr": 1e-4, "warmup": 0, "min_lr_ratio": 1.0, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "clip": None,
    },
    ema=0.9999,
    missing=(
        "BERT-large as encoder and GPT-2-medium as decoder, both fine-tuned (here both are trained from scratch); "
        "T5-large as reader of sources; codes are the first 16 states of the encoder (here queries of a Perceiver); "
        "the sampler's clipping of estimates at the 0.995 quantile; the log-variance is limited to [-10, 2] here; the "
        "released code starts DDIM at t = 0.9995."
    ),
    aspects=(
        Aspect(
            "parameterisation",
            "16 codes of the encoder's width for 256 tokens, drawn around tanh of a mean and diffused as they are; "
            "the network predicts x0. Input tokens are not disturbed in the released script.",
            "One code of 16 numbers for 4 tokens, standardised; a tenth of the input tokens are replaced.",
            f"{CHEAPER}; few steps need smooth codes",
            {"compression": 16, "latent_width": None, "scale": "none", "substitution": 0.0},
        ),
        Aspect(
            "weighting",
            "Stage one: cross-entropy averaged over tokens + 1e-5 · KL summed over batch, codes and features, which is "
            "a weight of 1e-5 · B · N · d on the average. Stage two: the error of the noise with the P2 weight "
            "1/(1 + SNR), which is α² |x0 - x̂0|².",
            "A weight of 0.001 on the average KL, and |x0 - x̂0|².",
            "a weight that does not change with the batch and the number of codes",
            {"weighting": "p2", "divergence": 1e-5, "divergence_sum": True},
        ),
        Aspect(
            "schedule",
            "Cosine, α = cos(πt/2), on t from 0.0005 to 0.9995, a log-SNR of ±14.2986.",
            "Cosine down to a log-SNR of 3, where the decoder reads.",
            CHEAPER,
            {"last": 14.2986, "lowest": -14.2986},
        ),
        Aspect("time", f"t ~ U(0, 1). The stages are trained one after the other; here {STAGES}."),
        Aspect("self-conditioning", "None."),
        Aspect(
            "sampler",
            "DDIM, 20 steps even in t, the last returns the estimate; guidance 5, trained with a tenth of the "
            "conditions dropped.",
            "Ancestral, steps even in the angle arccos α, without guidance.",
            OWN,
        ),
        Aspect(
            "optimiser",
            "AdamW 1e-4, constant, no weight decay, no clipping, EMA .9999.",
            "The settings of the recipe.",
            TRIED,
        ),
    ),
)  # fmt: skip

TENCDM = Preset(
    system="tencdm",
    name="paper",
    source="Shabalin et al. 2024, arXiv:2402.19097, and the released code",
    checked=CHECKED,
    sampler="euler-tencdm",
    optim={
        "lr": 2e-4, "codec_lr": 1e-4, "warmup": 5000, "min_lr_ratio": 1.0, "beta1": 0.9, "beta2": 0.98, "eps": 1e-6,
        "weight_decay": 0.01, "clip": 1.0,
    },
    ema=0.9999,
    missing=(
        "BERT-base-cased (encoder=hf:bert-base-cased takes it; MiniLM has 384 features and is uncased); states of "
        "special tokens replaced by their embeddings; skips between layers of the denoiser and an injection of the "
        "estimate into each of them (here it is an input)."
    ),
    aspects=(
        Aspect(
            "parameterisation",
            "States of the last layer of a frozen BERT, one for each token, standardised per feature; the network "
            "predicts x0.",
            "States of an encoder trained here, layer-normalised before they are standardised.",
            f"{NO_DOWNLOAD}; an encoder that learns must not answer noise by larger states",
            {"layer_norm": False, **FROZEN},
        ),
        Aspect("weighting", "The mean squared error of x0. The decoder has the cross-entropy."),
        Aspect(
            "schedule",
            "tan-9, α² = 1/(1 + 81 tan²(πt/2)). The decoder is trained on x_t with t ~ U(0.001, 0.15) of the same "
            "schedule, a log-SNR from 8.518 to -1.541.",
            "tan-9 down to a log-SNR of 3; the decoder is trained from there to -1.5.",
            CHEAPER,
            {"last": 8.5179, "blurred": -1.5409},
        ),
        Aspect(
            "time",
            f"t ~ U(1e-5, 1); here t ~ U(0.001, 1), for the path ends where the decoder reads. {STAGES.capitalize()}.",
        ),
        Aspect("self-conditioning", "In half of the batches; zeros stand for no estimate."),
        Aspect(
            "sampler",
            "Euler–Maruyama steps of the reverse SDE, N = 50 steps even in t from 1 to 0.01, β held above t = 0.95; "
            "the mean of the last step is decoded.",
            "Ancestral steps even in the angle arccos α; the estimate is decoded.",
            f"{OWN}; the last published step takes away 1.33 times the noise that is left",
        ),
        Aspect(
            "optimiser",
            "AdamW 2e-4 (decoder 1e-4), β .9 and .98, eps 1e-6, weight decay .01, warm-up 5,000, then constant, clip "
            "1, EMA .9999, batch 512.",
            "The settings of the recipe.",
            TRIED,
        ),
    ),
)  # fmt: skip

COSMOS = Preset(
    system="cosmos",
    name="paper",
    source="Meshchaninov et al. 2025, arXiv:2506.21170, and the released code",
    checked=CHECKED,
    sampler="euler-cosmos",
    optim={
        "lr": 2e-4, "warmup": 5000, "min_lr_ratio": 1.0, "beta1": 0.9, "beta2": 0.98, "eps": 1e-6, "weight_decay": 0.01,
        "clip": 1.0,
    },
    ema=0.9999,
    missing=(
        "BERT-base (MiniLM encodes here) and the layers of the published compressor, whose configuration was not "
        "found: a layer norm ends ours; the first state is never hidden here; statistics are running averages and not "
        "those of a second pass; skips between layers of the denoiser and an injection of the estimate into each of "
        "them. The optimiser is that of TEncDM, of the same authors."
    ),
    aspects=(
        Aspect(
            "parameterisation",
            "16 latents of the encoder's width for 128 tokens, standardised per latent and feature by statistics of "
            "clean texts, out of a frozen BERT; the network predicts x0.",
            "One latent of 16 numbers for 4 tokens, out of an encoder trained here; statistics of disturbed texts.",
            f"{NO_DOWNLOAD}; {CHEAPER}; one pass of the compressor instead of two",
            {"compression": 8, "latent_width": None, "clean_statistics": True, **FROZEN},
        ),
        Aspect(
            "weighting",
            "Stage one: cross-entropy + mean squared error of the states, 1 : 1; in half of the texts 0.3 of the "
            "states are hidden, the others have 0.7 h + √0.51 ε; 0.4 of the latent features are set to 0. Stage two: "
            "the mean squared error of x0.",
            "Noise of 0.71 (not √0.51 = 0.7141), and dropout of standardised latents, which rescales the rest.",
            "latents that the decoder sees in training and in use have the same scale",
            {"feature_noise": 0.71414284, "zeroing": True},
        ),
        Aspect(
            "schedule",
            "tan-5, α² = 1/(1 + 25 tan²(πt/2)); the decoder is trained on latents without Gaussian noise.",
            "tan-5 down to a log-SNR of 3, where the decoder reads.",
            CHEAPER,
            {"last": 15.0},
        ),
        Aspect(
            "time",
            f"t ~ U(1e-5, 1) as in TEncDM; here down to t = 7e-5, a log-SNR of 15. {STAGES.capitalize()}.",
        ),
        Aspect("self-conditioning", "In half of the batches; zeros stand for no estimate."),
        Aspect(
            "sampler",
            "Euler–Maruyama steps of the reverse SDE, N = 200 steps even in t from 1 to 0.05, β held above t = 0.95; "
            "the mean of the last step is decoded.",
            "Ancestral steps even in the angle arccos α; the estimate is decoded.",
            OWN,
        ),
        Aspect(
            "optimiser",
            "As TEncDM: AdamW 2e-4, β .9 and .98, eps 1e-6, weight decay .01, warm-up 5,000, then constant, clip 1, "
            "EMA .9999, batch 512.",
            "The settings of the recipe.",
            TRIED,
        ),
    ),
)  # fmt: skip

PRESETS: list[Preset] = [LD4LG, PLANNER, TENCDM, COSMOS]
