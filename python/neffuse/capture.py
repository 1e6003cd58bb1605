"""From an AOTAutograd graph to an fxg-json/1 document.

The document holds everything the compiler reads. What needs no device never reaches it: sizes
become numbers, in-place updates of inputs become outputs, and outputs that are views of inputs,
sizes or nothing are left to the host (:class:`Output`). Shapes are those of this call: reading a
symbolic size makes PyTorch guard on it.
"""

import base64
import collections
import json
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from neffuse.nodes import (
    TensorMeta,
    dtype_name,
    is_number,
    is_number_node,
    is_passed_assertion,
    is_update,
    number,
    place,
    target_name,
    tensor_meta,
    view_chain,
)
from neffuse.program import Output, host_output

#: Tensor constants above this size become inputs that the host passes on every call.
MAX_CONSTANT_BYTES = 64 << 10


@dataclass
class Capture:
    """A graph as the compiler and the runtime need it."""

    document: dict
    #: For each of the document's inputs the argument's position, or the tensor itself.
    inputs: list[int | torch.Tensor] = field(default_factory=list)
    #: For each of the document's outputs what it must look like.
    results: list[TensorMeta] = field(default_factory=list)
    #: Results that are written into an argument: position in ``results`` to the argument's.
    in_place: dict[int, int] = field(default_factory=dict)
    #: What the callable returns.
    outputs: list[Output] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self.document["name"]

    def json(self) -> bytes:
        """The document's bytes."""
        return json.dumps(self.document, allow_nan=False, separators=(",", ":")).encode()


def capture(graph_module, *, name: str, kind: str, static: Iterable[int], parameter_names: dict[int, str]) -> Capture:
    """Writes down a graph.

    Args:
        graph_module: functional graph of ATen overloads whose nodes carry fake values.
        name: name of the document.
        kind: ``inference``, ``forward`` or ``backward``.
        static: positions of placeholders that are parameters or buffers.
        parameter_names: by position in the user's flat inputs.

    Raises:
        InputError: a tensor or size that the backend cannot take at all.
    """
    return _Writer(graph_module, name, kind, frozenset(static), parameter_names).write()


