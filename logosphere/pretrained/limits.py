"""Limits on building a model from a recipe: what its weights can fill, compared before memory is taken.

A recipe of a few bytes can ask for a network of any size. The header of the weights says how many numbers there are,
and a file must be as large as its header says. Sizes of the recipe that these numbers cannot fill are refused. Then the
model is built without memory for its parameters (`allocation.py`) and compared with the header by names, shapes and
types; what the constructors allocate for tables of a process is counted while they run.
"""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from logosphere.checkpoints.families import TensorInfo
from logosphere.checkpoints.headers import TYPES, read_header
from logosphere.errors import UserError
from logosphere.io import check_names, current_name, read_tensors
from logosphere.model import Spec
from logosphere.networks.config import NetworkConfig
from logosphere.networks.published.lora import frozen_names
from logosphere.networks.registry import is_registered
from logosphere.pretrained.allocation import allocate, is_complete, parameters_on_meta

SPARE_BYTES = 1 << 28
"""Bytes that a model may allocate for tables of its process, whatever its weights."""
BYTES_PER_NUMBER = 24
"""Bytes for each number of the weights: float32, initial values in float64, and temporary copies of both."""
SPARE_TOKENS = 1 << 20
"""A vocabulary up to this size may have fewer numbers in its weights than tokens: tokens can be spelled by digits."""
MODEST, MODEST_TOKENS = 1 << 12, 1 << 13
"""Sizes, and tokens of a vocabulary, below which nothing is counted."""
NUMBERS_PER_TOKEN = 8
"""Numbers that a vector of a token has at least."""
MAX_OPERATIONS = 2_000_000
"""Operations of the constructors, at most; the largest systems take some ten thousand."""
LARGE = 1 << 12
"""Numbers of a tensor that is counted; smaller ones are limited by the number of operations."""
SHAPED = ("empty", "zeros", "ones", "full", "rand", "randn", "new_empty", "new_zeros", "new_ones", "new_full")
"""Functions that are called with the shape of their result."""


BuiltModel = TypeVar("BuiltModel", bound=nn.Module)


def read_shapes(weights: Path) -> dict[str, TensorInfo]:
    """Names, shapes and types of the tensors of a file, read from its header."""
    try:
        return {name: stored.info for name, stored in read_header(weights).items()}
    except FileNotFoundError:
        raise UserError(f"{weights} is missing; is its folder complete?") from None
    except OSError as problem:
        raise UserError(f"{weights} cannot be read ({problem.strerror}); restore it from a copy.") from None
    except UserError:
        read_tensors(weights)  # refuses damaged files in the words of its own
        raise


def check_sizes(spec: Spec, found: Mapping[str, TensorInfo], place: Path) -> None:
    """Raise UserError for sizes of a recipe that cannot be those of its weights."""
    numbers = count_numbers(found)
    network = spec.published if spec.published is not None else spec.options
    sizes = {"vocab_size": max(spec.vocab_size - SPARE_TOKENS, 0)}
    if not is_registered(str(spec.options.get("body", "transformer"))):
        width, depth = (_size(network, name) for name in ("width", "depth"))
        sizes |= {name: _size(network, name) for name in ("labels", "source", "signal")}
        sizes |= {"width": width, "depth": depth, "width × depth": width * depth}
    for name, size in sizes.items():
        if size > numbers:
            raise UserError(
                f"{place} describes a model with {name} = {size:,}, and its weights have {numbers:,} numbers in all; "
                "one of both belongs to another model."
            )


def _size(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name, getattr(NetworkConfig, name))
    return value if type(value) is int else 1  # another type is refused where the model is built


def count_numbers(found: Mapping[str, TensorInfo]) -> int:
    """How many numbers a file of weights holds."""
    return sum(math.prod(info.shape) for info in found.values())


def check_tensors(model: nn.Module, found: Mapping[str, TensorInfo], place: Path, absent: Collection[str] = ()) -> None:
    """Raise UserError unless the names, shapes and types of a file are those of a model; no weight is read.

    Tensors named in `absent` are in another file.
    """
    expected = {name: tensor for name, tensor in model.state_dict().items() if name not in absent}
    named = {current_name(name, expected.keys()): info for name, info in found.items()}
    check_names(expected.keys(), named.keys(), place)
    for name, tensor in expected.items():
        if named[name].shape != tuple(tensor.shape):
            raise UserError(
                f"{place} does not belong to this model: {name} has the shape {named[name].shape}, not "
                f"{tuple(tensor.shape)}."
            )
        if TYPES[named[name].dtype].is_floating_point != tensor.is_floating_point():
            raise UserError(f"{place} does not belong to this model: {name} holds {TYPES[named[name].dtype]}.")


