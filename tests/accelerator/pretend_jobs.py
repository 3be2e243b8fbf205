"""Jobs that every system has to do on the pretend device. They run in its process (pretend_server.py).

A job raises where the package fails and returns a report. Wherever the package uses counter-based noise, numbers must
equal those of the CPU up to rounding: this detects tensors left on the CPU that no operation happens to mix.
"""

import json
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pretend_device
import torch
from safetensors.torch import save_file
from torch import Tensor

import logosphere as ls
from logosphere.autoencoders import bert, pretrained
from logosphere.cli import main
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.parallel.process_group import ProcessGroup
from logosphere.runs.create import stacks_of_blocks
from logosphere.sampling.registry import SAMPLERS
from logosphere.training.checkpoint import load_checkpoint, save_checkpoint, use_deterministic
from logosphere.training.trainer import Trainer
from logosphere.types import Batch, Condition

V, L, B, LABELS, STEPS = 11, 8, 4, 3, 4
SMALL: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2}
CLOSE = 1e-3
"""Largest relative difference of losses between the devices: attention is summed in another order."""

SAME = 0.75
"""Fraction of sampled tokens that must equal those of the CPU; a draw at the boundary of two tokens may differ."""

Report = dict[str, Any]


def build_model(system: str, preset: str, device: str = "cuda", **options: Any) -> Model:
    """A small model with fixed initial weights."""
    torch.manual_seed(0)
    size: dict[str, Any] = {"vocab_size": V, "length": L} | SMALL
    if (ls.presets(system)[preset].options | options).get("encoder") is not None:
        size["encoder_token_ids"] = list(range(V))  # tokens are the first word pieces of the encoder
    return ls.build(system, preset=preset, **(size | options)).to(device)


@cache
def small_encoder() -> Path:
    """A small untrained encoder with the architecture of minilm, which is a separate package."""
    place = Path(tempfile.mkdtemp())
    config = {
        "hidden_size": 8, "layer_norm_eps": 1e-12, "num_hidden_layers": 6, "vocab_size": 120, "intermediate_size": 16,
        "max_position_embeddings": L + 2, "type_vocab_size": 2, "num_attention_heads": 2,
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    with torch.random.fork_rng(devices=[]):
        tensors = {bert.published_name(name): tensor.clone() for name, tensor in bert.Bert(config).state_dict().items()}
    save_file(tensors, place / "model.safetensors")
    return place


pretrained.minilm_folder = small_encoder


def tokens(seed: int = 0, length: int = L) -> Tensor:
    return torch.randint(V, (B, length), generator=torch.Generator().manual_seed(seed))


def batches(count: int, length: int = L, *, labelled: bool = False) -> list[Batch]:
    """Batches on the CPU, where data comes from."""
    condition = Condition.of(labels=torch.arange(B) % LABELS) if labelled else None
    return [Batch.of(tokens(step, length), first=B * step, condition=condition) for step in range(count)]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def fit_losses(model: Model, steps: int = 2, **settings: Any) -> list[float]:
    """Train for a few steps and return the losses."""
    return [progress.loss for progress in ls.fit(model, batches(steps, model.length), steps=steps, **settings)]


def check_close(found: float | list[float], expected: float | list[float], what: str, tolerance: float = CLOSE) -> None:
    found, expected = torch.tensor(found).double(), torch.tensor(expected).double()
    if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance):
        raise AssertionError(f"{what} is {found.tolist()} on the device and {expected.tolist()} on the CPU")


def check_samples(drawn: Tensor, model: Model) -> None:
    shape = (B, model.length)
    assert drawn.is_cuda and drawn.shape == shape, f"samples are {tuple(drawn.shape)} on {drawn.device}"
    assert 0 <= int(drawn.min()) and int(drawn.max()) < model.vocab_size, "samples that are no tokens"


