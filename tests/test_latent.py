"""Latent systems: a bound that is one, two stages in one trainer, latents that carry what they should."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from statistical_checks import mean_and_error
from torch import Tensor
from toy_languages import enumerate_sequences, generator, random_joint, skewed_chain
from toy_models import SMALL, random_network

import logosphere as ls
from logosphere.codecs.base import Autoencoder, AutoencoderLoss
from logosphere.evaluation.likelihood import measure_reconstruction
from logosphere.model import Model
from logosphere.networks.base import Denoiser
from logosphere.networks.conditioning import Conditioner
from logosphere.processes.gaussian.diffusion import T_DECODE
from logosphere.processes.gaussian.latent import LatentDiffusion
from logosphere.processes.gaussian.updates import PARAMETERIZATIONS
from logosphere.schedules.logsnr import find_logsnr
from logosphere.systems.latent import uniform_times
from logosphere.training.checkpoint import load_checkpoint, save_checkpoint
from logosphere.training.trainer import Trainer
from logosphere.types import Batch, Condition

SYSTEMS = ["ld4lg", "planner", "tencdm", "cosmos"]
TINY = {"width": 16, "depth": 1, "heads": 2, "autoencoder_depth": 1}


def small(name: str, **more: object) -> dict:
    compressed = {} if name == "tencdm" else {"latents": 2, "latent_width": 4}
    return TINY | compressed | more


# ---- the bound ------------------------------------------------------------------------------------------------------


class Named(Autoencoder):
    """Every sequence of a language has a point of its own, and the decoder is the exact posterior."""

    latents, features = 2, 3

    def __init__(self, language) -> None:
        super().__init__()
        self.language, self.vocab_size, self.length = language, language.vocab_size, language.length
        self.points = torch.randn(len(language.p), 2, 3, generator=generator(1))
        self.levels: tuple[Tensor, Tensor] = (torch.ones(()), torch.ones(()))

    def posterior(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """log p(x | z) over all sequences, [B, V^L]."""
        apart = (z[:, None] - alpha[:, None] * self.points).square().sum((2, 3)) / (2 * sigma[:, None, 0, 0].square())
        return (self.language.p.log() - apart).log_softmax(-1)

    def encode(self, tokens: Tensor) -> Tensor:
        return self.points[self.language.index(tokens)]

    def reconstruction_nll(self, z: Tensor, tokens: Tensor) -> Tensor:
        alpha, sigma = (level.expand(len(z), 1, 1) for level in self.levels)
        own = -self.posterior(z, alpha, sigma).gather(1, self.language.index(tokens)[:, None])
        return torch.cat([own, torch.zeros(len(z), self.length - 1)], 1).float()

    def normalise(self, z: Tensor) -> Tensor:
        return z

    def autoencoder_loss(self, batch: Batch, noise, corrupt) -> AutoencoderLoss:
        raise NotImplementedError

    def update_statistics(self) -> None:
        raise NotImplementedError

    decode = decode_partial = build_stem = precompute = accumulators = update_statistics


class PosteriorMean(Denoiser):
    """E[u | z], exactly."""

    def __init__(self, path: LatentDiffusion, codec: Named) -> None:
        super().__init__()
        self.path, self.named, self.block, self.reads_time = path, codec, codec.length, True

    def forward(self, z: Tensor, t: Tensor, context: Tensor, where: Tensor | None = None) -> Tensor:
        alpha, sigma = self.path.alpha_sigma(t[:, :1])
        weight = self.named.posterior(z, alpha, sigma).exp().float()
        mean = torch.einsum("bx,xnd->bnd", weight, self.named.points)
        return mean if where is None else mean[where]


@pytest.mark.parametrize("name, shift", [("cosine", 0.0), ("cosine", -3.0), ("sigmoid", 1.0)])
def test_with_exact_parts_the_bound_is_the_entropy(name: str, shift: float) -> None:
    """I-MMSE: for any encoder, once decoder and denoiser are exact; the schedule and its end play no part."""
    language = random_joint()
    codec = Named(language)
    process = LatentDiffusion(
        codec,
        find_logsnr(name, shift=shift, highest=0.5),
        uniform_times(),
        parameterization=PARAMETERIZATIONS["x0"],
        stage_one=0.5,
        min_decode_logsnr=0.5,
    )
    codec.levels = tuple(level[0] for level in process.alpha_sigma(torch.tensor([process.recon_time])))
    model = Model(process, PosteriorMean(process, codec), length=4, block=4).eval()
    tokens = language.sample(6000, generator(2))
    bound = model.nelbo(tokens, generator(3), draws=8)
    mean, error = mean_and_error(bound.total.double() + language.log_prob(tokens))
    assert bound.kind == "bound" and abs(mean) < 3 * error and error < 0.03
    assert float(bound.recon.mean()) > 0.1 and float(bound.diffusion.mean()) > 0.5


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_weights_whatever_take_the_bound_below_the_entropy(name: str) -> None:
    language = skewed_chain(3, 4)
    model = random_network(name, language, **small(name, max_logsnr=1.0)).eval()
    tokens = language.sample(1500, generator(4))
    bound = model.nelbo(tokens, generator(5), draws=2)
    mean, error = mean_and_error(bound.total.double() + language.log_prob(tokens))
    assert bound.kind == "bound" == ls.system(name).kind and mean > -3 * error


def test_noise_at_the_reading_is_that_of_the_end_of_the_path() -> None:
    model = ls.build("cosmos", vocab_size=3, length=4, **small("cosmos", max_logsnr=2.0))
    alpha, sigma = model.process.alpha_sigma(torch.tensor([model.process.recon_time]))
    assert float((alpha / sigma).square().log()) == pytest.approx(2.0, abs=1e-4)


# ---- two stages, one training ---------------------------------------------------------------------------------------


def batches(language, seed: int = 6) -> Iterator[Tensor]:
    rng = generator(seed)
    while True:
        yield language.sample(8, rng)


def parts(model: Model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters of the codec and those of the denoiser."""
    codec = {name: p.detach().clone() for name, p in model.process.named_parameters()}
    return codec, {name: p.detach().clone() for name, p in model.denoiser.named_parameters()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_stage_changes_its_own_part_and_nothing_else(name: str) -> None:
    model = ls.build(name, vocab_size=3, length=4, **small(name, autoencoder_fraction=0.5))
    at: dict[int, tuple] = {0: parts(model)}
    for progress in ls.fit(model, batches(skewed_chain(3, 4)), steps=8):
        at[progress.step] = parts(model)
    # The stage is decided by what was done before a step, so that the fifth still belongs to the first.
    assert equal(at[0][1], at[5][1]) and not equal(at[0][0], at[5][0])
    assert equal(at[5][0], at[8][0]) and not equal(at[5][1], at[8][1])


@pytest.mark.parametrize("name", SYSTEMS)
def test_latents_stand_still_in_the_second_stage(name: str) -> None:
    """The statistics too: they are those of the first stage."""
    model = ls.build(name, vocab_size=3, length=4, **small(name, autoencoder_fraction=0.5))
    tokens, seen = skewed_chain(3, 4).sample(5, generator(7)), {}
    for progress in ls.fit(model, batches(skewed_chain(3, 4)), steps=8):
        seen[progress.step] = model.process.codec.encode(tokens)
    assert torch.equal(seen[5], seen[8]) and not torch.equal(seen[3], seen[5])


@pytest.mark.parametrize("stop", [2, 5, 7])
def test_a_resumed_training_is_the_same_to_the_last_bit(stop: int, tmp_path: Path) -> None:
    """Within the first stage, at the change, and within the second."""
    tokens = [next(batches(skewed_chain(3, 4), seed)) for seed in range(10)]

    def fresh() -> Trainer:
        torch.manual_seed(0)
        model = ls.build(
            "planner", vocab_size=3, length=4, **small("planner", autoencoder_fraction=0.5, self_conditioning=0.5)
        )
        return Trainer(model, ema=0.9, seed=3)

    def go(trainer: Trainer, first: int, last: int) -> list[float]:
        given = [Batch.of(tokens[step], first=8 * step) for step in range(first, last)]
        return [trainer.train_step(batch, (first + i) / 10).loss for i, batch in enumerate(given)]

    whole = go(fresh(), 0, 10)
    begun = fresh()
    go(begun, 0, stop)
    resumed = fresh()
    load_checkpoint(save_checkpoint(tmp_path, begun, {}), resumed)
    assert go(resumed, stop, 10) == whole[stop:]


def test_joint_training_teaches_both_all_the_time() -> None:
    model = ls.build("cosmos", vocab_size=3, length=4, **small("cosmos", joint=True))
    before = parts(model)
    for _ in ls.fit(model, batches(skewed_chain(3, 4)), steps=2):
        pass
    after = parts(model)
    assert not equal(before[0], after[0]) and not equal(before[1], after[1])


def test_late_in_joint_training_the_diffusion_reaches_the_encoder_and_early_hardly() -> None:
    model = ls.build("cosmos", vocab_size=3, length=4, **small("cosmos", joint=True))
    u = torch.ones(2, 2, 4, requires_grad=True)
    shares = []
    for done in (0.0, 0.8):
        model.process.update_statistics(done)
        shares.append(float(torch.autograd.grad(model.process._scale_gradient(u).sum(), u)[0].mean()))
    assert shares[0] < 0.001 and shares[1] == pytest.approx(0.5)


# ---- generation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_they_sample_save_and_load(name: str, tmp_path: Path) -> None:
    language = skewed_chain(3, 4)
    model = random_network(name, language, **small(name)).eval()
    drawn = [ls.sample(model, n=5, steps=3, rng=generator(8)) for _ in range(2)]
    assert drawn[0].shape == (5, 4) and torch.equal(*drawn)
    model.save(tmp_path)
    again, tokens = ls.load(tmp_path), language.sample(4, generator(9))
    totals = [some.nelbo(tokens, generator(10)).total for some in (model, again)]
    assert torch.equal(*totals)


def test_positions_cannot_be_held_fixed_and_it_is_said() -> None:
    model = ls.build("cosmos", vocab_size=3, length=4, **small("cosmos"))
    known = torch.tensor([True, False, False, False])
    with pytest.raises(ls.UserError, match="belong to whole sequences, so no positions can be held fixed"):
        ls.sample(model, n=1, known=known, tokens=torch.zeros(4).long())
    with pytest.raises(ls.UserError, match="no exact posterior"):
        ls.languages.oracle(model, skewed_chain(3, 4))


CONDITIONS = {
    "labels": ({"labels": 3}, lambda shift: Condition.of(labels=(torch.arange(40) + shift) % 3)),
    "source": (
        {"source": 3, "source_length": 2},
        lambda shift: Condition.of(source=(torch.arange(80).reshape(40, 2) + shift) % 3),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", CONDITIONS)
@pytest.mark.parametrize("name", SYSTEMS)
def test_labels_and_sources_reach_the_latents_and_guidance_0_hears_none(name: str, kind: str) -> None:
    """With weights as random as any: the condition is in the way, not in what was learnt."""
    built, given = CONDITIONS[kind]
    model = random_network(name, skewed_chain(3, 4), **small(name), **built).eval()
    next(part for part in model.modules() if isinstance(part, Conditioner)).withheld.fill_(1)  # as training would note

    def latents(shift: int, guidance: float) -> Tensor:
        frames: list[Tensor] = []
        ls.generate(model, 40, 4, generator(21), condition=given(shift), guidance=guidance,
                    watch=lambda frame: frames.append(frame.z))  # fmt: skip
        return frames[-1]

    one, insisted = latents(0, 1.0), latents(0, 3.0)
    assert bool((one != latents(1, 1.0)).flatten(1).any(1).all()) and bool((one != insisted).flatten(1).any(1).all())
    assert torch.equal(latents(0, 0.0), latents(1, 0.0))


def doubled(n: int, rng: torch.Generator) -> tuple[Tensor, Condition]:
    """Sources of two tokens, and texts that say each of them twice."""
    source = torch.randint(4, (n, 2), generator=rng)
    return source.repeat_interleave(2, 1), Condition.of(source=source)


@pytest.fixture(scope="module")
def copyist() -> Model:
    """A model that has learnt to write down its source."""
    torch.manual_seed(1)
    options = {"width": 32, "depth": 2, "heads": 2, "autoencoder_depth": 1, "latents": 2, "latent_width": 4}
    model = ls.build("ld4lg", vocab_size=4, length=4, source=4, source_length=2, autoencoder_fraction=0.3, **options)
    rng = generator(11)

    def given() -> Iterator[Batch]:
        for step in range(300):
            tokens, condition = doubled(32, rng)
            yield Batch.of(tokens, first=32 * step, condition=condition)

    for _ in ls.fit(model, given(), steps=300, optim=ls.OptimizerConfig(lr=5e-3, warmup=20), cond_dropout=0.2):
        pass
    return model.eval()


def copied(model: Model, guidance: float) -> float:
    """The share of tokens that agree with the source."""
    tokens, condition = doubled(200, generator(12))
    drawn = ls.sample(model, n=200, steps=8, rng=generator(13), condition=condition, guidance=guidance)
    return float((drawn == tokens).float().mean())


@pytest.mark.slow
def test_what_is_written_depends_on_the_source_and_guidance_says_how_much(copyist: Model) -> None:
    """Guidance 0 does not know the source at all, 1 is the model, 3 insists."""
    shares = [copied(copyist, guidance) for guidance in (0.0, 1.0, 3.0)]
    assert shares[0] < 0.35 and shares[1] > 0.6 and shares[2] > shares[1] - 0.05
    _, condition = doubled(50, generator(14))
    assert condition.source is not None
    other = Condition.of(source=(condition.source + 1) % 4)
    one, two = (ls.sample(copyist, n=50, steps=8, rng=generator(15), condition=c) for c in (condition, other))
    assert float((one != two).float().mean()) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_terms_of_the_bound_are_those_of_the_latents(name: str) -> None:
    """A network that always says 0 pays ½ (SNR(first) - SNR(1)) |u|² on the way, and the prior is a KL of normals."""
    torch.manual_seed(3)
    compressed = {} if name == "tencdm" else {"latents": 2, "latent_width": 4}
    model = ls.build(name, vocab_size=4, length=6, predicts="x0", **SMALL, **compressed).eval()
    tokens, path = skewed_chain(4, 6).sample(64, generator(4)), model.process

    def nothing(z: Tensor, t: Tensor, context: Tensor, where: Tensor | None = None) -> Tensor:
        return torch.zeros_like(z if where is None else z[where])

    bound = model.nelbo(tokens, generator(5), denoiser=nothing, draws=256)
    with torch.no_grad():
        squares = model.process.codec.encode(tokens).square().double().sum((1, 2))
        numbers = model.process.codec.encode(tokens)[0].numel()
        last, first = path.logsnr(torch.tensor([1.0, T_DECODE]).double())
        signal, noise = last.sigmoid(), (-last).sigmoid()  # α², σ² at t = 1
    prior = (signal * squares + numbers * (noise - 1 - noise.log())) / 2
    torch.testing.assert_close(bound.prior.double(), prior, rtol=1e-4, atol=1e-6)
    whole = ((first.exp() - last.exp()) / 2 * squares).mean()
    assert float(bound.diffusion.double().mean() / whole) == pytest.approx(1, abs=0.02)
    assert (bound.recon > 0).all()


class Enumerated:
    """The latents of all sequences under a trained encoder, and their posterior given a noisy latent."""

    def __init__(self, model: Model, language) -> None:
        sequences, p = enumerate_sequences(language)
        self.points, self.log_p, self.length = model.process.codec.encode(sequences), p.log(), language.length

    def posterior(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        apart = torch.cdist(z.flatten(1) / alpha[:, 0], self.points.flatten(1)).square()
        return (self.log_p - apart * (alpha[:, 0] / sigma[:, 0]).square() / 2).log_softmax(-1)


@pytest.mark.slow
@torch.no_grad()
def test_a_trained_model_comes_near_the_exact_one_and_writes_the_language() -> None:
    """Of the 1.64 nats above H, its decoder loses 0.49: the bound with the exact denoiser of its latents."""
    torch.manual_seed(2)
    language = skewed_chain(4, 6)
    options = {"width": 32, "depth": 2, "heads": 2, "autoencoder_depth": 1, "latents": 2, "latent_width": 4}
    model = ls.build("ld4lg", vocab_size=4, length=6, max_logsnr=1.0, predicts="x0", **options)
    optim = ls.OptimizerConfig(lr=4e-3, warmup=20)
    with torch.enable_grad():
        for _ in ls.fit(model, batches(language), steps=400, optim=optim, ema=0.98):
            pass
    tokens = language.sample(1000, generator(16))
    exact = PosteriorMean(model.eval().process, Enumerated(model, language))
    bound, best = (model.nelbo(tokens, generator(17), denoiser=by, draws=4).total for by in (None, exact))
    by_decoder, error = mean_and_error(best + language.log_prob(tokens))
    assert 3 * error < by_decoder < 0.65
    by_denoiser, error = mean_and_error(bound - best)
    assert 3 * error < by_denoiser < 1.4
    drawn = ls.sample(model, n=500, steps=32, rng=generator(18))
    assert abs(float(-language.log_prob(drawn).mean()) - language.entropy()) < 0.3


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, options, says",
    [
        ("ld4lg", {"latents": 4}, "4 latents do not compress 4 tokens"),
        ("cosmos", {"latents": 0}, "0 latents do not compress 4 tokens"),
        ("planner", {"length": 1, "latents": None}, "1 latents do not compress 1 tokens"),
        ("cosmos", {"autoencoder_fraction": 1.0}, "autoencoder_fraction must be"),
        ("cosmos", {"position_drop": 1.0}, "position_drop"),
        ("planner", {"kl_weight": -1.0}, "must not be negative"),
        ("tencdm", {"tan": 0.0}, "tan, the d of a tan-d schedule, must be above 0"),
        ("tencdm", {"predicts": "vv"}, "Did you mean 'v'"),
        ("tencdm", {"min_decode_logsnr": 5.0}, "must not be above max_logsnr"),
        ("tencdm", {"self_conditioning": 2.0}, "probability of self-conditioning"),
        ("tencdm", {"signal": 2}, "no signal can be given along them"),
        ("ld4lg", {"latent_width": 0}, "at least 1"),
        ("ld4lg", {"state_loss_weight": 1.0}, "a parallel decoder"),
        ("tencdm", {"state_loss_weight": 1.0}, "needs few latents"),
        ("tencdm", {"latents": 2}, "Every token has a latent"),
        ("tencdm", {"position_drop": 0.3}, "need compressed latents"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, options: dict, says: str) -> None:
    with pytest.raises(ls.UserError, match=says):
        ls.build(name, **{"vocab_size": 3, "length": 4} | small(name) | options)


# ---- what latents carry ---------------------------------------------------------------------------------------------


def test_what_latents_carry_is_what_is_lost_with_others() -> None:
    """With the exact decoder of a known language: its own latents tell all, others mislead, and the kinds differ."""
    language = random_joint()
    codec = Named(language)
    codec.levels = (torch.ones(1, 1), torch.full((1, 1), 0.2))
    codec.decode = lambda z: language.support[
        codec.posterior(z, torch.ones(len(z), 1, 1), 0.2 * torch.ones(len(z), 1, 1)).argmax(1)
    ]  # type: ignore[method-assign]  # noqa: E501
    model = Model(
        LatentDiffusion(
            codec,
            find_logsnr("cosine", highest=3.0),
            uniform_times(),
            parameterization=PARAMETERIZATIONS["x0"],
            stage_one=0.5,
            min_decode_logsnr=3.0,
        ),
        None,
        length=4,
        block=4,
    )
    found = measure_reconstruction(model, [Batch.of(language.sample(200, generator(19)))], generator(20))
    assert found.accuracy == found.exact_match == 1.0 and found.nats["own"] < 0.01
    assert min(found.nats["shuffled"], found.nats["mean"], found.nats["random"]) > 1.0


def test_what_fills_up_short_texts_is_not_counted_as_read() -> None:
    language = random_joint()
    codec = Named(language)
    codec.decode = lambda z: torch.zeros(len(z), 4, dtype=torch.long)  # type: ignore[method-assign]
    model = Model(
        LatentDiffusion(
            codec,
            find_logsnr("cosine", highest=3.0),
            uniform_times(),
            parameterization=PARAMETERIZATIONS["x0"],
            stage_one=0.5,
            min_decode_logsnr=3.0,
        ),
        None,
        length=4,
        block=4,
    )
    tokens = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    every = Batch.of(tokens)
    some = replace(every, token_count=torch.tensor([2, 2]))
    found = [measure_reconstruction(model, [batch], generator(20)) for batch in (every, some)]
    assert [one.accuracy for one in found] == [3 / 8, 3 / 4] and [one.exact_match for one in found] == [0.0, 0.5]
    assert found[1].nats["own"] == pytest.approx(2 * found[0].nats["own"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ld4lg", "planner"])
def test_a_decoder_from_left_to_right_learns_to_listen(name: str) -> None:
    """Words before say much of the next one, and a decoder finds them first; its latents must matter all the same."""
    torch.manual_seed(3)
    language = ls.languages.markov(0.8 * torch.eye(8) + 0.2 / 8, torch.full((8,), 1 / 8), 16)
    options = {"width": 32, "depth": 1, "heads": 2, "autoencoder_depth": 1, "latents": 4, "latent_width": 8}
    model = ls.build(name, vocab_size=8, length=16, autoencoder_fraction=0.99, **options)
    for _ in ls.fit(model, batches(language), steps=150, optim=ls.OptimizerConfig(lr=5e-3, warmup=20)):
        pass
    found = measure_reconstruction(model, [Batch.of(language.sample(200, generator(22)))], generator(23))
    assert found.nats["own"] < 0.8 * language.entropy() / 16 and found.nats["shuffled"] > 1.5 * found.nats["own"]


def test_only_latent_systems_can_be_read() -> None:
    with pytest.raises(ls.UserError, match="needs a latent system"):
        measure_reconstruction(ls.build("mdlm", vocab_size=3, length=4, **SMALL), [], generator(0))
    with pytest.raises(ls.UserError, match="nothing to evaluate"):
        measure_reconstruction(ls.build("cosmos", vocab_size=3, length=4, **small("cosmos")), [], generator(0))
