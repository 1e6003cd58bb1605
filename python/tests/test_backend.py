"""The backend on small functions: numbers, strides, outputs of every kind, options and errors."""

import json
import os
import re
import subprocess
import sys
import warnings

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import neffuse


class NaiveRmsNorm(nn.Module):
    def __init__(self, size, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size).to(dtype) + 0.5, requires_grad=False)

    def forward(self, x):
        variance = (x * x).mean(-1, keepdim=True)
        return x * torch.rsqrt(variance + 1e-6) * self.weight


def mlp():
    return nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 40), nn.GELU(), nn.LayerNorm(40)).eval()


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_naive_rms_norm(check, target):
    check(NaiveRmsNorm(512, torch.bfloat16), torch.randn(4, 512).bfloat16(), options={"target": target})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1),
        lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
        lambda x: nn.functional.gelu(x) + nn.functional.silu(x) * x[:, :1],
    ],
    ids=["softmax", "naive softmax", "layer norm", "activations"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_rows(check, function, dtype):
    check(function, torch.randn(130, 77).to(dtype))


def test_mlp_in_eval(check):
    with torch.no_grad():
        check(mlp(), torch.randn(5, 24))


def test_strided_inputs(check):
    base = torch.randn(6, 10, 4)

    def scale(x):
        return x * 2 + 1

    check(scale, base.transpose(0, 1))
    check(scale, base[:, 1::3])
    check(scale, base[:1].expand(3, 10, 4))
    check(scale, torch.randn(7, 3)[2:].t())


def test_outputs_keep_the_strides_of_eager(check):
    check(lambda x: (x.t() + 1, (x + 1).t(), (x * 2)[:, ::2].contiguous()), torch.randn(6, 8))


def test_scalar_outputs(check):
    check(lambda x: (x.sum(), x.amax(), x.mean()), torch.randn(33, 5))


def test_no_inputs(check):
    check(lambda: torch.arange(12).reshape(3, 4) + torch.full((4,), 2))


def test_constants_of_the_function(check):
    def shift(x):
        table = torch.tensor([1.5, -2.0, 0.25])
        return torch.cat([torch.tensor([]), x + table]) * torch.arange(3)

    check(shift, torch.randn(3))


def test_outputs_that_need_no_device(check, compilations):
    x = torch.randn(3, 4)
    same, transposed, _ = check(lambda x: (x, x.t(), x.shape[0]), x)
    assert same.data_ptr() == x.data_ptr() == transposed.data_ptr()
    assert compilations == []


def test_the_same_output_twice(check):
    def twice(x):
        y = x + 1
        return y, y, x, None

    check(twice, torch.randn(5))


def test_views_of_inputs_are_not_copied(check, compilations):
    x = torch.randn(3, 4)
    _, view = check(lambda x: (x + 1, x[1:].t()), x)
    assert view.data_ptr() == x[1:].data_ptr()
    (document,) = map(json.loads, compilations)
    assert len(document["outputs"]) == 1


def test_empty_tensors(check):
    check(lambda x: (x + 1, x.new_ones(2)), torch.randn(0, 3))


def test_sizes_as_outputs():
    compiled = torch.compile(lambda x: (x * 2, x.shape[0], x.shape[0] * 2), backend="neffuse", dynamic=True)
    for n_rows in (3, 5):
        x = torch.randn(n_rows, 4)
        doubled, rows, twice = compiled(x)
        assert torch.equal(doubled, x * 2)
        assert (rows, twice) == (n_rows, 2 * n_rows)


def test_symbolic_sizes_compile_once_for_each_size(compilations):
    def norm(x):
        return x.reshape(-1, x.shape[0]).softmax(-1)

    compiled = torch.compile(norm, backend="neffuse", dynamic=True)
    for n_rows in (3, 5, 3):
        x = torch.randn(n_rows, 4)
        torch.testing.assert_close(compiled(x), norm(x))
    assert len(compilations) == 2


def test_in_place_updates_reach_the_argument():
    def update(total, x):
        total.add_(x)
        total[:, 0] = 5
        return total * 2

    total, x = torch.randn(4, 6), torch.randn(4, 6)
    expected_total = total.clone()
    expected = update(expected_total, x)
    version, address = total._version, total.data_ptr()
    result = torch.compile(update, backend="neffuse", fullgraph=True)(total, x)
    assert torch.equal(total, expected_total)
    assert torch.equal(result, expected)
    assert total.data_ptr() == address
    assert total._version > version


def test_in_place_updates_keep_strides():
    total, x = torch.randn(6, 4).t(), torch.randn(4, 6)
    expected = total + x
    torch.compile(lambda total, x: total.add_(x), backend="neffuse", fullgraph=True)(total, x)
    assert torch.equal(total, expected)
    assert total.stride() == (1, 4)


def test_gradients():
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 8))
    x = torch.randn(5, 24)

    def gradients(function):
        model.zero_grad()
        function(x).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    for ours, eager in zip(gradients(torch.compile(model, backend="neffuse")), gradients(model), strict=True):
        torch.testing.assert_close(ours, eager)


def test_new_weights_need_no_compilation(compilations):
    model = mlp()
    compiled = torch.compile(model, backend="neffuse")
    x = torch.randn(5, 24)
    with torch.no_grad():
        compiled(x)
        for parameter in model.parameters():
            parameter.mul_(-0.5)
        model.load_state_dict({name: value + 0.25 for name, value in model.state_dict().items()})
        torch.testing.assert_close(compiled(x), model(x))
    assert len(compilations) == 1


