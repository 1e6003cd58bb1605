"""What nodes of a captured graph tell: sizes, tensors, views, places in the user's program."""

import functools
import operator
import os
import re
import sys
from dataclasses import dataclass

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from neffuse._neffuse import InputError


@dataclass(frozen=True)
class TensorMeta:
    """What a tensor must look like; strides in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> torch.Tensor:
        """A tensor of this kind with arbitrary elements."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


def is_number(value) -> bool:
    """True for sizes and other numbers of the host, symbolic or not."""
    return isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def number(value) -> bool | int | float:
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


def is_number_node(node) -> bool:
    """True for nodes whose value is a number of the host."""
    return is_number(node.meta.get("val"))


def is_item(node) -> bool:
    """True for nodes that take one value out of several."""
    return node.target is operator.getitem


def is_update(node) -> bool:
    """True for the copies at the end of a graph that update its arguments."""
    return node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder"


def is_passed_assertion(node) -> bool:
    """True for assertions on sizes that hold for the sizes of this graph."""
    if node.target is not torch.ops.aten._assert_scalar.default:
        return False
    condition = node.args[0]
    condition = condition.meta.get("val") if isinstance(condition, torch.fx.Node) else condition
    return is_number(condition) and bool(number(condition))


def tensor_operands(node) -> list:
    """Nodes whose tensors a node reads."""
    return [operand for operand in node.all_input_nodes if not is_number_node(operand)]


def is_view(node) -> bool:
    """True for ops that give another view of their first argument, and read no other tensor."""
    is_view_op = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
    return is_view_op and tensor_operands(node) == [node.args[0]]


def tensor_meta(node, value) -> TensorMeta:
    """What a node's tensor looks like.

    Raises:
        InputError: it is not a strided tensor on the CPU.
    """
    if value.layout is not torch.strided or value.device.type != "cpu":
        raise InputError(
            f"`{node.name}` is a {value.layout} tensor on {value.device}; neffuse takes strided tensors on cpu"
        )
    shape, stride = (tuple(map(number, sizes)) for sizes in (value.shape, value.stride()))
    return TensorMeta(shape, stride, value.dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """PyTorch's name of an element type, for example ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def target_name(target) -> str:
    """An op as documents name it, for example ``aten.add.Tensor``."""
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"hop.{target.name()}"
    return f"py.{target.__module__}.{getattr(target, '__qualname__', target)}"


@dataclass(frozen=True)
class ViewStep:
    """One view op with all arguments but the first."""

    op: torch._ops.OpOverload
    args: tuple
    kwargs: dict

    @staticmethod
    def of(node) -> "ViewStep":
        """The step that a view node is."""
        args = torch.fx.map_arg(node.args[1:], lambda size: number(size.meta["val"]))
        kwargs = torch.fx.map_arg(node.kwargs, lambda size: number(size.meta["val"]))
        return ViewStep(node.target, args, kwargs)


@dataclass(frozen=True)
class ViewChain:
    """A tensor's way to a view of it."""

    steps: list[ViewStep]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            tensor = step.op(tensor, *step.args, **step.kwargs)
        return tensor


def view_chain(node):
    """The node whose memory a node is a view of, and how; without steps where it has its own.

    An argument that the graph updates counts with its new elements.
    """
    steps = []
    while node.op == "call_function":
        if is_update(node):
            node = node.args[0]  # the updated argument itself
        elif is_view(node) or (is_item(node) and is_view(node.args[0])):
            steps.append(ViewStep.of(node))
            node = node.args[0]
        else:
            break
    steps.reverse()
    return node, ViewChain(steps)


def place(node) -> dict[str, str]:
    """Where a node comes from: ``module`` and ``line``, as far as they are known."""
    found = {}
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if stack:
        found["module"] = list(stack.values())[-1][0]
    line = user_line(node.meta.get("stack_trace"))
    if line:
        found["line"] = line
    return found


def description(node, reason: str) -> dict[str, str]:
    """A node and why it is not compiled, with the keys of ``UnsupportedError.nodes``."""
    found = place(node)
    # Without the expression that captured the model: `L['self'].layers.0` is `layers.0`.
    module = re.sub(r"^L?(\[[^\]]*\])+\.?", "", found.get("module", ""))
    return {
        "node": node.name,
        "op": target_name(node.target),
        "module": module,
        "line": found.get("line", ""),
        "type": type_text(node.meta.get("val")),
        "reason": reason,
    }


def type_text(value) -> str:
    """The type of a node's value, for example ``float32[4, 512]``."""
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}[{', '.join(str(size) for size in value.shape)}]"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(type_text, value))})"
    return ""


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
        line_number = rest.partition(",")[0]
        file = _relative(file)
        if line_number.isdigit() and not file.startswith("torch" + os.sep):
            return f"{file}:{line_number}"
    return None


@functools.lru_cache(maxsize=1024)
def _relative(file: str) -> str:
    roots = [os.path.abspath(root) + os.sep for root in sys.path]
    root = max((root for root in roots if file.startswith(root)), key=len, default=None)
    return os.path.basename(file) if root is None else file.removeprefix(root)