class _Writer:
    def __init__(self, graph_module, name, kind, static, parameter_names):
        self.graph_module = graph_module
        self.kind = kind
        self.static = static
        self.parameter_names = parameter_names
        self.placeholders = []
        self.ids = {}
        #: Results by node.
        self.results = {}
        self.capture = Capture(
            document={
                "format": "fxg-json/1",
                "name": name,
                "kind": kind,
                "source": {"torch": torch.__version__},
                "inputs": [],
                "nodes": [],
                "outputs": [],
                "constants": {},
            }
        )

    def write(self) -> Capture:
        nodes = list(self.graph_module.graph.nodes)
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        for position, node in enumerate(self.placeholders):
            self.placeholder(position, node)
        # Large constants are inputs too, and inputs come before nodes.
        constants = [node for node in nodes if node.op == "get_attr"]
        for node in constants:
            self.constant(node)
        for node in nodes:
            if node.op == "call_function":
                self.call(node)
        (output,) = (node for node in nodes if node.op == "output")
        self.output(output)
        return self.capture

    def placeholder(self, position, node):
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return  # a size: its uses are written as the number it has now
        desc = node.meta.get("desc")
        fqn = self.parameter_names.get(getattr(desc, "idx", None))
        self.input(node, position, self.role(position, desc), None if desc is None else str(desc), _result(node), fqn)

    def input(self, node, source, role, desc, result, fqn=None):
        entry = {"id": self.new_id(node), "name": node.name, "desc": desc, "role": role, "out": result}
        if fqn is not None:
            entry["fqn"] = fqn
        self.capture.document["inputs"].append(entry)
        self.capture.inputs.append(source)

    def role(self, position, desc) -> str:
        if self.kind != "backward":
            return "static" if position in self.static else "input"
        if desc is not None and type(desc).__name__ == "TangentAOTInput":
            return "tangent"
        # A saved input is a parameter where the forward graph's input was one.
        return "static" if getattr(desc, "idx", None) in self.static else "saved"

    def constant(self, node):
        value = operator.attrgetter(node.target)(self.graph_module)
        if not isinstance(value, torch.Tensor):
            return  # a subgraph: the node that calls it names it
        # AOTAutograd compiles under a mode in which no op takes real tensors.
        with unset_fake_temporarily():
            value = value.detach().contiguous()
            n_bytes = value.numel() * value.element_size()
            data = bytes(value.reshape(-1).view(torch.uint8).tolist()) if n_bytes <= MAX_CONSTANT_BYTES else None
        if data is None:
            self.input(node, value, "static", None, _tensor(node, value))
            return
        self.capture.document["constants"][node.target] = {
            "shape": list(value.shape),
            "dtype": dtype_name(value.dtype),
            "data": base64.b64encode(data).decode(),
        }
        self.node(node, "const", [{"str": node.target}], {}, _tensor(node, value))

    def call(self, node):
        if is_number_node(node) or is_passed_assertion(node):
            return
        if is_update(node):
            self.update(*node.args[:2])
            self.ids[node] = self.ids[node.args[0]]
            return
        args = [_argument(argument, self.ids) for argument in node.args]
        kwargs = {key: _argument(argument, self.ids) for key, argument in node.kwargs.items()}
        self.node(node, target_name(node.target), args, kwargs, _result(node))

    def node(self, node, target, args, kwargs, result):
        entry = {"id": self.new_id(node), "name": node.name, "target": target, "args": args, "kwargs": kwargs}
        entry["out"] = result
        found = place(node)
        if "module" in found:
            entry["module"] = found["module"]
        if "line" in found:
            entry["loc"] = found["line"]
        self.capture.document["nodes"].append(entry)

    def update(self, placeholder, value):
        """An in-place update becomes an output that is written into the argument."""
        position = self.placeholders.index(placeholder)
        mutated = placeholder.meta.get("desc") or placeholder.name
        result = self.result(value, f"InputMutationAOTOutput(mutated_input={mutated})")
        # The argument keeps its own strides, not those of the new value.
        self.capture.results[result] = tensor_meta(placeholder, placeholder.meta["val"])
        self.capture.in_place[result] = position

    def output(self, node):
        descriptions = node.meta.get("desc") or [None] * len(node.args[0])
        values = {value for value in node.args[0] if isinstance(value, torch.fx.Node)}
        bases = collections.Counter(view_chain(value)[0] for value in values)
        for value, description in zip(node.args[0], descriptions, strict=True):
            description = None if description is None else str(description)
            self.capture.outputs.append(self.output_of(value, description, bases))

    def output_of(self, value, description, bases) -> Output:
        host = host_output(value, self.placeholders)
        if host is not None:
            return host
        base, view = view_chain(value)
        if bases[base] == 1:
            # Nobody else sees this memory: the device writes just what is seen of it.
            base, view = value, None
        if base not in self.results:
            self.results[base] = self.result(base, description)
        return Output(result=self.results[base], view=view)

    def result(self, node, description) -> int:
        self.capture.document["outputs"].append({"ref": self.ids[node], "desc": description})
        self.capture.results.append(tensor_meta(node, node.meta["val"]))
        return len(self.capture.results) - 1

    def new_id(self, node) -> int:
        self.ids[node] = len(self.ids)
        return self.ids[node]


def _tensor(node, value) -> dict:
    meta = tensor_meta(node, value)
    return {"shape": list(meta.shape), "stride": list(meta.stride), "dtype": dtype_name(meta.dtype), "device": "cpu"}


def _result(node):
    return _recorded(node, node.meta.get("val"))


def _recorded(node, value):
    if isinstance(value, torch.Tensor):
        return _tensor(node, value)
    if isinstance(value, (list, tuple)):
        return {"tuple": [_recorded(node, item) for item in value]}
    return None


def _argument(value, ids):
    """An argument in the format's encoding."""
    if isinstance(value, torch.fx.Node):
        if is_number_node(value):
            return _argument(number(value.meta["val"]), ids)
        return {"ref": ids[value]} if value in ids else {"str": str(value.target)}
    if is_number(value):
        value = number(value)
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        return value
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_argument(item, ids) for item in value]
    if isinstance(value, complex):
        return {"complex": [_argument(value.real, ids), _argument(value.imag, ids)]}
    if isinstance(value, slice):
        return {"slice": [_argument(part, ids) for part in (value.start, value.stop, value.step)]}
    for kind, tag in _TAGS.items():
        if isinstance(value, kind):
            return {tag: str(value).removeprefix("torch.")}
    return {"str": str(value)}


_TAGS = {
    torch.dtype: "dtype",
    torch.device: "device",
    torch.memory_format: "memory_format",
    torch.layout: "layout",
}
