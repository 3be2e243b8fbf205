"""The autoregressive system."""

from logosphere.cards.card import Card

CARDS = [
    Card(
        name="ar",
        title="Autoregressive transformer",
        paper="Vaswani et al. 2017, arXiv:1706.03762",
        family="autoregressive",
        kind="exact",
        difference="writes from left to right; the bar to reach",
        builder="logosphere.recipes.discrete:ar",
    ),
]
