"""Models are built without memory for their parameters, compared with the header of the weights, then allocated."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import logosphere as ls
from logosphere.errors import UserError
from logosphere.pretrained import allocation, build_from_recipe, limits
from logosphere.pretrained.allocation import allocate, is_complete, parameters_on_meta

SIZE = {"width": 8, "depth": 1, "heads": 1}


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of tiny networks count as large, except those of learned schedules, of 32 numbers and less."""
    monkeypatch.setattr(allocation, "SMALL", 32)


TOKENS = torch.randint(5, (3, 4), generator=torch.Generator().manual_seed(1))


def save(name: str, folder: Path, **options: object) -> ls.Model:
    model = ls.build(name, vocab_size=5, length=4, **SIZE | options).eval()  # type: ignore[arg-type]
    model.save(folder)
    return model


def without_hashes(folder: Path) -> None:
    content = json.loads((folder / "recipe.json").read_bytes())
    (folder / "recipe.json").write_text(json.dumps(content | {"files": {}}))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ls.systems())
def test_loaded_models_equal_those_that_were_built_in_memory(name: str, tmp_path: Path) -> None:
    """To the last bit, and whatever is not in the file of the weights has been computed."""
    model = save(name, tmp_path)
    loaded = ls.load(tmp_path)
    saved = model.state_dict()
    assert all(torch.equal(tensor, saved[key]) for key, tensor in loaded.state_dict().items())
    assert {tensor.device.type for part in (loaded.parameters(), loaded.buffers()) for tensor in part} == {"cpu"}
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]
    for (key, buffer), (other, expected) in zip(loaded.named_buffers(), model.named_buffers(), strict=True):
        assert key == other and torch.equal(buffer, expected)
    assert torch.equal(loaded.nelbo(TOKENS, 0).total, model.nelbo(TOKENS, 0).total)


@pytest.mark.parametrize("options", [{"body": "convolution"}, {"tied": True}, {"labels": 3}, {"source": 4}])
def test_other_networks_are_allocated_too(options: dict[str, object], tmp_path: Path) -> None:
    model = save("mdlm", tmp_path, **options)
    loaded = ls.load(tmp_path)
    assert len(list(loaded.parameters())) == len(list(model.parameters())), "shared parameters stay shared"
    assert torch.equal(loaded.nelbo(TOKENS, 0).total, model.nelbo(TOKENS, 0).total)


def test_nothing_is_allocated_before_the_comparison(tmp_path: Path) -> None:
    save("mdlm", tmp_path)
    with parameters_on_meta():
        model = build_from_recipe(tmp_path)
    assert all(parameter.is_meta for parameter in model.parameters() if parameter.numel() > 32) and is_complete(model)
    assert nn.Linear(2, 2).weight.device.type == "cpu", "modules that are built later have memory"
    allocate(model)
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_parameters_that_no_file_holds_keep_their_initial_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((33,), 2.0))
            self.register_state_dict_post_hook(self.hide)

        @staticmethod
        def hide(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, _: object) -> None:
            del state[f"{prefix}weight"]

    model = save("mdlm", tmp_path)
    found = limits.read_shapes(tmp_path / "model.safetensors")

    def make() -> ls.Model:
        made = build_from_recipe(tmp_path)
        made.hidden = Hidden()
        return made

    with parameters_on_meta():
        assert not is_complete(make())
    built = limits.build_within(model.spec, tmp_path / "model.safetensors", tmp_path, make)  # type: ignore[arg-type]
    assert torch.equal(built.hidden.weight, torch.full((33,), 2.0)) and found.keys() == built.state_dict().keys()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda key, tensor: {key: tensor.to(torch.int64)}, "holds torch.int64"),
        (lambda key, tensor: {key: tensor.reshape(-1)}, "has the shape"),
        (lambda key, tensor: {}, "it lacks"),
        (lambda key, tensor: {key: tensor, "more": tensor.clone()}, "it has more"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_is_refused_before_memory_is_taken(
    change,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    save("mdlm", tmp_path)
    without_hashes(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    key = next(name for name, tensor in tensors.items() if tensor.dim() == 2)
    save_file(tensors | change(key, tensors.pop(key)), tmp_path / "model.safetensors")
    monkeypatch.setattr(limits, "allocate", lambda model: pytest.fail("it was allocated"))
    with pytest.raises(UserError, match=words):
        ls.load(tmp_path)


PEAK = """
import resource, sys
import logosphere as ls
ls.build("mdlm", vocab_size=5, length=4, width=8, depth=1, heads=1)
ls.load(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    ls.load(sys.argv[2])
except ls.UserError as problem:
    assert "does not belong to this model" in str(problem), problem
else:
    raise SystemExit("it was loaded")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the unit of ru_maxrss is that of Linux")
def test_a_network_of_800_gigabytes_is_refused_in_little_memory(tmp_path: Path) -> None:
    """Width 4,096 and depth 1,024, with as many numbers in the weights as the product of both, so that it is built."""
    save("mdlm", tmp_path / "small")
    save("mdlm", tmp_path / "large")
    without_hashes(tmp_path / "large")
    recipe = tmp_path / "large" / "recipe.json"
    content = json.loads(recipe.read_bytes())
    content["model"]["options"] |= {"width": 4096, "depth": 1024, "heads": 8}
    recipe.write_text(json.dumps(content))
    save_file({"x": torch.zeros(4096 * 1024 + 1, dtype=torch.float16)}, tmp_path / "large" / "model.safetensors")
    command = [sys.executable, "-c", PEAK, str(tmp_path / "small"), str(tmp_path / "large")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout) < 200e6, f"{int(done.stdout) / 1e6:.0f} MB"
