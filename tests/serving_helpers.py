"""A server of small models for tests, and its clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import torch

import logosphere as ls
from logosphere.data.tokenizers import WithEOS, text8_tokenizer
from logosphere.serving.limits import ServeLimits
from logosphere.serving.server import serve
from logosphere.studio.connections import Limits

LENGTH = 24
SYSTEMS = {"masked": "mdlm", "causal": "ar", "sphere": "rdlm", "gaussian": "diffusion-lm", "uniform": "udlm"}
"""Models by the names that requests use."""
SHORT = Limits(refusal_seconds=0.0, header_seconds=2.0, body_seconds=2.0, stall_seconds=2.0)


def write_model(folder: Path, system: str, *, ends: bool = False, length: int = LENGTH) -> Path:
    """A model of random weights that are large enough for texts to depend on them."""
    torch.manual_seed(0)
    tokenizer = WithEOS(text8_tokenizer()) if ends else text8_tokenizer()
    model = ls.build(system, vocab_size=tokenizer.size, length=length, width=16, depth=1, heads=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.tokenizer = tokenizer
    model.save(folder)
    return folder


@contextmanager
def serve_models(
    folder: Path, *, limits: ServeLimits | None = None, key: str = "", connections: Limits = SHORT
) -> Iterator[str]:
    """Serve one model of each family, and one whose texts end."""
    places = [write_model(folder / name, system) for name, system in SYSTEMS.items()]
    places.append(write_model(folder / "ending", "mdlm", ends=True))
    with serve(places, limits=limits, key=key, connections=connections) as address:
        yield address


def make_client(address: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=address, api_key=key, max_retries=0, timeout=60)