def train(system: str, preset: str, options: dict[str, Any] | None = None) -> Report:
    """Training, evaluation, saving, loading and resuming, with the numbers of the CPU."""
    options = options or {}
    model, other = build_model(system, preset, **options), build_model(system, preset, "cpu", **options)
    pretend_device.synchronisations.clear()
    losses = fit_losses(model)
    waits = {name: count / 2 for name, count in pretend_device.synchronisations.items() if count}
    check_close(losses, fit_losses(other), "the loss")
    data = [tokens(7, model.length)]
    bits, expected = (ls.evaluate(one, data, draws=2, rng=0).bits for one in (model, other))
    check_close(bits, expected, "the bound", 10 * CLOSE)
    bound = model.nelbo(data[0].cuda(), rng(), draws=2)
    assert bound.total.is_cuda and bool(bound.total.isfinite().all()), f"the bound is {bound.total}"
    model.metrics()
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        loaded = ls.load(folder).to("cuda")
        check_close(ls.evaluate(loaded, data, draws=2, rng=0).bits, bits, "the bound of what was loaded", 1e-9)
    resume(system, preset, options)
    return {"synchronisations per step": waits}


def synchronise(
    system: str, preset: str, done: float = 0.6, static_shapes: bool = False, accumulate: int = 1
) -> Report:
    """How often one training step waits for the device, after two others, and where."""
    model = build_model(system, preset)
    trainer = Trainer(model, ema=0.9, accumulate=accumulate, static_shapes=static_shapes)
    *first, last = batches(3, model.length)
    for batch in first:
        trainer.train_step(batch, done)
    counters = (pretend_device.synchronisations, pretend_device.uploads, pretend_device.places)
    for counter in counters:
        counter.clear()
    trainer.train_step(last, done)
    return dict(zip(("waits", "uploads", "places"), map(dict, counters), strict=True))


def resume(system: str, preset: str, options: dict[str, Any]) -> None:
    """A saved and resumed training takes the same next steps as one that continues."""
    trainings = [Trainer(build_model(system, preset, **options), ema=0.9) for _ in range(2)]
    check_resuming(trainings, trainings[0].model.length)


def check_resuming(trainings: list[Trainer], length: int) -> None:
    """Train the first of two, load its checkpoint into the second, and compare their next steps."""
    with tempfile.TemporaryDirectory() as folder:
        first, *rest = batches(3, length)
        trainings[0].train_step(first, 0.0)
        path = save_checkpoint(Path(folder), trainings[0], {})
        load_checkpoint(path, trainings[1])
        losses = [[trainer.train_step(batch, 0.3).loss for batch in rest] for trainer in trainings]
    check_close(losses[0], losses[1], "the loss after resuming", 1e-9)


def settings(system: str, preset: str) -> Report:
    """Half precision, averaged weights, accumulated gradients and recomputed activations."""
    for change in ({"precision": "bfloat16"}, {"precision": "auto", "ema": 0.9, "accumulate": 2}):
        model = build_model(system, preset)
        fit_losses(model, **change)
        assert model.nelbo(tokens(7).cuda(), rng()).total.isfinite().all()
    plain, recomputing = build_model(system, preset, dropout=0.1), build_model(system, preset, dropout=0.1)
    for blocks in stacks_of_blocks(recomputing):
        blocks.recompute = True
    check_close(fit_losses(recomputing), fit_losses(plain), "the loss with recomputed activations", 1e-5)
    return {}


def deterministic(system: str, preset: str, options: dict[str, Any] | None = None) -> Report:
    """Training, evaluation and sampling where only deterministic algorithms are allowed."""
    with use_deterministic(True):
        model = build_model(system, preset, **(options or {}))
        fit_losses(model)
        ls.evaluate(model, [tokens(7)], rng=0)
        for change in ({}, {"top_p": 0.5}, {"sampler": "entropy-bounded"}):
            try:
                ls.sample(model, B, STEPS, rng(), **change)
            except UserError:
                assert change, "the sampler of the system does not fit it"
    return {}


def sample(system: str, preset: str, options: dict[str, Any] | None = None) -> Report:
    """Every sampler that supports the system."""
    model = build_model(system, preset, **(options or {}))
    used, failed = [], []
    for name in SAMPLERS:
        try:
            check_samples(ls.sample(model, B, STEPS, rng(), sampler=name), model)
            used.append(name)
        except UserError:
            continue
        except Exception:
            failed.append(f"{name}: {shortened()}")
    assert not failed, "\n".join(failed)
    assert used, "no sampler fits"
    drawn = ls.sample(model, B, STEPS, 0)
    same = (drawn.cpu() == ls.sample(model.to("cpu"), B, STEPS, 0)).float().mean().item()
    assert same > SAME, f"only {same:.0%} of the tokens are those of the CPU"
    return {"samplers": used}


