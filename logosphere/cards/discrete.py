"""The systems of discrete diffusion."""

from logosphere.cards.card import Card

CARDS = [
    Card(
        name="d3pm-absorbing",
        title="D3PM with an absorbing state",
        paper="Austin et al. 2021, arXiv:2107.03006",
        family="discrete",
        kind="bound",
        difference="masks in T = 1000 steps; the network reads the time; bound plus 0.01 cross-entropy is trained",
        builder="logosphere.recipes.discrete:d3pm_absorbing",
    ),
    Card(
        name="d3pm-uniform",
        title="D3PM with uniform noise",
        paper="Austin et al. 2021, arXiv:2107.03006",
        family="discrete",
        kind="bound",
        difference="replaces tokens by random ones in T = 1000 steps, so every token may still change",
        builder="logosphere.recipes.discrete:d3pm_uniform",
    ),
    Card(
        name="mdlm",
        title="Masked diffusion language model",
        paper="Sahoo et al. 2024, arXiv:2406.07524",
        family="discrete",
        kind="bound",
        difference="masks in continuous time; revealed tokens are copied; trains on cross-entropy (or loss=bound)",
        builder="logosphere.recipes.discrete:mdlm",
    ),
]
