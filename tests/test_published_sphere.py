"""The published system on the sphere: its options, its sampler on any model, and devices."""

from pathlib import Path

import pytest
import torch
from statistical_checks import MIN_P_VALUE, chi_square_p_value
from toy_languages import generator, random_joint, sticky_chain
from toy_models import SMALL

import logosphere as ls
from logosphere.codecs.tokens import DigitCodec
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.digit_posterior import ValidCodes
from logosphere.sampling.steppers import GeodesicRandomWalk


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge tables are computed once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


def test_valid_codes_do_not_depend_on_the_device() -> None:
    """On the meta device no values can be read and no host tensor can be mixed in."""
    assert ValidCodes(DigitCodec(11, 4).to("meta")).last == [2, 2]
    last = ValidCodes(DigitCodec(30_522, 3)).last
    assert len(last) == 10 and int("".join(map(str, last)), 3) == 30_521


@pytest.mark.slow
def test_all_tables_of_a_process_move_with_it() -> None:
    for options in ({}, {"base": 2}, {"preset": "paper"}, {"preset": "paper", "base": 2}):
        process = ls.build("rdlm", vocab_size=5, length=4, denoiser=None, **options).process.to("meta")
        for module in process.modules():
            for name, value in vars(module).items():
                assert not isinstance(value, torch.Tensor) or value.is_meta, f"{type(module).__name__}.{name}"


def test_invalid_options_are_refused() -> None:
    for options, message in (
        ({"rho_scale": 1.14}, "rho_scale=1.14 needs transitions=normal or transitions=published"),
        ({"rho_scale": 0.0, "transitions": "normal"}, "above 0, not 0.0"),
        ({"codes": "published"}, "needs a base"),
        ({"protocol": "published"}, "geometric, linear or cosine, not 'information'"),
        ({"protocol": "published", "time_sampler": "geometric", "stagger": 0.5}, "no stagger"),
        ({"protocol": "published", "time_sampler": "geometric", "window": [0.6, 0.3]}, "between 0 and 1"),
    ):
        with pytest.raises(UserError, match=message):
            ls.build("rdlm", vocab_size=5, length=4, denoiser=None, **options)
    with pytest.raises(UserError, match="log bridge"):
        ls.build("rdlm-heat", vocab_size=5, length=4, denoiser=None, protocol="published", time_sampler="geometric")


def test_rho_scale_scales_the_spread_of_states() -> None:
    spreads = []
    for scale in (1.0, 1.14):
        options = {"transitions": "published", "rho_scale": scale}
        process = ls.build("rdlm", vocab_size=3, length=1, denoiser=None, **options).process
        spreads.append(float(process.a[0, 100].std()))
    assert spreads[1] / spreads[0] == pytest.approx(1.14, rel=0.02)


@pytest.mark.parametrize("name", ["rdlm", "rdlm-heat"])
def test_schedule_time_inverts_time_of(name: str) -> None:
    process = ls.build(name, vocab_size=9, length=1, denoiser=None).process
    assert isinstance(process, SphericalDiffusion)
    tau = torch.linspace(0, 0.999, 57).double()
    torch.testing.assert_close(process.schedule_time(process.time_of(tau)), tau, atol=1e-4, rtol=0)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"preset": "paper", "start": "mask"}], ids=str)
def test_geodesic_random_walk_of_an_oracle_samples_the_language(options: dict[str, str]) -> None:
    """Chi-square over all sequences, on a path that starts at the mask only; 192 steps."""
    language = random_joint()
    model = ls.build("rdlm", vocab_size=2, length=4, denoiser=None, **options)
    oracle = Oracle(model, language)
    drawn = ls.sample(model, n=2000, steps=192, rng=generator(5), denoiser=oracle, stepper=GeodesicRandomWalk())
    assert chi_square_p_value(torch.bincount(language.index(drawn), minlength=16), language.p * 2000) > MIN_P_VALUE


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["paper", "paper-lm1b"])
def test_the_published_system_learns(preset: str) -> None:
    """The loss of one sequence falls, samples are tokens, and known positions stay."""
    torch.manual_seed(0)
    model = ls.build("rdlm", vocab_size=5, length=4, preset=preset, **SMALL)
    tokens = torch.tensor([[1, 4, 0, 2]])
    losses = [
        progress.loss
        for progress in ls.fit(
            model, (tokens.expand(32, -1) for _ in range(150)), steps=150, optim=ls.OptimizerConfig(lr=1e-2, warmup=10)
        )
    ]
    assert min(losses[-20:]) < 0.3 * losses[0]
    assert int(ls.sample(model, n=64, steps=8).max()) < 5
    known = torch.tensor([False, True, False, False])
    filled = ls.sample(model, n=4, steps=8, known=known, tokens=torch.tensor([0, 3, 0, 0]))
    assert (filled[:, 1] == 3).all()


def test_published_models_are_saved_and_opened(tmp_path: Path) -> None:
    language = sticky_chain(5, 4)
    model = ls.build("rdlm", vocab_size=5, length=4, preset="paper-lm1b", **SMALL).eval()
    model.save(tmp_path / "model")
    again = ls.load(tmp_path / "model").eval()
    tokens = language.sample(8, generator(1))
    assert again.sampler == "rdlm"
    torch.testing.assert_close(again.nelbo(tokens, generator(2)).total, model.nelbo(tokens, generator(2)).total)
