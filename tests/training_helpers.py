"""A language that trains in milliseconds, and an infinite stream of its batches."""

from collections.abc import Iterator

from torch import Tensor
from toy_languages import generator, skewed_chain

from logosphere.training.optimizer import OptimizerConfig

LANGUAGE = skewed_chain(5, 6)
QUICK = OptimizerConfig(lr=1e-2, warmup=2)


def batches(n: int = 8, seed: int = 1) -> Iterator[Tensor]:
    rng = generator(seed)
    while True:
        yield LANGUAGE.sample(n, rng)
