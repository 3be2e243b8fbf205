"""Checkpoints of which every process writes its share, and which any number of processes can read.

The shares are written by torch.distributed.checkpoint in its safetensors form (its own form holds pickles), in the
background: training goes on while they are written. Only when all shares are there, the first process puts the weights
together for everybody else, and the checkpoint appears.

    state/step-00001000/shards/   weights, averages and moments, share by share
    state/step-00001000/          model and ema as one safetensors each, state.json
"""

import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.tensor import DTensor

from logosphere.atomic import sync, write_json
from logosphere.errors import UserError
from logosphere.training.checkpoint import MOMENTS, STATE, counts, draft_of, install, restore_counts
from logosphere.training.trainer import Trainer
from logosphere.weights import AVERAGED, WEIGHTS, current_name, write_tensors

SHARDS = "shards"
MODEL, EMA, OPTIMIZER = "model/", "ema/", "optimizer/"


class ShardedSave:
    """A checkpoint on its way to the disk."""

    def __init__(self, folder: Path, trainer: Trainer, extra: dict[str, object], save_group: Any):
        group = trainer.group
        self.folder, self.trainer, self.step = folder, trainer, trainer.step
        self.content = counts(trainer) | extra
        self.draft = folder / f".draft-{self.step:08d}"
        group.on_main(lambda: draft_of(folder, self.step))
        (self.draft / SHARDS).mkdir(parents=True, exist_ok=True)
        self.tensors = _tensors(trainer)
        writer = HuggingFaceStorageWriter(str(self.draft / SHARDS), save_distributed=True)
        self.writing: Future[Any] | None = None
        if group.size == 1:
            try:
                with _alone():
                    save(self.tensors, storage_writer=writer, no_dist=True)
            except (Exception, CheckpointException) as problem:
                shutil.rmtree(self.draft, ignore_errors=True)
                raise _reason(problem) from None
        else:
            # A group of its own: what it says must not get between the words of training.
            started = async_save(self.tensors, storage_writer=writer, process_group=save_group)
            assert isinstance(started, Future)
            self.writing = started

    def written(self) -> bool:
        """Have all processes written their shares?"""
        here = self.writing is None or self.writing.done()
        return self.trainer.group.all_reduce(here)[0] == self.trainer.group.size

    def finish(self) -> Path:
        """Wait for the shares and let the checkpoint appear."""
        group = self.trainer.group
        problem = None if self.writing is None else self.writing.exception()
        (failed,) = group.all_reduce(problem is not None)
        if failed:  # nobody writes any more, and what is half written takes space
            group.on_main(lambda: shutil.rmtree(self.draft, ignore_errors=True))
            raise UserError("Another process could not write its share.") if problem is None else _reason(problem)
        group.on_main(self._finished)
        return self.folder / f"step-{self.step:08d}"

    def _finished(self) -> None:
        try:
            self._install()
        except BaseException:
            shutil.rmtree(self.draft, ignore_errors=True)
            raise

    def _install(self) -> None:
        """Put the weights together, as they are needed outside of training."""
        whole = _whole(self.draft / SHARDS, self.tensors, (MODEL, EMA))
        model = {name.removeprefix(MODEL): tensor for name, tensor in whole.items() if name.startswith(MODEL)}
        ema = {name.removeprefix(EMA): tensor for name, tensor in whole.items() if name.startswith(EMA)}
        write_tensors(self.draft / WEIGHTS, model)
        if ema:
            write_tensors(self.draft / AVERAGED, model | ema)
        write_json(self.draft / STATE, self.content)
        # The library syncs its files before the last of their bytes has left its buffer, and their folder not at all.
        for path in [*(self.draft / SHARDS).iterdir(), self.draft / SHARDS]:
            sync(path)
        install(self.folder, self.draft, self.step)


