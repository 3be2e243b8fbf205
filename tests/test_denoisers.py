"""Networks: dependencies between positions, caches that change nothing, and uniform predictions at initialisation."""

import math

import pytest
import torch
from run_helpers import forget_hashes
from torch import Tensor, nn
from toy_languages import generator, skewed_chain
from toy_models import SMALL, System, fill_zero_weights, random_network

import logosphere as ls
from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.io import write_tensors
from logosphere.networks.attention import attend, block_causal_mask
from logosphere.networks.base import Denoiser
from logosphere.networks.config import NetworkConfig
from logosphere.networks.transformer import BlockTransformer, CausalTransformer, FullTransformer
from logosphere.processes.capabilities import OnlineStatistics

V, L, B = 7, 8, 3
SIZE = NetworkConfig(**SMALL)
CODEC = TokenCodec(V, mask=True)


def make_denoiser(kind: str, seed: int = 0) -> Denoiser:
    makers = {
        "full": lambda: FullTransformer(CODEC, L, SIZE, reads_time=False),
        "full-time": lambda: FullTransformer(CODEC, L, SIZE, reads_time=True),
        "causal": lambda: CausalTransformer(V, L, SIZE),
        "block": lambda: BlockTransformer(CODEC, L, 2, SIZE, reads_time=False),
        "block-time": lambda: BlockTransformer(CODEC, L, 2, SIZE, reads_time=True),
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        denoiser = makers[kind]()
        fill_zero_weights(denoiser)
    return denoiser.eval().requires_grad_(False)


KINDS = ["full", "full-time", "causal", "block", "block-time"]
kinds = pytest.mark.parametrize("kind", KINDS)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    rng = generator(1)
    z = torch.randint(V + 1, (B, L), generator=rng)
    return z, torch.rand(B, 1, generator=rng).expand(B, L), torch.randint(V, (B, L), generator=rng)


def changed(values: Tensor, position: int) -> Tensor:
    values = values.clone()
    values[:, position] = (values[:, position] + 1) % V
    return values


def influence(denoiser: Denoiser, which: str) -> Tensor:
    """Entry [q, k] says whether the output at q changes at all when the state (or the context) at k changes."""
    z, t, context = inputs()
    before = denoiser(z, t, context)
    rows = []
    for k in range(L):
        after = denoiser(changed(z, k), t, context) if which == "z" else denoiser(z, t, changed(context, k))
        rows.append((after != before).any(-1).any(0))
    return torch.stack(rows, 1)


def test_causal_network_depends_on_the_clean_past_only() -> None:
    denoiser = make_denoiser("causal")
    assert not influence(denoiser, "z").any()
    assert torch.equal(influence(denoiser, "context"), torch.ones(L, L).tril(-1).bool())


@pytest.mark.parametrize("kind", ["full", "full-time"])
def test_bidirectional_network_depends_on_states_only(kind: str) -> None:
    denoiser = make_denoiser(kind)
    assert influence(denoiser, "z").all()
    assert not influence(denoiser, "context").any()


@pytest.mark.parametrize("kind", ["block", "block-time"])
def test_block_depends_on_its_noisy_states_and_earlier_clean_blocks(kind: str) -> None:
    denoiser, block = make_denoiser(kind), torch.arange(L) // 2
    assert torch.equal(influence(denoiser, "z"), block[:, None] == block)
    assert torch.equal(influence(denoiser, "context"), block[:, None] > block)


@pytest.mark.parametrize("block", [1, 2, 4])
def test_block_mask_matches_its_definition(block: int) -> None:
    mask = block_causal_mask(4, block)
    for q in range(8):
        for k in range(8):
            mine, its, noisy_query, noisy_key = q % 4 // block, k % 4 // block, q < 4, k < 4
            seen = (
                (mine == its if noisy_query else False) if noisy_key else (mine > its if noisy_query else mine >= its)
            )
            assert bool(mask[q, k]) == seen


@kinds
def test_packed_outputs_are_the_selected_rows(kind: str) -> None:
    denoiser, (z, t, context) = make_denoiser(kind), inputs()
    where = torch.rand(B, L, generator=generator(2)) < 0.5
    torch.testing.assert_close(denoiser(z, t, context, where), denoiser(z, t, context)[where], rtol=1e-5, atol=1e-5)


@kinds
def test_sequences_are_independent(kind: str) -> None:
    denoiser, (z, t, context) = make_denoiser(kind), inputs()
    single = torch.cat([denoiser(z[i : i + 1], t[i : i + 1], context[i : i + 1]) for i in range(B)])
    torch.testing.assert_close(denoiser(z, t, context), single, rtol=1e-5, atol=1e-5)


@kinds
def test_outputs_depend_on_token_order(kind: str) -> None:
    """Two tokens before the last position are swapped."""
    denoiser = make_denoiser(kind)
    one = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0]])
    other = torch.tensor([[1, 0, 2, 3, 4, 5, 6, 0]])
    times = torch.full((1, L), 0.5)
    assert (denoiser(one, times, one)[0, -1] - denoiser(other, times, other)[0, -1]).abs().max() > 1e-5


