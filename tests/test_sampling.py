"""Sampling: time grids fall from noise to data, all evaluations are counted, and known tokens stay."""

import pytest
import torch
from toy_languages import generator, skewed_chain
from toy_models import System, random_network

import logosphere as ls
from logosphere.codecs.base import HIDDEN
from logosphere.errors import UserError
from logosphere.sampling.generate import generate, model_time_grid
from logosphere.sampling.loop import GRIDS, Frame, TimeGrid, cosine_grid, uniform_grid
from logosphere.sampling.steppers import OrderedUnmasking, ancestral, entropy_order, first_hitting, likelihood_order

LANGUAGE = skewed_chain(5, 6)
ORDERS = {"confidence": OrderedUnmasking(likelihood_order), "entropy": OrderedUnmasking(entropy_order)}
orders = pytest.mark.parametrize("stepper", ORDERS.values(), ids=ORDERS)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("steps", [1, 2, 7, 64, 1000])
def test_grids_fall_from_one_to_zero_exactly(grid, steps: int) -> None:
    times = grid(steps)
    assert len(times) == steps + 1
    assert times[0] == 1 and times[-1] == 0
    assert times.diff().lt(0).all()


def test_the_cosine_grid_starts_with_small_steps() -> None:
    sizes = -cosine_grid(16).diff()
    assert sizes.diff().gt(0).all()
    assert sizes[0] < 0.1 * uniform_grid(16)[-2]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("length, block, steps", [(6, 6, 4), (6, 3, 2), (6, 1, 1), (6, 2, 5), (1, 1, 1)])
