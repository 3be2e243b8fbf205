"""Caches of keys and values in decoding: python benchmarks/cached_decoding.py [RUN] [--out FILE]

For the caches `prefix` and `dual` and several intervals of refreshing: the CPU time of decoding relative to that
without a cache, the mean divergence KL(exact || cached) of predictions along the trajectory of the cached run, and the
fraction of generated tokens that differ from those without a cache, at temperature 0.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import logosphere as ls
from logosphere.networks.base import CachePlan, Denoiser, Wrapper
from logosphere.networks.own import as_denoiser
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.generate import generate
from logosphere.types import Logits, State, Times, Where

CACHES = [("prefix", 0), ("prefix", 4), ("dual", 0), ("dual", 4), ("dual", 1)]
"""Caches, and after how many evaluations all keys and values are computed again; 0 for once in each block."""


class Compared(Wrapper):
    """A denoiser whose cached predictions are compared with exact ones."""

    def __init__(self, inner: Denoiser, exact: Denoiser, divergences: list[Tensor]):
        super().__init__(inner)
        self.exact, self.divergences = exact, divergences

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out = self.inner(z, t, context, where)
        q, p = out.double().log_softmax(-1), self.exact(z, t, context, where).double().log_softmax(-1)
        self.divergences.append((p.exp() * (p - q)).nan_to_num(0.0).sum(-1))
        return out

    def with_cache(self, plan: CachePlan) -> Denoiser:
        return Compared(self.inner.with_cache(plan), self.exact, self.divergences)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return Compared(inner, self.exact, self.divergences)


def measure(model: ls.Model, n: int, steps: int, block: int, prompt: Tensor) -> list[dict[str, Any]]:
    """Rows of the record, the first without a cache."""
    denoiser = as_denoiser(model.denoiser, model.process, model.length, model.block)
    known = torch.arange(model.length) < prompt.shape[1]
    tokens = torch.zeros(n, model.length, dtype=torch.long)
    tokens[:, : prompt.shape[1]] = prompt

    def decode(network: Denoiser, cache: str, refresh: int) -> tuple[Tensor, float]:
        config = DecodingConfig(block_length=block, cache=cache, cache_refresh=refresh)  # type: ignore[arg-type]
        started = time.process_time()
        drawn = generate(model, n, steps, 0, network, known, tokens, sampler="llada", temperature=0.0, decoding=config)
        return drawn.tokens[:, ~known], time.process_time() - started

    exact, seconds = decode(denoiser, "none", 0)
    rows: list[dict[str, Any]] = [{"cache": "none", "refresh": 0, "cpu_seconds": seconds, "speed_up": 1.0}]
    for cache, refresh in CACHES:
        cached, taken = decode(denoiser, cache, refresh)
        divergences: list[Tensor] = []
        decode(Compared(denoiser, denoiser, divergences), cache, refresh)
        rows.append(
            {
                "cache": cache,
                "refresh": refresh,
                "cpu_seconds": taken,
                "speed_up": seconds / taken,
                "mean_kl_nats": float(torch.cat(divergences).mean()),
                "changed_tokens": float((cached != exact).double().mean()),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="pretrained:mdlm")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--prompt", default="the history of the city ")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    run = ls.Run(arguments.run)
    model = run.model("ema")
    ids = torch.as_tensor(run.tokenizer.encode(arguments.prompt)).long()
    usable = len(ids) + (model.length - len(ids)) % arguments.block  # blocks divide what is generated
    prompt = ids.repeat(usable // len(ids) + 1)[:usable].expand(arguments.samples, -1)
    rows = measure(model, arguments.samples, arguments.steps, arguments.block, prompt)
    settings = {
        "length": model.length,
        "block": arguments.block,
        "steps": arguments.steps,
        "samples": arguments.samples,
    }
    content = {"run": arguments.run, "threads": torch.get_num_threads()} | settings | {"rows": rows}
    for row in rows:
        print(
            "   ".join(
                f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
