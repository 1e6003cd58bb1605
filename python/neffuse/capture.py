"""From an AOTAutograd graph to an fxg-json/1 document.

The document holds everything the compiler reads. What needs no device never reaches it: sizes
become numbers, in-place updates of inputs become outputs, and outputs that are views of inputs,
sizes or nothing are left to the host (:class:`Output`). Shapes are those of this call: reading a
symbolic size makes PyTorch guard on it.
"""

import base64
import json
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from neffuse._neffuse import InputError

#: Tensor constants above this size become inputs that the host passes on every call.
MAX_CONSTANT_BYTES = 64 << 10


@dataclass(frozen=True)
class TensorMeta:
    """What a tensor must look like; strides in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> torch.Tensor:
        """A tensor of this kind with arbitrary elements."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


@dataclass(frozen=True)
class Output:
    """Where one value that the callable returns comes from.

    Exactly one of ``device``, ``view`` and ``constant`` counts, in this order.
    """

    #: Position in the document's outputs.
    device: int | None = None
    #: The host's way to it: the argument's position and the view ops on it.
    view: tuple[int, Callable[[torch.Tensor], torch.Tensor]] | None = None
    #: A size, or ``None``.
    constant: int | float | bool | None = None


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
            "dtype": _dtype(value.dtype),
            "data": base64.b64encode(data).decode(),
        }
        self.node(node, "const", [{"str": node.target}], {}, _tensor(node, value))

    def call(self, node):
        value = node.meta.get("val")
        if _is_number(value) or self.is_passed_assertion(node):
            return
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
            self.update(*node.args[:2])
            self.ids[node] = self.ids[node.args[0]]
            return
        args = [_argument(argument, self.ids) for argument in node.args]
        kwargs = {key: _argument(argument, self.ids) for key, argument in node.kwargs.items()}
        self.node(node, _target(node.target), args, kwargs, _result(node))

    def is_passed_assertion(self, node) -> bool:
        """True for assertions on sizes that hold for the sizes of this graph."""
        if node.target is not torch.ops.aten._assert_scalar.default:
            return False
        condition = node.args[0]
        condition = condition.meta.get("val") if isinstance(condition, torch.fx.Node) else condition
        return _is_number(condition) and bool(_number(condition))

    def node(self, node, target, args, kwargs, result):
        entry = {"id": self.new_id(node), "name": node.name, "target": target, "args": args, "kwargs": kwargs}
        entry["out"] = result
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
        if stack:
            entry["module"] = list(stack.values())[-1][0]
        line = user_line(node.meta.get("stack_trace"))
        if line:
            entry["loc"] = line
        self.capture.document["nodes"].append(entry)

    def update(self, placeholder, value):
        """An in-place update becomes an output that is written into the argument."""
        position = self.placeholders.index(placeholder)
        mutated = placeholder.meta.get("desc") or placeholder.name
        result = self.result(value, f"InputMutationAOTOutput(mutated_input={mutated})")
        # The argument keeps its own strides, not those of the new value.
        self.capture.results[result] = _meta(placeholder, placeholder.meta["val"])
        self.capture.in_place[result] = position

    def output(self, node):
        descriptions = node.meta.get("desc") or [None] * len(node.args[0])
        for value, description in zip(node.args[0], descriptions, strict=True):
            self.capture.outputs.append(self.output_of(value, description))

    def output_of(self, value, description) -> Output:
        if not isinstance(value, torch.fx.Node):
            return Output(constant=None if value is None else _number(value))
        if _is_number(value.meta.get("val")):
            return Output(constant=_number(value.meta["val"]))
        if value.meta.get("val") is None and value.op != "placeholder":
            return Output(constant=None)
        view = self.view(value)
        if view is not None:
            return Output(view=view)
        return Output(device=self.result(value, None if description is None else str(description)))

    def result(self, node, description) -> int:
        self.capture.document["outputs"].append({"ref": self.ids[node], "desc": description})
        self.capture.results.append(_meta(node, node.meta["val"]))
        return len(self.capture.results) - 1

    def view(self, node):
        """The argument that a node is a view of, and how; ``None`` where it is none."""
        chain = []
        while node.op == "call_function":
            if node.target is torch.ops.aten.copy_.default:
                node = node.args[0]  # the updated argument itself
                continue
            is_view = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
            operands = [argument for argument in node.all_input_nodes if not _is_number(argument.meta.get("val"))]
            if not is_view or operands != [node.args[0]] or not isinstance(node.meta["val"], torch.Tensor):
                return None
            chain.append(node)
            node = node.args[0]
        if node.op != "placeholder":
            return None
        chain.reverse()
        return self.placeholders.index(node), _ViewChain([_ViewStep.of(step) for step in chain])

    def new_id(self, node) -> int:
        self.ids[node] = len(self.ids)
        return self.ids[node]


