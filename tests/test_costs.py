"""Counted FLOPs against the formula of transformers, whatever computes attention."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from toy_languages import generator

import logosphere as ls
from logosphere.model import Model
from logosphere.networks import attention, backbone
from logosphere.networks.config import NetworkConfig
from logosphere.rng import CounterNoise, GeneratorNoise
from logosphere.runs.config import TrainConfig
from logosphere.runs.cost_model import cost
from logosphere.runs.costs import FlopCounter, count_step_flops
from logosphere.types import Batch

WIDTH, DEPTH, VOCABULARY, BATCH = 32, 3, 27, 4
NETWORK = NetworkConfig(width=WIDTH, depth=DEPTH, heads=4)


def build(system: str, length: int, vocabulary: int = VOCABULARY) -> Model:
    options = {"block": 8} if system == "bd3lm" else {}
    return ls.build(system, vocab_size=vocabulary, length=length, **vars(NETWORK) | {"tied": False}, **options)


def forward_flops(model: Model) -> float:
    """n 2 P + m 4 depth · width · length a token, for n positions and m pairs; P are the weights of matrices."""
    matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    head = WIDTH * model.vocab_size
    assert model.denoiser is not None
    evaluated = model.denoiser.evaluations()
    blocks = evaluated.positions * 2 * (matrices - head) + evaluated.pairs * 4 * DEPTH * WIDTH * model.length
    return BATCH * model.length * (blocks + 2 * head)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [16, 80])
@pytest.mark.parametrize(("system", "head"), [("ar", 1.0), ("mdlm", 0.5), ("bd3lm", 0.5)])
def test_counted_flops_are_those_of_the_formula(system: str, head: float, length: int, precision: torch.dtype) -> None:
    """6 P + 12 depth · width · length a position, of which a third in the forward pass.

    Masked diffusion evaluates its head at masks, half of the positions over all times; with the four stratified times
    of the count this is within an eighth of the positions and the noise of their masks.
    """
    model = build(system, length)
    heads = 2 * BATCH * length * WIDTH * VOCABULARY
    expected, slack = forward_flops(model) - (1 - head) * heads, 0 if head == 1 else 0.25 * heads
    batch = Batch.of(torch.zeros(BATCH, length, dtype=torch.long))
    noise = CounterNoise(0, 0, batch.ids, batch.global_index, batch.total)
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        assert count_step_flops(model, BATCH) == pytest.approx(3 * expected, abs=3 * slack)
        with torch.no_grad(), FlopCounter() as counter:
            model.bound(batch, noise)
    assert counter.total == pytest.approx(expected, abs=slack)


def test_flops_count_masked_pairs_that_a_cpu_skips() -> None:
    """From 512 positions on, attention leaves out keys that no query of a group sees."""
    model = build("bd3lm", 320)
    heads = 2 * BATCH * 320 * WIDTH * VOCABULARY
    expected = 3 * (forward_flops(model) - 0.5 * heads)
    assert count_step_flops(model, BATCH) == pytest.approx(expected, abs=heads)
    with FlopCounter() as counter:
        model.bound(Batch.of(torch.zeros(BATCH, 320, dtype=torch.long)), GeneratorNoise(generator(1), BATCH))
    assert counter.total < 0.8 * expected / 3


@pytest.mark.parametrize("system", ["ar", "bd3lm"])
def test_flops_do_not_depend_on_the_implementation_of_attention(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(system, 24)
    fused = count_step_flops(model, BATCH)
    with sdpa_kernel(SDPBackend.MATH):
        assert count_step_flops(model, BATCH) == fused

    def plain(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    monkeypatch.setattr(attention, "attend", plain)
    assert count_step_flops(model, BATCH) == fused


def test_recomputed_activations_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of blocks nor those of logits in chunks."""
    model = build("mdlm", 24)
    stored = count_step_flops(model, BATCH)
    stacks = [m for m in model.modules() if isinstance(m, backbone.Backbone)]
    for blocks in stacks:
        blocks.recompute = True
    assert stacks and count_step_flops(model, BATCH) == stored
    monkeypatch.setattr("logosphere.processes.bound.CHUNK", 10 * VOCABULARY)
    assert count_step_flops(model, BATCH) == stored


@pytest.mark.parametrize(("system", "options"), [("ar", ()), ("mdlm", ()), ("bd3lm", ("block=8",))])
@pytest.mark.parametrize("length", [16, 80])
def test_the_estimate_of_a_dry_run_agrees_with_the_count(system: str, options: tuple[str, ...], length: int) -> None:
    """Up to biases, norms and the positions of the head."""
    chosen = TrainConfig(system=system, length=length, steps=10, batch=BATCH, network=NETWORK, options=options)
    bill = cost(chosen, VOCABULARY)
    counted = count_step_flops(build(system, length), BATCH) / (BATCH * length)
    assert bill.flops_per_token == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize("decoder", [1, 3])
def test_the_estimate_of_an_encoder_decoder_agrees_with_the_count(decoder: int) -> None:
    network = NetworkConfig(width=WIDTH, depth=6, heads=4, decoder_depth=decoder, neighbours=0)
    chosen = TrainConfig(system="bd3lm", length=80, steps=10, batch=BATCH, network=network, options=("block=8",))
    model = ls.build("bd3lm", vocab_size=VOCABULARY, length=80, block=8, **vars(network))
    bill = cost(chosen, VOCABULARY)
    assert bill.parameters == sum(weight.numel() for weight in model.parameters())
    assert bill.flops_per_token == pytest.approx(count_step_flops(model, BATCH) / (BATCH * 80), rel=0.03)


def test_the_estimate_counts_the_table_of_a_tied_head() -> None:
    """The same products with and without weights of the head; only parameters differ."""
    own, tied = (replace(NETWORK, tied=tied) for tied in (False, True))
    bills = [cost(TrainConfig(system="mdlm", length=16, steps=10, network=one), 3000) for one in (own, tied)]
    assert bills[0].parameters > bills[1].parameters + 2900 * WIDTH
    assert bills[0].flops_per_token == pytest.approx(bills[1].flops_per_token, rel=0.01)
