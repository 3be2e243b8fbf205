"""Sharded training: weights of which every process keeps a shard (FSDP2), and checkpoints written shard by shard.

Any number of processes can read such a checkpoint. The shards are written by torch.distributed.checkpoint in its
safetensors form (its own form holds pickles), in the background while training continues. When all shards are written,
the main process assembles the weights, and the checkpoint appears.

    state/step-00001000/shards/   weights, averages and moments
    state/step-00001000/          model and ema as one safetensors each, state.json
"""

import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from logosphere.errors import UserError
from logosphere.io import EMA_WEIGHTS, WEIGHTS, current_name, sync, write_tensors
from logosphere.model import Model
from logosphere.parallel.process_group import ProcessGroup
from logosphere.training.checkpoint import (
    MOMENTS,
    PREVIOUS,
    check_hashes,
    counts,
    draft_of,
    hashes_of_weights,
    install,
    restore_counts,
    write_state,
)
from logosphere.training.trainer import Objective, Trainer

SHARDS = "shards"
MODEL, EMA, OPTIMIZER = "model/", "ema/", "optimizer/"


class FSDP(Objective):
    """Every process keeps a shard of the weights; those of a block are gathered while it computes."""

    def __init__(self, model: Model, group: ProcessGroup):
        mesh = init_device_mesh(model.device.type, (group.size,))  # by default torch takes a GPU if there is one
        for module in reversed(list(model.modules())):  # from the inside out, as stages hold blocks
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, mesh=mesh)
        # Weights are resharded after every forward pass, so that the optimiser and the EMA change all there is.
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        for method in ("bound", "metrics"):
            register_fsdp_forward_method(model, method)
        self.model, self.bound = model, model.bound

    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def full_tensor(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def local_tensor(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class ShardedSave:
    """A checkpoint that is being written."""

    def __init__(self, folder: Path, trainer: Trainer, extra: dict[str, object], save_group: Any):
        group = trainer.group
        self.folder, self.trainer, self.step = folder, trainer, trainer.step
        self.content = counts(trainer) | extra | {PREVIOUS: hashes_of_weights(folder)}
        self.draft = folder / f".draft-{self.step:08d}"
        group.on_main(lambda: draft_of(folder, self.step))
        (self.draft / SHARDS).mkdir(parents=True, exist_ok=True)
        self.tensors = _tensors(trainer)
        writer = HuggingFaceStorageWriter(str(self.draft / SHARDS), save_distributed=True)
        self.writing: Future[Any] | None = None
        if group.size == 1:
            try:
                with _single_process():
                    save(self.tensors, storage_writer=writer, no_dist=True)
            except (Exception, CheckpointException) as problem:
                shutil.rmtree(self.draft, ignore_errors=True)
                raise _reason(problem) from None
        else:
            # A group of its own: its messages must not mix with those of training.
            started = async_save(self.tensors, storage_writer=writer, process_group=save_group)
            assert isinstance(started, Future)
            self.writing = started

    def written(self) -> bool:
        """Have all processes written their shards?"""
        here = self.writing is None or self.writing.done()
        return self.trainer.group.all_reduce(here)[0] == self.trainer.group.size

    def finish(self) -> Path:
        """Wait for the shards and install the checkpoint."""
        group = self.trainer.group
        problem = None if self.writing is None else self.writing.exception()
        (failed,) = group.all_reduce(problem is not None)
        if failed:  # all have stopped writing, and a partial draft takes space
            group.on_main(lambda: shutil.rmtree(self.draft, ignore_errors=True))
            raise UserError("Another process could not write its shard.") if problem is None else _reason(problem)
        group.on_main(self._finished)
        return self.folder / f"step-{self.step:08d}"

    def _finished(self) -> None:
        try:
            self._install()
        except BaseException:
            shutil.rmtree(self.draft, ignore_errors=True)
            raise

    def _install(self) -> None:
        """Assemble the weights, which are needed outside of training."""
        whole = _whole(self.draft / SHARDS, self.tensors, (MODEL, EMA))
        model = {name.removeprefix(MODEL): tensor for name, tensor in whole.items() if name.startswith(MODEL)}
        ema = {name.removeprefix(EMA): tensor for name, tensor in whole.items() if name.startswith(EMA)}
        write_tensors(self.draft / WEIGHTS, model)
        if ema:
            write_tensors(self.draft / EMA_WEIGHTS, model | ema)
        # The library syncs its files before the last of their bytes has left its buffer, and their folder not at all.
        for path in [*(self.draft / SHARDS).iterdir(), self.draft / SHARDS]:
            sync(path)
        write_state(self.draft, self.content)
        install(self.folder, self.draft, self.step)


def load_sharded(path: Path, trainer: Trainer) -> dict[str, float]:
    """Load a checkpoint that was saved by any number of processes into a trainer."""
    trainer.group.on_main(lambda: check_hashes(path))
    rest = restore_counts(path, trainer)
    names = _stored_names(trainer, _names(path / SHARDS))
    _allocate(trainer, set(names))
    tensors = _tensors(trainer)
    stored = {names.get(name, name): tensor for name, tensor in tensors.items()}
    _read(path / SHARDS, stored, single=trainer.group.size == 1)
    for name, tensor in tensors.items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if local.is_floating_point() and not bool(torch.isfinite(local).all()):
            raise UserError(f"{path} holds numbers that are not finite in {name}; use an earlier checkpoint.")
    return rest


def _reason(problem: BaseException) -> Exception:
    """Why shards could not be written: the cause inside the exceptions of the library."""
    causes: list[BaseException] = [problem]
    if isinstance(problem, CheckpointException):
        causes = [cause for cause, _ in problem.failures.values()]
    for cause in causes:
        if isinstance(cause, OSError):
            return OSError(cause.errno, cause.strerror, cause.filename)
    return UserError(f"A shard of the checkpoint could not be written ({causes[0]!r}).")


def _tensors(trainer: Trainer) -> dict[str, Tensor]:
    """All tensors of a trainer by name; loading into them changes the trainer."""
    tensors = {MODEL + name: tensor for name, tensor in trainer.model.state_dict().items()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in trainer.model.named_parameters()}
    if trainer.ema is not None:
        for parameter, shadow in zip(trainer.ema.live, trainer.ema.shadow, strict=True):
            tensors[EMA + names[parameter]] = shadow
    for parameter, moments in trainer.optimizer.state.items():
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
    """Allocate the moments of the parameters that have some; others may have had no gradient yet."""
    for name, parameter in trainer.model.named_parameters():
        if f"{OPTIMIZER}{name}/step" not in saved:
            continue
        state = trainer.optimizer.state[parameter]
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)


def _names(shards: Path) -> set[str]:
    """The names of all tensors that were saved."""
    with _reading(shards):
        return set(HuggingFaceStorageReader(str(shards)).read_metadata().state_dict_metadata)


def _whole(shards: Path, like: dict[str, Tensor], kinds: tuple[str, ...]) -> dict[str, Tensor]:
    """Tensors of some kinds assembled from all shards, read by one process."""
    wanted = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in like.items() if name.startswith(kinds)}
    _read(shards, wanted, single=True)
    return wanted


def _read(shards: Path, tensors: dict[str, Tensor], *, single: bool) -> None:
    with _reading(shards), _single_process() if single else nullcontext():
        load(tensors, storage_reader=HuggingFaceStorageReader(str(shards)), no_dist=single)


@contextmanager
def _reading(shards: Path) -> Iterator[None]:
    """Turn errors in reading shards into a UserError."""
    if not shards.is_dir():
        raise UserError(f"{shards} is missing; restore it from a copy.")
    try:
        yield
    except (Exception, CheckpointException) as problem:
        # The library wraps errors of files in its own exceptions.
        reason = str(problem).strip().splitlines()[-1]
        raise UserError(f"{shards} is damaged or belongs to another model ({reason}); restore a copy.") from None


@contextmanager
def _single_process() -> Iterator[None]:
    """Suppress the warning of the library that there is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*")
        yield