@dataclass(frozen=True)
class _ViewStep:
    op: torch._ops.OpOverload
    args: tuple
    kwargs: dict

    @staticmethod
    def of(node) -> "_ViewStep":
        args = torch.fx.map_arg(node.args[1:], lambda size: _number(size.meta["val"]))
        kwargs = torch.fx.map_arg(node.kwargs, lambda size: _number(size.meta["val"]))
        return _ViewStep(node.target, args, kwargs)


@dataclass(frozen=True)
class _ViewChain:
    steps: list[_ViewStep]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            tensor = step.op(tensor, *step.args, **step.kwargs)
        return tensor


def user_line(stack_trace: str | None) -> str | None:
    """The innermost line outside PyTorch of a stack trace, as ``package/model.py:12``.

    The file is given relative to the import path it was found on, so that equal programs give equal
    text on every machine.
    """
    for line in reversed((stack_trace or "").splitlines()):
        line = line.strip()
        if not line.startswith('File "'):
            continue
        file, _, rest = line.removeprefix('File "').partition('", line ')
        number = rest.partition(",")[0]
        file = _relative(file)
        if number.isdigit() and not file.startswith("torch" + os.sep):
            return f"{file}:{number}"
    return None


def _relative(file: str) -> str:
    roots = [os.path.abspath(root) + os.sep for root in sys.path]
    root = max((root for root in roots if file.startswith(root)), key=len, default=None)
    return os.path.basename(file) if root is None else file.removeprefix(root)


def _is_number(value) -> bool:
    return isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _number(value) -> bool | int | float:
    """The value that a size has in this call; PyTorch guards on it."""
    try:
        if isinstance(value, torch.SymBool):
            return bool(value)
        if isinstance(value, torch.SymInt):
            return int(value)
        if isinstance(value, torch.SymFloat):
            return float(value)
    except GuardOnDataDependentSymNode:
        raise InputError(
            f"the size {value} depends on values that are known only when the graph runs; "
            "neffuse compiles for fixed shapes"
        ) from None
    return value


def _meta(node, value) -> TensorMeta:
    if value.layout is not torch.strided or value.device.type != "cpu":
        raise InputError(
            f"`{node.name}` is a {value.layout} tensor on {value.device}; neffuse takes strided tensors on cpu"
        )
    shape, stride = (tuple(map(_number, sizes)) for sizes in (value.shape, value.stride()))
    return TensorMeta(shape, stride, value.dtype)


def _tensor(node, value) -> dict:
    meta = _meta(node, value)
    return {"shape": list(meta.shape), "stride": list(meta.stride), "dtype": _dtype(meta.dtype), "device": "cpu"}


def _result(node):
    return _recorded(node, node.meta.get("val"))


def _recorded(node, value):
    if isinstance(value, torch.Tensor):
        return _tensor(node, value)
    if isinstance(value, (list, tuple)):
        return {"tuple": [_recorded(node, item) for item in value]}
    return None


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _target(target) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"hop.{target.name()}"
    return f"py.{target.__module__}.{getattr(target, '__qualname__', target)}"


def _argument(value, ids):
    """An argument in the format's encoding."""
    if isinstance(value, torch.fx.Node):
        if _is_number(value.meta.get("val")):
            return _argument(_number(value.meta["val"]), ids)
        return {"ref": ids[value]} if value in ids else {"str": str(value.target)}
    if _is_number(value):
        value = _number(value)
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
