"""Sample metrics: values computed by hand, and scorers that agree with their models."""

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_languages import generator, skewed_chain
from toy_models import random_network

from logosphere.data.tokenizers import CharacterTokenizer, WithEOS, text8_tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.sample_metrics import (
    MAUVE_TEXTS,
    METRICS,
    distinct_rate,
    encoder_mauve,
    extract_ngrams,
    find_metrics,
    frontier_area,
    kmeans,
    known_word_rate,
    mauve,
    measure_samples,
    ngram_divergence,
    ngram_features,
    repetition_rate,
    scorer_metric,
    token_entropies,
)
from logosphere.evaluation.scorers import ModelScorer, load_hub_scorer, load_smollm2
from logosphere.evaluation.texts import MetricValue, Reference, SuffixArray, Texts


def texts(*strings: str) -> Texts:
    tokenizer = text8_tokenizer()
    return Texts.from_tokens(torch.stack([torch.from_numpy(tokenizer.encode(text)) for text in strings]), tokenizer)


def reference(train: str, *real: str) -> Reference:
    return Reference(text8_tokenizer(), text8_tokenizer().encode(train), texts(*real))


def test_mean_has_its_standard_error() -> None:
    value = MetricValue.mean(torch.tensor([1.0, 2.0, 3.0]))
    assert value.value == 2 and value.error == pytest.approx(1 / math.sqrt(3))
    assert math.isnan(MetricValue.mean(torch.tensor([1.0])).error)


def test_entropy_of_tokens_within_a_sample() -> None:
    tokens = torch.tensor([[3, 3, 3, 3], [0, 1, 2, 3], [0, 0, 1, 1]])
    assert token_entropies(tokens).tolist() == pytest.approx([0, 2, 1])


def test_distinct_rate_is_over_all_samples_and_repetition_rate_within_one() -> None:
    tokens = torch.tensor([[0, 1, 0, 1, 0], [0, 1, 0, 1, 2]])
    assert distinct_rate(tokens, 2) == pytest.approx(3 / 8)  # 01, 10, 12 of 8
    assert repetition_rate(tokens, 2).tolist() == pytest.approx([1 - 2 / 4, 1 - 3 / 4])
    assert distinct_rate(tokens, 9) == 1.0  # n-grams longer than the sample are the whole sample


def test_words_at_the_edges_are_not_counted() -> None:
    known = frozenset({"the", "cat", "sat"})
    assert known_word_rate("xx the cat zat yy", known) == pytest.approx(2 / 3)
    assert known_word_rate("the cat", known) == 0.0


def brute_force_matches(row: list[int], text: list[int]) -> list[int]:
    def occurs(part: list[int]) -> bool:
        return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))

    return [max(n for n in range(len(row) - i + 1) if occurs(row[i : i + n])) for i in range(len(row))]


@pytest.mark.parametrize("letters, length", [(1, 30), (2, 60), (5, 200), (3, 2)])
def test_longest_matches_equal_brute_force(letters: int, length: int) -> None:
    rng = np.random.default_rng(letters)
    text = rng.integers(0, letters, length)
    suffixes = SuffixArray.build(text, 12)
    for _ in range(5):
        row = rng.integers(0, letters + 1, 12)
        assert suffixes.longest_matches(row).tolist() == brute_force_matches(row.tolist(), text.tolist())


def test_memorised_text_is_detected() -> None:
    real = "a quick brown fox jumps over it"
    known = reference("once upon a time there was a king who had a son " * 2, real)
    copied, fresh = texts("upon a time there was a king wh"), texts("zqzqzqxjxjxjvkvkvkzqxjvkzzqqxxj")
    figures = measure_samples(copied, known, find_metrics(["memorised", "longest-copy"]))
    assert figures["memorised"].value == 1.0 and figures["longest-copy"].value == 31
    figures = measure_samples(fresh, known, find_metrics(["memorised", "longest-copy"]))
    assert figures["memorised"].value == 0.0 and figures["longest-copy"].value <= 1


def test_ngram_divergence_is_the_formula() -> None:
    samples = extract_ngrams(torch.tensor([0, 0, 1]), 1)
    real = extract_ngrams(torch.tensor([0, 1, 1, 1]), 1)
    q = [0.9 * 0.25 + 0.1 / 3, 0.9 * 0.75 + 0.1 / 3]
    by_hand = 2 / 3 * math.log2(2 / 3 / q[0]) + 1 / 3 * math.log2(1 / 3 / q[1])
    assert ngram_divergence(samples, real, 3, smoothing=0.1) == pytest.approx(by_hand)
    unseen = extract_ngrams(torch.tensor([2, 2]), 1)
    assert ngram_divergence(unseen, real, 3, smoothing=0.1) == pytest.approx(math.log2(30))


