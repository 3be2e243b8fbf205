"""Checks of the pretend device itself. These functions run in its process and raise where it is wrong."""

import copy
from collections import Counter
from collections.abc import Callable

import pretend_device
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def assert_refused(act: Callable[[], object], *, by: type[Exception] = RuntimeError, because: str = "") -> None:
    """Raise unless `act` raises an error with this text."""
    try:
        act()
    except by as problem:
        assert because in str(problem), f"refused, but because: {problem}"
        return
    raise AssertionError("not refused")


def ones(*shape: int) -> Tensor:
    return torch.ones(shape, device="cuda")


def mixing_raises() -> None:
    two = "at least two devices"
    for act in (
        lambda: ones(3) + torch.ones(3),
        lambda: torch.ones(3) * ones(),  # a device scalar with a CPU vector
        lambda: ones(3).add_(torch.ones(3)),
        lambda: torch.ones(()).add_(ones()),  # the result would have to move
        lambda: torch.cat([ones(3), torch.ones(3)]),
        lambda: torch.stack([ones(), torch.ones(())]),  # scalars are allowed in pointwise operations only
        lambda: ones(2, 3) @ torch.ones(3, 2),
        lambda: torch.where(torch.ones(3).bool(), ones(3), 0.0),
        lambda: F.embedding(torch.tensor([1]), ones(3, 2)),
        lambda: ones(3).gather(0, torch.tensor([1])),
        lambda: torch.searchsorted(ones(3), torch.ones(2)),
        lambda: nn.Linear(3, 2).to("cuda")(torch.ones(1, 3)),
        lambda: torch.equal(ones(3), torch.ones(3)),
    ):
        assert_refused(act, because=two)


def cpu_scalars_are_allowed() -> None:
    for result in (ones(3) + torch.tensor(2.0), torch.tensor(2.0) + ones(3), ones(3).add_(torch.tensor(2.0))):
        assert result.is_cuda and result.tolist() == [3.0] * 3
    kept = torch.where(ones(3) > 0, torch.tensor(2.0), ones(3))
    assert kept.is_cuda and kept.tolist() == [2.0] * 3


def factories_make_device_tensors() -> None:
    made = [
        torch.zeros(2, device="cuda"), torch.arange(3, device="cuda:0"), torch.full((2,), 1.0, device="cuda"),
        torch.rand(2, device="cuda"), torch.tensor([1, 2], device="cuda"), torch.as_tensor([1.0], device="cuda"),
        torch.empty(0, device=torch.device("cuda")), torch.eye(2, device="cuda"),
        torch.linspace(0, 1, 3, device="cuda"), torch.zeros_like(ones(2)), ones(2).new_zeros(3),
        torch.zeros_like(torch.ones(2), device="cuda"),
        torch.as_tensor(ones(2), dtype=torch.float16, device="cuda"),
    ]  # fmt: skip
    assert all(tensor.is_cuda and tensor.device == torch.device("cuda:0") for tensor in made)
    assert made[-1].dtype == torch.float16
    assert torch.zeros(2).device.type == "cpu" and torch.zeros_like(ones(2), device="cpu").device.type == "cpu"


def tensors_move_both_ways() -> None:
    x = torch.randn(2, 3)
    for there in (x.to("cuda"), x.cuda(), x.to(torch.device("cuda", 0)), torch.empty_like(x, device="cuda").copy_(x)):
        assert there.is_cuda and not x.is_cuda
        for back in (there.cpu(), there.to("cpu"), torch.empty_like(x).copy_(there)):
            assert not back.is_cuda and torch.equal(back, x)
    assert x.cuda().to("cuda").is_cuda and x.cuda().double().is_cuda
    assert_refused(x.cuda().numpy, by=TypeError, because="Use Tensor.cpu()")


def cpu_indices_are_allowed_on_the_device_only() -> None:
    x, where = torch.arange(4.0), torch.tensor([0, 2])
    mask = torch.tensor([True, False, True, False])
    for index in (where, mask, where.cuda(), mask.cuda()):
        assert x.cuda()[index].tolist() == [0.0, 2.0] and x.cuda()[index].is_cuda
    assert_refused(lambda: x[where.cuda()], because="indices should be")
    assert_refused(lambda: x[mask.cuda()], because="indices should be")
    y = x.cuda()
    y[where], y[3:] = 5.0, torch.tensor([7.0])  # slices are copied across devices
    assert y.tolist() == [5.0, 1.0, 5.0, 7.0]
    assert_refused(lambda: y.__setitem__(where, torch.zeros(2)), because="at least two devices")


