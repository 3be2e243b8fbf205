"""The decoding loops of published models, against direct implementations of their published rules."""

import json

import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from toy_languages import generator, skewed_chain
from toy_models import random_network

import logosphere as ls
from logosphere.cli import main
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.networks.base import CachePlan
from logosphere.rng import GeneratorNoise, categorical
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.generate import generate
from logosphere.sampling.registry import choose_sampler, sampler_info
from logosphere.sampling.steppers.decoding import ConfidenceDecoding, gumbel_max

V, L, PROMPT = 7, 16, 4
MASK = V


@pytest.fixture(scope="module")
def model() -> ls.Model:
    return random_network("mdlm", skewed_chain(V, L))


@pytest.fixture(scope="module")
def prompts() -> torch.Tensor:
    tokens = torch.randint(V, (1, L), generator=generator(5)).expand(3, -1).clone()
    tokens[1:, 1] = torch.tensor([0, 3])
    return tokens


KNOWN = torch.arange(L) < PROMPT


def decode(model: ls.Model, prompts: torch.Tensor, sampler: str, steps: int = 6, temperature: float = 0.0, **options):
    return generate(
        model, len(prompts), steps, generator(1), known=KNOWN, tokens=prompts, sampler=sampler, temperature=temperature,
        decoding=DecodingConfig(**options),
    )  # fmt: skip


# ---- the rules, one sequence at a time -------------------------------------------------------------------------------


def predict(model: ls.Model, x: list[int]) -> torch.Tensor:
    """Logits [L, V] of one sequence with masks; the network does not read the time."""
    z = torch.tensor([x])
    with torch.no_grad():
        return model.denoiser(z, (z == MASK).float(), z)[0].double()


def masks_in(x: list[int], block: range) -> list[int]:
    return [i for i in block if x[i] == MASK]


def blocks_of(first: int, end: int, size: int) -> list[range]:
    return [range(start, start + size) for start in range(first, end, size)]


