"""GPT-2's network against its formulas in float64, against transformers, and with caches."""

import math

import numpy as np
import pytest
import torch
from llama_fixtures import SMALL, Size, gpt2_shapes
from published_fixtures import random_tensors
from torch import Tensor

from logosphere.checkpoints.gpt2 import GPT2Family
from logosphere.checkpoints.load import Matched, match, read_parameters
from logosphere.networks.attention import block_causal_mask
from logosphere.networks.published.gpt2 import GPT2

SIZE = Size(**vars(SMALL) | {"kv_heads": 4, "depth": 3})


class Tensors:
    """Weights in memory, as an open checkpoint."""

    def __init__(self, values: dict[str, Tensor]):
        from llama_fixtures import headers

        self.values, self.tensors = values, headers({name: tuple(value.shape) for name, value in values.items()})
        self.config, self.files = {"n_head": SIZE.heads, "bos_token_id": 1}, ()

    def read(self, name: str) -> Tensor:
        return self.values[name]


def make_network(seed: int = 0) -> tuple[GPT2, dict[str, Tensor]]:
    values = random_tensors(gpt2_shapes(SIZE, diffusion=False), seed)
    for name, value in values.items():
        if name.endswith(".bias"):
            value.sub_(1)
    weights, family = Tensors(values), GPT2Family()
    described = family.describe(weights.config, weights.tensors)
    matched: Matched = match(family, described, weights.tensors)
    network = GPT2(described.network)
    network.load_state_dict(dict(read_parameters(weights, matched, torch.float32)))
    return network.eval(), values


def reference(values: dict[str, Tensor], ids: list[int], seen: np.ndarray) -> np.ndarray:
    """Logits from the formulas under the published names, in float64: y = x W + b, W of shape [in, out]."""
    w = {name.removeprefix("transformer."): value.double().numpy() for name, value in values.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for i in range(SIZE.depth):
        q, k, v = np.split(linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, axis=-1)
        mixed = []
        for head in range(SIZE.heads):
            part = slice(head * SIZE.head_width, (head + 1) * SIZE.head_width)
            scores = np.where(seen, q[:, part] @ k[:, part].T / math.sqrt(SIZE.head_width), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
        x = x + linear(np.concatenate(mixed, -1), f"h.{i}.attn.c_proj")
        h = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, f"h.{i}.mlp.c_proj")
    found: np.ndarray = norm(x, "ln_f") @ w["wte.weight"].T
    return found


@pytest.mark.parametrize("seen", ["full", "causal", "blocks"])
def test_logits_are_those_of_the_formulas(seen: str) -> None:
    network, values = make_network()
    ids = torch.randint(SIZE.rows, (2, 12), generator=torch.Generator().manual_seed(1))
    blocks = block_causal_mask(12, 3)[12:, 12:]
    allowed = {"full": torch.ones(12, 12).bool(), "causal": torch.ones(12, 12).tril().bool(), "blocks": blocks}[seen]
    with torch.no_grad():
        h = network.features(ids, None, mask=blocks if seen == "blocks" else None, causal=seen == "causal")
        logits = network.head(h)
    expected = np.stack([reference(values, row.tolist(), allowed.numpy()) for row in ids])
    torch.testing.assert_close(logits.double(), torch.from_numpy(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_logits_are_those_of_transformers(causal: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="parity with transformers needs the package")
    network, values = make_network()
    settings = transformers.GPT2Config(
        vocab_size=SIZE.rows, n_positions=SIZE.positions, n_embd=SIZE.width, n_layer=SIZE.depth, n_head=SIZE.heads,
        n_inner=SIZE.inner, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(settings).eval()
    missing, unexpected = model.load_state_dict(values, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    ids = torch.randint(SIZE.rows, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        # A mask of four axes is added to the scores as it is, so that nothing is hidden.
        expected = model(input_ids=ids, attention_mask=None if causal else torch.zeros(2, 1, 16, 16)).logits
        logits = network.head(network.features(ids, None, causal=causal))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_features_with_caches_are_those_without() -> None:
    network, _ = make_network()
    ids = torch.randint(SIZE.rows, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole, caches, start, found = network.features(ids, None, causal=True), network.new_caches(2, 12), 0, []
        for count in (5, 1, 3, 2, 1):
            found.append(network.features(ids[:, start : start + count], None, causal=True, caches=caches))
            start += count
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-5, rtol=1e-5)