def views_share_their_memory() -> None:
    x = torch.zeros(2, 2, device="cuda")
    x[0].add_(1)
    x.view(4)[3] = 5.0
    assert x.tolist() == [[1.0, 1.0], [0.0, 5.0]]


def gradients_flow() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(5, 3), torch.randn(3, 2)
    found = []
    for device in ("cpu", "cuda"):
        weight = w.clone().to(device).requires_grad_()
        (x.to(device) @ weight).softmax(-1)[:, 0].square().sum().backward()
        assert weight.grad is not None and weight.grad.device.type == device
        found.append(weight.grad.cpu())
    torch.testing.assert_close(*found)


def modules_move_and_keep_their_parameters() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    module[2].weight = nn.Parameter(torch.randn(4, 4))
    module.append(nn.Linear(4, 4))
    module[3].weight = module[2].weight  # shared
    module.register_buffer("constant", torch.ones(4))
    before = [id(parameter) for parameter in module.parameters()]
    module.to("cuda")
    assert [id(parameter) for parameter in module.parameters()] == before
    assert all(tensor.is_cuda for tensor in module.state_dict().values()) and module[3].weight is module[2].weight
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        module(ones(2, 3)).square().sum().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=True)
        optimizer.step()
    assert module(ones(2, 3)).is_cuda and copy.deepcopy(module)[0].weight.is_cuda
    module.load_state_dict({name: tensor.cpu() for name, tensor in module.state_dict().items()})
    assert module[0].weight.is_cuda
    module.to("cpu")
    assert not any(tensor.is_cuda for tensor in module.state_dict().values())


def constants_left_on_the_cpu_are_detected() -> None:
    class WithConstant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.constant = torch.ones(3)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.constant

    assert WithConstant()(torch.ones(3)).tolist() == [1.0] * 3
    assert_refused(lambda: WithConstant().to("cuda")(ones(3)), because="at least two devices")


def generators_belong_to_a_device() -> None:
    own, other = torch.Generator(device="cuda").manual_seed(3), torch.Generator().manual_seed(3)
    assert own.device == torch.device("cuda:0")
    first, second = (torch.rand(4, generator=own, device="cuda") for _ in range(2))
    assert torch.equal(first.cpu(), torch.rand(4, generator=other)) and not torch.equal(first, second)
    assert_refused(lambda: torch.rand(4, generator=other, device="cuda"), because="Expected a 'cuda' device type")
    assert_refused(lambda: torch.rand(4, generator=own), because="Expected a 'cpu' device type")
    assert_refused(lambda: ones(4).bernoulli_(0.5, generator=other), because="Expected a 'cuda' device type")


def the_device_has_its_own_global_generator() -> None:
    def drawn() -> Tensor:
        return F.dropout(ones(64))

    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[torch.device("cuda:0")]):
        inside = drawn()
    expected = torch.rand(2)
    torch.manual_seed(1)
    assert torch.equal(drawn(), inside) and torch.equal(
        torch.rand(2), expected
    )  # the generator of the CPU did not advance
    assert not torch.equal(drawn(), inside)


