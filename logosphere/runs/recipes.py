"""Recipes: complete training configurations by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from logosphere.errors import UserError, suggest
from logosphere.networks.config import NetworkConfig
from logosphere.runs.config import TrainConfig, read_config_file
from logosphere.training.optimizer import OptimizerConfig


def demo() -> TrainConfig:
    """Two minutes on two cores, on text that every machine has."""
    return TrainConfig(
        system="rdlm", length=64, batch=32, steps=None, minutes=2.0, validations=4, validation_sequences=64,
        network=NetworkConfig(width=128, depth=3, heads=4), optim=OptimizerConfig("auto", lr=2e-3, warmup=50),
        ema=0.995,
    )  # fmt: skip


ROLLING_BLOCKS = ("block=4", "stagger=0.7", "order=left-to-right")
"""Options of `rdlm` and `rdlm-heat`: bridges within blocks of four positions, which begin one after another."""


def demo_blocks() -> TrainConfig:
    """The demo on the sphere in blocks of 4: better bounds and more readable samples after minutes than without."""
    whole = demo()
    return replace(whole, options=ROLLING_BLOCKS, network=replace(whole.network, decoder_depth=1, tied=True))


def text8_tiny() -> TrainConfig:
    """text8 at 1.2M parameters: what a laptop reaches in minutes."""
    return TrainConfig(
        data="text8",
        length=128,
        batch=32,
        steps=2000,
        validations=10,
        validation_sequences=256,
        network=NetworkConfig(width=160, depth=4, heads=5),
        optim=OptimizerConfig("auto", lr=2e-3, warmup=100),
        ema=0.998,
    )


def text8_blocks() -> TrainConfig:
    """text8-tiny on the sphere in blocks of 4, whose positions begin one after another (docs/results/sphere.md)."""
    whole = text8_tiny()
    network = replace(whole.network, decoder_depth=2, tied=True)
    return replace(whole, system="rdlm-heat", options=ROLLING_BLOCKS, network=network)


def text8_small() -> TrainConfig:
    """text8 at 3.2M parameters: an evening on a laptop or minutes on a GPU."""
    return replace(
        text8_tiny(), batch=64, steps=20_000, network=NetworkConfig(width=256, depth=4, heads=4),
        optim=OptimizerConfig("auto", lr=1e-3, warmup=500), ema=0.9995,
    )  # fmt: skip


def text8() -> TrainConfig:
    """text8 as in the papers: 12 × 768, length 256, 1M steps of 512 sequences (SEDD, MDLM, MD4, RDLM)."""
    return TrainConfig(
        data="text8", length=256, batch=512, steps=1_000_000, validations=100, validation_sequences=1024,
        network=NetworkConfig(width=768, depth=12, heads=12, dropout=0.0),
        optim=OptimizerConfig(lr=3e-4, warmup=2500, min_lr_ratio=1.0, beta2=0.999, weight_decay=0.0), ema=0.9999,
    )  # fmt: skip


def text8_paper() -> TrainConfig:
    """The first phase of a plan at the size of text8: any-order training on the sphere, then blocks (runs/plans.py).

    850k steps before 150k steps in blocks, as in BD3-LM. No local mixing, which networks of blocks do not have: the
    weights must fit them. The precision is that of the paper, so that the plan is the same on every machine.
    """
    whole = text8()
    return replace(
        whole, system="rdlm-heat", options=("path=any-order", "any_order_fraction=rising"), steps=850_000,
        precision="bfloat16", network=replace(whole.network, neighbours=0, tied=True),
    )  # fmt: skip


def digits() -> TrainConfig:
    """Handwritten digits, 8 × 8 pixels of 17 levels: images as tokens, offline, in minutes."""
    return TrainConfig(
        system="mdlm", data="digits", length=64, batch=64, steps=1500, validations=5, validation_sequences=128,
        network=NetworkConfig(width=128, depth=4, heads=4, shape="8x8"),
        optim=OptimizerConfig(lr=2e-3, warmup=50), ema=0.995,
    )  # fmt: skip


def cifar10() -> TrainConfig:
    """CIFAR-10 as 3,072 pixels of 256 levels, in any order: 10 blocks (MD4, RDLM); for a GPU."""
    return TrainConfig(
        system="md4", data="cifar10", length=3072, batch=128, steps=100_000, validations=50, validation_sequences=256,
        network=NetworkConfig(width=512, depth=10, heads=8, shape="32x32x3", dropout=0.1),
        optim=OptimizerConfig(lr=3e-4, warmup=2500), ema=0.9999,
    )  # fmt: skip


def promoter_design() -> TrainConfig:
    """DNA of 96 bases from a signal along it (synthetic), by dilated convolutions; promoters:FILE takes 1,024."""
    return TrainConfig(
        system="rdlm-heat", data="synthetic-promoters", length=96, batch=64, steps=2000, validations=5,
        network=NetworkConfig(width=128, depth=10, body="convolution"),
        optim=OptimizerConfig(lr=1e-3, warmup=100), ema=0.998,
    )  # fmt: skip


def sudoku() -> TrainConfig:
    """Sudokus from their clues: every cell depends on all others."""
    return TrainConfig(
        system="mdlm", data="sudoku", length=81, batch=64, steps=5000, validations=10,
        network=NetworkConfig(width=128, depth=4, heads=4, shape="9x9"), optim=OptimizerConfig(lr=2e-3, warmup=100),
        ema=0.998,
    )  # fmt: skip


def e2e() -> TrainConfig:
    """Descriptions of restaurants from their meaning, with a BPE vocabulary of 512."""
    return TrainConfig(
        system="mdlm", data="e2e", tokenizer="bpe:512", length=64, batch=64, steps=5000, validations=10,
        network=NetworkConfig(width=192, depth=4, heads=6, source_length=128),
        optim=OptimizerConfig(lr=2e-3, warmup=100), ema=0.998,
    )  # fmt: skip


def dna() -> TrainConfig:
    """Human core promoters and other DNA, 70 bases, for a label."""
    return TrainConfig(
        system="rdlm-heat", data="promoters", length=70, batch=64, steps=5000, validations=5,
        network=NetworkConfig(width=128, depth=4, heads=4), optim=OptimizerConfig(lr=2e-3, warmup=100),
        ema=0.998,
    )  # fmt: skip


def smiles() -> TrainConfig:
    """The small molecules of QM9 as SMILES, of up to 28 characters."""
    return TrainConfig(
        system="mdlm", data="smiles", length=29, batch=128, steps=10_000, validations=10,
        network=NetworkConfig(width=128, depth=4, heads=4), optim=OptimizerConfig(lr=2e-3, warmup=100),
        ema=0.998,
    )  # fmt: skip


def chorales() -> TrainConfig:
    """Bach's chorales of up to 80 beats, four voices a beat."""
    return TrainConfig(
        system="mdlm", data="chorales", length=320, batch=32, steps=5000, validations=10, validation_sequences=32,
        network=NetworkConfig(width=128, depth=4, heads=4, shape="80x4"), optim=OptimizerConfig(lr=2e-3, warmup=100),
        ema=0.998,
    )  # fmt: skip


