"""Classifiers: training, checkpoints and guidance, by edits of discrete states or gradients of continuous ones."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from toy_languages import generator
from toy_models import SMALL, System

import logosphere as ls
from logosphere import UserError
from logosphere.cli import main
from logosphere.data.languages import Oracle
from logosphere.networks.config import NetworkConfig
from logosphere.rng import GeneratorNoise
from logosphere.sampling.classifier_checkpoint import ClassifierCheckpoint
from logosphere.sampling.guidance import DiscreteClassifierGuidance, Gradients
from logosphere.training.auxiliary import _noisy_states, measure_classifier

V, L, N = 4, 4, 300
LANGUAGE = ls.languages.independent([0.25] * V, L)
TINY = NetworkConfig(width=32, depth=1, heads=2)


def labelled(count: int, first: int = 0) -> Iterator[ls.Batch]:
    """The label, zero or one, is the most frequent token."""
    for seed in range(first, first + count):
        labels = torch.randint(2, (64,), generator=generator(seed))
        own = torch.rand(64, L, generator=generator(seed + 10**6)) < 0.5
        anything = torch.randint(V, (64, L), generator=generator(seed + 2 * 10**6))
        tokens = torch.where(own, labels[:, None], anything)
        yield ls.Batch.of(tokens, condition=ls.Condition.of(labels=labels))


@torch.no_grad()
def optimal_nats(model: ls.Model, batches: Iterator[ls.Batch]) -> float:
    """-log p(y | z) by Bayes, at the states of `measure_classifier`: tokens and noise are independent given y."""
    frequencies = (torch.eye(2, V) + 1 / V).double() / 2
    noise, nats = generator(0), []
    for batch in batches:
        z, t = _noisy_states(model, batch, GeneratorNoise(noise, len(batch)))
        joint = model.process.log_likelihood(z, t)[:, :, None, :V].double() + frequencies.log()
        labels = batch.condition.labels
        nats.append(F.cross_entropy(joint.logsumexp(-1).sum(1), labels))
    return float(torch.stack(nats).mean())


def exact(name: str, **options: object) -> ls.Model:
    """A model with the exact posterior of the mixture of both labels."""
    model = System(name, options).model(LANGUAGE)
    model.denoiser = Oracle(model, LANGUAGE)
    return model


def new_checkpoint(model: ls.Model, network: NetworkConfig = TINY) -> ClassifierCheckpoint:
    torch.manual_seed(1)
    return ClassifierCheckpoint.fresh(model, ["zero", "one"], network)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mdlm", "udlm", "genmd4", "ar", "rdlm-heat", "bfn", "diffusion-lm"])
def test_classifier_trains_and_guides(name: str) -> None:
    """Without guidance zeros and ones are equally frequent; stronger guidance gives more ones."""
    model = exact(name)
    checkpoint = new_checkpoint(model)
    list(
        ls.train_classifier(
            checkpoint.classifier, model, labelled(80), steps=80, optim=ls.OptimizerConfig(lr=5e-3, warmup=5)
        )
    )
    nats, right = measure_classifier(checkpoint.classifier, model, labelled(8, first=500))
    assert -0.005 < nats - optimal_nats(model, labelled(8, first=500)) < 0.04 and right > 0.65
    plain = ls.generate(model, N, 16, generator(5))
    more = []
    for strength in (0.0, 1.0, 10.0):
        drawn = ls.generate(model, N, 16, generator(5), guide=checkpoint.guide(model, "one", N, strength))
        more.append(float((drawn.tokens == 1).float().mean() - (drawn.tokens == 0).float().mean()))
        if strength == 0:  # the classifier is not evaluated
            assert torch.equal(drawn.tokens, plain.tokens) and drawn.nfe == plain.nfe
        else:
            assert drawn.nfe == 2 * plain.nfe
    assert abs(more[0]) < 0.08 and more[1] > more[0] + 0.03 and more[2] > more[1] + 0.1


def test_classifier_guides_latents() -> None:
    torch.manual_seed(0)
    model = ls.build("ld4lg", vocab_size=V, length=L, **SMALL).eval()
    checkpoint = new_checkpoint(model)
    list(ls.train_classifier(checkpoint.classifier, model, labelled(2), steps=2))
    torch.nn.init.normal_(checkpoint.classifier.head.weight)
    ends: list[torch.Tensor] = []  # latents, because an untrained decoder gives the same text for all of them
    for strength in (None, 0.0, 1.0):
        guide = None if strength is None else checkpoint.guide(model, "one", 8, strength)
        frames: list[ls.Frame] = []
        ls.generate(model, 8, 4, generator(1), guide=guide, watch=frames.append)
        ends.append(frames[-1].z)
    assert torch.equal(ends[0], ends[1]) and not torch.allclose(ends[0], ends[2], atol=1e-3)


def test_block_models_are_classified_at_partially_generated_states() -> None:
    """Earlier blocks are clean, later blocks are noise, and one block is between."""
    model = ls.build("bd3lm", vocab_size=V, length=8, block=2, denoiser=None)
    z, t = _noisy_states(model, ls.Batch.of(torch.zeros(500, 8).long()), GeneratorNoise(generator(1), 500))
    blocks = t[:, ::2]
    assert torch.equal(t[:, 1::2], blocks) and bool((blocks[:, 1:] >= blocks[:, :-1]).all())
    assert int(((blocks > 0) & (blocks < 1)).sum(1).max()) == 1
    assert bool((z[t == 1] == V).all()) and bool((z[t == 0] == 0).all())
    assert abs(float(t.mean()) - 0.5) < 0.01


def test_labels_may_differ_between_sequences() -> None:
    for name, kind in [("mdlm", DiscreteClassifierGuidance), ("rdlm-heat", Gradients)]:
        model = exact(name)
        checkpoint = new_checkpoint(model)
        list(
            ls.train_classifier(
                checkpoint.classifier, model, labelled(60), steps=60, optim=ls.OptimizerConfig(lr=5e-3, warmup=5)
            )
        )
        labels = torch.arange(N) % 2
        drawn = ls.sample(model, N, 16, generator(5), guide=kind(checkpoint.classifier, labels, 10.0))
        ones = (drawn == 1).float().mean(1)
        assert float(ones[labels == 1].mean() - ones[labels == 0].mean()) > 0.15


@pytest.mark.parametrize("name", ["mdlm", "rdlm-heat"])
def test_labels_stay_with_their_sequences_in_adaptive_samplers(name: str) -> None:
    """Adaptive samplers evaluate unfinished sequences only; negligible guidance must not change the samples."""
    model = exact(name, **{"path": "any-order"} if name == "rdlm-heat" else {})
    checkpoint, adaptive = new_checkpoint(model), ls.sampler("threshold", model)
    kind, labels = (DiscreteClassifierGuidance if name == "mdlm" else Gradients), torch.arange(N) % 2
    known = torch.arange(L) < torch.arange(N)[:, None] % L  # sequences with more known tokens finish sooner
    plain, nudged = (
        ls.generate(model, N, 16, generator(5), sampler=adaptive, guide=guide, known=known, tokens=known.long())
        for guide in (None, kind(checkpoint.classifier, labels, 1e-6))
    )
    assert plain.nfe < L
    assert float((plain.tokens == nudged.tokens).float().mean()) > 0.99


@pytest.mark.parametrize("name", ["mdlm", "diffusion-lm"])
def test_classifier_checkpoint_round_trips(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=V, length=L, **SMALL).eval()
    checkpoint = new_checkpoint(model)
    list(ls.train_classifier(checkpoint.classifier, model, labelled(3), steps=3))
    checkpoint.save(tmp_path, model, "abc")
    assert {path.name for path in tmp_path.iterdir()} == {"classifier.json", "classifier.safetensors"}
    again = ClassifierCheckpoint.load(tmp_path, model, "abc")
    assert again.labels == ("zero", "one")
    texts = [
        ls.sample(model, 8, 8, generator(1), guide=one.guide(model, "one", 8, 20.0)) for one in (checkpoint, again)
    ]
    assert torch.equal(*texts)
    larger = ls.build(name, vocab_size=V, length=L, **SMALL | {"width": 32})
    ClassifierCheckpoint.load(tmp_path, larger)  # the network size does not affect the noise


def test_mismatched_classifier_is_refused(tmp_path: Path) -> None:
    model = ls.build("mdlm", vocab_size=V, length=L, **SMALL)
    new_checkpoint(model).save(tmp_path, model, "abc")
    mismatched = {
        "system = mdlm": ls.build("udlm", vocab_size=V, length=L, **SMALL),
        "vocabulary = 4": ls.build("mdlm", vocab_size=V + 1, length=L, **SMALL),
        "length = 4": ls.build("mdlm", vocab_size=V, length=L + 1, **SMALL),
        "options": ls.build("mdlm", vocab_size=V, length=L, schedule="cosine", **SMALL),
    }
    for message, checkpoint_of_other in mismatched.items():
        with pytest.raises(UserError, match=message):
            ClassifierCheckpoint.load(tmp_path, checkpoint_of_other)
    with pytest.raises(UserError, match="another tokenizer"):
        ClassifierCheckpoint.load(tmp_path, model, "xyz")
    with pytest.raises(UserError, match="no classifier"):
        ClassifierCheckpoint.load(tmp_path / "nowhere", model)
    about = json.loads((tmp_path / "classifier.json").read_text())
    for part, wrong, message in [("labels", [1, 2], "label names"), ("network", {"size": 3}, "not describe a network"),
                              ("noise", None, "does not describe")]:  # fmt: skip
        damaged = about | {"classifier": about["classifier"] | {part: wrong}}
        (tmp_path / "classifier.json").write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=message):
            ClassifierCheckpoint.load(tmp_path, model)


def test_invalid_requests_are_refused() -> None:
    mdlm, sphere = exact("mdlm"), exact("rdlm-heat")
    both = new_checkpoint(mdlm), new_checkpoint(sphere)
    with pytest.raises(UserError, match="no label 'two'.*Did you mean|no label 'two'.*Choose"):
        both[0].guide(mdlm, "two", 2)
    with pytest.raises(UserError, match="exact=True needs discrete"):
        both[1].guide(sphere, "one", 2, exact=True)
    with pytest.raises(UserError, match="at least 0"):
        ls.sample(mdlm, 2, 2, guide=both[0].guide(mdlm, "one", 2, -1.0))
    with pytest.raises(UserError, match="at least 0"):
        ls.sample(sphere, 2, 2, guide=both[1].guide(sphere, "one", 2, float("nan")))
    with pytest.raises(UserError, match="continuous"):
        ls.sample(mdlm, 2, 2, guide=Gradients(both[0].classifier, torch.zeros(2).long()))
    with pytest.raises(UserError, match="made by build"):
        mdlm.spec = None
        both[0].save("nowhere", mdlm)
    with pytest.raises(UserError, match="needs the predictions of a denoiser"):
        sphere.denoiser = None
        list(ls.train_classifier(both[1].classifier, sphere, labelled(1), steps=1))


# ---- the command line ------------------------------------------------------------------------------------------

SIZE = ["--network.width", "32", "--network.depth", "1", "--network.heads", "2", "--validations", "1",
        "--validation-sequences", "4"]  # fmt: skip


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ham consists of a, spam of b; and a model trained on both without labels."""
    folder = tmp_path_factory.mktemp("mail")
    rng = generator(0)
    rows = []
    for number in range(400):
        label = number % 2
        letters = torch.where(torch.rand(8, generator=rng) < 0.6, label, torch.randint(4, (8,), generator=rng))
        rows.append({"text": "".join("abcd"[i] for i in letters), "label": ("ham", "spam")[label]})
    (folder / "mail.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "mail.txt").write_text("\n".join(row["text"] for row in rows))
    for system in ("udlm", "plaid"):
        argv = ["--system", system, "--data", f"lines:{folder / 'mail.txt'}", "--length", "8", "--steps", "60"]
        assert main(["train", *argv, "--ema", "0.9", "--optim.lr", "1e-2", *SIZE, "--out", str(folder / system)]) == 0
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["udlm", "plaid"])
def test_command_line_trains_and_guides(system: str, mail: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, data = str(mail / system), ["--data", f"labelled:{mail / 'mail.jsonl'}"]
    argv = ["--steps", "80", "--width", "32", "--depth", "1", "--heads", "2", "--lr", "5e-3", "--json"]
    capsys.readouterr()
    assert main(["train-classifier", run, *data, *argv]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["labels"] == ["ham", "spam"] and result["valid_loss"] < 0.68
    assert main(["train-classifier", run, *data, "--steps", "1", "--out", str(mail / "other")]) == 0
    assert "at random" in capsys.readouterr().err and (mail / "other" / "classifier.json").is_file()
    sample = ["sample", run, "-n", "100", "--steps", "12", "--json"]
    found = []
    for more in ([], ["--strength", "0"], ["--strength", "8"]):
        by = ["--classifier", str(mail / system / "classifier"), "--label", "spam"] if more else []
        assert main([*sample, *by, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    texts = [[one["text"] for one in result["samples"]] for result in found]
    assert texts[0] == texts[1] and found[0]["nfe"] == found[1]["nfe"] and found[2]["nfe"] == 2 * found[0]["nfe"]
    gaps = [sum(text.count("b") - text.count("a") for text in part) / 800 for part in texts]
    assert gaps[2] > gaps[1] + 0.15


@pytest.mark.parametrize(
    "argv, message",
    [
        (["train-classifier", "udlm"], "no labels"),
        (["train-classifier", "udlm", "--steps", "0"], "at least 1"),
        (["train-classifier", "udlm", "--data", "digits"], "other tokens"),
        (["sample", "udlm", "--classifier", "nowhere", "--label", "spam"], "no classifier in nowhere"),
        (["sample", "udlm", "--classifier", "nowhere"], "needs --label"),
        (["sample", "udlm", "--strength", "2"], "need --classifier"),
        (["sample", "udlm", "--exact-edits"], "need --classifier"),
        (["sample", "udlm", "--classifier", "kept", "--label", "spam", "--strength", "-1"], "at least 0"),
        (["sample", "udlm", "--classifier", "kept", "--label", "span"], "Did you mean 'spam'"),
        (["sample", "plaid", "--classifier", "kept", "--label", "spam"], "system = udlm"),
        (["sample", "udlm", "--classifier", "kept", "--label", "spam", "--sampler", "tau-leaping"], "ancestral"),
    ],
)
def test_command_line_errors(
    argv: list[str], message: str, mail: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(mail)
    if "kept" in argv and not Path("kept").exists():
        data = ["--data", "labelled:mail.jsonl", "--steps", "1", "--batch", "4"]
        assert main(["train-classifier", "udlm", *data, "--out", "kept"]) == 0
    if "digits" in argv:
        pytest.importorskip("sklearn")
    capsys.readouterr()
    assert main(argv) == 1
    assert message in capsys.readouterr().err
