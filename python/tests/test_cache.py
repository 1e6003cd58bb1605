"""The compile cache across processes."""

import json
import os
import subprocess
import sys

import pytest
import torch

from neffuse import _neffuse

MODEL = """
import json, torch
from neffuse import _neffuse

uses = []
compile = _neffuse.compile

def noting(document, **options):
    compiled = compile(document, **options)
    uses.append(json.loads(compiled.report)["cache"])
    return compiled

_neffuse.compile = noting
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
x = torch.randn(2, 8)
y = torch.compile(model, backend="neffuse")(x)
torch.testing.assert_close(y, model(x))
y.sum().backward()
print(json.dumps({"uses": uses, "y": y.tolist()}))
"""


def run(folder, number):
    # PyTorch's own cache would leave nothing to find in ours.
    caches = {"NEFFUSE_CACHE_DIR": str(folder / "neffuse"), "TORCHINDUCTOR_CACHE_DIR": str(folder / str(number))}
    environment = os.environ | caches
    process = subprocess.run([sys.executable, "-c", MODEL], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_a_second_process_compiles_nothing(tmp_path):
    first, second = run(tmp_path, 1), run(tmp_path, 2)
    assert first["uses"] and set(first["uses"]) == {"miss"}
    assert second["uses"] and set(second["uses"]) == {"hit"}
    assert first["y"] == second["y"]


def test_a_cache_that_cannot_be_used_is_a_warning(tmp_path, monkeypatch, compilations):
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("NEFFUSE_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.warns(RuntimeWarning, match="the result is not kept"):
        y = torch.compile(lambda x: x.exp(), backend="neffuse")(torch.zeros(3))
    assert y.tolist() == [1, 1, 1]
    report = json.loads(_neffuse.compile(compilations[0], cache=False).report)
    assert report["cache"] == "off"


def test_a_wrong_size_is_an_error(monkeypatch, compilations):
    torch.compile(lambda x: x.exp(), backend="neffuse")(torch.zeros(3))
    monkeypatch.setenv("NEFFUSE_CACHE_SIZE", "much")
    with pytest.raises(_neffuse.InputError, match="`much` is no size"):
        _neffuse.compile(compilations[0])
