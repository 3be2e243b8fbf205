"""Samples of a requested length: position of EOS, distribution given the length, and unsupported systems."""

import json
from pathlib import Path

import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from toy_languages import enumerate_sequences, generator
from toy_models import SMALL, System, fill_zero_weights

import logosphere as ls
from logosphere import UserError
from logosphere.cli import main
from logosphere.data.languages import Joint, Oracle
from logosphere.networks.conditioning import Conditioner
from logosphere.sampling.constraints import SuppressEOS, with_length

END, L = 3, 8
REFUSED = {
    "ar": "left to right",
    "bd3lm": "left to right",
    "cosmos": "whole sequences",
    "ld4lg": "whole sequences",
    "planner": "whole sequences",
    "tencdm": "whole sequences",
    "bit-diffusion": "does not predict tokens",
    "diffusion-lm": "does not predict tokens",
    "sedd-uniform": "ratios",
}


def random_model(name: str, **options: object) -> ls.Model:
    torch.manual_seed(0)
    return ls.build(name, vocab_size=4, length=L, **SMALL | {"depth": 1} | options)


def sample_length(model: ls.Model, length: int, **how: object) -> torch.Tensor:
    constraint = with_length(model, END, length)
    given = {"denoiser": constraint.denoiser, "known": constraint.known, "tokens": constraint.tokens}
    return ls.sample(model, n=12, rng=generator(1), **{"steps": 6} | given | how)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in ls.systems() if name not in (*REFUSED, "rdlm")])
def test_samples_have_the_requested_length(name: str) -> None:
    tokens = sample_length(
        random_model(name), 5, steps=32 if name == "fisher-flow" else 6
    )  # flows need small steps to reach a vertex
    assert bool((tokens[:, :5] != END).all()) and bool((tokens[:, 5:] == END).all())


@pytest.mark.parametrize("name, message", REFUSED.items())
def test_unsupported_systems_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        sample_length(random_model(name), 5)


def test_with_length_keeps_eval_mode() -> None:
    """A new wrapper is in training mode, but the network inside it must stay in eval mode."""
    model = random_model("mdlm").eval()
    sample_length(model, 5)
    assert not any(part.training for part in model.modules())


def test_requested_length_can_be_the_maximum() -> None:
    for name in ("mdlm", "ar"):  # no EOS follows the text
        model = random_model(name)
        fill_zero_weights(model)
        assert bool((sample_length(model, L) != END).all())


def test_guidance_and_filters_work_with_a_length() -> None:
    model = random_model("mdlm", labels=2)
    fill_zero_weights(model)
    next(part for part in model.modules() if isinstance(part, Conditioner)).withheld += 1
    labels = ls.Condition.of(labels=torch.arange(12) % 2)
    tokens = sample_length(model, 3, condition=labels, guidance=3.0, top_p=0.9, temperature=0.7)
    assert bool((tokens[:, :3] != END).all()) and bool((tokens[:, 3:] == END).all())


def ending(length: int = 3, letters: int = 2) -> Joint:
    """Texts of 1 to `length` dependent letters, independent of the length, padded with EOS."""
    letters_only, p = enumerate_sequences(ls.languages.markov([[0.8, 0.2], [0.4, 0.6]], [0.3, 0.7], length))
    table = torch.zeros((letters + 1,) * length, dtype=torch.float64)
    for end, weight in zip(range(1, length + 1), (0.5, 0.2, 0.3), strict=True):
        filled = letters_only.clone()
        filled[:, end:] = letters
        table.index_put_(tuple(filled.T), weight * p, accumulate=True)
    return ls.languages.joint(table)


@pytest.mark.thorough
@pytest.mark.parametrize("system", [System("mdlm"), System("udlm"), System("rdlm-heat")], ids=str)
@pytest.mark.parametrize("length", [2, 3])
def test_samples_follow_the_distribution_given_the_length(system: System, length: int) -> None:
    language = ending()
    model = system.model(language)
    oracle = SuppressEOS(Oracle(model, language), 2, length, 3)
    known, tokens = torch.arange(3) >= length, torch.full((3,), 2)
    samples = ls.sample(model, n=2000, steps=96, rng=generator(9), denoiser=oracle, known=known, tokens=tokens)
    sequences, p = enumerate_sequences(language)
    right = (sequences[:, :length] != 2).all(1) & (sequences[:, length:] == 2).all(1)
    assert sequence_p_value(samples, language, p * right) > MIN_P_VALUE


@pytest.mark.parametrize(
    "length, known, token, message",
    [
        (0, None, 0, "1 to 8"),
        (9, None, 0, "1 to 8"),
        (3, 5, 1, "after the requested length"),
        (6, 4, END, "before the requested length"),
    ],
)
def test_lengths_contradicting_known_tokens_are_refused(
    length: int, known: int | None, token: int, message: str
) -> None:
    where = None if known is None else torch.arange(L) == known
    with pytest.raises(UserError, match=message):
        with_length(random_model("mdlm"), END, length, where, None if where is None else torch.full((L,), token))


@pytest.mark.parametrize("name", ["mdlm", "ar"])
def test_length_option_on_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("\n".join(["one", "two", "three", "eleven"] * 20))
    size = ["--network.width", "16", "--network.depth", "1", "--network.heads", "2", "--steps", "3", "--batch", "8"]
    argv = ["--system", name, "--data", f"lines:{tmp_path / 'a.txt'}", "--length", "8", *size]
    run = str(tmp_path / "run")
    assert main(["train", *argv, "--validations", "1", "--validation-sequences", "4", "--out", run]) == 0
    capsys.readouterr()

    def error_of(*more: str) -> str:
        return capsys.readouterr().err if main(["sample", run, "--steps", "4", "-n", "3", *more]) else ""

    if name == "ar":
        assert "left to right" in error_of("--length", "5")
        return
    assert main(["sample", run, "--steps", "4", "-n", "3", "--length", "5", "--prompt", "on", "--json"]) == 0
    texts = [sample["text"] for sample in json.loads(capsys.readouterr().out)["samples"]]
    assert all(len(text) == 5 and text.startswith("on") for text in texts)
    assert "from 1 to 8 tokens, not 20" in error_of("--length", "20")
    assert "after the requested length" in error_of("--length", "2", "--infill", "on[..]e")
    assert "not in the alphabet" in error_of("--prompt", "Ω")
