"""The systems on the simplex of distributions."""

from logosphere.cards.card import Card

CARDS = [
    Card(
        name="bfn",
        title="Bayesian flow network",
        paper="Graves et al. 2023, arXiv:2308.07037",
        family="continuous",
        kind="bound",
        difference="states are beliefs fed with noisy messages, in continuous time or (timesteps=n) in n of them",
        builder="logosphere.recipes.flows:bfn",
    ),
    Card(
        name="fisher-flow",
        title="Fisher-Flow matching",
        paper="Davis et al. 2024, arXiv:2405.14664; prior=simplex: Cheng et al. 2024, arXiv:2405.16441",
        family="continuous",
        kind="surrogate",
        difference="geodesics of the positive orthant lead from random distributions to tokens; softmax over tokens or "
        "(preset=paper) a free tangent field",
        builder="logosphere.recipes.flows:fisher_flow",
    ),
    Card(
        name="dirichlet-flow",
        title="Dirichlet flow matching",
        paper="Stark et al. 2024, arXiv:2402.05841",
        family="continuous",
        kind="bound",
        difference="Dirichlet distributions that sharpen towards the token; with noise a bound, with churn=0 a flow",
        builder="logosphere.recipes.flows:dirichlet_flow",
    ),
    Card(
        name="ddsm",
        title="Dirichlet diffusion",
        paper="after Avdeyev et al. 2023, arXiv:2305.10699",
        family="continuous",
        kind="bound",
        difference="Wright-Fisher diffusion of all shares at once, or of one stick after another; tight bound",
        builder="logosphere.recipes.flows:ddsm",
    ),
]
