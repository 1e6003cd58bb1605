"""Fixtures: a fresh compiler for each test, and the accuracy that results must have."""

import copy

import pytest
import torch
from torch.utils import _pytree as pytree

from neffuse import _neffuse


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Compilations are kept apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEFFUSE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path_factory, monkeypatch):
    """No graph of another test is reused; random tensors are the same in every run."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("pytorch")))
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def compilations(monkeypatch):
    """The documents that were compiled, in order."""
    documents = []
    compile = _neffuse.compile

    def recording(document, **options):
        documents.append(document)
        return compile(document, **options)

    monkeypatch.setattr(_neffuse, "compile", recording)
    return documents


@pytest.fixture
def check():
    """Compiles a module or function, runs it and compares with eager and with the truth."""
    return _check


def _check(function, *inputs, **options):
    eager = function(*inputs)
    compiled = torch.compile(function, backend="neffuse", fullgraph=True, **options)(*inputs)
    truth = _wide(function)(*pytree.tree_map(_wide, inputs))
    flat = [pytree.tree_leaves(results) for results in (compiled, eager, truth)]
    for ours, theirs, exact in zip(*flat, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert_as_accurate(ours, theirs, exact)
            assert ours.stride() == theirs.stride()
        else:
            assert ours == theirs
    return compiled


def _wide(value):
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def assert_as_accurate(ours, eager, truth):
    """Floats are no further from the truth than eager's, up to one rounding; the rest is equal."""
    assert (ours.shape, ours.dtype) == (eager.shape, eager.dtype)
    if not eager.is_floating_point():
        assert torch.equal(ours, eager)
        return
    ours, theirs, truth = (tensor.detach().double() for tensor in (ours, eager, truth))
    finite = theirs.isfinite()
    assert torch.equal(ours[~finite].nan_to_num(), theirs[~finite].nan_to_num())
    ours, theirs, truth = ours[finite], theirs[finite], truth[finite]
    if truth.numel() == 0:
        return
    k = 1 if eager.dtype.itemsize == 2 else 2
    rounding = torch.finfo(eager.dtype).eps / 2

    def largest(values):
        return values.abs().max().item()

    def rms(values):
        return values.square().mean().sqrt().item()

    assert largest(ours - truth) <= k * largest(theirs - truth) + k * rounding * largest(truth)
    assert rms(ours - truth) <= 1.5 * rms(theirs - truth) + rounding * rms(truth)
