"""Promoter activity: the error between the predicted profiles of designed and real sequences."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from toy_languages import generator

from logosphere.errors import UserError
from logosphere.evaluation.validators import ACTIVE_MARK, WINDOW, Sei, activity_error


def fraction_of_g(bases: Tensor) -> Tensor:
    return (bases == 2).float().mean(1)


def test_the_error_is_the_mean_square_and_does_not_depend_on_the_batch() -> None:
    made, real = (torch.randint(4, (50, 20), generator=generator(seed)) for seed in (1, 2))
    squares = (fraction_of_g(made) - fraction_of_g(real)).double().square()
    for batch in (7, 50):
        found = activity_error(fraction_of_g, made, real, batch)
        assert found.mean == pytest.approx(float(squares.mean()))
        assert found.error == pytest.approx(float(squares.std()) / 50**0.5)
    assert activity_error(fraction_of_g, real, real) == (0.0, 0.0)
    assert math.isnan(
        activity_error(fraction_of_g, made[:1], real[:1]).error
    )  # the error of a single pair is undefined


class Counts(nn.Module):
    """A stub with the output shape of Sei: the count of each base."""

    def forward(self, one_hot: Tensor) -> Tensor:
        assert one_hot.shape[1:] == (4, WINDOW) and bool((one_hot.sum(1) == 1).all())
        return one_hot.sum(2)


def test_sei_centres_the_sequence_in_its_window(tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text(f"liver | DNase\nliver | {ACTIVE_MARK}\nheart | {ACTIVE_MARK}\nheart | CTCF\n")
    bases = torch.randint(4, (3, 101), generator=generator(3))
    found = Sei(Counts(), names)(bases)
    around = 0.25 * (WINDOW - 101)
    truth = ((bases == 1).sum(1) + (bases == 2).sum(1)) / 2 + around
    torch.testing.assert_close(found, truth)


def test_invalid_inputs_are_refused(tmp_path: Path) -> None:
    bases, names = torch.zeros(2, 8).long(), tmp_path / "names"
    names.write_text("liver | DNase\n")
    with pytest.raises(UserError, match="needs the real one of its signal"):
        activity_error(fraction_of_g, bases, bases[:1])
    with pytest.raises(UserError, match="leave out sequences with N"):
        activity_error(fraction_of_g, bases + 4, bases)
    with pytest.raises(UserError, match="names no track"):
        Sei(Counts(), names)
    with pytest.raises(UserError, match="could not be read"):
        Sei(Counts(), tmp_path / "none")
    names.write_text(f"{ACTIVE_MARK}\n" * 9)
    with pytest.raises(UserError, match="not one row of Sei's tracks"):
        Sei(Counts(), names)(bases)
    with pytest.raises(UserError, match="at most 4096 bases"):
        Sei(Counts(), names)(torch.zeros(1, WINDOW + 1).long())
