"""Seeds of rows: a sequence is the same whether it is sampled alone or together with others."""

import pytest
import torch

import logosphere as ls
from logosphere.codecs.base import HIDDEN
from logosphere.errors import UserError
from logosphere.rng import CounterNoise, RowSeeds, as_generator, draw_key
from logosphere.sampling.finished import count_finished, keeps_tokens
from logosphere.sampling.generate import generate
from logosphere.sampling.loop import Frame
from logosphere.sampling.registry import SAMPLERS, choose_sampler

LENGTH, VOCABULARY = 12, 7
SEEDS = ((3, 1), (11, 2), (5, 1))
"""Seed and number of sequences of each request."""
SYSTEMS = ["mdlm", "ar", "udlm", "gidd", "rdlm", "sedd-absorb", "genmd4", "diffusion-lm", "bfn", "d3pm-uniform"]

BLOCKWISE = {"sdar", "fast-dllm", "fast-dllm-v2"}
"""Samplers whose blocks begin after the prompt, so that only sequences with equal prompts are sampled together."""
NEED_MORE = {"g-star", "euler-tencdm", "euler-cosmos", "ddpm-ld4lg", "ddim-planner"}
"""Samplers of systems with a second network."""


def make_model(system: str) -> ls.Model:
    torch.manual_seed(0)
    model = ls.build(system, vocab_size=VOCABULARY, length=LENGTH, width=16, depth=1, heads=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_noise_of_rows_is_that_of_their_own_batches() -> None:
    seeds = RowSeeds.of((3, 2), (8, 3))
    together = seeds.noise(torch.device("cpu")).for_step(4)
    parts = []
    for seed, count in ((3, 2), (8, 3)):
        index = torch.arange(count)
        key = draw_key(as_generator(seed, torch.device("cpu")))
        parts.append(CounterNoise(key, 0, index, index, count).for_step(4))
    assert torch.equal(together.uniform(5, 6), torch.cat([p.uniform(n, 6) for p, n in zip(parts, (2, 3), strict=True)]))
    assert torch.equal(
        together.normal(5, 300), torch.cat([p.normal(n, 300) for p, n in zip(parts, (2, 3), strict=True)])
    )
    where = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    packed = together.for_positions(where).uniform(int(where.sum()))
    halves = [parts[0].for_positions(where[:2]), parts[1].for_positions(where[2:])]
    counts = [int(where[:2].sum()), int(where[2:].sum())]
    assert torch.equal(packed, torch.cat([h.uniform(n) for h, n in zip(halves, counts, strict=True)]))
    kept = torch.tensor([1, 3])
    assert torch.equal(together.select(kept).for_step(2).uniform(2, 3), together.for_step(2).uniform(5, 3)[kept])


def test_times_of_rows_are_those_of_batches_of_one() -> None:
    times = RowSeeds((3, 9), (0, 0)).noise(torch.device("cpu")).low_discrepancy_times(4, 2)
    assert times.shape == (2, 4, 2) and bool(((times > 0) & (times < 1)).all())
    for row, seed in enumerate((3, 9)):
        index = torch.arange(1)
        alone = CounterNoise(draw_key(as_generator(seed, torch.device("cpu"))), 0, index, index, 1)
        assert torch.equal(alone.low_discrepancy_times(4, 2)[0], times[row])


def test_another_number_of_seeds_is_refused() -> None:
    with pytest.raises(UserError, match="a seed for each of 2 sequences, not 3"):
        generate(make_model("mdlm"), n=2, steps=2, rng=RowSeeds.of((0, 3)))


@pytest.mark.parametrize("system", SYSTEMS)
def test_sequences_do_not_depend_on_their_batch(system: str) -> None:
    model = make_model(system)
    together = generate(model, n=4, steps=6, rng=RowSeeds.of(*SEEDS)).tokens
    alone = torch.cat([generate(model, n=count, steps=6, rng=seed).tokens for seed, count in SEEDS])
    assert torch.equal(together, alone)
    assert len({tuple(row) for row in together.tolist()}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SAMPLERS))
def test_sequences_do_not_depend_on_their_batch_for_any_sampler(name: str) -> None:
    """With known positions that differ, so that sequences finish at different steps."""
    supported = 0
    for system in ("mdlm", "udlm", "gidd", "ar", "rdlm", "diffusion-lm", "gaussian-ce", "cdcd", "fisher-flow", "bfn"):
        model = make_model(system)
        try:
            generate(model, steps=8, sampler=name)
        except UserError:
            continue
        supported += 1
        rng = torch.Generator().manual_seed(1)
        prefixes = torch.randint(0, 6, (4, 1), generator=rng) * (name not in BLOCKWISE)
        known, tokens = torch.arange(LENGTH) < prefixes, torch.randint(VOCABULARY, (4, LENGTH), generator=rng)
        together = generate(model, n=4, steps=8, rng=RowSeeds.of(*SEEDS), known=known, tokens=tokens, sampler=name)
        row = 0
        for seed, count in SEEDS:
            part = slice(row, row + count)
            alone = generate(model, n=count, steps=8, rng=seed, known=known[part], tokens=tokens[part], sampler=name)
            assert torch.equal(together.tokens[part], alone.tokens), (system, seed)
            row += count
    assert supported or name in NEED_MORE


@pytest.mark.parametrize(
    ("system", "sampler"),
    [
        ("mdlm", "auto"), ("mdlm", "confidence"), ("mdlm", "left-to-right"), ("mdlm", "remdm-cap"), ("mdlm", "dream"),
        ("mdlm", "first-hitting"), ("ar", "auto"), ("udlm", "auto"), ("gidd", "self-correcting"), ("rdlm", "auto"),
        ("diffusion-lm", "auto"), ("genmd4", "auto"),
    ],
)  # fmt: skip
def test_finished_tokens_never_change(system: str, sampler: str) -> None:
    model = make_model(system)
    keeps = keeps_tokens(model, choose_sampler(model, sampler))
    frames = list[tuple[list[int], list[list[int]]]]()

    def see(frame: Frame) -> bool:
        frames.append((count_finished(frame, model, keeps=keeps).tolist(), frame.tokens.tolist()))
        return False

    drawn = generate(model, n=3, steps=8, rng=0, sampler=sampler, until=see).tokens.tolist()
    for counts, tokens in frames:
        for row, count in enumerate(counts):
            assert tokens[row][:count] == drawn[row][:count]
    assert frames[-1][0] == [LENGTH] * 3
    if sampler == "left-to-right" or system == "ar":
        assert [counts[0] for counts, _ in frames] == list(range(1, LENGTH + 1))
    if sampler in ("confidence", "first-hitting"):
        assert any(0 < count < LENGTH for counts, _ in frames for count in counts)


def test_sampling_ends_early() -> None:
    model = make_model("ar")
    whole = generate(model, n=2, steps=8, rng=0)
    part = generate(model, n=2, steps=8, rng=0, until=lambda frame: frame.step == 5)
    assert torch.equal(part.tokens[:, :5], whole.tokens[:, :5]) and bool((part.tokens[:, 5:] == HIDDEN).all())
    assert part.nfe == 5 and whole.nfe == LENGTH
