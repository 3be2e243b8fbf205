"""Conventions of the package: import layers, forbidden calls, public names and errors about names."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import logosphere as ls
from logosphere.systems import option_docs

PACKAGE = Path(ls.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    ["errors", "terminal", "types", "inputs", "plugins", "migration", "untrusted", "origin", "io", "allocator"],
    ["rng", "schedules", "geometry", "parallel"],
    ["codecs"],
    ["processes"],
    ["networks"],
    ["autoencoders"],
    ["model"],
    ["sampling"],
    ["systems"],
    ["data", "training", "evaluation", "report", "checkpoints"],
    ["pretrained"],
    ["runs"],
    ["studio"],
    ["serving"],
    ["cli", "__init__", "__main__"],
]
"""From the ground up: a part may import parts of its own layer and of layers before it."""
LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer}

SETTINGS = {"logosphere.networks.config", "logosphere.training.optimizer"}
"""Settings stored in recipes; they import neither torch nor modules other than errors and one another."""


def part_of(path: Path) -> str:
    """'networks' for logosphere/networks/config.py, 'rng' for logosphere/rng.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every logosphere module that a file imports anywhere, also inside functions or for type checking."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from [node.module] if node.module != "logosphere" else [f"logosphere.{n.name}" for n in node.names]
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_respect_the_layers(path: Path) -> None:
    for module in imports(path):
        if module.startswith("logosphere.") and module.split(".")[1] in LEVEL:
            assert LEVEL[module.split(".")[1]] <= LEVEL[part_of(path)], f"{path.name} must not import {module}"


def test_every_package_has_a_layer() -> None:
    assert {part_of(path) for path in FILES} == set(LEVEL)


def test_settings_import_only_errors() -> None:
    for module in SETTINGS:
        path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
        found = {name for name in imports(path) if "logosphere" in name or "torch" in name}
        # The registry has the names of networks from outside and does not import torch either.
        assert found - SETTINGS - {"logosphere.networks.registry"} == {"logosphere.errors"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_short_and_documented(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text)), "a module needs a docstring"


FORBIDDEN_MODULES = {"pickle", "dill", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "torch.save", "yaml.load", "hasattr", "print"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_forbidden_calls_or_modules(path: Path) -> None:
    """Untrusted files must stay data, and only the outlet for terminals prints."""
    used = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
    allowed = {"print"} if part_of(path) == "terminal" else set()
    assert not used & (FORBIDDEN_CALLS - allowed)
    assert not {module.split(".")[0] for module in imports(path)} & FORBIDDEN_MODULES


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys; import logosphere; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_every_public_name_exists() -> None:
    for name in ls.__all__:
        assert getattr(ls, name) is not None
    assert set(dir(ls)) == set(ls.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ls.nonsense


def test_every_system_has_a_card_and_can_be_built() -> None:
    assert ls.systems() == sorted(ls.systems())
    for name in ls.systems():
        card = ls.system(name)
        assert card.name == name and all(value for key, value in vars(card).items() if key != "tied")
        model = ls.build(name, vocab_size=3, length=4, width=8, depth=1, heads=1)
        assert model.process.kind == card.kind
        assert {"width", "depth", "heads", "dropout"} <= ls.options(name).keys()
        docs = option_docs(name)
        assert docs.keys() <= ls.options(name).keys() and all(docs.values()), f"an option of {name} is not documented"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: ls.system("mdml"), "Did you mean 'mdlm'"),
        (lambda: ls.build("d3pm-unifrom", vocab_size=3, length=4), "Did you mean 'd3pm-uniform'"),
        (lambda: ls.build("zzz", vocab_size=3, length=4), "Choose from: ar, "),
        (lambda: ls.build("mdlm", vocab_size=3, length=4, schedul="cosine"), "Did you mean 'schedule'"),
        (lambda: ls.build("mdlm", vocab_size=3, length=4, schedule="cosinus"), "Did you mean 'cosine'"),
        (lambda: ls.build("mdlm", vocab_size=1, length=4), "at least 2 tokens"),
        (lambda: ls.build("mdlm", vocab_size=3, length=0), "at least 1"),
        (lambda: ls.build("d3pm-uniform", vocab_size=3, length=4, timesteps=0), "timesteps"),
        (
            lambda: ls.build("d3pm-uniform", vocab_size=3, length=4, timesteps=10**8),
            "timesteps must be at most 100,000",
        ),
        (lambda: ls.build("rdlm", vocab_size=3, length=4, timesteps=10**5), "timesteps must be from 2 to 5,000"),
    ],
)
def test_invalid_names_and_values_are_refused_with_a_suggestion(call, message: str) -> None:
    with pytest.raises(ls.UserError, match=message):
        call()


@pytest.mark.parametrize("tokens", [[[0, 1, 2, 3]], [[0, 1, -1]], [[0, 1]]])
def test_invalid_tokens_are_refused(tokens: list) -> None:
    import torch

    model = ls.build("mdlm", vocab_size=3, length=3, width=8, depth=1, heads=1)
    with pytest.raises(ls.UserError):
        model.nelbo(torch.tensor(tokens), torch.Generator())
    with pytest.raises(ls.UserError, match="between 0"):
        model.corrupt(torch.zeros(1, 3).long(), torch.tensor(1.5), torch.Generator())


@pytest.mark.parametrize("name", ["mdlm", "udlm", "gidd", "genmd4"])
def test_a_mask_in_the_data_is_refused_in_training_and_evaluation(name: str) -> None:
    import torch

    model = ls.build(name, vocab_size=3, length=2, width=8, depth=1, heads=1)
    masked = torch.tensor([[0, 3]])
    with pytest.raises(ls.UserError, match="the mask is not a token"):
        list(ls.fit(model, [masked], steps=1))
    with pytest.raises(ls.UserError, match="the mask is not a token"):
        ls.evaluate(model, [masked])


TESTS = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_test_modules_do_not_import_tests(path: Path) -> None:
    assert not [module for module in imports(path) if module.split(".")[0].startswith("test_")]


def test_test_module_names_are_unique() -> None:
    """Test folders are not packages, so two modules of one name would shadow each other."""
    names = [path.name for folder in (TESTS, TESTS.parent / "tools") for path in folder.rglob("*.py")]
    assert sorted(name for name in {*names} if names.count(name) > 1) == ["conftest.py"]


CORE = {
    "torch",
    "numpy",
    "tyro",
    "rich",
    "yaml",
    "safetensors",
    "huggingface_hub",
    "tokenizers",
    "filelock",
    "jinja2",
    "logosphere",
}
NEED_EXTRAS = {"cli/studio.py", "cli/serve.py", "runs/lm_eval_adapter.py"}
"""Modules that are imported only by users of an extra."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_import_core_dependencies_only(path: Path) -> None:
    """An import at the top of a module must not need an extra, because every command imports its whole module."""
    name = str(path.relative_to(PACKAGE))
    if name in NEED_EXTRAS or name.startswith(("studio/", "serving/")):
        return
    for node in ast.parse(path.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        for root in {one.split(".")[0] for one in names}:
            assert root in CORE or root in sys.stdlib_module_names, f"{name} imports {root}"
