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
]
