"""Documents that the backend writes, entry by entry."""

import base64
import json
import math

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import PlainAOTInput, PlainAOTOutput, TangentAOTInput

from neffuse.capture import capture
from neffuse.nodes import user_line


def captured(graph, root=None, **overrides):
    arguments = {"name": "g", "kind": "inference", "static": [], "parameter_names": {}} | overrides
    return capture(fx.GraphModule(root or torch.nn.Module(), graph), **arguments)


def graph_of(op, *args, **kwargs):
    """A graph that applies one op to a float32 [2, 3] input."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3)
    node = graph.call_function(op, (x, *args), kwargs)
    node.meta["val"] = torch.empty(2, 3)
    graph.output((node,))
    return graph


def test_arguments_of_every_kind():
    arguments = [1, True, None, 0.5, math.inf, -math.inf, math.nan, "none", torch.float16, torch.device("cpu")]
    arguments += [torch.strided, torch.channels_last, [1, (2, None)], slice(None, 2, None), 1 - 2j]
    (node,) = json.loads(captured(graph_of(torch.ops.aten.add.Tensor, *arguments)).json())["nodes"]
    assert node["args"] == [
        {"ref": 0},
        1,
        True,
        None,
        0.5,
        {"float": "inf"},
        {"float": "-inf"},
        {"float": "nan"},
        {"str": "none"},
        {"dtype": "float16"},
        {"device": "cpu"},
        {"layout": "strided"},
        {"memory_format": "channels_last"},
        [1, [2, None]],
        {"slice": [None, 2, None]},
        {"complex": [1.0, -2.0]},
    ]


def test_floats_keep_their_point():
    text = captured(graph_of(torch.ops.aten.add.Tensor, 2.0, 1e20)).json().decode()
    assert '[{"ref":0},2.0,1e+20]' in text


def test_small_constants_are_stored_and_large_ones_passed():
    root = torch.nn.Module()
    root.small, root.large = torch.tensor([1, 2, 3]), torch.zeros(20000)
    graph = fx.Graph()
    nodes = []
    for name in ("small", "large"):
        node = graph.call_function(torch.ops.aten.lift_fresh_copy.default, (graph.get_attr(name),))
        node.meta["val"] = getattr(root, name)
        nodes.append(node)
    graph.output(tuple(nodes))
    result = captured(graph, root)
    constants = result.document["constants"]
    assert list(constants) == ["small"]
    assert base64.b64decode(constants["small"]["data"]) == b"".join(n.to_bytes(8, "little") for n in (1, 2, 3))
    assert [entry["role"] for entry in result.document["inputs"]] == ["static"]
    assert torch.equal(result.inputs[0], root.large)


def test_backward_inputs_have_roles():
    graph = fx.Graph()
    placeholders = [graph.placeholder(name) for name in ("primals_1", "mul", "tangents_1")]
    for node in placeholders:
        node.meta["val"] = torch.empty(2)
    placeholders[0].meta["desc"] = PlainAOTInput(idx=3)
    placeholders[2].meta["desc"] = TangentAOTInput(output=PlainAOTOutput(idx=0))
    node = graph.call_function(torch.ops.aten.mul.Tensor, tuple(placeholders[1:]))
    node.meta["val"] = torch.empty(2)
    graph.output((node, None))
    result = captured(graph, kind="backward", static=[3], parameter_names={3: "fc.weight"})
    entries = result.document["inputs"]
    assert [entry["role"] for entry in entries] == ["static", "saved", "tangent"]
    assert entries[0]["fqn"] == "fc.weight"
    assert result.document["outputs"] == [{"ref": 3, "desc": None}]
    assert result.outputs[1].result is None and result.outputs[1].constant is None


def test_user_lines_skip_pytorch(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    trace = (
        f'  File "{tmp_path}/pkg/model.py", line 12, in forward\n    x = self.fc(x)\n'
        f'  File "{torch.nn.modules.linear.__file__}", line 130, in forward\n    return F.linear(input)\n'
    )
    assert user_line(trace) == "pkg/model.py:12"
    assert user_line('  File "/nowhere/model.py", line 7, in f\n') == "model.py:7"
    assert user_line(None) is None