def reference_llada(model, prompt: list[int], steps: int, gen_length: int, block_length: int, cfg_scale=0.0):
    x = prompt + [MASK] * gen_length
    blocks = blocks_of(len(prompt), len(x), block_length)
    per_block = steps // len(blocks)
    for block in blocks:
        total = len(masks_in(x, block))
        counts = [total // per_block + (i < total % per_block) for i in range(per_block)]
        for count in counts:
            logits = predict(model, x)
            if cfg_scale:
                hidden = predict(model, [MASK] * len(prompt) + x[len(prompt) :])
                logits = hidden + (cfg_scale + 1) * (logits - hidden)
            p = logits.softmax(-1)
            best = sorted(masks_in(x, block), key=lambda i: -float(p[i].max()))[:count]
            for i in best:
                x[i] = int(logits[i].argmax())
    return x


def reference_dream(model, prompt: list[int], steps: int, alg: str, eps: float):
    x = prompt + [MASK] * (L - len(prompt))
    times = torch.linspace(1, eps, steps + 1, dtype=torch.float64).tolist()
    for step in range(steps):
        t, s = times[step], times[step + 1]
        logits, masked = predict(model, x), masks_in(x, range(L))
        count = len(masked) if step == steps - 1 else int(len(masked) * (1 - s / t))
        confidence = {}
        for i in masked:
            p = logits[i].softmax(-1)
            first, second = p.sort(descending=True).values[:2].tolist()
            entropy = float((p * (p + 1e-10).log()).sum())
            confidence[i] = {"maskgit_plus": first, "topk_margin": first - second, "entropy": entropy}[alg]
        for i in sorted(masked, key=lambda i: -confidence[i])[:count]:
            x[i] = int(logits[i].argmax())
    return x


def reference_blocks(model, prompt: list[int], block_length: int, rule):
    """Blocks from left to right; `rule` says which masked positions of a block are committed in a step."""
    x, calls = prompt + [MASK] * (L - len(prompt)), 0
    for block in blocks_of(len(prompt), L, block_length):
        step = 0
        while masked := masks_in(x, block):
            logits = predict(model, x)
            p = logits.softmax(-1)
            chosen = rule({i: float(p[i].max()) for i in masked}, step, block)
            for i in chosen:
                x[i] = int(logits[i].argmax())
            step, calls = step + 1, calls + 1
    return x, calls


def sdar_rule(steps: int, threshold: float, size: int):
    def rule(confidence: dict[int, float], step: int, block: range) -> list[int]:
        due = size // steps + (step < size % steps)
        above = [i for i in confidence if confidence[i] > threshold]
        return above if len(above) >= due else sorted(confidence, key=lambda i: -confidence[i])[:due]

    return rule


def sequential_rule(steps: int, size: int):
    return lambda confidence, step, block: sorted(confidence)[: size // steps + (step < size % steps)]


def threshold_rule(threshold: float, part: int | None = None):
    def rule(confidence: dict[int, float], step: int, block: range) -> list[int]:
        if part is not None:
            place = min((i - block.start) // part for i in confidence)
            confidence = {i: c for i, c in confidence.items() if (i - block.start) // part == place}
        return [i for i in confidence if confidence[i] >= threshold or i == max(confidence, key=confidence.__getitem__)]

    return rule


# ---- equal token by token --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps, gen_length, block_length", [(6, 12, 4), (5, 12, 12), (12, 12, 6), (4, 8, 4), (9, 6, 2)]
)
@pytest.mark.parametrize("sampler", ["llada", "low_confidence"])
def test_llada(model, prompts, steps: int, gen_length: int, block_length: int, sampler: str) -> None:
    drawn = decode(model, prompts, sampler, steps, gen_length=gen_length, block_length=block_length)
    expected = [reference_llada(model, row[:PROMPT].tolist(), steps, gen_length, block_length) for row in prompts]
    assert drawn.tokens.tolist() == expected
    blocks = gen_length // block_length
    assert drawn.nfe == blocks * min(steps // blocks, block_length)


@pytest.mark.parametrize("cfg_scale", [0.5, 2.0])
def test_llada_with_guidance_by_the_prompt(model, prompts, cfg_scale: float) -> None:
    drawn = decode(model, prompts, "llada", 6, gen_length=12, block_length=6, cfg_scale=cfg_scale)
    expected = [reference_llada(model, row[:PROMPT].tolist(), 6, 12, 6, cfg_scale) for row in prompts]
    assert drawn.tokens.tolist() == expected and drawn.nfe == 12


@pytest.mark.parametrize("alg", ["maskgit_plus", "topk_margin", "entropy"])
@pytest.mark.parametrize("steps, eps", [(5, 1e-3), (12, 1e-3), (7, 0.1)])
def test_dream(model, prompts, alg: str, steps: int, eps: float) -> None:
    drawn = decode(model, prompts, "dream", steps, alg=alg, eps=eps)
    assert drawn.tokens.tolist() == [reference_dream(model, row[:PROMPT].tolist(), steps, alg, eps) for row in prompts]
    assert drawn.nfe == steps


THRESHOLDS = [0.15, 0.25, 0.4, 0.9]


def compare(model, prompts, drawn, block_length: int, rule) -> None:
    expected = [reference_blocks(model, row[:PROMPT].tolist(), block_length, rule) for row in prompts]
    assert drawn.tokens.tolist() == [x for x, _ in expected]
    assert drawn.nfe == pytest.approx(sum(calls for _, calls in expected) / len(prompts))


@pytest.mark.thorough
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("steps, size", [(4, 4), (2, 4), (4, 6), (3, 12)])
def test_sdar_commits_by_a_threshold(model, prompts, threshold: float, steps: int, size: int) -> None:
    drawn = decode(model, prompts, "sdar", denoising_steps=steps, block_length=size, threshold=threshold)
    compare(model, prompts, drawn, size, sdar_rule(steps, threshold, size))


@pytest.mark.parametrize("steps, size", [(4, 4), (2, 4), (4, 6)])
def test_sdar_without_a_threshold(model, prompts, steps: int, size: int) -> None:
    options = {"denoising_steps": steps, "block_length": size}
    drawn = decode(model, prompts, "sdar", remasking="low_confidence_static", **options)
    compare(model, prompts, drawn, size, sdar_rule(steps, 1.0, size))
    drawn = decode(model, prompts, "sdar", remasking="sequential", **options)
    compare(model, prompts, drawn, size, sequential_rule(steps, size))


@pytest.mark.thorough
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_fast_dllm(model, prompts, threshold: float) -> None:
    drawn = decode(model, prompts, "fast-dllm", block_length=6, threshold=threshold)
    compare(model, prompts, drawn, 6, threshold_rule(threshold))
    drawn = decode(model, prompts, "fast-dllm-v2", block_length=6, threshold=threshold, small_block_size=2)
    compare(model, prompts, drawn, 6, threshold_rule(threshold, part=2))


# ---- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler, options, steps",
    [
        ("llada", {"remasking": "random", "block_length": 3}, 3),
        ("llada", {"remasking": "random", "block_length": 1}, 3),
        ("dream", {"alg": "origin", "eps": 1e-3}, 64),
    ],
)
def test_positions_in_random_order_sample_the_language(sampler: str, options: dict, steps: int) -> None:
    language = skewed_chain(3, 3)
    model = ls.build("mdlm", vocab_size=3, length=3, denoiser=None)
    drawn = ls.sample(
        model, 2000, steps, generator(4), Oracle(model, language), sampler=sampler, decoding=DecodingConfig(**options)
    )
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


def test_gumbel_noise_in_float64_draws_from_the_softmax() -> None:
    logits, temperature, n = torch.tensor([1.0, -0.5, 0.3, -3.0]), 0.7, 40_000
    p = (logits.double() / temperature).softmax(-1)
    for drawn in (
        gumbel_max(logits.expand(n, -1), temperature, GeneratorNoise(generator(6), n)),
        categorical(logits.expand(n, -1) / temperature, GeneratorNoise(generator(7), n).uniform(n)),
    ):
        counts = torch.bincount(drawn, minlength=4).double()
        assert float(((counts - n * p) ** 2 / (n * p)).sum()) < 21.1  # the 0.9999 quantile of chi-square, 3 degrees


@pytest.mark.parametrize(
    "sampler", ["llada", "dream", "sdar", "fast-dllm", "fast-dllm-v2", "ancestral", "first-hitting"]
)
def test_known_positions_never_change(model, prompts, sampler: str) -> None:
    known = KNOWN.clone()
    known[9] = True
    drawn = generate(
        model, 3, 5, generator(2), known=known, tokens=prompts, sampler=sampler, decoding=DecodingConfig(block_length=4)
    )
    assert torch.equal(drawn.tokens[:, known], prompts[:, known]) and int(drawn.tokens.max()) < V


def test_options_that_change_nothing(model, prompts) -> None:
    how = {"steps": 6, "temperature": 0.8, "gen_length": 12}
    plain = decode(model, prompts, "llada", **how)
    for options in ({"cfg_scale": 0.0}, {"block_length": 12}):
        same = decode(model, prompts, "llada", **how, **options)
        assert torch.equal(same.tokens, plain.tokens) and same.nfe == plain.nfe
    assert not torch.equal(decode(model, prompts, "llada", **how, cfg_scale=3.0).tokens, plain.tokens)
    assert decode(model, prompts, "ancestral", temperature=1.0, gen_length=5).tokens.shape == (3, PROMPT + 5)


def test_samplers_without_options_are_as_before(model) -> None:
    given = ls.sample(model, 3, 8, generator(1), sampler="llada", decoding=DecodingConfig())
    assert torch.equal(given, ls.sample(model, 3, 8, generator(1), sampler="llada"))


def test_tokens_are_excluded_or_delayed(model, prompts) -> None:
    plain = decode(model, prompts, "llada", 12, gen_length=12).tokens[:, PROMPT:]
    token = int(plain.flatten().mode().values)
    how = {"known": KNOWN, "tokens": prompts}
    excluding = ConfidenceDecoding(excluded=(token,), temperature=0.0)
    assert not (generate(model, 3, 12, stepper=excluding, **how).tokens[:, PROMPT:] == token).any()
    frames: list[torch.Tensor] = []
    delaying = ConfidenceDecoding(delayed=(token,), greedy=True)
    generate(model, 3, 12, stepper=delaying, watch=lambda frame: frames.append(frame.z.clone()), **how)
    for row in range(3):  # one token a step: when the first delayed one is committed, all predictions are delayed ones
        last = frames[-1][row, PROMPT:]
        order = [int((frame[row, PROMPT:] == MASK).sum()) for frame in frames]
        assert order == list(range(11, -1, -1)) and len(last) == 12
        first = next((i for i, frame in enumerate(frames) if (frame[row, PROMPT:] == token).any()), None)
        if first is not None:
            before = frames[first - 1] if first else torch.full_like(frames[0], MASK)
            logits = predict(model, [*prompts[row, :PROMPT].tolist(), *before[row, PROMPT:].tolist()])
            masked = before[row] == MASK
            masked[:PROMPT] = False
            assert (logits[masked].argmax(-1) == token).all()


# ---- models with blocks, names and bad input -------------------------------------------------------------------------


def test_blocks_of_the_model_are_decoded_one_after_another(prompts) -> None:
    model = random_network("bd3lm", skewed_chain(V, L), block=4)
    drawn = decode(model, prompts, "sdar", gen_length=6)
    assert drawn.tokens.shape == (3, 10) and torch.equal(drawn.tokens[:, :PROMPT], prompts[:, :PROMPT])
    assert int(drawn.tokens.max()) < V
    with pytest.raises(UserError, match="does not divide the blocks of this model"):
        decode(model, prompts, "sdar", block_length=3)


def test_names_of_other_packages(model) -> None:
    assert sampler_info("topk_margin").name == "dream" and sampler_info("low_confidence_dynamic").name == "sdar"
    assert (
        choose_sampler(model, "maskgit-plus").stepper
        == choose_sampler(model, "dream", DecodingConfig(alg="maskgit_plus")).stepper
    )
    assert choose_sampler(model, config=DecodingConfig(alg="entropy")).stepper.confidence == "entropy"


@pytest.mark.parametrize(
    "sampler, options, message",
    [
        ("llada", {"block_length": 5}, "does not divide"),
        ("llada", {"gen_length": 13}, "at most 16; ask for gen_length=12"),
        ("llada", {"gen_length": 12, "block_length": 5}, "does not divide gen_length=12"),
        ("llada", {"alg": "entropy"}, "alg belongs to the sampler dream, not to llada"),
        ("llada", {"remasking": "sequential"}, "remasking belongs to the sampler sdar"),
        ("topk-margin", {"alg": "entropy"}, "leave out one of the two"),
        ("sdar", {"threshold": 1.5}, "above 0 and at most 1"),
        ("dream", {"eps": 0.0}, "above 0 and below 1"),
        ("dream", {"alg_temp": -1.0}, "at least 0"),
        ("llada", {"cfg_scale": -1.0}, "cfg_scale must be finite and at least 0"),
        ("llada", {"block_length": 0}, "at least 1"),
        ("llada", {"cache_refresh": 2}, "needs a cache"),
        ("left-to-right", {"block_length": 4}, "blocks of its own"),
        ("ladda", {"block_length": 4}, "llada"),
    ],
)  # fmt: skip
def test_bad_input(model, prompts, sampler: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        decode(model, prompts, sampler, **options)


def test_more_bad_input(model, prompts) -> None:
    with pytest.raises(UserError, match="choose it by name"):
        ls.sample(model, 1, sampler=ls.sampler("llada", model), decoding=DecodingConfig(threshold=0.5))
    with pytest.raises(UserError, match="give a prompt"):
        ls.sample(model, 1, sampler="llada", decoding=DecodingConfig(cfg_scale=1.0))
    with pytest.raises(UserError, match="raise gen_length"):
        known = KNOWN | (torch.arange(L) == 12)
        generate(model, 3, known=known, tokens=prompts, decoding=DecodingConfig(gen_length=4))
    with pytest.raises(UserError, match="states are tokens"):
        ls.sample(
            ls.build("plaid", vocab_size=5, length=8, width=16, depth=1, heads=1), decoding=DecodingConfig(gen_length=4)
        )
    with pytest.raises(UserError, match="temperature"):
        decode(model, prompts, "ancestral", temperature=0.0, block_length=4)


def test_unknown_values_are_refused() -> None:
    config = DecodingConfig()
    object.__setattr__(config, "remasking", "highest")
    with pytest.raises(UserError, match="remasking must be one of low_confidence, random"):
        config.check()


# ---- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("sampler", ["llada", "fast-dllm"])
@pytest.mark.parametrize("system", ["mdlm", "md4"])
def test_a_cache_that_is_refreshed_in_every_step_is_exact(prompts, cache: str, sampler: str, system: str) -> None:
    model = random_network(system, skewed_chain(V, L))
    how = {"steps": 12, "gen_length": 12, "block_length": 4, "temperature": 0.7}
    exact = decode(model, prompts, sampler, **how)
    cached = decode(model, prompts, sampler, **how, cache=cache, cache_refresh=1)
    assert torch.equal(cached.tokens, exact.tokens) and cached.nfe == exact.nfe


@pytest.mark.parametrize("dual", [False, True])
def test_what_a_cache_keeps(model, dual: bool) -> None:
    """The first evaluation of a block is exact; later ones are a function of what the cache says they see."""
    plan = CachePlan((4, 8, 12), dual)
    session = model.denoiser.with_cache(plan)
    z = torch.randint(V, (3, L), generator=generator(8))
    z[:, 8:] = MASK
    where = torch.zeros(3, L).bool()
    where[:, 8:12] = True
    t = (z == MASK).float()
    with torch.no_grad():
        torch.testing.assert_close(session(z, t, z, where), model.denoiser(z, t, z, where))
        later, before, after = z.clone(), z.clone(), z.clone()
        later[:, 8] = 3
        before[:, 2], after[:, 14] = (before[:, 2] + 1) % V, 1
        before[:, 8], after[:, 8] = 3, 3
        found = session(later, t, later, where)
        exact = model.denoiser(later, t, later, where)
        assert not torch.equal(found, exact), "positions outside of the block are those of the first evaluation"
        torch.testing.assert_close(session(before, t, before, where), found)  # the prefix is not read again
        assert torch.allclose(session(after, t, after, where), found) == dual  # the suffix is, but for a dual cache
        torch.testing.assert_close(
            session.select_rows(torch.tensor([False, True, True]))(later[1:], t[1:], later[1:], where[1:]), found[4:]
        )


def test_caches_are_refused_where_there_are_none(prompts) -> None:
    convolutional = random_network("mdlm", skewed_chain(V, L), body="convolution")
    with pytest.raises(UserError, match="no cache of keys and values"):
        decode(convolutional, prompts, "llada", block_length=4, cache="dual")


def test_caches_of_models_with_blocks_are_exact(prompts) -> None:
    model = random_network("bd3lm", skewed_chain(V, L), block=4)
    exact = decode(model, prompts, "sdar", temperature=0.8)
    assert torch.equal(decode(model, prompts, "sdar", temperature=0.8, cache="prefix").tokens, exact.tokens)


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_decoding_options_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["sample", "pretrained:mdlm", "-n", "2", "--prompt", "the ", "--temperature", "0", "--json"]
    options = ["--gen-length", "16", "--block-length", "8", "--steps", "16"]
    found = []
    for more in ([], ["--cache", "dual"]):
        assert main([*argv, "--sampler", "llada", *options, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    exact, cached = found
    assert exact["nfe"] == cached["nfe"] == 16 and "approximation" not in exact
    assert cached["cache"] == "dual" and "approximate" in cached["approximation"]
    assert all(len(sample["tokens"]) == 20 and sample["text"][:4] == "the " for sample in exact["samples"])
    assert main([*argv, "--length", "30", "--gen-length", "8"]) != 0 and "Give either" in capsys.readouterr().err
    assert main([*argv, "--alg", "entropy", "--sampler", "sdar"]) != 0 and "dream" in capsys.readouterr().err