def infill(system: str, preset: str) -> Report:
    """Known positions, given on the CPU and on the device, with all samplers, since some use the known tokens."""
    model, text = build_model(system, preset), tokens(3)
    gaps = torch.tensor([True, False, True, True, False, False, True, False])
    start = torch.arange(L) < 3
    known = next((where for where in (gaps, start) if model.process.codec.local and model.can_see(where)), None)
    if known is None:
        return {"skipped": "no position can be held fixed"}
    used, failed = [], []
    for name in SAMPLERS:
        try:
            drawn = ls.sample(model, B, STEPS, rng(), known=known, tokens=text, sampler=name)
            check_samples(drawn, model)
            assert torch.equal(drawn.cpu()[:, known], text[:, known]), "known tokens have changed"
            used.append(name)
        except UserError:
            continue
        except Exception:
            failed.append(f"{name}: {shortened()}")
    assert not failed, "\n".join(failed)
    ls.sample(model, B, STEPS, rng(), known=known.cuda(), tokens=text.cuda())
    assert model.nelbo(text.cuda(), rng(), known=known.expand(B, L).cuda()).total.isfinite().all()
    return {"samplers": used}


def guide(system: str, preset: str) -> Report:
    """Labels, with and without guidance by the condition; a classifier of noisy states; filters."""
    done = []
    model = build_model(system, preset, labels=LABELS)
    given = batches(2, labelled=True)
    list(ls.fit(model, given, steps=2, cond_dropout=0.5))
    condition = Condition.of(labels=torch.arange(B) % LABELS)
    model.nelbo(given[0].tokens.cuda(), rng(), condition=condition.map(lambda field: field.cuda()))
    for what, options in (
        ("condition", {"condition": condition}),
        ("guidance", {"condition": condition, "guidance": 2.0}),
        ("filters", {"temperature": 0.8, "top_p": 0.9, "top_k": 5, "min_p": 0.01}),
        ("cached", {"cached": True}),
    ):
        try:
            check_samples(ls.sample(model, B, STEPS, rng(), **options), model)
            done.append(what)
        except UserError:
            continue
    try:
        checkpoint = ls.ClassifierCheckpoint.fresh(model, ["a", "b", "c"])
        list(ls.train_classifier(checkpoint.classifier, model, given, steps=2))
        check_samples(ls.sample(model, B, STEPS, rng(), guide=checkpoint.guide(model, "b", B, 2.0)), model)
        done.append("classifier")
        check_samples(ls.sample(model, B, STEPS, rng(), guide=checkpoint.guide(model, "b", B, 2.0, exact=True)), model)
        done.append("exact edits")
    except UserError:
        pass  # the classifier does not support this process
    return {"guided by": done}


def command_line(system: str, preset: str, precision: str = "bfloat16") -> Report:
    """train, evaluate and sample with --device cuda, on a text file."""
    with tempfile.TemporaryDirectory() as folder:
        text, run = Path(folder) / "text.txt", str(Path(folder) / "run")
        text.write_text("".join(f"line {number}: the quick brown fox jumps.\n" for number in range(80)))
        small = ["--length", "16", "--batch", "4", "--validation-sequences", "8", "--validations", "2"]
        small += ["--network.width", "16", "--network.depth", "1", "--network.heads", "2", "--device", "cuda"]
        train = ["train", "--system", system, "--data", str(text), "--steps", "3", "--out", run, *small]
        commands = [
            [*train, "--precision", precision],
            ["evaluate", run, "--sequences", "8", "--draws", "2"],
            ["sample", run, "-n", "2", "--steps", "4"],
            ["train", "--resume", "--out", run],
        ]
        if ls.system(system).family != "latent":
            commands.append(["sample", run, "-n", "2", "--steps", "4", "--prompt", "the "])
        for argv in commands:
            assert main([*argv, "--debug"]) == 0, " ".join(argv)
    return {}


