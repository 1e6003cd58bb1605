"""Arguments and results of every shape in memory: the numbers, strides, aliases and updates of eager."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import neffuse
from neffuse import backend


def copied(arguments):
    """The arguments in memory of their own, with the same strides, offsets and aliases."""
    storages = {}

    def copy(tensor):
        if not isinstance(tensor, torch.Tensor):
            return tensor
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()
        new = torch.empty(0, dtype=tensor.dtype)
        return new.set_(storages[storage.data_ptr()], tensor.storage_offset(), tensor.size(), tensor.stride())

    return pytree.tree_map(copy, arguments)


def aliases(values):
    """For each tensor with elements a number for its storage."""
    numbers = {}
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.numel()]
    return [numbers.setdefault(tensor.untyped_storage().data_ptr(), len(numbers)) for tensor in tensors]


def run(function, *arguments, tolerance=1e-5):
    """Compares results, updated arguments, strides and aliases with those of eager."""
    eager_arguments, our_arguments = copied(arguments), copied(arguments)
    expected = pytree.tree_leaves((function(*eager_arguments), eager_arguments))
    compiled = torch.compile(function, backend="neffuse", fullgraph=True)
    ours = pytree.tree_leaves((compiled(*our_arguments), our_arguments))
    assert len(ours) == len(expected)
    for value, other in zip(ours, expected, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(value, other, rtol=tolerance, atol=tolerance, equal_nan=True)
            assert value.stride() == other.stride()
        else:
            assert value == other
    assert aliases(ours) == aliases(expected)


def base():
    return torch.randn(4, 6)


@pytest.mark.parametrize(
    "argument",
    [
        torch.randn(6, 8)[:, ::2].t(),
        torch.randn(1, 8).expand(4, 8),
        torch.randn(12).as_strided((4, 5), (2, 1)),
        torch.randn(20).unfold(0, 5, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d),
        torch.randn(3, 4)[1:, 1:],
        torch.randn(4, dtype=torch.complex64).conj().imag,
        torch.randn(0, 4),
        torch.randn(4, 0),
        torch.tensor(3.0),
    ],
    ids=[
        "every other column",
        "expanded",
        "overlapping rows",
        "windows",
        "channels last",
        "channels last 3d",
        "offset",
        "negated",
        "no rows",
        "no columns",
        "scalar",
    ],
)
def test_inputs(argument):
    run(lambda x: (x * 2 + 1, x.exp().sum(), x.relu(), x.unsqueeze(0) + 1, x.sum(-1) if x.dim() else x), argument)


@pytest.mark.parametrize("shapes", [((3, 0), (0, 5)), ((0, 3), (3, 5)), ((3, 4), (4, 0))])
def test_products_over_nothing(shapes):
    run(torch.mm, *map(torch.randn, shapes))


def test_reductions_over_nothing():
    run(lambda x: (x.sum(1), x.mean(1), x.any(1), x.all(1), x.sum(), x.softmax(1)), torch.randn(4, 0))


def test_scalars():
    run(lambda x, y: (x + y, x.expand(3), x.reshape(1, 1), y * 2), torch.tensor(3), torch.tensor(-2))


def test_the_same_argument_twice():
    x = base()
    run(lambda a, b: (a + b, a * b), x, x)


@pytest.mark.filterwarnings("ignore::neffuse.FallbackWarning")
def test_arguments_that_share_memory():
    x = base()
    run(lambda a, b: (a + b.sum(), b * 2), x, x[1:])
    run(lambda a, b: (a.mul_(2), b + 1), x, x[1:])
    run(lambda a, b: (b.mul_(2), a + 1), x, x[1:3, ::2])
    run(lambda a, b: (a.add_(1), a + b), x, x)


def test_views_of_arguments_are_returned():
    run(lambda a: (a[1:], a.t(), a.view(2, 12), a.chunk(2), a.unsqueeze(0).expand(3, 4, 6), a + 1), base())


@pytest.mark.filterwarnings("ignore::neffuse.FallbackWarning")
def test_updates_through_views():
    run(lambda a: (a[1:3].add_(5), a.sum()), base())
    run(lambda a: (a.t()[0].mul_(3), a * 1), base())
    run(lambda a: (a.diagonal().zero_(), a * 1), base())
    run(lambda a, mask: a.masked_fill_(mask, 3.0), base(), base() > 0)


def test_results_share_memory_as_in_eager():
    def function(x):
        y = x + 1
        first, second = y.chunk(2)
        return y.t(), y, first, second, y[1:], x * 2, (x * 3).t()

    run(function, base())


@pytest.mark.filterwarnings("ignore::neffuse.FallbackWarning")
def test_key_value_caches():
    def by_slice(cache, key, position: int):
        cache[:, position : position + 2] = key
        return cache.sum(1)

    def by_index(cache, key, positions):
        cache[:, positions] = key
        return cache.sum(1)

    cache, key, positions = torch.randn(2, 6, 3), torch.randn(2, 2, 3), torch.tensor([4, 1])
    run(by_slice, cache, key, 1)
    run(by_index, cache, key, positions)
    run(lambda cache, key, positions: (cache.index_copy_(1, positions, key), cache * 2), cache, key, positions)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_floats(dtype):
    def function(x, y):
        return x * y, x.exp(), x.softmax(-1), x.sum(), x @ y.t(), F.layer_norm(x, (8,)), x.pow(2), x.abs().sqrt()

    run(function, torch.randn(4, 8).to(dtype), torch.randn(4, 8).to(dtype), tolerance=2e-2)


def test_autocast():
    def function(x, weight):
        with torch.autocast("cpu", torch.bfloat16):
            y = F.linear(x, weight)
            return y, y.softmax(-1), F.layer_norm(y, (5,)), (x * 2).sum()

    run(function, torch.randn(4, 8), torch.randn(5, 8), tolerance=3e-2)


@pytest.mark.filterwarnings("ignore::neffuse.FallbackWarning")
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers(dtype):
    largest, numbers = torch.iinfo(dtype).max, torch.tensor([3, 100, 5]).to(dtype)
    x = torch.tensor([largest, largest // 2 + 3, 7], dtype=dtype)
    run(lambda x, y: (x + y, x * y, x - y, x // y, x % y, x.float(), x < y, x.sum(), x * 2), x, numbers)


@pytest.mark.filterwarnings("ignore::neffuse.FallbackWarning")
def test_64_bit_integers_are_never_wrapped():
    large = torch.tensor([100_000, 2**31 - 1, -(2**31), 3])
    run(lambda i: (i * i, i + i, i - 5, i * 3 - 7), large)
    run(lambda i: torch.arange(4) * 2**30 + i, torch.tensor([1, 2, 3, 4]))
    run(lambda i: i.cumsum(0), large)
    table = torch.tensor([2**33, 1, -(2**40)])
    run(lambda i: table[i] + 1, torch.tensor([2, 0]))
    run(lambda i: torch.tensor([2**33, 1])[i], torch.tensor([1, 0]))


def test_small_64_bit_integers_stay_on_the_device():
    run(lambda i: (i * i, i + i, i * 100 - 7), torch.tensor([100, -181, 3]))
    assert [report["host_ops"] for report in neffuse.reports()] == [[]]


@pytest.mark.filterwarnings("ignore::neffuse.FallbackWarning")
def test_batch_norm_in_training():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
    x = torch.randn(8, 6)

    def train(function):
        model.zero_grad()
        model[1].reset_running_stats()
        loss = function(x).square().sum()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters()), *(b.clone() for b in model.buffers())]

    expected = train(model)
    torch.testing.assert_close(train(torch.compile(model, backend="neffuse")), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::neffuse.FallbackWarning")
def test_optimizer_steps():
    def trained(compiles):
        torch.manual_seed(2)
        model = nn.Linear(6, 5)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
        step = torch.compile(optimizer.step, backend="neffuse") if compiles else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 6)).square().sum().backward()
            step()
        states = [value for state in optimizer.state.values() for value in state.values()]
        return [*(parameter.detach() for parameter in model.parameters()), *states]

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-4, atol=1e-5)


def test_tensors_that_are_not_as_before_are_described_anew(monkeypatch):
    devices = []

    class Recorded(backend.DeviceCallable):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            devices.append(self)

    monkeypatch.setattr(backend, "DeviceCallable", Recorded)
    x = base()
    run(lambda x: x + 1, x)
    (device,) = devices
    for other in (x, torch.randn(6, 4).t(), torch.randn(7, 13)[1:5, ::2][:, :6], x, nn.Parameter(x)):
        (result,) = device([other])
        torch.testing.assert_close(result, other.detach() + 1)
    # Nothing guards such calls: they must not read what is no part of the tensor.
    for wrong in (torch.randn(6, 4), torch.randn(2, 6), x.double(), torch.empty(0), torch.randn(4, 6, 1)):
        with pytest.raises(neffuse.InputError):
            device([wrong])
