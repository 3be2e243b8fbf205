"""A pretend accelerator: tensors with the device "cuda:0" that compute on the CPU and refuse to mix with CPU tensors.

Code that forgets the device runs on a CPU and fails on a GPU. On this device it fails without one: every operation is
run on the CPU tensors inside, after the checks that CUDA would make. The library of guard.cpp must be loaded before
torch is imported, because torch reads the registrations once (pretend_server.py).

Inside `no_float64` the device refuses every operation whose result has 64-bit floating point, as Apple's GPUs do.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

SYNCHRONISING = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "bincount", "masked_scatter_backward"}
SYNCHRONISING |= {"_unique2", "unique_dim", "unique_consecutive"}
"""Operations whose result the processor has to wait for; indexing with booleans is another."""
CROSSING = {"copy_", "_to_copy"}
"""Operations that may see two devices, as on CUDA."""
SCALARS = {"fill_", "index_fill", "index_fill_", "masked_fill", "masked_fill_", "index_put", "index_put_", "where"}
"""Operations that accept CPU tensors of dimension 0 with device tensors, apart from all pointwise ones."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
UNORDERED = {"cumsum", "cumsum_", "histc", "kthvalue", "median", "bincount", "put_", "upsample_nearest2d_backward"}
"""Operations that CUDA refuses for floating-point numbers where only deterministic algorithms are allowed."""
MATH = 0
"""Attention as plain matrix products (at::SDPBackend); the fused kernels of CUDA have no CPU counterpart."""
CPU = torch.device("cpu")
WIDE = (torch.float64, torch.complex128)
BOOLEAN = (torch.bool, torch.uint8)

synchronisations: Counter[str] = Counter()
"""How often the processor had to wait for the device, by operation."""
uploads: Counter[str] = Counter()
"""Copies from the CPU to the device: "blocking", for which CUDA waits until the stream is idle, and "asynchronous"."""
places: Counter[str] = Counter()
"""The operations of `synchronisations` and the blocking copies of `uploads`, by the line that requested them."""


class Limits:
    """The current handling of results of 64-bit floating point."""

    notice: Callable[[], None] | None = None


@contextmanager
def _noticing(notice: Callable[[], None]) -> Iterator[None]:
    before, Limits.notice = Limits.notice, notice
    try:
        yield
    finally:
        Limits.notice = before


def no_float64() -> AbstractContextManager[None]:
    """Inside this block the device refuses results of 64-bit floating point."""

    def refuse() -> None:
        raise TypeError("the device has no 64-bit floating point; use float32 instead")

    return _noticing(refuse)


def float64_counted(places: Counter[str], package: str) -> AbstractContextManager[None]:
    """Inside this block results of 64-bit floating point are counted, by the line of a package that requested them."""

    def count() -> None:
        if place := calling_line(package):
            places[place] += 1

    return _noticing(count)


def calling_line(package: str) -> str | None:
    """The innermost line of a package in the present stack; None if there is none, as in a backward pass."""
    frame = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and f"/{package}/" in file:
            return f"{file.rpartition(f'/{package}/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return None


