"""The systems on the sphere."""

from logosphere.cards.card import Card

CARDS = [
    Card(
        name="rdlm",
        title="Riemannian diffusion language model",
        paper="Jo and Hwang 2025, arXiv:2502.11564",
        family="continuous",
        kind="bound",
        difference="tokens are vertices of a sphere and log bridges lead to them; states drawn exactly, learned clock",
        builder="logosphere.recipes.spherical:rdlm",
    ),
    Card(
        name="rdlm-heat",
        title="Riemannian diffusion with Brownian bridges",
        paper="after Jo and Hwang 2025, arXiv:2502.11564",
        family="continuous",
        kind="bound",
        difference="as rdlm, with Brownian bridges: exact beliefs; bounded and written one position at a time",
        builder="logosphere.recipes.spherical:rdlm_heat",
    ),
]