def autocast_works() -> None:
    weight = torch.randn(3, 2, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        product = ones(2, 3) @ weight
        assert product.dtype == torch.bfloat16 and product.softmax(-1).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (ones(2, 3) @ weight).dtype == torch.float32
    product.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32


def checkpointing_works() -> None:
    torch.manual_seed(0)
    module, grads = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).to("cuda"), []
    for run in (module, lambda x: checkpoint(module, x, use_reentrant=False)):
        torch.manual_seed(5)
        x = ones(4, 3).requires_grad_()
        run(x).square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def attention_equals_that_of_the_cpu() -> None:
    parts = [torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    there = F.scaled_dot_product_attention(*[part.cuda() for part in parts], is_causal=True)
    torch.testing.assert_close(there.cpu(), F.scaled_dot_product_attention(*parts, is_causal=True))


def synchronisations_are_counted() -> None:
    x = ones(3)
    pretend_device.synchronisations.clear()
    x.sum().item(), bool((x > 0).all()), x[x > 0], x.nonzero(), x.cpu(), x.tolist()
    expected = {"_local_scalar_dense": 2, "boolean index": 1, "nonzero": 1, "copy to the CPU": 2}
    assert dict(pretend_device.synchronisations) == expected, pretend_device.synchronisations
    pretend_device.synchronisations.clear()
    torch.zeros(3).copy_(x), x.long().unique(), x.repeat_interleave(x.long())
    assert sum(pretend_device.synchronisations.values()) == 3, pretend_device.synchronisations
    y = ones(3).requires_grad_()
    torch.zeros(3, device="cuda").masked_scatter(x > 0, y).sum().backward()
    assert pretend_device.synchronisations["masked_scatter_backward"] == 1, pretend_device.synchronisations


def copies_to_the_device_are_counted() -> None:
    x, index = ones(3), torch.tensor([0, 2])
    pretend_device.uploads.clear()
    index.cuda(), torch.tensor(1.0, device="cuda"), x[index], x.copy_(torch.ones(3))
    index.to("cuda", non_blocking=True)
    torch.full((3,), 2.0, device="cuda"), x + torch.tensor(1.0), torch.where(x > 0, x, 0.0)
    assert dict(pretend_device.uploads) == {"blocking": 4, "asynchronous": 1}, pretend_device.uploads


def unordered_sums_are_refused_in_deterministic_mode() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert_refused(lambda: ones(3).cumsum(0), because="deterministic implementation")
        assert torch.ones(3).cumsum(0).tolist() == torch.arange(1, 4, device="cuda").tolist()
        assert ones(3).long().cumsum(0).is_cuda
    finally:
        torch.use_deterministic_algorithms(False)
    assert ones(3).cumsum(0).tolist() == [1.0, 2.0, 3.0]


def float64_is_refused_in_no_float64() -> None:
    assert ones(2).double().dtype == torch.float64
    weight = torch.randn(2, 2, device="cuda", requires_grad=True)
    with pretend_device.no_float64():
        (ones(2, 2) @ weight).sum().backward()
        assert weight.grad is not None and torch.arange(3, device="cuda").dtype == torch.int64
        assert torch.ones(2).double().sum() == 2.0  # the CPU still allows it
        for act in (
            lambda: ones(2).double(),
            lambda: torch.zeros(2, dtype=torch.float64, device="cuda"),
            lambda: torch.zeros(2, dtype=torch.float64).to("cuda"),
            lambda: torch.tensor([1.0], dtype=torch.float64, device="cuda"),
            lambda: nn.Linear(2, 2).double().to("cuda"),
        ):
            assert_refused(act, by=TypeError, because="64-bit floating point")
    assert ones(2).double().dtype == torch.float64


def float64_is_counted_in_float64_counted() -> None:
    places: Counter[str] = Counter()
    with pretend_device.float64_counted(places, "accelerator"):
        ones(2).double() + 1.0, ones(2) + 1.0, torch.ones(2).double()
    assert list(places.values()) == [2] and next(iter(places)).startswith("pretend_checks.py:"), places


CHECKS: dict[str, Callable[[], None]] = {
    check.__name__: check
    for check in (
        mixing_raises,
        cpu_scalars_are_allowed,
        factories_make_device_tensors,
        tensors_move_both_ways,
        cpu_indices_are_allowed_on_the_device_only,
        views_share_their_memory,
        gradients_flow,
        modules_move_and_keep_their_parameters,
        constants_left_on_the_cpu_are_detected,
        generators_belong_to_a_device,
        the_device_has_its_own_global_generator,
        autocast_works,
        checkpointing_works,
        attention_equals_that_of_the_cpu,
        synchronisations_are_counted,
        copies_to_the_device_are_counted,
        unordered_sums_are_refused_in_deterministic_mode,
        float64_is_refused_in_no_float64,
        float64_is_counted_in_float64_counted,
    )  # fmt: skip
}