def load_sharded(path: Path, trainer: Trainer) -> dict[str, float]:
    """Put a checkpoint that was saved by any number of processes into a training."""
    rest = restore_counts(path, trainer)
    names = _stored_names(trainer, _names(path / SHARDS))
    _allocate(trainer, set(names))
    tensors = _tensors(trainer)
    stored = {names.get(name, name): tensor for name, tensor in tensors.items()}
    _read(path / SHARDS, stored, alone=trainer.group.size == 1)
    for name, tensor in tensors.items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if local.is_floating_point() and not bool(torch.isfinite(local).all()):
            raise UserError(f"{path} holds numbers that are not finite in {name}; use an earlier checkpoint.")
    return rest


def _reason(problem: BaseException) -> Exception:
    """Why shares could not be written, out of what the library has wrapped around it."""
    causes: list[BaseException] = [problem]
    if isinstance(problem, CheckpointException):
        causes = [cause for cause, _ in problem.failures.values()]
    for cause in causes:
        if isinstance(cause, OSError):
            return OSError(cause.errno, cause.strerror, cause.filename)
    return UserError(f"A share of the checkpoint could not be written ({causes[0]!r}).")


def _tensors(trainer: Trainer) -> dict[str, Tensor]:
    """All tensors of a training by name; reading into them changes the training."""
    tensors = {MODEL + name: tensor for name, tensor in trainer.model.state_dict().items()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in trainer.model.named_parameters()}
    if trainer.averaged is not None:
        for parameter, shadow in zip(trainer.averaged.live, trainer.averaged.shadow, strict=True):
            tensors[EMA + names[parameter]] = shadow
    for parameter, moments in trainer.optimizer.adamw.state.items():
        for moment in MOMENTS:
            tensors[f"{OPTIMIZER}{names[parameter]}/{moment}"] = moments[moment]
    return tensors


def _stored_names(trainer: Trainer, saved: set[str]) -> dict[str, str]:
    """The names of a checkpoint's tensors in this version -> their names in its files."""
    expected, found = trainer.model.state_dict().keys(), {}
    for stored in saved:
        kind, _, rest = stored.partition("/")
        name, moment, suffix = rest.rpartition("/") if kind == OPTIMIZER.rstrip("/") else (rest, "", "")
        found[f"{kind}/{current_name(name, expected)}{moment}{suffix}"] = stored
    return found


def _allocate(trainer: Trainer, saved: set[str]) -> None:
    """Moments to read into, of the parameters that have some: in a first stage others may have had no gradient yet."""
    for name, parameter in trainer.model.named_parameters():
        if f"{OPTIMIZER}{name}/step" not in saved:
            continue
        state = trainer.optimizer.adamw.state[parameter]
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)


def _names(shards: Path) -> set[str]:
    """Of all tensors that were saved."""
    with _understood(shards):
        return set(HuggingFaceStorageReader(str(shards)).read_metadata().state_dict_metadata)


def _whole(shards: Path, like: dict[str, Tensor], kinds: tuple[str, ...]) -> dict[str, Tensor]:
    """Tensors of some kinds out of all shares, read by one process."""
    wanted = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in like.items() if name.startswith(kinds)}
    _read(shards, wanted, alone=True)
    return wanted


def _read(shards: Path, tensors: dict[str, Tensor], *, alone: bool) -> None:
    with _understood(shards), _alone() if alone else nullcontext():
        load(tensors, storage_reader=HuggingFaceStorageReader(str(shards)), no_dist=alone)


@contextmanager
def _understood(shards: Path) -> Iterator[None]:
    """What goes wrong while shares are read, as a sentence."""
    if not shards.is_dir():
        raise UserError(f"{shards} is missing; restore it from a copy.")
    try:
        yield
    except (Exception, CheckpointException) as problem:
        # The library wraps whatever files bring up into exceptions of its own.
        reason = str(problem).strip().splitlines()[-1]
        raise UserError(f"{shards} is damaged or belongs to another model ({reason}); restore a copy.") from None


@contextmanager
def _alone() -> Iterator[None]:
    """The library remarks that there is one process only, which is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*")
        yield
