"""The names of the samplers, without torch, so that listing and checking them is instant."""

from dataclasses import dataclass

from logosphere.errors import UserError, suggest

MASKED, TIME_FREE, DISCRETE = "masked diffusion", "masked diffusion that reads no time", "discrete diffusion"
GAUSSIAN = "Gaussian diffusion"
LATENT = "latent diffusion"
EULERIAN = "fisher-flow, dirichlet-flow with churn=0, ddsm with predicts=score"
BAYESIAN = "Bayesian flow networks"
REMASKED = "masked diffusion with a remasker"
HIDDEN = "masked diffusion and the sphere in turn"


@dataclass(frozen=True)
class Listing:
    """What a sampler is."""

    name: str
    about: str
    fits: str
    draw: bool
    """Does it draw from the model itself, at least with many steps?"""


LISTINGS = [
    Listing("ancestral", "the process's own backward step", "every system", True),
    Listing("cached", "ancestral, asking only about sequences that have changed", TIME_FREE, True),
    Listing("euler", "Euler steps on the network's own scores, then noise removal (SEDD)", DISCRETE, True),
    Listing("analytic", "Tweedie steps on the network's own scores, then noise removal (SEDD)", DISCRETE, True),
    Listing("mdlm", "cached steps to t = 1e-5, then the likeliest tokens (MDLM)", TIME_FREE, True),
    Listing("md4", "steps on a cosine grid, then the likeliest tokens (MD4)", DISCRETE, True),
    Listing("first-hitting", "one random position after another, no error of time", TIME_FREE, True),
    Listing("tau-leaping", "jumps at rates held over each step", DISCRETE, True),
    Listing("tau-leaping-pc", "the same, and one corrector after each step", DISCRETE, True),
    Listing("remdm-cap", "remasking with a probability of at most 0.04", MASKED, True),
    Listing("remdm-rescale", "remasking with 0.05 of the largest probability", MASKED, True),
    Listing("remdm-conf", "remasking what was unlikely when drawn", MASKED, False),
    Listing("remdm-loop", "remasking while the share of masks is held at 0.1", MASKED, False),
    Listing("forward-backward", "a step twice as far, and forward again", MASKED, True),
    Listing("star", "ancestral to t = 0.3, then all positions masked afresh in each step (Star+)", MASKED, True),
    Listing("star-full", "all positions masked afresh in each step", MASKED, True),
    Listing("star-loop", "masked afresh while the share of masks is held at 0.1", MASKED, False),
    Listing("conf-star", "the least likely tokens are hidden again", MASKED, False),
    Listing("g-star", "a second network hides what it takes for errors, from t = 0.3", REMASKED, False),
    Listing("p2", "every token judged anew in each step, the surest kept", MASKED, False),
    Listing("confidence", "the likeliest tokens first", HIDDEN, False),
    Listing("margin", "the clearest decisions first", HIDDEN, False),
    Listing("entropy", "the least doubtful positions first", HIDDEN, False),
    Listing("random", "as many positions at random as the schedule asks for", HIDDEN, True),
    Listing("llada", "the likeliest tokens first, in four blocks from left to right", HIDDEN, False),
    Listing("llada-greedy", "llada with the likeliest token at each position instead of a draw", HIDDEN, False),
    Listing("threshold", "all tokens of more than 0.9 probability at once", HIDDEN, False),
    Listing("entropy-bounded", "as many positions at once as 0.1 nats of joint doubt allow", HIDDEN, False),
    Listing("self-correcting", "half of the steps mend single tokens at the end", "uniform diffusion", False),
    Listing("bridge", "towards a drawn token along its bridge, all positions together", "the sphere", True),
    Listing("geodesic", "the random walk on the sphere, in equal steps of information", "the sphere", True),
    Listing("matched", "second-order steps on the sphere", "the sphere", True),
    Listing("rdlm", "RDLM's walk in equal steps of its own time, then the largest coordinate", "the sphere", True),
    Listing("ddim", "the probability flow, first order", GAUSSIAN, True),
    Listing("dpm++", "the probability flow, second order with the memory of one step (2M)", GAUSSIAN, True),
    Listing("heun", "the probability flow, or that of flows, second order with two looks a step", GAUSSIAN, True),
    Listing("euler-flow", "equal Euler steps, the likeliest token at the end", EULERIAN, False),
    Listing("messages", "messages at equal times, the likeliest token at the end", BAYESIAN, False),
    Listing("token-drawn", "ancestral towards a token drawn anew in each step", GAUSSIAN, True),
    Listing("q-sampling", "fresh noise on the expected state in each step", GAUSSIAN, False),
    Listing("ssd", "fresh noise on a token drawn in each step (SSD-LM)", GAUSSIAN, False),
    Listing("clamped", "ancestral towards the nearest embedding (Diffusion-LM)", GAUSSIAN, False),
    Listing("renormalised", "ddim towards the expected state at the length of embeddings (CDCD)", GAUSSIAN, False),
    Listing("asymmetric", "ddim steps that go 0.02 of the time further than the network is told", GAUSSIAN, False),
    Listing("euler-tencdm", "Euler steps of the reverse SDE at even times from 1 to 0.01 (TEncDM)", LATENT, True),
    Listing("euler-cosmos", "Euler steps of the reverse SDE at even times from 1 to 0.05 (COSMOS)", LATENT, True),
    Listing("ddpm-ld4lg", "ancestral with the variance of the forward step, at even times (LD4LG)", LATENT, True),
    Listing("ddim-planner", "ddim at even times (PLANNER)", LATENT, True),
    Listing("plaid", "ancestral with ε̂ divided by 0.9; the likeliest tokens at the end (Plaid)", GAUSSIAN, False),
    Listing("diffusion-lm", "clamped, with variances β; the likeliest tokens at the end", GAUSSIAN, False),
    Listing(
        "bit-diffusion", "ancestral with variances β towards x̂ clipped to ±1, and tokens nearest to it", GAUSSIAN, False
    ),
]

_BY_NAME = {listing.name: listing for listing in LISTINGS}


def listing(name: str) -> Listing:
    """The listing of a sampler."""
    if name not in _BY_NAME:
        raise UserError(f"There is no sampler '{name}'.{suggest(name, _BY_NAME)}")
    return _BY_NAME[name]
