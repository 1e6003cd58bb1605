"""Faults that users of tensor compilers reported in public: none of them is here.

The reproducers are shared between projects; without them beside this repository the module is
skipped. The table says for each how much of it the device runs, so that a change is noticed.
"""

import copy
import importlib.util
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

import neffuse

_FILE = Path(__file__).parents[2].parent / "shared" / "cases" / "reported_bugs.py"
if not _FILE.exists():
    pytest.skip(f"there are no shared cases: {_FILE}", allow_module_level=True)


def _cases():
    spec = importlib.util.spec_from_file_location("reported_bugs", _FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {case["id"]: case for case in module.CASES}


CASES = _cases()

#: Ops that PyTorch runs on the host, in all graphs of a case; none: the device runs everything.
HOST_OPS = {
    "B01": [],
    "B03": [],
    "B07": [],
    "B08": [],
    "B10": [],
    "B11": [],
    "B12": [],
    "B14": [],
    "B15": ["aten.native_dropout.default"],
    "B17": [],
    "B18": [],
    "B19": ["aten.flip.default"],
    "B20": [],
    "B21": [],
    "B23": [],
    "B24": ["aten.sort.stable", "aten.sort.stable", "aten.squeeze.dim", "aten.topk.default"],
    "B25": [],
    "B26": [],
    "B28": [],
    "B29": [],
    "B30": ["aten.zeros.default", "aten._native_batch_norm_legit.no_stats"],
    "B31": ["aten._to_copy.default"],
    "B32": [],
}

#: Cases with values that the device cannot hold: PyTorch runs the whole call.
ON_HOST_BY_VALUE = {"B19", "B24"}


def test_the_table_has_every_case():
    assert sorted(HOST_OPS) == sorted(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_reported_bug(name):
    case = CASES[name]
    eager = _run(case, compiled=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = _run(case, compiled=True)
    relative, absolute = (1e-5, 1e-6) if case["tol"] is None else (case["tol"], case["tol"])
    assert len(ours) == len(eager)
    for value, expected in zip(ours, eager, strict=True):
        if not isinstance(expected, torch.Tensor):
            assert value == expected
            continue
        torch.testing.assert_close(value, expected, rtol=relative, atol=absolute, equal_nan=True)
        assert value.stride() == expected.stride()
    assert [op for report in neffuse.reports() for op in report["host_ops"]] == HOST_OPS[name]
    texts = [str(warning.message) for warning in caught if warning.category is neffuse.FallbackWarning]
    assert any("does not fit 32 bits" in text for text in texts) == (name in ON_HOST_BY_VALUE)


def _run(case, compiled):
    """Outputs of two calls, then the arguments, then the gradients."""
    function, arguments = case["build"]()
    function = copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function
    if compiled:
        function = torch.compile(function, backend="neffuse", dynamic=True if case["dynamic"] else None)
    torch.manual_seed(11)
    outputs = [function(*arguments)]
    gradients = []
    if case["grad"]:
        pytree.tree_leaves(outputs[0])[0].sum().backward()
        gradients = [argument.grad for argument in arguments if argument.requires_grad]
    else:
        outputs.append(function(*arguments))
    return pytree.tree_leaves([outputs, arguments, gradients])