class AllocationLimit(TorchFunctionMode):
    """Counts the bytes of large tensors that exist at a time, and refuses what would exceed the limit."""

    def __init__(self, numbers: int, place: Path):
        super().__init__()
        self.limit, self.place = SPARE_BYTES + BYTES_PER_NUMBER * numbers, place
        self.held, self.operations = 0, 0
        self.known: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise UserError(f"{self.place} describes a model that takes too many steps to build; restore the file.")
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if kwargs.get("device") is None or torch.device(kwargs["device"]).type != "meta":
            self._check(4 * _numbers_of_result(name, args, kwargs))
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.numel() >= LARGE and result.device.type != "meta":
            self._add(result)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self._check(size)
        self.known.add(key)
        self.held += size
        finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.held -= size

    def _check(self, more: int) -> None:
        if self.held + more > self.limit:
            raise UserError(
                f"{self.place} describes a model that would take {(self.held + more) / 1e9:,.1f} GB to build, and its "
                f"weights explain at most {self.limit / 1e9:,.1f} GB; one of both belongs to another model."
            )


def _numbers_of_result(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The numbers that a function is about to allocate, as far as its arguments say."""
    tensors = [part for part in args if isinstance(part, Tensor)]
    counts = [part for part in args if isinstance(part, int | float)]
    if name in SHAPED or name == "repeat":
        shape = kwargs.get("size") or next((part for part in args if isinstance(part, list | tuple)), counts)
        return math.prod(int(side) for side in shape) * (tensors[0].numel() if name == "repeat" else 1)
    if name in ("arange", "linspace"):
        return int(max((abs(part) for part in counts), default=0)) if all(map(math.isfinite, counts)) else 0
    if name == "eye":
        return int(math.prod([*counts, *counts] if len(counts) == 1 else counts))
    if len(tensors) < 2 or name.endswith("_"):  # in place, or of the size of its argument
        return 0
    first, second = tensors[0].shape, tensors[1].shape
    if name in ("outer", "matmul", "__matmul__", "mm") and first and second:
        return math.prod(first[:-1]) * second[-1] if name != "outer" else first[0] * second[0]
    if max(tensors[0].numel(), tensors[1].numel()) < 1 << 10:  # the product of both is small
        return 0
    try:
        return math.prod(torch.broadcast_shapes(first, second))
    except RuntimeError:  # no operation on equal shapes; its result is counted afterwards
        return 0


def is_modest(spec: Spec, numbers: int) -> bool:
    """Whether all sizes of a recipe are so small that no table of a process can be large, whatever the system.

    Some processes have a table of all pairs of tokens, which is expected where every token has a vector.
    """
    options = [spec.length, *spec.options.values(), *(spec.published or {}).values()]
    sizes = [abs(value) for value in options if isinstance(value, int | float)]
    tokens = min(MODEST_TOKENS, max(MODEST, numbers) // NUMBERS_PER_TOKEN)
    return spec.vocab_size <= tokens and all(size <= MODEST for size in sizes)


def build_within(
    spec: Spec, weights: Path, place: Path, make: Callable[[], BuiltModel], base: Path | None = None
) -> BuiltModel:
    """The model that `make` builds for a recipe and these weights; UserError where they do not fit.

    Weights that are adapters have their `base` in another file, which is compared with the model when it is read.

    It is built without memory for its parameters, compared with the header of the weights, and then allocated; the
    caller loads the weights, which are all of its parameters. Counting takes as long as building a small model, so it
    is left out where the sizes of the recipe are modest.
    """
    found = read_shapes(weights)
    whole = found if base is None else {**found, **read_shapes(base)}
    check_sizes(spec, whole, place)
    numbers = count_numbers(whole)
    on_meta = has_meta(spec)
    with (
        nullcontext() if is_modest(spec, numbers) and on_meta else AllocationLimit(numbers, place),
        parameters_on_meta() if on_meta else nullcontext(),
    ):
        model = make()
    check_tensors(model, found, weights, absent=() if base is None else frozen_names(model))
    if on_meta and spec.published is None:
        if not is_complete(model):
            return make()  # some parameters are in no file and keep their initial values
        allocate(model)
    return model


def has_meta(spec: Spec) -> bool:
    """Whether the parameters of a model can be made without memory.

    A network that another package registers may compute with its parameters while it is built, and a pretrained encoder
    reads its own weights then.
    """
    return not is_registered(str(spec.options.get("body", "transformer"))) and not spec.options.get("encoder")
