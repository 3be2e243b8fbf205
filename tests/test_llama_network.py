"""Llama-type networks against an independent float64 reference, against transformers, and with caches."""

import math

import pytest
import torch
from torch import Tensor

from logosphere.checkpoints.llama_names import TRANSFORMERS
from logosphere.networks.attention import block_causal_mask
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.llama import Llama

KINDS = {
    "llama": {"tied": False},
    "smollm2": {"tied": True, "kv_heads": 1},
    "qwen2": {"tied": False, "qkv_bias": True, "kv_heads": 2, "rotary_base": 1e6, "eps": 1e-6},
    "qwen3": {"tied": True, "qk_norm": True, "kv_heads": 2, "head_width": 12, "rotary_base": 1e6, "eps": 1e-6},
}


def make_config(**changes: object) -> PublishedConfig:
    sizes = {"rows": 61, "width": 32, "depth": 3, "heads": 4, "kv_heads": 4, "head_width": 8, "inner": 48}
    return PublishedConfig(**({"layout": "llama", "positions": 64} | sizes | changes))  # type: ignore[arg-type]


def make_network(config: PublishedConfig, seed: int = 0) -> Llama:
    rng, network = torch.Generator().manual_seed(seed), Llama(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=rng)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else noise * (0.5 if "embed" in name else 0.25))
    return network.eval()


def reference(w: dict[str, Tensor], c: PublishedConfig, ids: list[int], mask: Tensor) -> Tensor:
    """Logits from the formulas, for one sequence, position by position and head by head, in float64."""
    w = {name: value.detach().double() for name, value in w.items()}

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return weight * x / torch.sqrt((x * x).mean() + c.eps)

    def rotate(x: Tensor, position: int) -> Tensor:
        half, out = c.head_width // 2, x.clone()
        for i in range(half):
            angle = position * c.rotary_base ** (-2 * i / c.head_width)
            out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
            out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
        return out

    xs = [w["embed.weight"][i] for i in ids]
    for b in range(c.depth):
        part = {name[len(f"blocks.{b}.") :]: value for name, value in w.items() if name.startswith(f"blocks.{b}.")}
        heads: dict[str, list[list[Tensor]]] = {"q": [], "k": [], "v": []}
        for position, x in enumerate(xs):
            h = norm(x, part["norm1.weight"])
            for name, rows in heads.items():
                y = part[f"{name}.weight"] @ h + part.get(f"{name}.bias", torch.zeros((), dtype=torch.float64))
                each = list(y.split(c.head_width))
                if c.qk_norm and name != "v":
                    each = [norm(head, part[f"{name}_norm.weight"]) for head in each]
                rows.append(each if name == "v" else [rotate(head, position) for head in each])
        for i, x in enumerate(xs):
            mixed = []
            for head in range(c.heads):
                shared = head // (c.heads // c.kv_heads)
                seen = [j for j in range(len(ids)) if mask[i, j]]
                scores = torch.stack([heads["q"][i][head] @ heads["k"][j][shared] for j in seen])
                weights = (scores / math.sqrt(c.head_width)).softmax(0)
                mixed.append(sum(p * heads["v"][j][shared] for p, j in zip(weights, seen, strict=True)))
            x = x + part["o.weight"] @ torch.cat(mixed)
            h = norm(x, part["norm2.weight"])
            gate = part["gate.weight"] @ h
            xs[i] = x + part["down.weight"] @ (gate * gate.sigmoid() * (part["up.weight"] @ h))
    table = w["embed.weight"] if c.tied else w["out.weight"]
    return torch.stack([table @ norm(x, w["norm.weight"]) for x in xs])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seen", ["full", "causal", "blocks"])
def test_logits_are_those_of_the_formulas(kind: str, seen: str) -> None:
    config = make_config(**KINDS[kind])
    network, ids = make_network(config), torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = {"full": torch.ones(9, 9).bool(), "causal": torch.ones(9, 9).tril().bool()}.get(seen)
    if mask is None:
        mask = block_causal_mask(9, 3)[9:, 9:]
    with torch.no_grad():
        h = network.features(ids, None, mask=mask if seen == "blocks" else None, causal=seen == "causal")
        logits = network.head(h)
    expected = torch.stack([reference(network.state_dict(), config, row.tolist(), mask) for row in ids])
    torch.testing.assert_close(logits.double(), expected, atol=2e-5, rtol=1e-5)


def published_state(network: Llama) -> dict[str, Tensor]:
    values = network.state_dict()
    return {name: values[ours] for ours, name in TRANSFORMERS.parameters(network.config).items()}


