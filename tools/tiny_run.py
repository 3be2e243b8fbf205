"""The smallest training that takes every path of a run: its text and its configuration."""

from logosphere.networks.config import NetworkConfig
from logosphere.runs.config import TrainConfig
from logosphere.training.optimizer import OptimizerConfig

TEXT = "the cat sat on the mat and the dog sat on the log\n" * 40
RECIPE = TrainConfig(
    length=8, batch=4, steps=12, validations=3, validation_sequences=6, ema=0.9, device="cpu", precision="float32",
    network=NetworkConfig(width=16, depth=1, heads=2), optim=OptimizerConfig(lr=1e-2, warmup=3), seed=5,
)  # fmt: skip
