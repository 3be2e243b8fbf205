"""Stages of latent systems: budgets of their own, autoencoders as files, options that a tokenizer determines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_languages import generator

import logosphere as ls
from logosphere.autoencoders import pretrained
from logosphere.autoencoders.decoders import LocalQueryInit
from logosphere.data.tokenizer_registry import SubwordTokenizer, make_tokenizer
from logosphere.data.tokenizers import WithEOS
from logosphere.evaluation.likelihood import measure_reconstruction
from logosphere.runs.config import TrainConfig
from logosphere.runs.loop import AutoencoderTrained, run_training
from logosphere.runs.run import Run
from logosphere.runs.stage_budgets import Elapsed
from logosphere.runs.train import create
from logosphere.systems import latent_defaults
from logosphere.systems.registry import complete_options
from logosphere.training.stages import autoencoder_options, read_autoencoder
from logosphere.types import Batch

SYSTEMS = ["ld4lg", "planner", "tencdm", "cosmos"]
SIZE = {"width": 16, "depth": 1, "heads": 2, "autoencoder_depth": 1}
TOKENS = torch.randint(5, (64, 8), generator=generator(3))


def small(name: str, **options: object) -> ls.Model:
    torch.manual_seed(0)
    compressed = {} if name == "tencdm" else {"latents": 2, "latent_width": 6}
    return ls.build(name, vocab_size=5, length=8, **SIZE | compressed | options)


def trained(name: str, folder: Path) -> ls.Model:
    model = small(name)
    for _ in ls.fit(model, TOKENS, steps=1, stage_one_steps=3, batch=16):
        pass
    ls.save_autoencoder(model, folder)
    return model


# ---- budgets --------------------------------------------------------------------------------------------------------


def test_each_stage_has_its_own_steps_and_learning_rate() -> None:
    model, optim = small("cosmos"), ls.OptimizerConfig(lr=1e-2, warmup=1, min_lr_ratio=0.0)
    codec, rates, changed = model.process.codec, [], []
    before = codec.decoder.head.weight.clone()
    for progress in ls.fit(model, TOKENS, steps=6, stage_one_steps=4, batch=16, optim=optim):
        rates.append(progress.lr)
        changed.append(not torch.equal(before, codec.decoder.head.weight))
        before = codec.decoder.head.weight.clone()
    assert changed == [True] * 4 + [False] * 6
    assert rates[4] == pytest.approx(rates[0]) == pytest.approx(0.5e-2)  # half of the warm-up, and done = 0
    assert rates[1] == max(rates[:4]) and rates[5] == max(rates[4:]) and rates[3] < rates[1] and rates[9] < rates[5]


def test_without_budgets_of_their_own_stages_share_the_steps_as_before() -> None:
    shared, again = small("cosmos"), small("cosmos")
    for _ in ls.fit(shared, TOKENS, steps=5, batch=16):
        pass
    trainer_losses = [p.loss for p in ls.fit(again, TOKENS, steps=5, batch=16)]
    assert len(trainer_losses) == 5
    assert all(torch.equal(a, b) for a, b in zip(shared.parameters(), again.parameters(), strict=True))


def test_elapsed_counts_the_budget_of_the_second_stage_from_its_beginning() -> None:
    config = TrainConfig(system="cosmos", steps=10, stage_one_minutes=1.0)
    elapsed = Elapsed(seconds=99.0, cpu_seconds=30.0)
    assert elapsed.in_stage_one(config) and elapsed.stage_done(config, 7) == pytest.approx(0.5)
    assert elapsed.done(config, 7, 0.4) == pytest.approx(0.2)
    second = replace(elapsed, cpu_seconds=61.0).end_stage_one(20)
    assert second.stage_done(config, 25) == pytest.approx(0.5) and second.done(config, 25, 0.4) == pytest.approx(0.7)
    assert second.done(config, 30, 0.4) == pytest.approx(1.0)
    assert Elapsed.read({"seconds": 1.0, "cpu_seconds": 2.0}) == Elapsed(1.0, 2.0)  # of an earlier version
    assert Elapsed.read(vars(second)) == second
    with pytest.raises(ls.UserError, match="has no first stage; leave out --stage-one-minutes"):
        replace(config, autoencoder="x")


@pytest.fixture
def prose(tmp_path: Path) -> str:
    words = ["a red fox", "the old man", "a small dog", "the bird sings", "one more day", "two cats sleep"]
    lines = [f"{words[i % 6]} {words[i // 6 % 6]}" for i in range(120)]
    path = tmp_path / "prose.txt"
    path.write_text("\n".join(lines))
    return f"lines:{path}"


TINY = TrainConfig(
    system="cosmos", options=("latents=2", "latent_width=6", "autoencoder_depth=1", "encoder=scratch"), length=32,
    batch=8, steps=4, validations=1, validation_sequences=8, precision="float32", device="cpu",
    network=ls.NetworkConfig(width=16, depth=1, heads=2), tokenizer="characters",
)  # fmt: skip


def test_a_run_saves_its_autoencoder_and_others_share_it(prose: str, tmp_path: Path) -> None:
    config = replace(TINY, data=prose, stage_one_minutes=0.01)
    run, corpus, model = create(config, tmp_path / "first")
    events = list(run_training(run, corpus, model=model))
    (end,) = [event for event in events if isinstance(event, AutoencoderTrained)]
    found = read_autoencoder(run.path)
    reached = found.content["reached"]
    assert reached["accuracy"] == end.reached.accuracy and reached["error"] == end.reached.error > 0
    assert "held-out texts reconstructed" in str(end.reached) and end.step >= 1
    (line,) = [line for line in run.metrics() if "val/reconstruction" in line]
    assert line["val/reconstruction"] == end.reached.accuracy
    last = [event.progress.step for event in events if hasattr(event, "progress")][-1]
    assert last == end.step + 4, "the budget of the second stage is its own"

    wider = replace(
        TINY, data=prose, tokenizer="auto", options=(), autoencoder=str(run.path / "autoencoder.safetensors"),
        network=replace(TINY.network, width=32),
    )  # fmt: skip
    second, same, other = create(wider, tmp_path / "second")
    steps = [event for event in run_training(second, same, model=other) if hasattr(event, "progress")]
    assert len(steps) == 4
    mine, theirs = (Run(place.path).model("model").process.codec for place in (run, second))
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    assert (second.path / "autoencoder.json").exists()

    with pytest.raises(ls.UserError, match="another tokenizer than"):
        create(replace(wider, tokenizer="byte"), tmp_path / "third")
    with pytest.raises(ls.UserError, match="is one of cosmos, not of planner"):
        create(replace(wider, system="planner"), tmp_path / "third")
    with pytest.raises(ls.UserError, match="latents=2, not 3"):
        create(replace(wider, options=("latents=3",)), tmp_path / "third")
    with pytest.raises(ls.UserError, match="is for .* length 32, and this model has .* length 40"):
        create(replace(wider, length=40), tmp_path / "third")
    with pytest.raises(ls.UserError, match="is for latent systems"):
        create(replace(TINY, data=prose, system="mdlm", options=(), stage_one_minutes=1.0), tmp_path / "third")
    with pytest.raises(ls.UserError, match="both stages are one training"):
        create(replace(config, options=(*TINY.options, "joint=True")), tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_a_corpus_that_is_smaller_than_a_batch_is_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "few.txt"
    path.write_text("a red fox\none more day\nthe old man\ntwo cats")
    run, corpus, model = create(replace(TINY, data=f"lines:{path}", steps=3, batch=32), tmp_path / "run")
    events = list(run_training(run, corpus, model=model))
    (end,) = [event for event in events if isinstance(event, AutoencoderTrained)]
    assert end.reached.sequences == 1
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(ls.UserError, match=r"tokens|length|characters"):
        create(replace(TINY, data=str(tmp_path / "short.txt"), length=64), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_stopped_first_stage_resumes_to_the_last_bit(prose: str, tmp_path: Path) -> None:
    """By steps, which do not depend on the machine: the first stage is a fraction of them."""
    config = replace(TINY, data=prose, steps=6)
    straight, corpus, model = create(config, tmp_path / "straight")
    for _ in run_training(straight, corpus, model=model):
        pass
    stopped, corpus, model = create(config, tmp_path / "stopped")
    steps = iter(range(100))
    for _ in run_training(stopped, corpus, lambda: next(steps) >= 2, model=model):
        pass
    for _ in run_training(stopped, corpus):
        pass
    assert read_autoencoder(straight.path).content["sha256"] == read_autoencoder(stopped.path).content["sha256"]
    assert (straight.path / "model.safetensors").read_bytes() == (stopped.path / "model.safetensors").read_bytes()


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_loaded_autoencoder_is_the_saved_one_and_stays_fixed(name: str, tmp_path: Path) -> None:
    model = trained(name, tmp_path)
    other = ls.build(name, vocab_size=5, length=8, **SIZE | {"width": 32} | read_autoencoder(tmp_path).options)
    ls.load_autoencoder(other, tmp_path)
    assert torch.equal(other.process.recon_ema, model.process.recon_ema)
    assert torch.equal(other.process.codec.encode(TOKENS), model.process.codec.encode(TOKENS))
    frozen = {key: value.clone() for key, value in other.process.codec.state_dict().items()}
    before = other.denoiser.state_dict()["inner.stem.weight" if name != "planner" else "stem.weight"].clone()
    for _ in ls.fit(other, TOKENS, steps=2, batch=16):
        pass
    after = other.denoiser.state_dict()["inner.stem.weight" if name != "planner" else "stem.weight"]
    assert all(torch.equal(frozen[key], value) for key, value in other.process.codec.state_dict().items())
    assert not torch.equal(before, after), "the denoiser is trained from the first step"


def test_damaged_or_foreign_files_are_refused(tmp_path: Path) -> None:
    trained("cosmos", tmp_path)
    with pytest.raises(ls.UserError, match="There is no autoencoder in"):
        ls.load_autoencoder(small("cosmos"), tmp_path / "nothing")
    with pytest.raises(ls.UserError, match="is one of cosmos, not of ld4lg"):
        ls.load_autoencoder(small("ld4lg"), tmp_path)
    with pytest.raises(ls.UserError, match="has latents=2, not 3"):
        ls.load_autoencoder(small("cosmos", latents=3), tmp_path)
    with pytest.raises(ls.UserError, match="Only latent systems have an autoencoder"):
        ls.load_autoencoder(ls.build("mdlm", vocab_size=5, length=8), tmp_path)
    card = json.loads((tmp_path / "autoencoder.json").read_text())
    (tmp_path / "autoencoder.json").write_text(json.dumps(card | {"options": 3}))
    with pytest.raises(ls.UserError, match="'options' is missing or of another type"):
        ls.load_autoencoder(small("cosmos"), tmp_path)
    (tmp_path / "autoencoder.json").write_text(json.dumps(card | {"sha256": "0" * 64}))
    with pytest.raises(ls.UserError, match="autoencoder.safetensors"):
        ls.load_autoencoder(small("cosmos"), tmp_path)


# ---- the linear path ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ld4lg", "planner", "cosmos"])
def test_an_autoencoder_with_a_linear_path_reads_before_the_first_step(name: str) -> None:
    """Most of 50 tokens are read from latents of 16 features each, and without the path hardly any."""
    found = {}
    for skip in (False, True):
        torch.manual_seed(0)
        model = ls.build(
            name, vocab_size=50, length=16, width=32, depth=1, heads=2, autoencoder_depth=1, compression=8,
            latent_width=128, local_skip=skip,
        )  # fmt: skip
        tokens = torch.randint(50, (64, 16), generator=generator(1))
        found[skip] = measure_reconstruction(model, [Batch.of(tokens)], 0).accuracy
    assert found[True] > 0.6 > 0.1 > found[False], found


def test_the_transposed_map_is_the_nearest_inverse() -> None:
    """P x of an orthogonal P, back by its transpose: the projection of x, with the variance of x."""
    torch.manual_seed(0)
    there = LocalQueryInit(memory=8, memory_width=6, count=2, width=12)
    back = LocalQueryInit(memory=2, memory_width=12, count=8, width=6)
    there.init_orthogonal()
    back.init_transposed(there)
    x = torch.randn(5000, 8, 6)
    y = back(there(x)).detach()
    assert y.shape == x.shape and float(y.var()) == pytest.approx(1, abs=0.05)
    u = there.map.weight.detach()
    projected = (x.unflatten(1, (2, 4)).flatten(2) @ u.T @ u).unflatten(2, (4, 6)).flatten(1, 2)
    assert torch.allclose(y, projected * 2**0.5, atol=1e-5)


# ---- options that a tokenizer determines ----------------------------------------------------------------------------

PIECES = ["[UNK]", "a", "b", "##a", "##b", "ab"]


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small encoder in the place of MiniLM, with a tokenizer."""
    from safetensors.torch import save_file

    from logosphere.autoencoders.bert import Bert, published_name

    sizes = {
        "hidden_size": 8, "layer_norm_eps": 1e-12, "num_hidden_layers": 6, "vocab_size": 12, "intermediate_size": 16,
        "max_position_embeddings": 40, "type_vocab_size": 2, "num_attention_heads": 2,
    }  # fmt: skip
    folder = tmp_path / "encoder"
    folder.mkdir()
    torch.manual_seed(1)
    (folder / "config.json").write_text(json.dumps(sizes))
    tensors = {published_name(name): tensor.clone() for name, tensor in Bert(sizes).state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    vocabulary = {piece: number for number, piece in enumerate(["[CLS]", "[SEP]", "c", *reversed(PIECES), "##c"])}
    (folder / "tokenizer.json").write_text(_tokenizer_json(vocabulary))
    monkeypatch.setattr(pretrained, "minilm_folder", lambda: folder)
    monkeypatch.setattr(pretrained.MiniLM, "CLS", 0)
    monkeypatch.setattr(pretrained.MiniLM, "SEP", 1)
    monkeypatch.setattr(latent_defaults, "minilm_is_installed", lambda: True)
    return folder


def _tokenizer_json(vocabulary: dict[str, int]) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return made.to_str()


def reduced() -> SubwordTokenizer:
    return SubwordTokenizer.from_json(_tokenizer_json({piece: i for i, piece in enumerate(PIECES)}), "minilm")


@pytest.mark.parametrize("name", ["ld4lg", "tencdm", "cosmos"])
def test_the_installed_encoder_is_the_default_for_its_word_pieces(name: str, encoder: Path, tmp_path: Path) -> None:
    model = ls.build(name, tokenizer=WithEOS(reduced()), length=16, layer=2, **SIZE)
    options = model.spec.options
    assert options["encoder"] == "minilm" and len(options["encoder_sha256"]) == 64
    assert options["encoder_token_ids"] == [8, 7, 6, 5, 4, 3, 1]
    assert model.process.codec.reader.width == 8
    if name != "tencdm":
        assert (model.process.codec.latents, model.process.codec.features) == (2, 8)
    model.save(tmp_path / "saved")
    again = ls.load(tmp_path / "saved")
    tokens = torch.randint(7, (2, 16), generator=generator(0))
    assert torch.equal(again.process.codec.encode(tokens), model.process.codec.encode(tokens))

    remark = complete_options(name, {"layer": 2}, WithEOS(reduced()).describe())[1]
    assert "the encoder is minilm" in remark and options["encoder_sha256"][:12] in remark


def test_a_model_names_the_encoder_that_it_needs(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ls.build("cosmos", tokenizer=reduced(), length=16, layer=2, **SIZE).save(tmp_path / "saved")
    weights = (encoder / "model.safetensors").read_bytes()
    changed = bytearray(weights)
    changed[-1] ^= 1
    (encoder / "model.safetensors").write_bytes(bytes(changed))
    with pytest.raises(ls.UserError, match="have the sha256 .* and this model was trained with"):
        ls.load(tmp_path / "saved")
    (encoder / "model.safetensors").write_bytes(weights)
    monkeypatch.undo()
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(ls.UserError, match="pip install"):
        ls.load(tmp_path / "saved")


def test_other_tokenizers_and_plain_integers_train_an_encoder(encoder: Path) -> None:
    letters = make_tokenizer("characters", ["abc cab"])
    model = ls.build("cosmos", tokenizer=letters, length=16, **SIZE)
    assert model.spec.options["encoder"] == "scratch"
    assert "encoder" not in ls.build("cosmos", vocab_size=5, length=16, **SIZE).spec.options
    assert ls.build("cosmos", vocab_size=5, length=16, encoder="scratch", **SIZE).process.codec.reader.width == 16
    with pytest.raises(ls.UserError, match="The tokenizer has no word pieces; use --tokenizer minilm:2048"):
        ls.build("cosmos", tokenizer=letters, length=16, encoder="minilm", **SIZE)
    planner = ls.build("planner", tokenizer=reduced(), length=16, **SIZE)
    assert "encoder" not in planner.spec.options and planner.process.codec.features == 256


def test_options_of_a_run_are_complete(encoder: Path, prose: str, tmp_path: Path) -> None:
    """The recipe names the encoder, so that nothing is resolved again when the run is resumed."""
    path = tmp_path / "pieces.json"
    letters = sorted(set("a red fox the old man small dog bird sings one more day two cats sleep") - {" "})
    vocabulary = ["[UNK]", *letters, *(f"##{letter}" for letter in letters)]
    path.write_text(_tokenizer_json({piece: i for i, piece in enumerate(vocabulary)}))
    more = ["[CLS]", "[SEP]", *vocabulary]
    (encoder / "tokenizer.json").write_text(_tokenizer_json({piece: i for i, piece in enumerate(more)}))
    config = replace(TINY, options=("layer=2",), data=prose, tokenizer=str(path))
    with pytest.raises(ls.UserError, match="encoder_token_ids must name one of the 12"):
        create(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_stage_one_options_are_those_that_determine_the_autoencoder() -> None:
    options = autoencoder_options(small("cosmos", max_logsnr=2.0, tan=3.0).spec)
    assert options["latents"] == 2 and options["autoencoder_width"] == 16 and options["autoencoder_heads"] == 2
    assert not options.keys() & {"max_logsnr", "tan", "predicts", "joint"}