def conditions(system: str, preset: str) -> Report:
    """Source texts and signals along the sequence as conditions."""
    model = build_model(system, preset, source=V, source_length=4, signal=2)
    source = torch.tensor([[1, 2, -1]] * B)
    condition = Condition.of(source=source, signal=torch.ones(B, L, 2))
    given = [Batch.of(tokens(step), first=B * step, condition=condition) for step in range(2)]
    list(ls.fit(model, given, steps=2, cond_dropout=0.5))
    check_samples(ls.sample(model, B, STEPS, rng(), condition=condition, guidance=1.5), model)
    assert ls.evaluate(model, given, rng=0).bits > 0
    return {}


def lengths(system: str, preset: str) -> Report:
    """Texts of a given length, texts longer than the model, and frames of the sampling run."""
    model, frames = build_model(system, preset), []
    request = ls.with_length(model, 0, 5)
    drawn = ls.sample(model, B, STEPS, rng(), request.denoiser, request.known, request.tokens)
    assert bool((drawn[:, :5] != 0).all()) and bool((drawn[:, 5:] == 0).all())
    long = ls.generate_long(
        lambda known, tokens: ls.generate(model, B, STEPS, 0, known=known, tokens=tokens, watch=frames.append),
        window=L, length=2 * L, overlap=2,
    )  # fmt: skip
    assert long.tokens.is_cuda and long.tokens.shape == (B, 2 * L) and frames
    return {}


def remasker(system: str, preset: str) -> Report:
    """The second network of g-star."""
    from logosphere.training.auxiliary import train_remasker

    model = build_model(system, preset)
    list(train_remasker(model, batches(2), steps=2))
    check_samples(ls.sample(model, B, STEPS, rng(), sampler="g-star"), model)
    ls.with_remasker(build_model("mdlm", "default"))
    return {}


def ode(system: str, preset: str, options: dict[str, Any] | None = None) -> Report:
    """Likelihoods of flows by the ODE."""
    model = build_model(system, preset, **(options or {}))
    for exact in (False, True):
        bound = ls.ode_nelbo(model, tokens(7).cuda(), rng(), steps=2, exact=exact)
        assert bound.total.is_cuda and bool(bound.total.isfinite().all())
    return {}


def without_float64(system: str, preset: str, options: dict[str, Any] | None = None) -> Report:
    """Training, evaluation, sampling, saving and resuming where only the network is on the device, as on Apple's GPUs.

    Everything else is computed on the CPU, so numbers differ by the rounding of the network alone.
    """
    options = options or {}

    def build_placed() -> Model:
        return build_model(system, preset, "cpu", **options).place("cuda")

    with pretend_device.no_float64():
        model, other = build_placed(), build_model(system, preset, "cpu", **options)
        assert model.device.type == "cpu" and model.network_device.type == "cuda"
        assert model.state_dict().keys() == other.state_dict().keys()
        network = [name for name, weight in model.named_parameters() if weight.is_cuda]
        assert network, "no weight is on the device"
        check_close(fit_losses(model, ema=0.9), fit_losses(other, ema=0.9), "the loss")
        data = [tokens(7, model.length)]
        bits, expected = (ls.evaluate(one, data, draws=2, rng=0).bits for one in (model, other))
        check_close(bits, expected, "the bound", 10 * CLOSE)
        drawn, same = (ls.sample(one, B, STEPS, 0) for one in (model, other))
        agreeing = (drawn == same).float().mean().item()
        assert agreeing > SAME, f"only {agreeing:.0%} of the tokens are those of the CPU"
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder)
            loaded = ls.load(folder)
            check_close(ls.evaluate(loaded.place("cuda"), data, draws=2, rng=0).bits, bits, "what was loaded", 1e-9)
        placed = [Trainer(build_placed(), ema=0.9) for _ in range(2)]
        check_resuming(placed, model.length)
        assert model.place("cpu").network_device.type == "cpu"
        check_close(ls.evaluate(model, data, draws=2, rng=0).bits, bits, "the bound back on the CPU", CLOSE)
    return {"parameters on the device": len(network)}