def test_frontier_area_is_the_formula() -> None:
    """Equal distributions: 1. Disjoint ones: KL(p || r) = -log λ, so x = (1-λ)^c, y = λ^c, area B(c, c+1) c."""
    p, q = torch.tensor([0.5, 0.5, 0.0, 0.0]).double(), torch.tensor([0.0, 0.0, 0.5, 0.5]).double()
    assert frontier_area(p, p) == pytest.approx(1.0)
    beta = math.gamma(5) * math.gamma(6) / math.gamma(11)
    assert frontier_area(p, q) == pytest.approx(5 * beta, abs=1e-3)
    assert frontier_area(p, q) < frontier_area(p, 0.7 * p + 0.3 * q) < 1
    assert frontier_area(p, 0.7 * p + 0.3 * q) == pytest.approx(frontier_area(0.7 * p + 0.3 * q, p), abs=1e-3)


def test_kmeans_finds_separated_clusters() -> None:
    rng = generator(1)
    points = torch.randn(60, 3, generator=rng).double() * 0.1
    points[20:40, 0] += 10
    points[40:, 1] += 10
    found = kmeans(points, 3, generator(2))
    assert [len(found[i : i + 20].unique()) for i in (0, 20, 40)] == [1, 1, 1] and len(found.unique()) == 3


def test_ngram_mauve_distinguishes_languages() -> None:
    one, other = skewed_chain(8, 32, seed=1), skewed_chain(8, 32, seed=9)
    real, same, different = one.sample(60, generator(1)), one.sample(60, generator(2)), other.sample(60, generator(3))
    assert ngram_features(real).norm(dim=1).tolist() == pytest.approx([2.0] * 60)  # four orders of length 1 each
    points = ngram_features(real)
    assert mauve(ngram_features(same), points, generator(4)).value > 0.7 > 0.3
    assert mauve(ngram_features(different), points, generator(4)).value < 0.3


def test_the_error_of_mauve_is_its_deviation_over_samples() -> None:
    """The bootstrap error is the standard deviation over independent samples, within a factor of two."""
    language, other = skewed_chain(8, 32, seed=1), skewed_chain(8, 32, seed=2)
    found = []
    for seed in range(12):
        samples, real = other.sample(100, generator(seed)), language.sample(100, generator(100 + seed))
        found.append(mauve(ngram_features(samples), ngram_features(real), generator(4)))
    spread = float(torch.tensor([one.value for one in found]).std())
    error = sum(one.error for one in found) / len(found)
    assert spread / 2 < error < 2 * spread
    again = mauve(ngram_features(samples), ngram_features(real), generator(4))
    assert again == found[-1]  # the same seed gives the same error


def test_mauve_needs_enough_texts() -> None:
    few = texts(*["abcd"] * (MAUVE_TEXTS - 1))
    with pytest.raises(UserError, match=f"frontier needs at least {MAUVE_TEXTS} .* not {MAUVE_TEXTS - 1}"):
        measure_samples(few, reference("abcd" * 9, *["abcd"] * MAUVE_TEXTS), find_metrics(["frontier"]))
    with pytest.raises(UserError, match="not 3"):
        measure_samples(
            texts(*["abcd"] * MAUVE_TEXTS), reference("abcd" * 9, *["abcd"] * 3), find_metrics(["frontier"])
        )


def test_encoder_mauve_depends_on_the_encoder() -> None:
    """An encoder that only counts letters cannot distinguish anagrams; n-grams can."""

    def counts(strings: Sequence[str]) -> torch.Tensor:
        return torch.tensor([[float(text.count(letter)) for letter in "abcdefgh"] for text in strings])

    real = ["aabb", "ccdd", "eeff", "gghh"] * 5
    metric, reversed_texts = encoder_mauve("letters", counts), texts(*(text[::-1] for text in real))
    held_out = reference("abcdefgh", *real)
    assert metric.measure(reversed_texts, held_out).value == pytest.approx(1.0)
    assert metric.measure(texts(*["aaaa"] * 20), held_out).value < 0.5
    assert find_metrics(["frontier"])[-1].measure(reversed_texts, held_out).value < 0.9


def test_overlap_counts_short_ngrams_without_padding() -> None:
    letters = WithEOS(CharacterTokenizer("abcdef"))
    end = letters.eos
    rows = torch.tensor([[0, 1, 2, 3, 4, end, end, end, end, end], [5, 5, 0, 1, 2, 3, end, end, end, end]])
    held = Reference(letters, letters.encode("abcdeabcd"), Texts.from_tokens(rows, letters))
    value = measure_samples(Texts.from_tokens(rows, letters), held, find_metrics(["overlap-4"]))["overlap-4"]
    assert value.value == pytest.approx((2 / 2 + 1 / 3) / 2)


