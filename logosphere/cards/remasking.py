"""Masked systems that are trained like mdlm and sampled in other ways."""

from logosphere.cards.card import Card

CARDS = [
    Card(
        name="remdm",
        title="Remasking discrete diffusion",
        paper="Wang et al. 2025, arXiv:2503.00307",
        family="discrete",
        kind="bound",
        difference="trained as mdlm; tokens may be hidden again while sampling, with the same marginals",
        builder="logosphere.recipes.discrete:mdlm",
        sampler="remdm-cap",
    ),
    Card(
        name="star",
        title="Star-shaped masked diffusion",
        paper="Meshchaninov et al. 2025, arXiv:2510.08369",
        family="discrete",
        kind="bound",
        difference="trained as mdlm; towards the end every step hides all positions afresh",
        builder="logosphere.recipes.discrete:mdlm",
        sampler="star",
    ),
    Card(
        name="g-star",
        title="Guided star-shaped masked diffusion",
        paper="Meshchaninov et al. 2025, arXiv:2510.08369",
        family="discrete",
        kind="bound",
        difference="as star, but a second network, trained on the frozen denoiser, says which tokens to hide",
        builder="logosphere.recipes.remasking:g_star",
        sampler="g-star",
    ),
    Card(
        name="p2",
        title="Path planning",
        paper="Peng et al. 2025, arXiv:2502.03540",
        family="discrete",
        kind="bound",
        difference="trained as mdlm; every step judges all tokens anew and keeps the surest",
        builder="logosphere.recipes.discrete:mdlm",
        sampler="p2",
    ),
    Card(
        name="llada",
        title="Large language diffusion with masking",
        paper="Nie et al. 2025, arXiv:2502.09992",
        family="discrete",
        kind="bound",
        difference="trained on the bound without reading time; writes the likeliest tokens first, block after block",
        builder="logosphere.recipes.remasking:llada",
        sampler="llada",
    ),
]
