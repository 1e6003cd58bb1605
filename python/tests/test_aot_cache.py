"""A second process takes what AOTAutograd made of a model from its cache, and compiles nothing."""

import json
import os
import subprocess
import sys

import pytest

from neffuse import aot_cache

SCRIPT = """
import json, sys, warnings
import torch
from torch import nn
import neffuse
from neffuse import _neffuse

kind, options = sys.argv[1], json.loads(sys.argv[2])
n_compilations = 0
compile = _neffuse.compile

def counting(*args, **kwargs):
    global n_compilations
    n_compilations += 1
    return compile(*args, **kwargs)

_neffuse.compile = counting
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
table = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
x, index = torch.randn(3, 8), torch.tensor([2, 0])
cache = torch.zeros(3, 4)

def function(x, cache):
    y = model(x) * table
    if kind == "fallback":
        y = torch.sort(y * 2).values + y.t().contiguous().t()
    if kind == "integers":
        return y[index]
    cache.add_(y.detach())
    return y, y.t(), x.t()

compiled = torch.compile(function, backend="neffuse", options=options)
expected_cache = cache.clone()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    if kind == "training":
        compiled(x, cache)[0].square().sum().backward()
        ours = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        function(x, expected_cache)[0].square().sum().backward()
        expected = [p.grad.clone() for p in model.parameters()]
    else:
        with torch.no_grad():
            ours, expected = compiled(x, cache), function(x, expected_cache)
torch.testing.assert_close(ours, expected)
torch.testing.assert_close(cache, expected_cache)
counters = torch._dynamo.utils.counters["aot_autograd"]
print(json.dumps({
    "compilations": n_compilations,
    "hits": counters["autograd_cache_hit"],
    "reports": [report["host_ops"] for report in neffuse.reports()],
    "warnings": sum(issubclass(w.category, neffuse.FallbackWarning) for w in caught),
}))
"""


def test_this_pytorch_has_the_cache_that_the_backend_knows():
    # Private API: a PyTorch without it works, but compiles in every process. That must be noticed.
    assert aot_cache.IS_AVAILABLE


@pytest.fixture
def run(tmp_path):
    """Runs the script in a process of its own, with caches that all runs of a test share."""

    def in_process(kind, options=None):
        folders = {"TORCHINDUCTOR_CACHE_DIR": tmp_path / "inductor", "NEFFUSE_CACHE_DIR": tmp_path / "neffuse"}
        environment = os.environ | {name: str(folder) for name, folder in folders.items()}
        command = [sys.executable, "-c", SCRIPT, kind, json.dumps(options or {})]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return in_process


@pytest.mark.parametrize(("kind", "n_graphs"), [("inference", 1), ("training", 2), ("fallback", 1), ("integers", 1)])
def test_a_second_process_compiles_nothing(run, kind, n_graphs):
    first, second = run(kind), run(kind)
    assert first["compilations"] >= n_graphs
    assert (first["hits"], second["hits"]) == (0, 1)
    assert second["compilations"] == 0
    # Users learn in every process what runs where.
    assert len(first["reports"]) == n_graphs
    assert second["reports"] == first["reports"]
    assert second["warnings"] == first["warnings"] == (kind == "fallback")


def test_other_options_are_another_entry(run):
    run("inference")
    exact = run("inference", {"numerics": "exact"})
    assert (exact["hits"], exact["compilations"]) == (0, 1)
    assert run("inference", {"numerics": "exact"})["compilations"] == 0


def test_the_cache_can_be_left_alone(run, tmp_path):
    for _ in range(2):
        assert run("training", {"cache": False})["compilations"] == 2
    assert not (tmp_path / "neffuse").exists()
    assert not (tmp_path / "inductor" / "aotautograd").exists()
