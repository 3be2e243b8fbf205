"""Families of DDiT checkpoints: how they are recognised, what they mean, and what is refused."""

from typing import Any

import pytest
import torch
from ddit_fixtures import Shape, cached_angles, inverse_frequencies, random_tensors
from torch import Tensor

from logosphere.checkpoints.ddit import DDiTFamily
from logosphere.checkpoints.families import Description, TensorInfo, Tensors
from logosphere.errors import UserError
from logosphere.networks.published.ddit import DDiT

FAMILY = DDiTFamily()
TINY = Shape()
SIZES = {"vocab_size": 11, "model_length": 8, "hidden_dim": 12, "n_blocks": 2, "n_heads": 2, "cond_dim": 6}


def infos(tensors: dict[str, Tensor], prefix: str = "") -> Tensors:
    return {f"{prefix}{name}": TensorInfo(tuple(tensor.shape), "F32") for name, tensor in tensors.items()}


def full_size(rows: int, width: int = 768, depth: int = 12, *, condition: int = 128, modulated: bool = True) -> Tensors:
    """The names and shapes of a published network, with its rotary table."""
    with torch.device("meta"):
        shape = Shape(rows, width, depth, width // 64, condition, modulated=modulated)
        tensors = {name: tensor.shape for name, tensor in empty_like_random(shape).items()}
    named = {f"backbone.{name}": TensorInfo(tuple(extents), "F32") for name, extents in tensors.items()}
    return named | {"backbone.rotary_emb.inv_freq": TensorInfo((32,), "F32")}


def empty_like_random(shape: Shape) -> dict[str, Tensor]:
    """The shapes of `random_tensors` without drawing them: those of a small network, scaled."""
    small = random_tensors(Shape(7, 6, 1, 1, 5, modulated=shape.modulated))
    scaled = {7: shape.rows, 6: shape.width, 5: shape.condition, 18: 3 * shape.width, 24: 4 * shape.width}
    scaled |= {36: 6 * shape.width, 12: 2 * shape.width, 256: 256}
    tensors = {}
    for name, tensor in small.items():
        extents = [scaled[extent] for extent in tensor.shape]
        for index in range(shape.depth) if name.startswith("blocks.0.") else [0]:
            tensors[name.replace("blocks.0.", f"blocks.{index}.")] = torch.empty(extents)
    return tensors


def describe(config: dict[str, Any], tensors: Tensors, source: str = "", size: int | None = None) -> Description:
    assert FAMILY.recognises(config, tensors)
    return FAMILY.describe(config, tensors, source=source, tokenizer_size=size)


MDLM = {"model_type": "mdlm", "vocab_size": 50_258, "model_length": 1024, "hidden_dim": 768, "n_blocks": 12,
        "n_heads": 12, "cond_dim": 128, "dropout": 0.1, "time_conditioning": False}  # fmt: skip


class TestPublishedModels:
    """Every model of the list at its full size: its system, tokens, mask, and what it reads."""

    def test_mdlm(self) -> None:
        found = describe(MDLM, full_size(50_258), "kuleshov-group/mdlm-owt", 50_257)
        assert (found.system, found.vocab_size, found.length) == ("mdlm", 50_257, 1024)
        assert (found.network.mask_id, found.network.reads, found.network.attention) == (50_257, "zero", "full")
        assert found.special == {"bos": 50_256, "eos": 50_256} and found.options == {}
        assert describe(MDLM, full_size(50_258)) == found  # a tokenizer is not needed

    def test_mdlm_that_reads_sigma(self) -> None:
        found = describe(MDLM | {"time_conditioning": True}, full_size(50_258))
        assert found.network.reads == "sigma"
        assert found.options["time_conditional"] and found.options["schedule"] == "log-linear"

    @pytest.mark.parametrize("block", [4, 8, 16])
    def test_bd3lm(self, block: int) -> None:
        config = MDLM | {"model_type": "bd3lm", "block_size": block, "cond_dim": 129, "cross_attn": True}
        tensors = full_size(50_258) | {"sampling_eps_min": TensorInfo((), "F32")}
        found = describe(config, tensors, f"kuleshov-group/bd3lm-owt-block_size{block}")
        assert (found.system, found.vocab_size, found.options) == ("bd3lm", 50_257, {"block": block})
        assert (found.network.attention, found.network.reads) == ("blocks", "zero")
        assert found.network.condition_width == 128  # from the tensors

    def test_bd3lm_of_one_block_is_mdlm(self) -> None:
        config = MDLM | {"model_type": "bd3lm", "block_size": 1024}
        found = describe(config, full_size(50_258))
        assert (found.system, found.network.attention, found.options) == ("mdlm", "full", {})

    @pytest.mark.parametrize("name", ["s-sahoo/duo", "s-sahoo/duo-distilled"])
    def test_duo(self, name: str) -> None:
        config = {key: value for key, value in MDLM.items() if key != "time_conditioning"} | {"model_type": "duo"}
        found = describe(config, full_size(50_258), name, 50_257)
        assert (found.system, found.vocab_size) == ("udlm", 50_258)  # [PAD] takes part in the noise
        assert (found.network.mask_id, found.network.reads) == (None, "sigma")
        assert found.options == {"schedule": "log-linear"}

    def test_udlm(self) -> None:
        config = MDLM | {"model_type": "udlm", "vocab_size": 30_522, "model_length": 128, "time_conditioning": True}
        found = describe(config, full_size(30_522), "kuleshov-group/udlm-lm1b", 30_522)
        assert (found.system, found.vocab_size, found.length) == ("udlm", 30_522, 128)
        assert (found.network.mask_id, found.network.reads) == (None, "sigma")

    @pytest.mark.parametrize(("width", "depth"), [(768, 12), (1024, 24)])
    def test_sedd(self, width: int, depth: int) -> None:
        model = {"hidden_size": width, "cond_dim": 128, "length": 1024, "n_blocks": depth, "n_heads": width // 64}
        config = {
            "tokens": 50_257,
            "graph": {"type": "absorb"},
            "noise": {"type": "loglinear"},
            "model": model | {"scale_by_sigma": True, "dropout": 0.1},
        }
        tensors = {name.removeprefix("backbone."): info for name, info in full_size(50_258, width, depth).items()}
        found = describe(config, tensors, "louaaron/sedd-small")
        assert (found.system, found.vocab_size, found.length) == ("sedd-absorb", 50_257, 1024)
        assert (found.network.mask_id, found.network.reads, found.network.depth) == (50_257, "sigma", depth)

    def test_sedd_of_the_mdlm_authors(self) -> None:
        found = describe(MDLM | {"time_conditioning": True}, full_size(50_258), "kuleshov-group/sedd-noeos-owt")
        assert found.system == "sedd-absorb"

    @pytest.mark.parametrize("p_u", [0.0, 0.1, 0.2])
    def test_gidd(self, p_u: float) -> None:
        config = {"model_type": "dit", "vocab_size": 50_259, "max_seq_len": 512, "hidden_size": 768,
                  "timestep_cond_dim": 128, "num_hidden_layers": 12, "num_attention_heads": 12}  # fmt: skip
        tensors = {name.removeprefix("backbone."): info for name, info in full_size(50_259).items()}
        found = describe(config | {"p_uniform": p_u, "t_eps": 1e-4}, tensors, size=50_257)
        assert (found.system, found.vocab_size, found.length) == ("gidd", 50_258, 512)
        assert (found.network.mask_id, found.network.reads) == (50_258, "time")
        assert found.options == {"p_u": p_u, "schedule": "linear"}
        assert describe(config, tensors, f"dvruette/gidd-small-p_unif-{p_u}") == found

    def test_ar(self) -> None:
        found = describe(MDLM, full_size(50_258, modulated=False), "kuleshov-group/ar-noeos-owt")
        assert (found.system, found.vocab_size) == ("ar", 50_257)
        assert (found.network.attention, found.network.reads, found.network.modulated) == ("causal", "nothing", False)

    def test_rdlm(self) -> None:
        shape = Shape(27, 12, 2, 2, 6, states=True)
        config = {"model": {"hidden_size": 12, "n_blocks": 2, "n_heads": 2, "length": 256}}
        found = describe(config, infos(random_tensors(shape)))
        assert (found.system, found.vocab_size, found.length) == ("rdlm", 27, 256)
        assert found.network.reads_states and found.network.reads == "time"
        assert any("surrogate" in remark for remark in found.remarks)

    def test_rdlm_of_digits(self) -> None:
        config = {"model": {"n_heads": 2, "length": 128}}
        found = describe(config, infos(random_tensors(Shape(3, states=True))))
        assert (found.vocab_size, found.length, found.network.positions) == (30_522, 128, 1280)
        assert found.options["base"] == 3


class TestRecognition:
    """By configuration, else by tensors."""

    def test_prefix_or_none(self) -> None:
        for prefix in ("backbone.", ""):
            tensors = infos(random_tensors(TINY), prefix)
            assert describe(SIZES | {"model_type": "mdlm"}, tensors).network.rows == 11

    def test_names_decide_where_the_configuration_is_silent(self) -> None:
        tensors = infos(random_tensors(TINY))
        found = describe(SIZES, tensors)
        assert found.system == "mdlm" and "no model_type" in found.remarks[0]
        assert describe(SIZES, tensors, "someone/duo-small").system == "udlm"
        assert describe(SIZES | {"architectures": ["BD3LM"], "block_size": 4}, tensors).system == "bd3lm"

    def test_others_are_not(self) -> None:
        assert not FAMILY.recognises({"model_type": "llama"}, {"model.embed_tokens.weight": TensorInfo((2, 2), "F32")})
        assert not FAMILY.recognises({"model_type": "dit"}, {"transformer.weight": TensorInfo((2, 2), "F32")})

    def test_sizes_are_those_of_the_tensors(self) -> None:
        """The class defaults of cond_dim (129) and of the mask's row are traps."""
        found = describe({"model_length": 8, "n_heads": 2, "cond_dim": 129}, infos(random_tensors(TINY)))
        network = found.network
        assert (network.rows, network.width, network.depth, network.inner) == (11, 12, 2, 48)
        assert network.condition_width == 6 and network.mask_id == 10 and found.vocab_size == 10

    def test_heads_from_the_rotary_table(self) -> None:
        tensors = random_tensors(TINY) | {"rotary_emb.inv_freq": inverse_frequencies(4)}
        assert describe({"model_length": 8}, infos(tensors)).network.heads == 3

    def test_mask_between_the_tokens(self) -> None:
        found = describe(SIZES | {"mask_token_id": 4}, infos(random_tensors(TINY)))
        assert (found.network.mask_id, found.vocab_size) == (4, 11)
        assert describe(SIZES | {"mask_token_id": 8}, infos(random_tensors(TINY)), size=8).vocab_size == 8


class TestRefusals:
    """One sentence each."""

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"hidden_dim": 16}, "hidden_dim=16"),
            ({"vocab_size": 12}, "vocab_size=12"),
            ({"n_blocks": 3}, "n_blocks=3"),
            ({"n_heads": 5}, "5 heads"),
            ({"n_heads": None}, "number of heads"),
            ({"model_length": None}, "no length"),
            ({"model_length": "8"}, "model_length"),
            ({"model_type": "resnet"}, "resnet"),
            ({"model_type": "bd3lm"}, "block_size"),
            ({"model_type": "bd3lm", "block_size": 3}, "block_size"),
            ({"model_type": "gidd"}, "p_uniform"),
            ({"model_type": "gidd", "p_uniform": 1.5}, "p_uniform"),
            ({"mask_token_id": 11}, "mask"),
            ({"graph": {"type": "uniform"}}, "graph.type=uniform"),
            ({"graph": {"type": "absorb"}, "scale_by_sigma": False}, "scale_by_sigma"),
            ({"time_conditioning": "no"}, "time_conditioning"),
        ],
    )
    def test_configurations(self, changes: dict[str, Any], words: str) -> None:
        config = {key: value for key, value in (SIZES | changes).items() if value is not None}
        with pytest.raises(UserError, match=words):
            FAMILY.describe(config, infos(random_tensors(TINY)))

    def test_heads_that_disagree_with_the_rotary_table(self) -> None:
        tensors = random_tensors(TINY) | {"rotary_emb.inv_freq": inverse_frequencies(4)}
        with pytest.raises(UserError, match="rotary table"):
            FAMILY.describe(SIZES, infos(tensors))

    def test_other_tensors(self) -> None:
        with pytest.raises(UserError, match="not those of a DDiT"):
            FAMILY.describe({"model_type": "mdlm"}, {"backbone.mamba.weight": TensorInfo((2, 2), "F32")})

    def test_networks_of_classes(self) -> None:
        tensors = infos(random_tensors(TINY) | {"cond_map.embedding_table.weight": torch.zeros(3, 6)})
        with pytest.raises(UserError, match="classes"):
            FAMILY.describe(SIZES, tensors)

    def test_missing_tensors(self) -> None:
        tensors = random_tensors(TINY)
        del tensors["blocks.0.mlp.0.weight"]
        with pytest.raises(UserError, match=r"blocks\.0\.mlp\.0\.weight"):
            FAMILY.describe(SIZES, infos(tensors))


