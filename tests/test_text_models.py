"""Models with a tokenizer: saved, loaded, sampled as text in Python and by the commands; tokenizers by name."""

import json
from pathlib import Path

import pytest
import torch

import logosphere as ls
from logosphere.cli import main
from logosphere.data.tokenizers import ByteTokenizer, WithEOS
from logosphere.errors import UserError
from logosphere.networks.heads import TiedHead
from logosphere.systems import network_docs, option_docs

TEXT = "the quick brown fox jumps over the lazy dog "
SMALL = {"length": 12, "width": 16, "depth": 1, "heads": 2}


def build_model(name: str = "mdlm", *, text: str = TEXT, end: bool = False, **options: object) -> ls.Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tokenizer = ls.make_tokenizer("characters", [text], end=end)
        return ls.build(name, tokenizer=tokenizer, **SMALL | options).eval()


def test_a_saved_model_keeps_its_tokenizer(tmp_path: Path) -> None:
    model = build_model(end=True)
    assert model.vocab_size == model.tokenizer.size == len(set(TEXT)) + 1
    model.save(tmp_path / "model")
    loaded = ls.load(tmp_path / "model")
    assert loaded.tokenizer.fingerprint == model.tokenizer.fingerprint
    assert ls.generate_text(loaded, "the ", n=2, steps=4, rng=3) == ls.generate_text(model, "the ", n=2, steps=4, rng=3)
    plain = ls.build("mdlm", vocab_size=5, **SMALL)
    plain.save(tmp_path / "plain")
    assert ls.load(tmp_path / "plain").tokenizer is None and not (tmp_path / "plain" / "tokenizer.json").exists()
    assert ls.load("pretrained:ar").tokenizer.decode([0]) == " "


def test_a_tokenizer_of_another_size_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    model = build_model()
    model.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        ls.load(tmp_path)
    with pytest.raises(UserError, match="the tokenizer 256"):
        model.tokenizer = ls.make_tokenizer("byte")


# ---- generate_text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mdlm", "md4", "ar", "rdlm"])
def test_generated_texts_begin_with_the_prompt(name: str) -> None:
    model = build_model(name)
    texts = ls.generate_text(model, prompt="the ", n=3, steps=4, rng=0)
    assert len(texts) == 3 and all(text.startswith("the ") and len(text) == 12 for text in texts)
    assert texts == ls.generate_text(model, "the ", 3, 4, torch.Generator().manual_seed(0))
    assert texts != ls.generate_text(model, "the ", 3, 4, 1)
    drawn = ls.sample(model, 2, 4, 5)
    assert ls.generate_text(model, n=2, steps=4, rng=5) == [model.tokenizer.decode(row) for row in drawn.numpy()]


def test_generated_texts_fill_gaps_and_have_a_length() -> None:
    (text,) = ls.generate_text(build_model(), infill="the [...] fox ", steps=4, rng=0, sampler="confidence")
    assert text[:4] == "the " and text[7:] == " fox " and len(text) == 12
    (text,) = ls.generate_text(build_model(), "the ", steps=4, rng=0, length=30)
    assert text.startswith("the ") and len(text) == 30
    (text,) = ls.generate_text(build_model(end=True), "the ", steps=4, rng=0, length=7)
    assert text.startswith("the ") and len(text) == 7


def test_texts_equal_those_of_the_run_they_were_trained_in(prose: Path, tmp_path: Path) -> None:
    config = ls.TrainConfig(
        system="md4", data=str(prose), length=12, batch=4, steps=2, validations=1, validation_sequences=4, device="cpu",
        precision="float32", network=ls.NetworkConfig(width=16, depth=1, heads=2),
    )  # fmt: skip
    run = ls.train(config, tmp_path / "run")
    settings = ls.SampleConfig(n=2, steps=4, prompt="the ", seed=1, precision="float32")
    model = ls.load(run.path)
    assert ls.generate_text(model, "the ", n=2, steps=4, rng=1) == ls.sample_run(run, settings).texts


# ---- model folders without a run -----------------------------------------------------------------------------------


def test_the_commands_open_a_saved_model(
    prose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = prose.read_text(encoding="utf-8")
    build_model(text=text).save("my-model")
    assert main(["sample", "my-model", "--prompt", "the ", "--steps", "4", "-n", "2", "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    expected = ls.generate_text(ls.load("my-model"), "the ", n=2, steps=4, rng=0)
    assert [one["text"][:4] for one in samples] == ["the ", "the "] and len(expected) == 2
    assert main(["evaluate", "my-model", "--data", str(prose), "--sequences", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "bound"
    assert main(["evaluate", "my-model"]) == 1
    assert "name a text with --data" in capsys.readouterr().err
    assert main(["train", "--out", "my-model", "--resume"]) == 1
    assert "holds a model but no training run" in capsys.readouterr().err
    ls.build("mdlm", vocab_size=5, **SMALL).save("plain")
    assert main(["sample", "plain", "--steps", "2"]) == 1
    assert "saved without a tokenizer" in capsys.readouterr().err


def test_a_poor_bound_of_a_saved_model_is_explained(
    prose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model predicts one character everywhere, so its bound is certainly worse than blind guessing."""
    monkeypatch.chdir(tmp_path)
    model = build_model(text=prose.read_text(encoding="utf-8"))
    (head,) = [part for part in model.denoiser.modules() if isinstance(part, TiedHead)]
    with torch.no_grad():
        head.bias[0] = 30.0
    model.save("poor")
    argv = ["evaluate", "poor", "--data", str(prose), "--sequences", "4"]
    assert main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["bits"] > 20 and "it was saved without a training run" in result["reason"]
    assert main(argv) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "is worse than blind guessing" in shown and "it was saved without a training run" in shown


# ---- tokenizers ----------------------------------------------------------------------------------------------------


def test_tokenizers_are_made_by_name_from_texts_and_from_other_libraries(tmp_path: Path) -> None:
    assert isinstance(ls.make_tokenizer("byte"), ByteTokenizer)
    assert ls.make_tokenizer("characters", ["ab", "bc"]).size == 3
    subwords = ls.make_tokenizer("bpe:260", [TEXT * 5])
    assert subwords.size == 260 and subwords.decode(subwords.encode(TEXT)) == TEXT
    from tokenizers import Tokenizer

    foreign = Tokenizer.from_str(subwords.describe()["json"])
    foreign.enable_truncation(2)
    converted = ls.make_tokenizer(foreign)
    assert converted.encode(TEXT).tolist() == subwords.encode(TEXT).tolist() and foreign.truncation is not None
    foreign.save(str(tmp_path / "file.json"))
    assert ls.make_tokenizer(tmp_path / "file.json").size == 260
    ended = ls.make_tokenizer(subwords, end=True)
    assert isinstance(ended, WithEOS) and ended.eos == 260 and ls.make_tokenizer(ended, end=True) is ended


# ---- the description of a system -----------------------------------------------------------------------------------


def test_the_description_of_a_system_has_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["systems", "rdlm", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    listed = {one["name"]: one for one in (*shown["options"], *shown["network_options"])}
    assert listed.keys() == ls.options("rdlm").keys() == {*option_docs("rdlm"), *network_docs()}
    assert all(one["help"] for one in listed.values()) and listed["width"]["default"] == 128
    assert main(["systems", "rdlm"]) == 0
    text = capsys.readouterr().out
    assert ls.system("rdlm").title in text and "Presets: default, paper" in text
    assert all(f" {name} " in text for name in ls.options("rdlm"))
    assert main(["train", "--help"]) == 0
    assert "logosphere systems NAME" in " ".join(capsys.readouterr().out.split())
