"""The systems of Gaussian diffusion."""

from logosphere.cards.card import Card

CARDS = [
    Card(
        name="plaid",
        title="Plaid",
        paper="Gulrajani and Hashimoto 2023, arXiv:2305.18619",
        family="continuous",
        kind="bound",
        difference="embeddings, both ends and the shape of the schedule are learned with the whole bound",
        builder="logosphere.recipes.gaussian:plaid",
    ),
    Card(
        name="gaussian-ce",
        title="Gaussian diffusion trained on cross-entropy",
        paper="after Kingma et al. 2021, arXiv:2107.00630, and Dieleman et al. 2022, arXiv:2211.15089",
        family="continuous",
        kind="bound",
        difference="any codec and schedule; reads beliefs, trains on cross-entropy, is measured by its bound",
        builder="logosphere.recipes.gaussian:gaussian_ce",
    ),
    Card(
        name="cdcd",
        title="Continuous diffusion for categorical data",
        paper="Dieleman et al. 2022, arXiv:2211.15089",
        family="continuous",
        kind="bound",
        difference="score interpolation by cross-entropy alone, embeddings of one length, learned time warp",
        builder="logosphere.recipes.gaussian:cdcd",
    ),
    Card(
        name="diffusion-lm",
        title="Diffusion-LM",
        paper="Li et al. 2022, arXiv:2205.14217",
        family="continuous",
        kind="bound",
        difference="predicts free embeddings by squared error; an anchor keeps them apart; sqrt schedule",
        builder="logosphere.recipes.gaussian:diffusion_lm",
    ),
    Card(
        name="bit-diffusion",
        title="Bit Diffusion",
        paper="Chen et al. 2022, arXiv:2208.04202",
        family="continuous",
        kind="bound",
        difference="tokens as analog bits; squared error and self-conditioning; no softmax over tokens",
        builder="logosphere.recipes.gaussian:bit_diffusion",
    ),
    Card(
        name="simplex",
        title="Logit-simplex diffusion",
        paper="after Han et al. 2023, arXiv:2210.17432 (SSD-LM)",
        family="continuous",
        kind="bound",
        difference="tokens as ±K logits, read through a softmax and trained on cross-entropy, all positions at once",
        builder="logosphere.recipes.gaussian:simplex",
    ),
]
