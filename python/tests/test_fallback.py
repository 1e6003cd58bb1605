"""What the device does not take: PyTorch runs it on the host, with the right answer and a warning."""

import json
import warnings

import pytest
import torch
from torch import nn

import neffuse
from neffuse import history


def run(function, *inputs, n_warnings=1, **options):
    """Outputs of the compiled function, after comparing them with eager."""
    expected = function(*inputs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = torch.compile(function, backend="neffuse", fullgraph=True, **options)(*inputs)
    torch.testing.assert_close(results, expected)
    fallbacks = [str(warning.message) for warning in caught if warning.category is neffuse.FallbackWarning]
    assert len(fallbacks) == n_warnings, fallbacks
    return fallbacks


def host_ops():
    """Ops on the host, by graph."""
    return [report["host_ops"] for report in neffuse.reports()]


def n_parts():
    """Binaries, by graph."""
    return [len(report["parts"]) for report in neffuse.reports()]


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.sort(self.inner(x)).values.relu() + torch.topk(x, 8).values


def test_one_warning_names_every_node():
    model = Sorter()
    with torch.no_grad():
        (text,) = run(model, torch.randn(4, 8), options={"strict": False})
    lines = text.splitlines()
    assert "2 nodes cannot be compiled and run on the host: aten.sort.default (1), aten.topk.default (1)" in lines[0]
    sort, reason = lines[1:3]
    assert sort.startswith("  sort = aten.sort.default -> (float32[4, 8], int64[4, 8]), ")
    assert "test_fallback.py:" in sort
    assert reason.strip() == "this overload is not supported"


def test_modules_are_named():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Sorter()])

        def forward(self, x):
            return self.layers[0](x)

    with torch.no_grad():
        (text,) = run(Outer(), torch.randn(4, 8))
    assert ", layers.0, " in text
    (report,) = neffuse.reports()
    assert [entry["op"] for entry in report["unsupported"]] == ["aten.sort.default", "aten.topk.default"]
    assert {entry["module"] for entry in report["unsupported"]} == {"layers.0"}


def test_strict_raises_with_every_node():
    def function(x, y):
        return torch.sort(x).values, y.to(torch.int32), torch.topk(x, 2).values

    compiled = torch.compile(function, backend="neffuse", options={"strict": True})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as failure:
        compiled(torch.randn(4, 8), torch.randn(6))
    error = failure.value.inner_exception
    assert isinstance(error, neffuse.UnsupportedError)
    # The cast to an integer is refused only by the lowering, when the rest is gone.
    ops = [node["op"] for node in error.nodes]
    assert sorted(ops) == ["aten._to_copy.default", "aten.sort.default", "aten.topk.default"]
    assert str(error).startswith("error[unsupported]: ")
    assert neffuse.reports() == []


def test_parts_are_few():
    def function(x):
        y = x * 2 + 1
        y = torch.sort(y).values
        z = torch.sort(x).values
        return (y + z).exp(), (x - 3).relu()

    run(function, torch.randn(4, 8))
    assert host_ops() == [["aten.sort.default", "aten.sort.default"]]
    assert n_parts() == [2]


def test_views_and_new_tensors_alone_are_no_part():
    def function(x):
        y = torch.sort(x).values.t().unsqueeze(0)
        return torch.sort(y, dim=1).values

    run(function, torch.randn(4, 8))
    assert n_parts() == [0]


def test_split_views_stay_with_their_items():
    def function(x):
        low, high = torch.sort(x).values.split(4, dim=1)
        first, second = (x * 2).split(4, dim=1)
        return torch.sort(low).values, high * 2, torch.sort(first).values, second + 1

    run(function, torch.randn(4, 8))


def test_random_ops_keep_the_stream_of_eager():
    def function(x):
        noise = torch.rand(4, 8)
        y = torch.nn.functional.dropout(x.exp() * noise, 0.5, True)
        return y + torch.randn(4, 8), torch.bernoulli(y.sigmoid())

    x = torch.randn(4, 8)
    torch.manual_seed(5)
    expected = function(x)
    torch.manual_seed(5)
    with pytest.warns(neffuse.FallbackWarning):
        results = torch.compile(function, backend="neffuse", fullgraph=True)(x)
    torch.testing.assert_close(results, expected)


def test_in_place_updates_of_arguments():
    def function(cache, x):
        cache.copy_(torch.sort(cache + x).values)
        y = cache * 2
        cache[:, 0] = 7
        return y, cache.t()

    cache, x = torch.randn(4, 8), torch.randn(4, 8)
    expected_cache = cache.clone()
    expected = function(expected_cache, x)
    version = cache._version
    with pytest.warns(neffuse.FallbackWarning):
        ours = torch.compile(function, backend="neffuse", fullgraph=True)(cache, x)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(cache, expected_cache)
    assert cache._version > version
    assert ours[1].data_ptr() == cache.data_ptr()


def test_training_through_the_host():
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(5, 8)

    def gradients(function):
        torch.manual_seed(3)
        model.zero_grad()
        model[2].reset_running_stats()
        function(x).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()] + list(model[2].buffers())

    expected = [value.clone() for value in gradients(model)]
    with pytest.warns(neffuse.FallbackWarning):
        ours = gradients(torch.compile(model, backend="neffuse"))
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_float64_runs_on_the_host():
    texts = run(lambda x, y: (x.double() + y).float() * 2, torch.randn(3), torch.randn(3, dtype=torch.float64))
    assert "float64" in texts[0]


