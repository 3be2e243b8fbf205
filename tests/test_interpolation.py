"""Interpolation between two texts in latents."""

import pytest
import torch
from toy_languages import generator

import logosphere as ls


@pytest.mark.parametrize("name", ["ld4lg", "planner", "cosmos"])
def test_the_ends_are_the_texts_and_the_middle_holds_tokens_of_both(name: str) -> None:
    torch.manual_seed(0)
    model = ls.build(
        name, vocab_size=40, length=16, width=32, depth=1, heads=2, autoencoder_depth=1, compression=4,
        latent_width=128, local_skip=True,
    ).train()  # fmt: skip
    a, b = torch.randint(40, (2, 1, 16), generator=generator(1)).unbind()
    texts = ls.interpolate(model, a, b, 5)
    assert texts.shape == (5, 16) and model.training
    assert torch.equal(texts[:1], ls.interpolate(model, a, a, 2)[:1])
    near_a, near_b = ((texts == end).float().mean(1) for end in (a, b))
    assert near_a[0] > 0.9 and near_b[4] > 0.9 and near_a[4] < 0.4
    assert bool((near_a[:-1] >= near_a[1:]).all()) and bool((near_b[:-1] <= near_b[1:]).all())
    with pytest.raises(ls.UserError, match="these are 2 and 1 texts, and 5 places"):
        ls.interpolate(model, torch.cat([a, b]), b)
    with pytest.raises(ls.UserError, match="these are 1 and 1 texts, and 1 places"):
        ls.interpolate(model, a, b, 1)
    with pytest.raises(ls.UserError, match="in the latents of a latent system"):
        ls.interpolate(ls.build("mdlm", vocab_size=40, length=16), a, b)