def conditions_without_float64() -> Report:
    """Conditions, classifier-free guidance, caches and paths of a placed model."""
    with pretend_device.no_float64():
        for system in ("mdlm", "ar", "bd3lm"):
            pair = [build_model(system, "default", "cpu", labels=LABELS, source=V, source_length=4) for _ in range(2)]
            models = [pair[0].place("cuda"), pair[1]]
            condition = Condition.of(labels=torch.arange(B) % LABELS, source=torch.tensor([[1, 2, -1]] * B))
            given = [Batch.of(tokens(step), first=B * step, condition=condition) for step in range(2)]
            losses = [[p.loss for p in ls.fit(model, given, steps=2, cond_dropout=0.5)] for model in models]
            check_close(losses[0], losses[1], f"the conditional loss of {system}")
            drawn = [ls.sample(model, B, STEPS, 0, condition=condition, guidance=1.5) for model in models]
            assert (drawn[0] == drawn[1]).float().mean() > SAME
        cached = ls.sample(build_model("mdlm", "default", "cpu").place("cuda"), B, STEPS, 0, cached=True)
        assert torch.equal(cached, ls.sample(build_model("mdlm", "default", "cpu"), B, STEPS, 0, cached=True))
        other = build_model("rdlm-heat", "default", "cpu").place("cuda").with_path("any-order")
        assert other.network_device.type == "cuda" and other.device.type == "cpu"
        assert ls.evaluate(other, [tokens(7)], rng=0).bits > 0
    return {}


def remasker_without_float64() -> Report:
    """The second network of g-star is trained on the CPU; it begins with the weights of the network on the device."""
    from logosphere.training.auxiliary import train_remasker

    with pretend_device.no_float64():
        losses = []
        for device in ("cuda", "cpu"):
            model = build_model("g-star", "default", "cpu").place(device)
            losses.append([step.loss for step in train_remasker(model, batches(2), steps=2)])
            assert ls.sample(model, B, STEPS, 0, sampler="g-star").shape == (B, L)
        check_close(*losses, "the loss of the remasker")
        equipped = ls.with_remasker(build_model("mdlm", "default", "cpu").place("cuda"))
        assert equipped.network_device.type == "cuda"
    return {}


def refused_without_float64() -> Report:
    """What such a device lacks is refused in one sentence."""
    with pretend_device.no_float64():
        model = build_model("mdlm", "default", "cpu").place("cuda")
        assert Trainer(model, precision="auto").precision == torch.float32
        recomputing = build_model("mdlm", "default", "cpu")
        for blocks in stacks_of_blocks(recomputing):
            blocks.recompute = True
        for refused in (
            lambda: Trainer(model, precision="bfloat16"),
            lambda: ls.sample(model, B, STEPS, 0, precision="bfloat16"),
            lambda: recomputing.place("cuda"),
            lambda: Trainer(model, group=ProcessGroup(0, 2)),
        ):
            try:
                refused()
            except UserError as problem:
                assert "cuda" in str(problem), problem
            else:
                raise AssertionError("not refused")
    return {}


def command_line_without_float64(system: str, preset: str) -> Report:
    """train, evaluate, sample and resume with a device without 64-bit floating point."""
    with pretend_device.no_float64():
        return command_line(system, preset, precision="float32")


def shortened() -> str:
    """The error being handled, and where in the package it came from."""
    text = traceback.format_exc()
    frames = [line.strip() for line in text.splitlines() if "/logosphere/" in line and line.strip().startswith("File")]
    where = [frame.split("/logosphere/")[-1].replace('", line ', ":").split(",")[0] for frame in frames[-3:]]
    return f"{text.strip().splitlines()[-1]} [{' < '.join(reversed(where))}]"


ALL: list[Callable[..., Report]] = [
    train,
    synchronise,
    settings,
    deterministic,
    sample,
    infill,
    guide,
    conditions,
    lengths,
]
ALL += [command_line, remasker, ode, without_float64, conditions_without_float64, remasker_without_float64]
ALL += [refused_without_float64, command_line_without_float64]
JOBS = {job.__name__: job for job in ALL}