class TestTensors:
    """Parameters and tables."""

    @pytest.mark.parametrize("shape", [TINY, Shape(modulated=False), Shape(27, states=True)])
    @pytest.mark.parametrize("prefix", ["backbone.", ""])
    def test_each_parameter_has_its_tensor_and_each_tensor_its_parameter(self, shape: Shape, prefix: str) -> None:
        drawn = random_tensors(shape)
        tensors = infos(drawn, prefix)
        config = describe({"model_length": 8, "n_heads": 2}, tensors).network
        pieces = FAMILY.pieces(config, tensors)
        network = DDiT(config)
        assert set(pieces) == set(network.state_dict())
        assert {name for piece in pieces.values() for name in piece.names} == set(tensors)
        for name, parameter in network.state_dict().items():
            assert parameter.shape == tensors[pieces[name].names[0]].shape, name

    def test_tables(self) -> None:
        drawn = random_tensors(TINY) | {"rotary_emb.inv_freq": inverse_frequencies(6)} | cached_angles(6, 16)
        tensors = infos(drawn)
        config = describe({"model_length": 8, "n_heads": 2, "p_uniform": 0.1}, tensors).network
        tables = FAMILY.tables(config, tensors)
        assert set(tables) == {"rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"}
        for name, table in tables.items():
            assert table.shape == drawn[name].shape and torch.allclose(table, drawn[name], atol=1e-6), name

    def test_alphabet_of_rdlm(self) -> None:
        """Row 26 of theirs is the space, which is token 0 of the package."""
        drawn = random_tensors(Shape(27, states=True))
        tensors = infos(drawn)
        pieces = FAMILY.pieces(describe({"model_length": 8, "n_heads": 2}, tensors).network, tensors)
        for name, axis in (("embedding.weight", 1), ("out.weight", 0), ("out.bias", 0)):
            theirs, transform = drawn[pieces[name].names[0]], pieces[name].transform
            assert transform is not None
            ours = transform(theirs).movedim(axis, 0)
            assert torch.equal(ours[0], theirs.movedim(axis, 0)[26])
            assert torch.equal(ours[1:], theirs.movedim(axis, 0)[:26])