class DeviceTensor(Tensor):
    """A tensor of the pretend device around one of the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "DeviceTensor":
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, layout=inner.layout, device="cuda:0", requires_grad=False,
        )  # fmt: skip
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    # Methods that bypass the dispatcher and that torch refuses for subclasses.
    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it first.")

    def __array__(self, *_: Any) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = self.detach().clone().requires_grad_(self.requires_grad)
        made.__dict__.update({name: value for name, value in self.__dict__.items() if name != "inner"})
        return memo.setdefault(id(self), made)

    def __repr__(self, **_: Any) -> str:
        return f"{self.inner!r} on cuda:0"


class DeviceMode(TorchDispatchMode):
    """Intercepts operations without device tensors: factory functions and moves to the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU; results are on the requested device, or else on the device if an argument is."""
    tensors = _tensors((*args, *kwargs.values()) if kwargs else args)
    on_device = any(type(tensor) is DeviceTensor for tensor in tensors)
    requested = kwargs.get("device")
    target = on_device if requested is None else torch.device(requested).type == "cuda"
    if not (on_device or target):
        return func(*args, **kwargs)
    operation = _operation(func)
    operation.count_uploads(args, kwargs, tensors, target)
    if on_device:
        operation.check(args, tensors)
        operation.check_order(tensors)
        operation.count(args, kwargs, target)
        if operation.name == "_fused_sdp_choice":
            return MATH
    inside = {name: _unwrapped(value) for name, value in kwargs.items()}
    if requested is not None and target:
        inside["device"] = CPU
    if inside.get("pin_memory"):
        inside["pin_memory"] = False
    call = operation.seeded if target and operation.random else func
    result = call(*[_unwrapped(value) for value in args], **inside)
    if operation.written is None:
        return _wrapped(result) if target else result
    outputs = [kwargs.get(place) if isinstance(place, str) else args[place] for place in operation.written]
    for output in _tensors(outputs):
        if type(output) is DeviceTensor and output.shape != output.inner.shape:
            raise NotImplementedError(f"{func} changes the shape of its argument, which the device does not follow")
    return None if result is None else outputs[0] if len(outputs) == 1 else tuple(outputs)


class _Operation:
    """Cached properties of an operation."""

    def __init__(self, func: Any):
        self.func, self.name = func, func.overloadpacket.__name__
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.scalars = torch.Tag.pointwise in func.tags or self.name in SCALARS
        self.written = _written(func._schema)

    def check(self, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
        """Raise where CUDA would for tensors of two devices in one operation."""
        if self.name in CROSSING or all(type(tensor) is DeviceTensor for tensor in tensors):
            return
        if self.name in INDEXING:
            if type(args[0]) is not DeviceTensor:
                raise RuntimeError(
                    "indices should be either on cpu or on the same device as the indexed tensor (cpu), not on cuda:0"
                )
            tensors = _tensors(args[2:])
        foreign = [tensor for tensor in tensors if type(tensor) is not DeviceTensor]
        changed = self.written is not None and self.written[0] == 0 and any(tensor is args[0] for tensor in foreign)
        if changed or any(tensor.dim() > 0 or not self.scalars for tensor in foreign):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"({self.func})"
            )

    def check_order(self, tensors: list[Tensor]) -> None:
        """Raise where CUDA would because the order of summation is not deterministic."""
        if self.name in UNORDERED and torch.are_deterministic_algorithms_enabled() and tensors[0].is_floating_point():
            raise RuntimeError(f"{self.name} on CUDA does not have a deterministic implementation")

    def count(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: bool) -> None:
        """Note if the processor has to wait for this operation."""
        if self.name in SYNCHRONISING:
            _count(self.name)
        elif self.name == "repeat_interleave" and self.func._overloadname.startswith("Tensor"):
            if kwargs.get("output_size") is None:
                _count(self.name)
        elif self.name == "_to_copy" and not target:
            _count("copy to the CPU")
        elif self.name == "copy_" and type(args[0]) is not DeviceTensor:
            _count("copy to the CPU")
        elif self.name in INDEXING and any(index is not None and index.dtype in BOOLEAN for index in args[1]):
            _count("boolean index")

    def count_uploads(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], target: bool) -> None:
        """Note if this operation copies from the CPU to the device, as CUDA also does for indices and in `where`."""
        foreign = sum(type(tensor) is not DeviceTensor for tensor in tensors)
        if not target or not foreign:
            return
        if self.name in CROSSING:
            if type(args[-1 if self.name == "_to_copy" else 1]) is DeviceTensor:
                return
            asynchronous = kwargs.get("non_blocking", self.name == "copy_" and len(args) > 2 and args[2])
            _count_upload(1, asynchronous=bool(asynchronous))
        elif self.name in INDEXING:
            _count_upload(sum(type(index) is not DeviceTensor for index in _tensors(args[1])), asynchronous=False)
        elif self.name == "where":
            _count_upload(foreign, asynchronous=False)

    def seeded(self, *args: Any, **kwargs: Any) -> Any:
        """The result with random numbers of the device's generators, which the CPU would refuse."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Generator)]
        own = given[0] if given else torch.cuda.default_generators[0]
        if own.device.type != "cuda":
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        twin = Generator() if given else torch.default_generator
        kept = twin.get_state()
        twin.set_state(own.get_state())
        try:
            return self.func(
                *[twin if value is own else value for value in args],
                **{name: twin if value is own else value for name, value in kwargs.items()},
            )
        finally:
            own.set_state(twin.get_state())
            twin.set_state(kept)


