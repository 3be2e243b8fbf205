"""Pickled checkpoints are converted only where the user trusts them, with averaged weights in the right places."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from convert_checkpoint import main
from ddit_fixtures import HF, Shape, import_folder, inverse_frequencies, random_tensors
from safetensors.torch import load_file
from torch import Tensor


class Touch:
    """A stranger's object: reading its pickle creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def named(seed: int, prefix: str = "") -> dict[str, Tensor]:
    """Weights and their rotary table, which is the second tensor."""
    weights = {f"{prefix}{name}": tensor for name, tensor in random_tensors(Shape(), seed).items()}
    first = next(iter(weights))
    table = {f"{prefix}rotary_emb.inv_freq": inverse_frequencies(6)}
    return {first: weights.pop(first)} | table | weights


def shadow(seed: int) -> dict[str, Any]:
    return {"decay": 0.9999, "shadow_params": list(random_tensors(Shape(), seed).values())}


def write_config(folder: Path) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": "mdlm", **HF, "time_conditioning": False}))
    return str(folder / "config.json")


def check(found: Path, seed: int, prefix: str = "") -> None:
    tensors = load_file(found / "model.safetensors")
    expected = random_tensors(Shape(), seed)
    assert set(tensors) == {f"{prefix}{name}" for name in [*expected, "rotary_emb.inv_freq"]}
    assert all(torch.equal(tensors[f"{prefix}{name}"], value) for name, value in expected.items())
    assert torch.equal(tensors[f"{prefix}rotary_emb.inv_freq"], inverse_frequencies(6))


def test_lightning_checkpoints(tmp_path: Path) -> None:
    """Averaged weights, a list in the order of the parameters, replace the others; then the folder is imported."""
    torch.save({"state_dict": named(1, "backbone."), "ema": shadow(2), "epoch": 3}, tmp_path / "mdlm.ckpt")
    out, config = tmp_path / "out", write_config(tmp_path)
    assert main([str(tmp_path / "mdlm.ckpt"), str(out), "--config", config, "--trust"]) == 0
    check(out, 2, "backbone.")
    model = import_folder(out)
    assert model.spec is not None and model.spec.system == "mdlm"
    plain = tmp_path / "plain"
    assert main([str(tmp_path / "mdlm.ckpt"), str(plain), "--config", config, "--trust", "--no-ema"]) == 0
    check(plain, 1, "backbone.")


def test_names_of_compiled_and_parallel_networks(tmp_path: Path) -> None:
    torch.save({"model": named(1, "module._orig_mod."), "ema": shadow(2), "step": 3}, tmp_path / "checkpoint.pth")
    settings = ["--set", "length=8", "--set", "n_heads=2", "--set", "model_type=mdlm"]
    assert main([str(tmp_path / "checkpoint.pth"), str(tmp_path / "out"), *settings, "--trust"]) == 0
    check(tmp_path / "out", 2)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["length"] == 8
    import_folder(tmp_path / "out")


def test_nothing_is_read_without_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, mark = tmp_path / "evil.ckpt", tmp_path / "mark"
    torch.save({"state_dict": named(1), "hyper_parameters": Touch(mark)}, source)
    assert main([str(source), str(tmp_path / "out")]) == 1
    assert "can run any code" in capsys.readouterr().err and not mark.exists() and not (tmp_path / "out").exists()
    assert main([str(source), str(tmp_path / "out"), "--trust"]) == 0
    assert mark.exists()  # that is what the warning is about


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "holds a list"),
        ({"epoch": 3}, "no tensors were found"),
        ({"state_dict": named(1), "ema": {"shadow_params": [torch.zeros(2)]}}, "1 averaged weights for"),
        ({"state_dict": named(1), "ema": {"shadow_params": shadow(2)["shadow_params"][::-1]}}, "the average in the"),
    ],
)
def test_what_is_not_understood_is_refused(
    content: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(content, tmp_path / "a.ckpt")
    assert main([str(tmp_path / "a.ckpt"), str(tmp_path / "out"), "--trust"]) == 1
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()
