"""Weights in another layout on the device: their converted copies are kept, and never stale."""

import copy
import gc
import json

import pytest
import torch
from torch import nn

from neffuse import _neffuse


@pytest.fixture(autouse=True)
def transposed_weights(monkeypatch):
    """Matrices among the weights lie column by column on the device; gives their number, by graph."""
    counts = []
    compile = _neffuse.compile

    def compile_transposed(document, **options):
        document = json.loads(document)
        weights = [entry["out"] for entry in document["inputs"] if entry["role"] == "static"]
        matrices = [weight for weight in weights if len(weight["shape"]) == 2]
        for weight in matrices:
            weight["stride"] = [1, weight["shape"][0]]
        counts.append(len(matrices))
        return compile(json.dumps(document).encode(), **options)

    monkeypatch.setattr(_neffuse, "compile", compile_transposed)
    return counts


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 6)

    def forward(self, x):
        return self.second(self.first(x).relu())


@pytest.fixture
def check(transposed_weights):
    """Compares a compiled model, whose weights may have been changed, with eager."""
    model = Model()
    compiled = torch.compile(model, backend="neffuse")
    x = torch.randn(3, 6)

    def compare():
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))

    compare()
    compare()
    assert transposed_weights == [2]
    compare.model = model
    yield compare
    compare()
    assert transposed_weights == [2], "new weights need no compilation"


def test_load_state_dict(check):
    state = {name: torch.randn_like(value) for name, value in check.model.state_dict().items()}
    check.model.load_state_dict(state)


def test_data_is_assigned(check):
    for parameter in check.model.parameters():
        parameter.data = torch.randn_like(parameter)


def test_updates_under_no_grad(check):
    with torch.no_grad():
        check.model.first.weight.mul_(-2)
        check.model.second.weight[3, 1] = 5


def test_updates_that_leave_no_version(check):
    weight = check.model.first.weight
    version, address = weight._version, weight.data_ptr()
    weight.data.mul_(-2)
    assert (weight._version, weight.data_ptr()) == (version, address)


def test_updates_through_numpy(check):
    check.model.second.weight.detach().numpy()[2, 2] += 1


def test_optimizer_steps(check):
    model = check.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()


def test_two_weights_change_places():
    model = nn.ModuleList([nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)])

    def function(x):
        return model[1](model[0](x).relu())

    compiled = torch.compile(function, backend="neffuse")
    x = torch.randn(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x))
        model[0].weight.data, model[1].weight.data = model[1].weight.data, model[0].weight.data
        torch.testing.assert_close(compiled(x), function(x))


def test_addresses_are_used_again(check):
    weight = check.model.first.weight
    addresses = set()
    for _ in range(4):
        addresses.add(weight.data_ptr())
        weight.data = torch.empty(0)
        gc.collect()
        weight.data = torch.randn(8, 6)
        check()


def test_new_parameters(check):
    check.model.first.weight = nn.Parameter(torch.randn(8, 6))
    check.model.second = copy.deepcopy(check.model.second)


def test_training_with_transposed_weights():
    model = Model()
    compiled = torch.compile(model, backend="neffuse")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(3, 6)
    for _ in range(3):
        reference = copy.deepcopy(model)
        expected = torch.autograd.grad(reference(x).square().sum(), list(reference.parameters()))
        optimizer.zero_grad()
        compiled(x).square().sum().backward()
        torch.testing.assert_close([parameter.grad for parameter in model.parameters()], list(expected))
        optimizer.step()