def _count(operation: str) -> None:
    synchronisations[operation] += 1
    places[f"{operation} in {calling_line('logosphere')}"] += 1


def _count_upload(copies: int, *, asynchronous: bool) -> None:
    uploads["asynchronous" if asynchronous else "blocking"] += copies
    if copies and not asynchronous:
        places[f"blocking copy to the device in {calling_line('logosphere')}"] += copies


@cache
def _operation(func: Any) -> _Operation:
    return _Operation(func)


def _written(schema: Any) -> tuple[int | str, ...] | None:
    """The arguments that an operation writes to and returns, or None if it returns new tensors."""

    def changes(value: Any) -> bool:
        return value.alias_info is not None and value.alias_info.is_write

    found = [
        argument.name if argument.kwarg_only else place
        for place, argument in enumerate(schema.arguments)
        if changes(argument)
    ]
    # Batch norms write to arguments that they do not return.
    return tuple(found) if found and all(changes(value) for value in schema.returns) else None


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _unwrapped(value: Any) -> Any:
    if type(value) is DeviceTensor:
        return value.inner
    return type(value)(map(_unwrapped, value)) if type(value) in (list, tuple) else value


def _wrapped(value: Any) -> Any:
    if isinstance(value, Tensor):
        if Limits.notice is not None and value.dtype in WIDE:
            Limits.notice()
        return DeviceTensor(value)
    return type(value)(map(_wrapped, value)) if type(value) in (list, tuple) else value


def activate() -> None:
    """Give torch in this process the device "cuda:0", until the process ends."""
    cuda: Any = torch.cuda
    generator = Generator("cuda")
    cuda.default_generators = (generator,)
    cuda._initialized, cuda._lazy_init, cuda._is_in_bad_fork = True, lambda: None, lambda: False
    cuda.is_available, cuda.device_count, cuda.current_device = lambda: True, lambda: 1, lambda: 0
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.get_rng_state = lambda device="cuda": generator.get_state()
    cuda.set_rng_state = lambda state, device="cuda": generator.set_state(state)
    cuda.manual_seed = cuda.manual_seed_all = generator.manual_seed
    cuda.set_device, cuda.synchronize = lambda device: None, lambda device=None: None
    cuda._exchange_device = cuda._maybe_exchange_device = lambda index: 0
    cuda.reset_peak_memory_stats, cuda.max_memory_allocated = lambda device=None: None, lambda device=None: 0
    cuda.get_device_name = lambda device=None: "pretend accelerator"
    # These two move tensors without the dispatch mode; a device tensor cannot be assigned to the `.data` of another.
    torch.tensor, torch.as_tensor = _moving(torch.tensor), _moving(torch.as_tensor)
    nn.Module._apply = _swapping(nn.Module._apply)  # type: ignore[method-assign]
    DeviceMode().__enter__()


def _moving(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that makes a tensor on the CPU and moves it afterwards."""

    @wraps(make)
    def made(data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **options: Any) -> Tensor:
        found = data.detach() if isinstance(data, DeviceTensor) else make(data, *args, **options)
        if isinstance(data, DeviceTensor) and options.get("dtype") is not None:
            found = found.to(options["dtype"])
        found = found if device is None else found.to(device)
        return found.requires_grad_() if requires_grad else found

    return made


def _swapping(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """`module.to` that swaps the contents of parameters and leaves them the objects they are."""

    @wraps(apply)
    def applied(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(self, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return applied
