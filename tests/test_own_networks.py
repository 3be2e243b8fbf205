"""Networks, systems and samplers of users: they train, are saved and loaded, and no folder imports a module.

Registered parts are used in processes of their own, because the registries are global: other tests list all systems.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from toy_languages import generator, skewed_chain

import logosphere as ls
from logosphere.errors import UserError
from logosphere.networks.own import ModuleDenoiser
from logosphere.networks.registry import NETWORKS, NetworkShape

TESTS = Path(__file__).parent
LANGUAGE = skewed_chain(5, 6)
TOKENS = LANGUAGE.sample(8, 1)
SIZE = {"vocab_size": 5, "length": 6, "width": 16, "depth": 1, "heads": 2}


class Net(nn.Module):
    """Reads token ids and times."""

    def __init__(self, vocab_size: int = 5, width: int = 16):
        super().__init__()
        self.stem, self.time = nn.Embedding(vocab_size + 1, width), nn.Linear(1, width)
        self.mix, self.head = nn.GRU(width, width, batch_first=True), nn.Linear(width, vocab_size)

    def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.stem(z) + self.time(t[..., None]))[0])


@pytest.fixture
def recurrent(monkeypatch: pytest.MonkeyPatch) -> type[nn.Module]:
    """A network that is registered for one test."""
    monkeypatch.setattr("logosphere.networks.registry.NETWORKS", NETWORKS)
    before = dict(NETWORKS)

    @ls.register_network("recurrent")
    class Recurrent(nn.Module):
        shapes: list[NetworkShape] = []

        def __init__(self, shape: NetworkShape, network: ls.NetworkConfig):
            super().__init__()
            self.shapes.append(shape)
            width = network.width
            self.stem = nn.Embedding(shape.inputs, width) if shape.reads_ids else nn.Linear(shape.inputs, width)
            self.time, self.head = nn.Linear(1, width), nn.Linear(width, shape.outputs)
            self.mix = nn.GRU(width, width // 2, bidirectional=True, batch_first=True)

        def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            assert self.shapes[-1].reads_time or not bool(t.any())
            return self.head(self.mix(self.stem(z) + self.time(t[..., None]))[0])

    yield Recurrent
    NETWORKS.clear()
    NETWORKS.update(before)


# ---- wrapped modules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mdlm", "md4", "udlm"])
def test_a_module_trains_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = ls.build(name, vocab_size=5, length=6, denoiser=ls.wrap(Net()))
    before = float(model.nelbo(TOKENS, 0, draws=8).total.mean())
    for _ in ls.fit(model, TOKENS, steps=30, optim=ls.OptimizerConfig(lr=1e-2, warmup=5)):
        pass
    assert float(model.nelbo(TOKENS, 0, draws=8).total.mean()) < before
    model.save(tmp_path)
    with pytest.raises(UserError, match=r"test_own_networks\.Net; make one and pass it"):
        ls.load(tmp_path)
    loaded = ls.load(tmp_path, denoiser=ls.wrap(Net()))
    assert torch.equal(ls.sample(loaded, 4, 6, 0), ls.sample(model.eval(), 4, 6, 0))
    with pytest.raises(UserError, match="shape"):
        ls.load(tmp_path, denoiser=ls.wrap(Net(width=8)))


def test_a_module_is_wrapped_wherever_a_denoiser_is_taken() -> None:
    net = Net()
    model = ls.build("mdlm", vocab_size=5, length=6, denoiser=net)
    plain = ls.build("mdlm", **SIZE)
    assert isinstance(model.denoiser, ModuleDenoiser) and model.denoiser.module is net
    expected = model.nelbo(TOKENS, 0).total
    for given in (net, ls.wrap(net), model.denoiser):
        assert torch.equal(plain.nelbo(TOKENS, 0, denoiser=given).total, expected)
        assert torch.equal(ls.sample(plain, 3, 4, 0, denoiser=given), ls.sample(model, 3, 4, 0, sampler=plain.sampler))
    assert ls.evaluate(plain, TOKENS, rng=0, denoiser=net).bits == ls.evaluate(model, TOKENS, rng=0).bits


def test_times_are_given_where_the_system_depends_on_them() -> None:
    seen: list[torch.Tensor] = []

    class Spy(Net):
        def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            seen.append(t)
            return super().forward(z, t)

    expected = {"mdlm": [False, False, True], "udlm": [True, False, True]}
    for name, given in expected.items():
        for reads_time, is_given in zip((None, False, True), given, strict=True):
            model = ls.build(name, vocab_size=5, length=6, denoiser=ls.wrap(Spy(), reads_time=reads_time))
            model.nelbo(TOKENS, 0)
            assert bool(seen[-1].any()) == is_given == model.denoiser.reads_time
    cached = ls.build("mdlm", vocab_size=5, length=6, denoiser=Net())
    assert ls.sample(cached, 2, 4, 0, sampler="cached").shape == (2, 6)


def test_the_bound_of_a_module_is_that_of_the_oracle_it_copies() -> None:
    """A module that returns the exact posterior has the bound of the oracle."""
    model = ls.build("mdlm", vocab_size=5, length=6, denoiser=None)
    oracle = ls.languages.oracle(model, LANGUAGE)

    class Copy(nn.Module):
        def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return oracle(z, t, z)

    bound = model.nelbo(TOKENS, 3, denoiser=ls.wrap(Copy()), draws=4)
    assert torch.equal(bound.total, model.nelbo(TOKENS, 3, denoiser=oracle, draws=4).total)


# ---- registered networks -------------------------------------------------------------------------------------------

FAMILIES = [
    ("mdlm", {}), ("genmd4", {"posterior_head": False}), ("d3pm-uniform", {}), ("sedd-absorb", {}), ("gidd", {}),
    ("rdlm", {}), ("rdlm", {"input": "state"}), ("rdlm-heat", {"self_conditioning": True}), ("rdlm", {"base": 3}),
    ("plaid", {}), ("gaussian-ce", {"input": "belief"}), ("diffusion-lm", {}), ("bfn", {}), ("dirichlet-flow", {}),
    ("fisher-flow", {}), ("ddsm", {}), ("tencdm", {}), ("ld4lg", {}), ("star", {}),
]  # fmt: skip


@pytest.mark.parametrize("name, options", FAMILIES, ids=lambda value: str(value))
def test_a_registered_network_serves_every_family(
    name: str, options: dict, recurrent: type[nn.Module], tmp_path: Path
) -> None:
    model = ls.build(name, **SIZE, body="recurrent", **options)
    assert any(isinstance(part, recurrent) for part in model.modules())
    (progress,) = ls.fit(model, [TOKENS], steps=1)
    assert progress.loss > 0
    model.save(tmp_path)
    assert json.loads((tmp_path / "recipe.json").read_text())["plugins"]["network"].endswith("Recurrent")
    loaded = ls.load(tmp_path)
    assert torch.equal(ls.sample(loaded, 2, 3, 0), ls.sample(model.eval(), 2, 3, 0))


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("ar", {}, "whole sequences"),
        ("mdlm", {"block": 2}, "whole sequences"),
        ("mdlm", {"labels": 2}, "takes no condition"),
        ("mdlm", {"tied": True}, "takes no tied head"),
        ("d3pm-gaussian", {"head": "logistic"}, "cannot be used here"),
    ],
)
def test_what_a_registered_network_cannot_do_is_refused(
    name: str, options: dict, message: str, recurrent: type[nn.Module]
) -> None:
    with pytest.raises(UserError, match=message):
        ls.build(name, **SIZE, body="recurrent", **options)


def test_a_network_may_be_registered_again_by_the_same_place_only(recurrent: type[nn.Module]) -> None:
    ls.register_network("recurrent")(recurrent)
    with pytest.raises(UserError, match="registered already"):
        ls.register_network("recurrent")(Net)


# ---- in a process of its own ---------------------------------------------------------------------------------------


def run_python(code: str, folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, [TESTS.parent, *paths]))
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


TRAIN = """
import torch, own_networks, logosphere as ls
tokenizer = ls.make_tokenizer("characters", ["abcde"])
model = ls.build("plain-masking", tokenizer=tokenizer, length=6, body="recurrent", width=16)
texts = ["abcdeabcde" * 20]
print([p.loss > 0 for p in ls.fit(model, texts, steps=2)], ls.evaluate(model, texts, rng=0).kind, model.sampler)
model.save("model")
print(ls.generate_text(model, "ab", n=1, steps=3, rng=0)[0])
"""
LOAD = """
import logosphere as ls
print(ls.generate_text(ls.load("model"), "ab", n=1, steps=3, rng=0)[0])
"""
LIST = """
import logosphere as ls
print("plain-masking" in ls.systems(), "twice" in ls.samplers(), ls.options("plain-masking")["schedule"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model whose system and network come from tests/own_networks.py."""
    folder = tmp_path_factory.mktemp("own")
    done = run_python(TRAIN, folder, TESTS)
    assert done.returncode == 0, done.stderr
    facts, text = done.stdout.splitlines()
    assert facts == "[True, True] bound twice" and text.startswith("ab") and len(text) == 6
    (folder / "text").write_text(text)
    return folder


def test_a_model_of_outside_parts_is_loaded_where_they_are_registered(folder: Path) -> None:
    done = run_python("import own_networks\n" + LOAD, folder, TESTS)
    assert done.stdout.strip() == (folder / "text").read_text(), done.stderr


def test_loading_names_the_module_and_never_imports_it(folder: Path) -> None:
    """Even where the module could be imported: a stranger's folder must not choose what is executed."""
    done = run_python(LOAD + "\n", folder, TESTS)
    assert done.returncode != 0 and "UserError" in done.stderr
    assert "'plain-masking' of the module own_networks, which is not registered" in done.stderr
    for part, code in (("network", "mdlm"), ("denoiser", "mdlm")):
        recipe = json.loads((folder / "model" / "recipe.json").read_text())
        recipe["model"]["system"] = code
        recipe["plugins"] = {part: "evil_module.Net"}
        (folder / "evil").mkdir(exist_ok=True)
        (folder / "evil" / "recipe.json").write_text(json.dumps(recipe))
        (folder / "evil_module.py").write_text("open('executed', 'w').close()")
        done = run_python(LOAD.replace('"model"', '"evil"'), folder, folder)
        assert "evil_module" in done.stderr and "UserError" in done.stderr, done.stderr
        assert not (folder / "executed").exists()


def test_installed_plugins_are_found_by_their_entry_points(folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "plugin-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[logosphere.plugins]\nown = own_networks\n")
    done = run_python(LOAD + LIST, folder, TESTS, tmp_path)
    assert done.stdout.splitlines() == [(folder / "text").read_text(), "True True linear"], done.stderr
    lazy = (
        "import sys, logosphere as ls\nls.build('mdlm', vocab_size=5, length=6)\nprint('own_networks' in sys.modules)"
    )
    assert run_python(lazy, folder, TESTS, tmp_path).stdout.strip() == "False"
    (package / "entry_points.txt").write_text("[logosphere.plugins]\nbroken = no_such_module\n")
    done = run_python("import logosphere as ls; ls.systems()", folder, tmp_path)
    assert "The plugin broken of the package plugin (no_such_module) cannot be imported" in done.stderr


# ---- samplers ------------------------------------------------------------------------------------------------------


def test_samplers_are_registered_as_classes_functions_and_objects() -> None:
    from logosphere.sampling.registry import SAMPLERS
    from logosphere.sampling.steppers.base import Ancestral

    model = ls.build("mdlm", **SIZE)
    expected = ls.sample(model, 2, 4, 0, sampler="ancestral")
    ways = (type("Step", (Ancestral,), {}), lambda model: ls.Sampler(ls.steppers.ancestral), lambda model: Ancestral())
    for number, way in enumerate(ways):
        ls.register_sampler(f"mine-{number}", "the ancestral step")(way)
        try:
            assert f"mine-{number}" in ls.samplers()
            assert torch.equal(ls.sample(model, 2, 4, 0, sampler=f"mine-{number}"), expected)
        finally:
            del SAMPLERS[f"mine-{number}"]
    with pytest.raises(UserError, match="registered already"):
        ls.register_sampler("confidence", "…")(ways[0])


# ---- what cannot be saved ------------------------------------------------------------------------------------------


def test_a_denoiser_that_cannot_be_saved_is_refused_before_training() -> None:
    model = ls.build("mdlm", **SIZE)
    oracle = ls.languages.oracle(model, LANGUAGE)
    asked = []

    def batches():
        asked.append(1)
        yield TOKENS

    for unsavable in (ls.build("mdlm", vocab_size=5, length=6, denoiser=oracle), ls.build("mdlm", **SIZE)):
        if unsavable.own_denoiser is False:
            unsavable.denoiser = type("Mine", (type(oracle),), {"__module__": "mine"})(model, LANGUAGE)
        with pytest.raises(UserError, match="could not be saved"):
            next(ls.fit(unsavable, batches(), steps=1))
        assert bool(torch.isfinite(unsavable.nelbo(TOKENS, generator(0)).total).all()), "it is evaluated all the same"
    assert asked == []
