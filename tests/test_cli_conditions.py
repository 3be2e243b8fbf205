"""Labels, sources, signals and images on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from logosphere.cli import main

TINY = ["--network.width", "16", "--network.depth", "1", "--network.heads", "2", "--steps", "3", "--batch", "8",
        "--validations", "1", "--validation-sequences", "4"]  # fmt: skip


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A run on texts with labels."""
    rows = [{"text": f"{word} {i % 7}", "label": word} for i in range(30) for word in ("ham", "spam")]
    (tmp_path / "mail.jsonl").write_text("\n".join(map(json.dumps, rows)))
    argv = ["--system", "mdlm", "--data", f"labelled:{tmp_path / 'mail.jsonl'}", "--length", "12", *TINY]
    assert main(["train", *argv, "--withhold", "0.5", "--out", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def test_labels_are_selected_by_name(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    argv = ["sample", str(labelled), "--label", "spam", "--guidance", "2", "-n", "2", "--steps", "4", "--json"]
    assert main(argv) == 0
    assert len(json.loads(capsys.readouterr().out)["samples"]) == 2
    assert main(["sample", str(labelled), "--label", "span"]) == 1
    assert "Did you mean 'spam'" in capsys.readouterr().err
    assert main(["sample", str(labelled), "--source", "x"]) == 1
    assert "trained without sources; leave out --source" in capsys.readouterr().err
    assert main(["sample", str(labelled), "--signal", "x.npy"]) == 1
    assert "trained without a signal; leave out --signal" in capsys.readouterr().err
    assert main(["evaluate", str(labelled), "--split", "test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "character"
    assert main(["sample", str(labelled), "--image", str(labelled / "x.png")]) == 1
    assert not (labelled / "x.png").exists()


def test_label_is_refused_by_a_model_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("\n".join(["one", "two", "three"] * 20))
    argv = ["--system", "ar", "--data", f"lines:{tmp_path / 'a.txt'}", "--length", "6", *TINY]
    assert main(["train", *argv, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["sample", str(tmp_path / "run"), "--label", "x"]) == 1
    assert "without labels" in capsys.readouterr().err
    assert main(["train", "--out", str(tmp_path / "run"), "--resume"]) == 0


@pytest.mark.slow
def test_signal_is_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same noise, another signal gives another text; a file of another shape is refused."""
    run = str(tmp_path / "run")
    argv = ["--network.width", "16", "--network.depth", "1", "--steps", "20", "--batch", "8", "--optim.lr", "1e-2"]
    assert main(["train", "promoters", *argv, "--validations", "1", "--out", run]) == 0
    np.save(tmp_path / "weak.npy", np.zeros(96))
    np.save(tmp_path / "strong.npy", np.full((96, 1), 50.0))
    np.save(tmp_path / "each.npy", np.zeros((2, 96, 1)))
    np.save(tmp_path / "short.npy", np.zeros(95))
    np.save(tmp_path / "endless.npy", np.full(96, np.inf))
    texts = {}
    for name in ("weak", "strong", "each"):
        capsys.readouterr()
        argv = ["sample", run, "--signal", str(tmp_path / f"{name}.npy"), "-n", "2", "--steps", "4", "--json"]
        assert main(argv) == 0
        texts[name] = [row["text"] for row in json.loads(capsys.readouterr().out)["samples"]]
    assert texts["weak"] == texts["each"] != texts["strong"]
    for name, message in {"short": "96 × 1 numbers", "endless": "not finite", "none": "cannot be read"}.items():
        assert main(["sample", run, "--signal", str(tmp_path / f"{name}.npy")]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_image_samples_are_saved_as_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.packbits(np.random.default_rng(0).integers(0, 2, (60, 784), dtype=np.uint8), axis=1)
    np.savez(tmp_path / "binarized_mnist.npz", train=rows, valid=rows[:8], test=rows[:8])
    monkeypatch.setenv("LOGOSPHERE_DATA", str(tmp_path))
    argv = ["--system", "mdlm", "--data", "mnist-binary", "--length", "784", "--network.shape", "28x28", *TINY]
    assert main(["train", *argv, "--batch", "2", "--out", str(tmp_path / "run")]) == 0
    image = tmp_path / "digits.png"
    assert main(["sample", str(tmp_path / "run"), "-n", "2", "--steps", "2", "--image", str(image)]) == 0
    assert image.read_bytes().startswith(b"\x89PNG")