def test_every_metric_is_best_for_the_reference_text() -> None:
    train = "the cat sat on the mat and the dog sat on the log " * 4
    real = (train[:40], train[40:80]) * (MAUVE_TEXTS // 2)
    figures = measure_samples(texts(*real), reference(train, *real), METRICS)
    assert figures["spelling"].value == 1 and figures["memorised"].value == 1 and figures["frontier"].value == 1
    assert set(figures) == {metric.name for metric in METRICS} and all(
        map(math.isfinite, (f.value for f in figures.values()))
    )


def test_an_unknown_metric_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="'spelling'"):
        find_metrics(["speling"])
    assert [metric.name for metric in find_metrics(["spelling"])] == ["entropy", "spelling"]


LANGUAGE = skewed_chain(4, 6)
LETTERS = CharacterTokenizer("abcd")


def test_model_scorer_gives_the_likelihood_of_its_model() -> None:
    model = random_network("ar", LANGUAGE)
    tokens = LANGUAGE.sample(20, generator(5))
    scorer = ModelScorer(model, LETTERS, "ours", "letters")
    strings = [LETTERS.decode(row) for row in tokens.numpy()]
    nats = model.nelbo(tokens, generator(0)).total.double()
    score = scorer.score(strings)
    assert list(score.nats) == pytest.approx(nats.tolist(), abs=1e-5)
    assert score.value == pytest.approx(float(nats.sum()) / 120 / math.log(2))
    assert score.error == pytest.approx(float(nats.std()) / math.sqrt(20) / 6 / math.log(2))
    metric = scorer_metric(scorer)
    assert (
        metric.measure(
            Texts.from_tokens(tokens, LETTERS),
            Reference(LETTERS, tokens.flatten().numpy(), Texts.from_tokens(tokens, LETTERS)),
        ).value
        == score.value
    )


def test_texts_of_other_lengths_are_split_and_padded() -> None:
    """Nine letters are split into windows of six and three; padding costs nothing."""
    scorer = ModelScorer(random_network("ar", LANGUAGE), LETTERS, "ours", "letters")
    whole, first, rest, nothing = scorer.score(["abcdabcda", "abcdab", "cda", ""]).nats
    assert whole == pytest.approx(first + rest, abs=1e-5) and nothing == 0


def test_empty_texts_have_no_score() -> None:
    """A model that generates empty texts must not rank first."""
    scorer = ModelScorer(random_network("ar", LANGUAGE), LETTERS, "ours", "letters")
    assert math.isnan(scorer.score(["", ""]).value)
    assert scorer.score(["abcdab", "", ""]).value == scorer.score(["abcdab"]).value


def test_a_scorer_needs_an_exact_likelihood() -> None:
    with pytest.raises(UserError, match="--system ar"):
        ModelScorer(random_network("mdlm", LANGUAGE), LETTERS, "ours", "letters")


@pytest.mark.skipif(find_spec("transformers") is not None, reason="the extra is installed")
def test_a_scorer_of_a_missing_extra_is_refused() -> None:
    with pytest.raises(UserError, match=r"logosphere\[hf\]"):
        load_hub_scorer("gpt2")


@pytest.mark.filterwarnings("ignore")  # transformers emits its own warnings
def test_a_transformers_scorer_counts_every_token(tmp_path: Path) -> None:
    """A tiny model: its bits are the cross-entropies of all tokens, the first one given the start symbol."""
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2, "c": 3, "?": 4}, unk_token="?"))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token="<s>").save_pretrained(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=5, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0)
        model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    scorer = load_hub_scorer(str(tmp_path))
    rows = torch.tensor([[0, 1, 2, 3], [0, 3, 3, 1]])
    with torch.no_grad():
        logits = model(rows).logits[:, :-1]
    by_hand = torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none").sum(1)
    score = scorer.score(["abc", "cca"])
    assert list(score.nats) == pytest.approx(by_hand.tolist(), abs=1e-5)
    assert score.value == pytest.approx(float(by_hand.sum()) / 6 / math.log(2), abs=1e-5)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_hub_scorer(str(tmp_path / "nothing"))


@pytest.mark.skipif(find_spec("gguf") is not None and find_spec("accelerate") is not None, reason="the extra is there")
def test_the_bundled_scorer_names_its_missing_extra() -> None:
    with pytest.raises(UserError, match="logosphere"):
        load_smollm2()