def lm1b() -> TrainConfig:
    """LM1B as in MDLM: 12 × 768, length 128, 1M steps of 512 sequences; the vocabulary is as large as BERT's."""
    return replace(text8(), data="hf:dvruette/lm1b", tokenizer="wordpiece:30522", length=128)


def owt() -> TrainConfig:
    """OpenWebText as in SEDD and MDLM: 12 × 768, length 1024, a vocabulary as large as that of GPT-2."""
    return replace(text8(), data="hf:Skylion007/openwebtext", tokenizer="bpe:50257", length=1024)


def fineweb() -> TrainConfig:
    """A sample of FineWeb of ten billion tokens, with the settings of OpenWebText."""
    return replace(owt(), data="hf:HuggingFaceFW/fineweb:sample-10BT")


def medium(small: Callable[[], TrainConfig]) -> Callable[[], TrainConfig]:
    """The same recipe at 24 × 1024, some 350M parameters (as 'medium' in SEDD)."""

    def larger() -> TrainConfig:
        return replace(
            small(), network=NetworkConfig(width=1024, depth=24, heads=16), precision="bfloat16", accumulate=8
        )

    return larger


def billion(small: Callable[[], TrainConfig]) -> Callable[[], TrainConfig]:
    """The same recipe at 22 × 2048, some 1.1B parameters, sharded and with activation checkpointing."""

    def largest() -> TrainConfig:
        begun = small()
        return replace(
            begun, network=NetworkConfig(width=2048, depth=22, heads=16), precision="bfloat16", shard=True,
            recompute=True, accumulate=8, optim=replace(begun.optim, lr=2e-4, grad_spike_factor=10.0),
        )  # fmt: skip

    return largest


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "demo": demo,
    "demo-blocks": demo_blocks,
    "text8-tiny": text8_tiny,
    "text8-blocks": text8_blocks,
    "text8-small": text8_small,
    "text8": text8,
    "text8-paper": text8_paper,
    "text8-medium": medium(text8),
    "text8-1b": billion(text8),
    "lm1b": lm1b,
    "lm1b-medium": medium(lm1b),
    "lm1b-1b": billion(lm1b),
    "owt": owt,
    "owt-medium": medium(owt),
    "owt-1b": billion(owt),
    "fineweb": fineweb,
    "fineweb-medium": medium(fineweb),
    "fineweb-1b": billion(fineweb),
    "digits": digits,
    "cifar10": cifar10,
    "promoters": promoter_design,
    "sudoku": sudoku,
    "e2e": e2e,
    "dna": dna,
    "smiles": smiles,
    "chorales": chorales,
}


def recipe(name: str) -> TrainConfig:
    """A recipe by its name, or from a .json or .yaml file."""
    if name in RECIPES:
        return RECIPES[name]()
    path = Path(name)
    if path.suffix in (".json", ".yaml", ".yml"):
        if not path.exists():
            raise UserError(f"There is no recipe file {path}.")
        return read_config_file(path)
    raise UserError(f"There is no recipe '{name}'.{suggest(name, RECIPES)}")