def test_block_time_grids_fall_block_by_block(grid, length: int, block: int, steps: int) -> None:
    times = TimeGrid.blocks(length, block, steps, grid).times
    assert times.shape == (steps * length // block + 1, length)
    assert times[0].eq(1).all() and times[-1].eq(0).all()
    assert times.diff(dim=0).le(0).all() and times.diff(dim=0).lt(0).any(1).all()
    started = (times < 1).view(-1, length // block, block).any(2)
    assert torch.equal(started, (times < 1).view(-1, length // block, block).all(2))
    finished = times.eq(0).view(-1, length // block, block).all(2)
    assert (finished[:, :-1] | ~started[:, 1:]).all()  # no block starts before the previous one is clean


def test_left_to_right_is_blocks_of_one() -> None:
    assert torch.equal(TimeGrid.left_to_right(5).times, TimeGrid.blocks(5, 1, 1).times)
    assert torch.equal(TimeGrid.left_to_right(3).times, torch.ones(4, 3).triu())


@pytest.mark.parametrize("length, block, steps", [(6, 4, 1), (6, 0, 1), (6, 6, 0), (6, -1, 2)])
def test_invalid_time_grids_are_refused(length: int, block: int, steps: int) -> None:
    with pytest.raises(UserError):
        TimeGrid.blocks(length, block, steps)


def test_the_number_of_steps_is_limited_by_the_process() -> None:
    assert len(model_time_grid(System("d3pm-uniform", {"timesteps": 10}).model(LANGUAGE), 500).times) == 11
    assert len(model_time_grid(System("ar").model(LANGUAGE), 500).times) == 7
    assert len(model_time_grid(System("mdlm", {"block": 2}).model(LANGUAGE), 12).times) == 13


@pytest.mark.thorough
@pytest.mark.parametrize("name", ls.systems())
@pytest.mark.parametrize("steps", [1, 5, 16])
def test_every_evaluation_is_counted(name: str, steps: int) -> None:
    """64 sequences, so that some position is still masked in the last step."""
    calls = []
    model = random_network(name, LANGUAGE)
    drawn = generate(model, n=64, steps=steps, rng=generator(1), watch=calls.append)
    blocks = {"llada": 3}.get(name, model.length // model.block)  # steps are divided among blocks, at least one each
    remasked = sum(0 < t <= 0.3 for t in uniform_grid(steps)[:-2]) if name == "g-star" else 0
    assert len(calls) == (6 if name == "ar" else blocks * max(1, steps // blocks))
    assert drawn.nfe == len(calls) + remasked and calls[-1].t.eq(0).all()
    assert drawn.tokens.shape == (64, 6) and 0 <= drawn.tokens.min() and drawn.tokens.max() < 5


@pytest.mark.parametrize("block", [6, 3])
@pytest.mark.parametrize("free", [6, 4, 1])
def test_first_hitting_evaluates_once_per_free_position(free: int, block: int) -> None:
    known = torch.arange(6) < 6 - free
    tokens = LANGUAGE.sample(1, generator(1))[0]
    drawn = generate(
        random_network("mdlm", LANGUAGE, block=block), 8, known=known, tokens=tokens, stepper=first_hitting
    )
    assert drawn.nfe == free
    assert drawn.tokens.max() < 5 and torch.equal(drawn.tokens[:, known], tokens[known].expand(8, -1))


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [3, 50, 400])
def test_caching_saves_evaluations_and_keeps_samples(steps: int) -> None:
    """Each sequence is evaluated once at the start and at most once per change of its state."""
    model = random_network("mdlm", LANGUAGE)
    cached = generate(model, 16, steps, generator(2), cached=True)
    plain = generate(model, 16, steps, generator(2))
    assert torch.equal(cached.tokens, plain.tokens)
    assert cached.nfe <= min(steps, 6 + 1)


@pytest.mark.parametrize("name, options", [("ar", {}), ("mdlm", {"block": 2})])
def test_caching_keeps_samples_of_blockwise_models(name: str, options: dict) -> None:
    model = random_network(name, LANGUAGE, **options)
    cached, plain = (generate(model, 16, 30, generator(2), cached=cached).tokens for cached in (True, False))
    assert torch.equal(cached, plain)


def masked_counts(stepper, steps: int, length: int = 6, **how) -> torch.Tensor:
    """The number of masked positions after each step, [steps, n]."""
    frames: list[Frame] = []
    model = random_network("mdlm", skewed_chain(5, length))
    generate(model, 8, steps, generator(3), stepper=stepper, watch=frames.append, **how)
    return torch.stack([frame.tokens.eq(HIDDEN).sum(1) for frame in frames])


@orders
@pytest.mark.parametrize("steps, length", [(6, 6), (3, 6), (2, 6), (1, 6), (12, 6), (13, 13), (21, 21), (25, 25)])
def test_ordered_unmasking_follows_the_schedule(stepper, steps: int, length: int) -> None:
    left = [-(-length * (steps - i) // steps) for i in range(1, steps + 1)]
    assert torch.equal(masked_counts(stepper, steps, length), torch.tensor(left)[:, None].expand(-1, 8))


@orders
def test_ordered_unmasking_counts_only_free_positions(stepper) -> None:
    known = torch.tensor([True, False, True, False, False, False])
    counts = masked_counts(stepper, 2, known=known, tokens=torch.zeros(6).long())
    assert counts[:, 0].tolist() == [2, 0]


def test_ordered_unmasking_takes_the_most_confident_first() -> None:
    """Certain tokens at even positions: they appear in the first half of the steps."""
    model = random_network("mdlm", LANGUAGE)

    class EvenConfident(type(model.denoiser.inner)):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.block, self.reads_time = 6, False

        def forward(self, z, t, context, where=None):
            out = torch.zeros(*z.shape, 5)
            out[:, ::2, 3] = 30.0
            return out if where is None else out[where]

    for stepper in ORDERS.values():
        frames: list[Frame] = []
        generate(model, 4, 2, generator(4), EvenConfident(), stepper=stepper, watch=frames.append)
        assert torch.equal(frames[0].tokens != HIDDEN, (torch.arange(6) % 2 == 0).expand(4, 6))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ls.systems())
def test_samples_are_a_function_of_the_seed(name: str) -> None:
    model = random_network(name, LANGUAGE)
    one, same, other = (ls.sample(model, 100, 6, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    # An untrained decoder gives the same tokens for every latent.
    assert ls.system(name).family == "latent" or not torch.equal(one, other)


@pytest.mark.parametrize("stepper", [ancestral, first_hitting, *ORDERS.values()])
def test_known_tokens_stay_in_every_frame(stepper) -> None:
    known = torch.rand(10, 6, generator=generator(5)) < 0.4
    tokens = LANGUAGE.sample(10, generator(6))
    frames: list[Frame] = []
    model = random_network("mdlm", LANGUAGE)
    generate(model, 10, 4, generator(7), known=known, tokens=tokens, stepper=stepper, watch=frames.append)
    for frame in frames:
        assert torch.equal(frame.tokens[known], tokens[known]) and frame.t[known].eq(0).all()
    assert frames[-1].tokens.ne(HIDDEN).all()


def test_renoised_known_tokens_stay() -> None:
    known, tokens = torch.arange(6) < 3, LANGUAGE.sample(1, generator(6))[0]
    model = random_network("d3pm-uniform", LANGUAGE)
    drawn = generate(model, 10, 8, generator(7), known=known, tokens=tokens, renoise_known=True)
    assert torch.equal(drawn.tokens[:, :3], tokens[:3].expand(10, 3))


def test_autoregression_accepts_a_prompt_and_refuses_infilling() -> None:
    model, tokens = random_network("ar", LANGUAGE), LANGUAGE.sample(1, generator(1))[0]
    drawn = generate(model, 5, known=torch.arange(6) < 4, tokens=tokens)
    assert drawn.nfe == 2 and torch.equal(drawn.tokens[:, :4], tokens[:4].expand(5, 4))
    with pytest.raises(UserError, match="left to right"):
        ls.sample(model, known=torch.arange(6) > 2, tokens=tokens)


def test_a_likelihood_given_later_tokens_is_refused() -> None:
    """-log p(x | later tokens) is not what a causal network computes, so it must not be called exact."""
    model, tokens = random_network("ar", LANGUAGE), LANGUAGE.sample(3, generator(1))
    with pytest.raises(UserError, match="left to right"):
        model.nelbo(tokens, generator(1), known=(torch.arange(6) > 2).expand(3, 6))


@pytest.mark.parametrize("stepper", [first_hitting, *ORDERS.values()])
def test_unmasking_samplers_refuse_uniform_diffusion(stepper) -> None:
    with pytest.raises(UserError, match="ancestral"):
        ls.sample(random_network("d3pm-uniform", LANGUAGE), stepper=stepper)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"n": 0}, "at least 1"),
        ({"steps": 0}, "at least 1"),
        ({"temperature": 0.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"known": torch.ones(6).bool()}, "both"),
        ({"known": torch.ones(5).bool(), "tokens": torch.zeros(5).long()}, "length"),
        ({"known": torch.ones(6).bool(), "tokens": torch.full((6,), 5)}, "0 to 4"),
    ],
)
def test_invalid_requests_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ls.sample(random_network("mdlm", LANGUAGE), **settings)


def test_time_conditional_networks_refuse_caching() -> None:
    for how in ({"cached": True}, {"stepper": first_hitting}):
        with pytest.raises(UserError, match="time"):
            ls.sample(random_network("d3pm-absorbing", LANGUAGE), **how)


def test_sampling_restores_the_training_mode() -> None:
    model = random_network("d3pm-uniform", LANGUAGE).train()
    ls.sample(model, 2, 2)
    assert model.denoiser.training
    with pytest.raises(UserError):
        ls.sample(model, stepper=ORDERS["entropy"])
    assert model.denoiser.training