def test_documents_tell_where_nodes_come_from(compilations):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = NaiveRmsNorm(16, torch.float32)

        def forward(self, x):
            return self.inner(x)

    torch.compile(Model(), backend="neffuse", name="norm")(torch.randn(2, 16))
    (document,) = map(json.loads, compilations)
    assert document["name"].startswith("norm_")
    assert [(entry["role"], entry.get("fqn")) for entry in document["inputs"]] == [
        ("input", None),
        ("static", "inner.weight"),
    ]
    assert all(node["module"].endswith("inner") for node in document["nodes"])
    assert all(node["loc"].startswith("test_backend.py:") for node in document["nodes"])


def test_graph_and_binary_can_be_kept(tmp_path, compilations):
    options = {"dump_dir": tmp_path / "new"}
    with torch.no_grad():
        torch.compile(mlp(), backend="neffuse", options=options)(torch.randn(5, 24))
    graph, neff, report = sorted((tmp_path / "new").iterdir())
    assert [graph.suffix, neff.suffix, report.suffixes[-2:]] == [".json", ".neff", [".report", ".json"]]
    assert json.loads(report.read_bytes())["host_ops"] == []
    (document,) = compilations
    assert graph.read_bytes() == document
    assert neff.read_bytes() == neffuse.compile(document).neff
    assert json.loads(neffuse.compile(document).report)["ok"]


def test_autocast_of_a_norm(check):
    def norm(x, weight):
        with torch.autocast("cpu", torch.bfloat16):
            return nn.functional.layer_norm(x @ x.t(), (5,), weight)

    check(norm, torch.randn(5, 16), torch.rand(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"traget": "trn1"}, "did you mean 'target'"),
        ({"target": "trn9"}, "no target is named `trn9`; there are trn1, trn2 and trn3"),
        ({"numerics": "fast"}, "no numerics class is named `fast`"),
        ({"strict": 1}, "option 'strict' is True or False, not 1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message) as failure:
        torch.compile(lambda x: x + 1, backend="neffuse", options=options)(torch.ones(2))
    assert isinstance(failure.value.inner_exception, neffuse.InputError)


def test_other_modes_are_named_and_ignored():
    with pytest.warns(UserWarning, match="no mode 'max-autotune'"):
        result = torch.compile(lambda x: x + 1, backend="neffuse", mode="max-autotune")(torch.ones(2))
    assert torch.equal(result, torch.full((2,), 2.0))


def test_values_that_decide_sizes_are_refused():
    with torch._dynamo.config.patch(capture_scalar_outputs=True), pytest.raises(Exception, match="fixed shapes"):
        torch.compile(lambda x: torch.zeros(x.item()) + 1, backend="neffuse", fullgraph=True)(torch.tensor(3))


def test_torch_logs_shows_what_is_compiled():
    script = (
        "import torch\n"
        "torch.compile(lambda x: torch.sort(x * 2).values, backend='neffuse', name='sorted')(torch.randn(4, 8))\n"
    )
    environment = os.environ | {"TORCH_LOGS": "+neffuse"}
    command = [sys.executable, "-W", "ignore", "-c", script]
    log = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr
    assert re.search(r"neffuse/backend\.py.* sorted_\w+_part0: \d+ bytes for trn2", log)
    assert re.search(r"neffuse/backend\.py.* sorted_\w+: 1 parts on the device, 1 ops on the host", log)


def test_the_backend_is_found_without_an_import():
    script = (
        "import sys, torch\n"
        "assert 'neffuse' in torch._dynamo.list_backends()\n"
        "assert 'neffuse' not in sys.modules\n"
        "x = torch.randn(4, 8)\n"
        "assert torch.equal(torch.compile(lambda x: x * 2, backend='neffuse')(x), x * 2)\n"
        "assert 'neffuse' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_errors_need_no_torch():
    script = "import sys, neffuse\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_gradients_of_attention_with_a_row_that_sees_nothing():
    def attend(q, k, v, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)

    torch.manual_seed(0)
    values = [torch.randn(1, 1, 3, 4) for _ in range(3)]
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    gradients = []
    for function in (attend, torch.compile(attend, backend="neffuse")):
        inputs = [value.clone().requires_grad_() for value in values]
        function(*inputs, mask).square().sum().backward()
        gradients.append([tensor.grad for tensor in inputs])
    for eager, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [lambda x: x + 300, lambda x: x < 300, lambda x: x.clamp(-5, 100), lambda x: torch.where(x > 3, x, -1)],
)
def test_numbers_that_the_type_of_a_tensor_lacks(function):
    x = torch.tensor([1, 200, 7], dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = torch.compile(function, backend="neffuse")(x)
    expected = function(x)
    assert ours.dtype == expected.dtype
    assert torch.equal(ours, expected)


@pytest.mark.filterwarnings("ignore::neffuse.FallbackWarning")
def test_checkpoints_with_random_numbers():
    def recomputed(x):
        return torch.nn.functional.dropout(x.tanh(), 0.5) * torch.rand_like(x)

    def loss(x):
        return torch.utils.checkpoint.checkpoint(recomputed, x, use_reentrant=False).sum()

    results = []
    for function in (loss, torch.compile(loss, backend="neffuse")):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        torch.manual_seed(0)
        function(x).backward()
        results.append(x.grad)
    torch.testing.assert_close(results[1], results[0])