@kinds
def test_session_matches_the_full_network(kind: str) -> None:
    """Step by step from left to right, with everything the session has cached."""
    denoiser, (z, t, context) = make_denoiser(kind), inputs()
    session, whole = denoiser.begin_sampling(), denoiser(z, t, context)
    for i in range(L):
        where = torch.zeros(B, L).bool()
        where[:, i] = True
        torch.testing.assert_close(session(z, t, context, where), whole[:, i], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("prompt", [1, 5, L - 1])
def test_session_processes_a_prompt_at_once_and_ignores_future_positions(prompt: int) -> None:
    denoiser, (z, t, context) = make_denoiser("causal"), inputs()
    session, whole = denoiser.begin_sampling(), denoiser(z, t, context)
    for i in range(prompt, L):
        where = (torch.arange(L) == i).expand(B, L)
        so_far = torch.where(torch.arange(L) < i, context, V)  # the sampler has masks there
        torch.testing.assert_close(session(z, t, so_far, where), whole[:, i], rtol=1e-5, atol=1e-5)


def test_session_resets_for_a_new_sampling_run() -> None:
    denoiser, (z, t, context) = make_denoiser("causal"), inputs()
    denoiser.begin_sampling()(z, t, context)
    torch.testing.assert_close(
        denoiser.begin_sampling()(z, t, changed(context, 0)), denoiser(z, t, changed(context, 0))
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ls.systems())
def test_untrained_network_predicts_uniformly(name: str) -> None:
    """A zero-initialised head, not tied, predicts uniformly: the bound of masked systems is log V per token."""
    model = ls.build(name, vocab_size=V, length=L, tied=False, **SMALL)
    tokens = torch.randint(V, (20, L), generator=generator(3))
    bound = model.nelbo(tokens, generator(4))
    if name == "mdlm":  # without exact counts, or with jumps, this holds only in expectation
        assert bound.total.tolist() == pytest.approx([L * math.log(V)] * 20, rel=1e-5)
    if name == "ar":
        assert bound.total.tolist() == pytest.approx([L * math.log(V)] * 20, rel=1e-6)
    noise = model.corrupt(tokens, torch.tensor(1.0), generator(5))
    output = model.denoiser(noise, torch.ones(noise.shape[:2]), noise)
    if output.shape[-1] != V:  # the network predicts states, and its head is zero
        assert output.abs().max() < 1e-6
        return
    # Paths with a finite end keep some information about the token there.
    assert (output.softmax(-1) - 1 / V).abs().max() < {"plaid": 0.05, "ddsm": 0.02, "d3pm-gaussian": 5e-3}.get(
        name, 1e-5
    )


@kinds
def test_logits_are_float32_under_autocast(kind: str) -> None:
    denoiser, (z, t, context) = make_denoiser(kind), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        out = denoiser(z, t, context)
    assert out.dtype == torch.float32
    assert (out - denoiser(z, t, context)).abs().max() < 0.3


def test_cpu_attention_runs_in_float32() -> None:
    q, k, v = torch.randn(3, 2, 2, 5, 8, generator=generator(0))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = attend(q, k, v, None)
        assert (q @ k.mT).dtype == torch.bfloat16
    expected = (q @ k.mT / 8**0.5).softmax(-1) @ v
    torch.testing.assert_close(mixed, expected, atol=1e-6, rtol=1e-6)


@kinds
def test_only_time_conditional_networks_depend_on_time(kind: str) -> None:
    denoiser, (z, t, context) = make_denoiser(kind), inputs()
    moved = (denoiser(z, t, context) - denoiser(z, t / 2, context)).abs().max() > 1e-4
    assert bool(moved) == denoiser.reads_time == kind.endswith("time")


@pytest.mark.parametrize("kind", ["full-time", "block-time"])
def test_shared_time_matches_per_position_times(kind: str) -> None:
    """Times that vary within one sequence use the general code path, which must not change the other sequences."""
    denoiser, (z, t, context) = make_denoiser(kind), inputs()
    uneven = t.clone()
    uneven[-1, 3:] = 0.0
    long_way, short_way = denoiser(z, uneven, context), denoiser(z, t, context)
    torch.testing.assert_close(long_way[:-1], short_way[:-1], rtol=1e-5, atol=1e-5)
    assert (long_way[-1] - short_way[-1]).abs().max() > 1e-4


@pytest.mark.parametrize(
    "options", [{}, {"block": 2}, {"body": "convolution"}, {"body": "unet", "shape": "8x8"}], ids=str
)
def test_gidd_subtracts_the_input_embedding_from_the_residual_stream(options: dict) -> None:
    """With blocks that output zero the logits do not depend on the states, unlike those of md4."""
    same, length = [], 64 if "shape" in options else L
    for name in ("gidd", "md4"):
        torch.manual_seed(0)
        model = ls.build(name, vocab_size=V, length=length, **SMALL, **options)
        fill_zero_weights(model)
        inner = model.denoiser.inner
        for weight_name, weight in inner.trunk.named_parameters():
            if any(part in weight_name for part in ("out.", "contract.", "mix.", "spread.")):
                nn.init.zeros_(weight)
        z = torch.arange(length)[None] % (V + 1)
        out = inner(z, torch.full((1, length), 0.5), z)[0]
        same.append(bool((out == out[:1]).all()))
    assert same == [True, False]


def test_weights_of_another_head_are_refused(tmp_path) -> None:
    plain, hybrid = (ls.build("gidd", vocab_size=V, length=L, p_u=p_u, **SMALL) for p_u in (0.0, 0.1))
    assert hybrid.state_dict().keys() - plain.state_dict().keys() == {"denoiser.inner.trunk.out"}
    hybrid.save(tmp_path)
    write_tensors(tmp_path / "model.safetensors", plain.state_dict())
    forget_hashes(tmp_path)
    with pytest.raises(UserError, match="lacks denoiser.inner.trunk.out"):
        ls.load(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ls.systems())
def test_every_weight_gets_a_gradient(name: str) -> None:
    """Each parameter gets a gradient that is finite and not zero everywhere."""
    language = skewed_chain(V, L)
    model = random_network(name, language)
    for done in (0.0, 0.9):  # some systems train in stages
        if isinstance(model.process, OnlineStatistics):
            model.process.update_statistics(done)
        model.bound(*batch_and_noise(language)).loss.sum().backward()
    for weight_name, weight in model.named_parameters():
        if not weight_name.startswith("remasker"):  # the remasker is trained separately
            assert weight.grad is not None and weight.grad.isfinite().all() and weight.grad.any(), weight_name


def batch_and_noise(language):
    from logosphere.rng import GeneratorNoise
    from logosphere.types import Batch

    return Batch.of(language.sample(64, generator(5))), GeneratorNoise(generator(6), 64)


@pytest.mark.parametrize(
    "size, message",
    [
        ({"width": 30, "heads": 4}, "does not split"),
        ({"width": 12, "heads": 4}, "even size"),
        ({"depth": 0}, "at least 1"),
        ({"heads": 0}, "at least 1"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
    ],
)
def test_invalid_sizes_are_refused(size: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ls.build("mdlm", vocab_size=V, length=L, **size)


@pytest.mark.parametrize("denoiser", [{}, {"denoiser": None}], ids=["network", "without"])
@pytest.mark.parametrize("block", [3, 0, -2, 16])
def test_a_block_that_does_not_divide_the_length_is_refused(block: int, denoiser: dict) -> None:
    with pytest.raises(UserError, match="block"):
        ls.build("mdlm", vocab_size=V, length=L, block=block, **denoiser)


def test_model_without_a_network_is_refused() -> None:
    language = skewed_chain(V, L)
    model = System("mdlm").model(language)
    assert model.denoiser is None and not list(model.parameters())
    with pytest.raises(UserError, match="no denoiser"):
        model.nelbo(language.sample(2, generator(1)), generator(1))


def test_weight_names_start_with_the_denoiser_prefix() -> None:
    """The prefix separates the weights of the denoiser from those of the process."""
    model = random_network("mdlm", skewed_chain(V, L))
    assert isinstance(model.denoiser, nn.Module)
    assert all(name.startswith("denoiser.") for name in model.state_dict())
