"""Compiled training against eager training: every system, every backbone, without recompilation.

torch does not compile functions whose shapes are checked by a decorator, so the tests run in a process without.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

import logosphere as ls
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.compilation import CompiledForward, compile_blocks, prepare_compiler
from logosphere.networks.convolution import UNetStage
from logosphere.rng import CounterNoise
from logosphere.runs.create import stacks_of_blocks
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, within its compiler
CHECKS_SHAPES = os.environ.get("LOGOSPHERE_CHECK_SHAPES", "1") == "1"
compiles = pytest.mark.skipif(CHECKS_SHAPES, reason="runs in the process of test_compilation")
VOCABULARY, LENGTH, BATCH = 9, 8, 8


@pytest.fixture(autouse=True)
def no_recompilation() -> Iterator[None]:
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield


def trainers(system: str, **options: object) -> tuple[Trainer, Trainer]:
    """An eager trainer and a compiled one with the same weights."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        size = {"width": 16, "depth": 2, "heads": 2} | options
        found.append(Trainer(ls.build(system, vocab_size=VOCABULARY, length=LENGTH, **size)))
    compile_model(found[1].model)
    return found[0], found[1]


def compile_model(model: Model) -> None:
    for stack in stacks_of_blocks(model):
        compile_blocks(stack.blocks, None if isinstance(stack, UNetStage) else getattr(stack, "length", LENGTH))


def train(trainer: Trainer, rows: int = BATCH, length: int | None = None) -> tuple[float, float]:
    tokens = torch.randint(
        VOCABULARY, (rows, length or trainer.model.length), generator=torch.Generator().manual_seed(trainer.step)
    )
    progress = trainer.train_step(Batch.of(tokens, first=trainer.step * rows), 0.5)
    return progress.loss, progress.gradient


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def check_agreement(system: str, **options: object) -> int:
    """Loss and gradient of two steps agree; returns how many graphs were compiled."""
    before = graphs()
    eager, compiled = trainers(system, **options)
    for _ in range(2):
        assert train(compiled) == pytest.approx(train(eager), rel=1e-5)
    return graphs() - before


def run_without_shape_checks(marker: str) -> None:
    """Run the tests of this file that compile."""
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:logging", "-m", marker]
    environment = {**os.environ, "LOGOSPHERE_CHECK_SHAPES": "0"}
    done = subprocess.run([*argv, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:]


@pytest.mark.skipif(not CHECKS_SHAPES, reason="starts the process in which the others run")
@pytest.mark.parametrize("marker", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_compilation(marker: str) -> None:
    run_without_shape_checks(marker)


@compiles
@pytest.mark.parametrize("system", ["mdlm", "ar"])
def test_blocks_share_compiled_code_and_are_never_recompiled(system: str) -> None:
    """Evaluation, smaller batches without gradients, shorter texts and sampling with caches compile nothing."""
    before = graphs()
    eager, compiled = trainers(system, depth=3)
    for _ in range(3):
        assert train(compiled) == pytest.approx(train(eager), rel=1e-5)
    assert graphs() == before + 1
    if system == "mdlm":
        assert train(compiled, length=LENGTH - 3) == pytest.approx(train(eager, length=LENGTH - 3), rel=1e-5)
    model = compiled.model.eval()
    with torch.no_grad():
        for rows in (BATCH, 3):
            batch = Batch.of(torch.zeros(rows, LENGTH, dtype=torch.long))
            model.bound(batch, CounterNoise(0, 0, batch.ids, batch.global_index, batch.total))
    ls.generate(model, n=2, steps=4, rng=torch.Generator().manual_seed(0))
    assert graphs() == before + 1
    assert train(compiled) == pytest.approx(train(eager), rel=1e-5)
    assert graphs() == before + 1
    assert train(compiled, rows=3) == pytest.approx(train(eager, rows=3), rel=1e-5)  # code of its own
    assert graphs() == before + 2


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("system", ls.systems())
def test_compiled_training_agrees_with_eager_training(system: str) -> None:
    assert check_agreement(system, **({"block": 4} if system == "bd3lm" else {})) > 0


@compiles
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"body": "convolution", "depth": 3}, {"body": "unet", "shape": "8x8", "depth": 1}, {"dropout": 0.0, "labels": 3}],
)
def test_compiled_backbones_agree_with_eager_ones(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    if "shape" in options:
        monkeypatch.setattr(sys.modules[__name__], "LENGTH", 64)
    assert check_agreement("mdlm", **options) > 0


def test_a_compiled_model_has_the_same_state() -> None:
    eager, compiled = trainers("mdlm")
    assert list(eager.model.state_dict()) == list(compiled.model.state_dict())
    blocks = [block for stack in stacks_of_blocks(compiled.model) for block in stack.blocks]
    assert blocks and all(isinstance(block.forward, CompiledForward) for block in blocks)


def test_without_a_compiler_the_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="needs a C.. compiler, and 'no-such-compiler' is not installed"):
        prepare_compiler()


def test_compiled_code_is_kept_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another folder was chosen; torch itself chooses a temporary one when it is imported."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", sys.executable)  # any program that exists
    for chosen, expected in (
        (str(Path(tempfile.gettempdir()) / "torchinductor_someone"), str(tmp_path / "compiled")),
        (str(tmp_path / "mine"), str(tmp_path / "mine")),
    ):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", chosen)
        prepare_compiler()
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == expected