def published_class(kind: str, config: PublishedConfig) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra 'hf'")
    name = {"llama": "Llama", "smollm2": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    settings = getattr(transformers, f"{name}Config")(
        vocab_size=config.rows,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_width,
        intermediate_size=config.inner,
        rms_norm_eps=config.eps,
        max_position_embeddings=config.positions,
        tie_word_embeddings=config.tied,
        rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base},
        rope_theta=config.rotary_base,
        attn_implementation="eager",
    )
    model: torch.nn.Module = getattr(transformers, f"{name}ForCausalLM")(settings).eval()
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_logits_are_those_of_transformers(kind: str, causal: bool) -> None:
    config = make_config(**KINDS[kind])
    model, network = published_class(kind, config), make_network(config)
    missing, unexpected = model.load_state_dict(published_state(network), strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if config.tied else set())
    ids = torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        mask = None if causal else torch.zeros(2, 1, 17, 17)  # added to the scores: nothing is hidden
        expected = model(input_ids=ids, attention_mask=mask).logits
        logits = network.head(network.features(ids, None, causal=causal))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_features_with_caches_are_those_without(kind: str) -> None:
    config = make_config(**KINDS[kind])
    network, ids = make_network(config), torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for mask, steps in ((None, (5, 1, 1, 3, 2)), (block_causal_mask(12, 3)[12:, 12:], (6, 3, 3))):
            whole = network.features(ids, None, mask=mask, causal=mask is None)
            caches, found, start = network.new_caches(2, 12), [], 0
            for count in steps:
                # blocks that begin at a boundary see all earlier ones and themselves: no mask is needed but for several
                rows = None if mask is None else mask[start : start + count, : start + count]
                part = ids[:, start : start + count]
                found.append(network.features(part, None, mask=rows, causal=mask is None, caches=caches))
                start += count
            torch.testing.assert_close(torch.cat(found, 1), whole, atol=2e-5, rtol=1e-5)


def test_positions_move_the_rotation_but_not_what_is_seen() -> None:
    network = make_network(make_config())
    ids = torch.arange(8)[None]
    with torch.no_grad():
        plain = network.features(ids, None)
        torch.testing.assert_close(network.features(ids, None, positions=torch.arange(8) + 5), plain, atol=2e-5, rtol=0)
        moved = network.features(ids, None, positions=torch.arange(8) * 2)
    assert (moved - plain).abs().max() > 0.01, "rotations are relative, but distances count"


def test_bfloat16_keeps_rotations_exact() -> None:
    """The angle of position 1,000 in bfloat16 is wrong by some radians; features would not resemble these."""
    network, ids = make_network(make_config(depth=1)), torch.randint(61, (1, 64))
    positions = torch.arange(64) + 4000
    with torch.no_grad():
        exact = network.features(ids, None, positions=positions)
        low = network.bfloat16().features(ids, None, positions=positions)
    assert low.dtype == torch.bfloat16
    assert (low.float() - exact).norm() / exact.norm() < 0.03


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ({"rows": 126464, "width": 4096, "depth": 32, "heads": 32, "kv_heads": 32, "inner": 12288}, 8_015_581_184),
        (
            {"rows": 152064, "width": 3584, "depth": 28, "heads": 28, "kv_heads": 4, "inner": 18944, "qkv_bias": True},
            7_615_616_512,
        ),
        (
            {"rows": 151936, "width": 1024, "depth": 28, "heads": 16, "kv_heads": 8, "inner": 3072}
            | {"tied": True, "qk_norm": True},
            596_049_920,
        ),
        (
            {"rows": 151936, "width": 896, "depth": 24, "heads": 14, "kv_heads": 2, "inner": 4864}
            | {"tied": True, "qkv_bias": True, "head_width": 64},
            494_032_768,
        ),
        (
            {"rows": 151936, "width": 2560, "depth": 36, "heads": 32, "kv_heads": 8, "inner": 9728, "qk_norm": True},
            4_411_424_256,
        ),
        (
            {"rows": 151936, "width": 1536, "depth": 28, "heads": 12, "kv_heads": 2, "inner": 8960}
            | {"tied": True, "qkv_bias": True},
            1_543_714_304,
        ),
        ({"rows": 32000, "width": 4096, "depth": 32, "heads": 32, "kv_heads": 32, "inner": 11008}, 6_738_415_616),
        (
            {"rows": 49152, "width": 576, "depth": 30, "heads": 9, "kv_heads": 3, "inner": 1536}
            | {"tied": True, "head_width": 64},
            134_515_008,
        ),
    ],
)
def test_parameters_at_full_size(sizes: dict[str, int], count: int) -> None:
    with torch.device("meta"):
        network = Llama(make_config(**({"head_width": 128} | sizes)))
    assert sum(parameter.numel() for parameter in network.parameters()) == count
    assert not list(network.buffers()), "rotations are computed when needed"
