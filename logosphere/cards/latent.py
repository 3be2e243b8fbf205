"""The systems of latent diffusion."""

from logosphere.cards.card import Card

CARDS = [
    Card(
        name="ld4lg",
        title="Latent diffusion for language generation",
        paper="Lovelace et al. 2022, arXiv:2212.09462",
        family="latent",
        kind="bound",
        difference="few latents on a sphere, predicted as velocities; a decoder writes from left to right",
        builder="logosphere.recipes.latent:ld4lg",
    ),
    Card(
        name="planner",
        title="PLANNER: latent diffusion over variational codes",
        paper="Zhang et al. 2023, arXiv:2306.02531",
        family="latent",
        kind="bound",
        difference="codes drawn by a variational encoder that reads noisy text; a decoder writes from left to right",
        builder="logosphere.recipes.latent:planner",
    ),
    Card(
        name="tencdm",
        title="Text encoding diffusion model",
        paper="Shabalin et al. 2024, arXiv:2402.19097",
        family="latent",
        kind="bound",
        difference="states of an encoder, one for each token, under much noise (tan-9); read all at once",
        builder="logosphere.recipes.latent:tencdm",
    ),
    Card(
        name="cosmos",
        title="COSMOS: compressed and smooth latents",
        paper="Meshchaninov et al. 2025, arXiv:2506.21170",
        family="latent",
        kind="bound",
        difference="few latents, made smooth by noise, drops and dropout; rebuilt states are read all at once",
        builder="logosphere.recipes.latent:cosmos",
    ),
]