def test_numbers_of_the_user_are_no_reason_to_warn():
    compiled = torch.compile(lambda x, scale: x * scale + 1, backend="neffuse", fullgraph=True)
    x = torch.randn(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (2.5, 3.5, 4.5):
            torch.testing.assert_close(compiled(x, scale), x * scale + 1)


def test_complex_and_float8_run_on_the_host():
    run(lambda x: torch.view_as_real(torch.view_as_complex(x) * 2j).relu(), torch.randn(3, 2))
    run(lambda x: x.to(torch.float8_e4m3fn).to(torch.float32) * 2, torch.randn(8))


@pytest.mark.parametrize("strict", [False, True])
def test_wide_integers(strict):
    def pick(table, index):
        return table[index], index + 1

    compiled = torch.compile(pick, backend="neffuse", options={"strict": strict})
    narrow, wide = torch.tensor([5, -6, 7]), torch.tensor([5, 2**33, -(2**35)])
    index = torch.tensor([2, 0, 1])
    torch.testing.assert_close(compiled(narrow, index), pick(narrow, index))
    if strict:
        with pytest.raises(neffuse.TooWideError, match="8589934592 does not fit 32 bits"):
            compiled(wide, index)
        return
    with pytest.warns(neffuse.FallbackWarning, match="8589934592 does not fit 32 bits") as caught:
        for _ in range(2):
            torch.testing.assert_close(compiled(wide, index), pick(wide, index))
    assert len(caught) == 1
    torch.testing.assert_close(compiled(narrow, index), pick(narrow, index))


def test_numbers_outside_the_range_of_a_function_run_on_the_host():
    def norm(x, gamma):
        return torch.nn.functional.rms_norm(x, (64,), gamma, 1e-6)

    gamma = torch.linspace(0.5, 1.5, 64, dtype=torch.bfloat16)
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    compiled = torch.compile(norm, backend="neffuse", fullgraph=True)
    torch.testing.assert_close(compiled(x, gamma), norm(x, gamma))
    huge = x * 1e18
    with pytest.warns(neffuse.FallbackWarning, match="Rsqrt has no valid result"):
        torch.testing.assert_close(compiled(huge, gamma), norm(huge, gamma))
    torch.testing.assert_close(compiled(x, gamma), norm(x, gamma))


def test_wide_integers_that_are_updated():
    def push(total, step):
        total += step
        return total * 2

    total = torch.tensor([1, 2])
    compiled = torch.compile(push, backend="neffuse", fullgraph=True)
    compiled(total, torch.tensor([3, 4]))
    total[0] = 2**40
    with pytest.warns(neffuse.FallbackWarning):
        result = compiled(total, torch.tensor([3, 4]))
    assert total.tolist() == [2**40 + 3, 10]
    assert result.tolist() == [2**41 + 6, 20]


def test_errors_of_backward_graphs_say_so():
    compiled = torch.compile(lambda x: torch.cumsum(x, 1).exp(), backend="neffuse", options={"strict": True})
    x = torch.randn(4, 8, requires_grad=True)
    result = compiled(x)
    with pytest.raises(
        neffuse.UnsupportedError, match=r"^error\[unsupported\]: while compiling a backward graph: "
    ) as failure:
        result.sum().backward()
    assert failure.value.nodes


def test_marked_dimensions_are_refused_by_name():
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as failure:
        torch.compile(lambda x: x * 2, backend="neffuse")(x)
    error = failure.value.inner_exception
    assert isinstance(error, neffuse.InputError)
    assert "L['x']: dimension 0 (now 5) is marked dynamic" in str(error).splitlines()[0]
    assert "maybe_mark_dynamic" in str(error)


def test_dimensions_that_may_be_dynamic_are_compiled_for_each_size():
    compiled = torch.compile(lambda x: x * 2, backend="neffuse")
    for size in (5, 6):
        x = torch.randn(size, 4)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        assert torch.equal(compiled(x), x * 2)


def test_reports_are_kept_in_the_folder(tmp_path):
    run(lambda x: torch.sort(x + 1).values * 2, torch.randn(4, 8), options={"dump_dir": tmp_path}, name="sorted")
    # The graph that was refused, two parts of it with their binaries, and the report.
    assert len(list(tmp_path.iterdir())) == 1 + 2 * 2 + 1
    (path,) = tmp_path.glob("*.report.json")
    report = json.loads(path.read_bytes())
    assert report == neffuse.reports()[0]
    assert report["host_ops"] == ["aten.sort.default"]
    assert report["n_dispatches"] == 2
    assert report["neff_bytes"] == sum(part["neff_bytes"] for part in report["parts"])


def test_reports_are_bounded():
    run(lambda x: x + 1, torch.randn(3), n_warnings=0)
    assert len(neffuse.reports()) == 1
    for number in range(history.MAX_REPORTS + 3):
        history.add({"graph": str(number)})
    assert len(neffuse.reports()) == history.MAX_REPORTS
    assert neffuse.reports()[-1]["graph"] == str(history.MAX_REPORTS + 2)
    torch._dynamo.reset()
    assert neffuse.reports() == []
