"""A graph step by step: each step runs on the device or is an op that PyTorch runs on the host.

Values live in slots: first the arguments, then what the steps make. A slot is emptied after the
last step that reads it, so that memory is freed as early as in eager.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from neffuse._neffuse import InputError
from neffuse.nodes import (
    TensorMeta,
    ViewChain,
    is_number,
    is_number_node,
    is_passed_assertion,
    is_update,
    number,
    target_name,
    tensor_meta,
    view_chain,
)


@dataclass(frozen=True)
class Output:
    """Where one value that a graph returns comes from.

    Exactly one of ``result``, ``argument`` and ``constant`` counts, in this order.
    """

    #: Position among the results.
    result: int | None = None
    #: Position among the arguments.
    argument: int | None = None
    #: How the result or argument is seen; ``None`` where as it is.
    view: ViewChain | None = None
    #: A size, or ``None``.
    constant: int | float | bool | None = None


def host_output(value, placeholders) -> Output | None:
    """The output that a value is where nothing needs to be computed for it."""
    if not isinstance(value, torch.fx.Node):
        return Output(constant=None if value is None else number(value))
    if is_number_node(value):
        return Output(constant=number(value.meta["val"]))
    if value.meta.get("val") is None and value.op != "placeholder":
        return Output(constant=None)
    base, view = view_chain(value)
    return Output(argument=placeholders.index(base), view=view) if base.op == "placeholder" else None


class GraphCallable:
    """What AOTAutograd calls: a list of arguments in, which is emptied, and a list of values out.

    This class is the whole of graphs that compute nothing; others override :meth:`compute`.
    """

    def __init__(self, outputs: list[Output]):
        self.outputs = outputs

    def compute(self, arguments: list) -> list:
        """The results that outputs refer to; updates arguments in place."""
        return []

    def __call__(self, arguments: list) -> list:
        results = self.compute(arguments)
        returned = []
        for output in self.outputs:
            if output.result is not None:
                value = results[output.result]
            elif output.argument is not None:
                value = arguments[output.argument]
            else:
                value = output.constant
            returned.append(value if output.view is None else output.view(value))
        arguments.clear()
        return returned


@dataclass(frozen=True)
class Slot:
    """Stands for a value in the arguments of a step."""

    index: int


@dataclass(frozen=True)
class HostStep:
    """One op that PyTorch runs."""

    op: Callable
    #: With slots for tensors, and numbers for sizes.
    args: tuple
    kwargs: dict
    result: int
    #: What PyTorch's fake run of the op gave; ``None`` where it is no tensor.
    meta: TensorMeta | None
    #: Slots that no later step reads.
    frees: tuple[int, ...] = ()

    def run(self, values: list):
        """Runs the op and keeps its result."""
        result = self.op(*_filled(self.args, values), **_filled(self.kwargs, values))
        values[self.result] = result if self.meta is None else _laid_out(result, self.meta, self.op)


@dataclass(frozen=True)
class DeviceStep:
    """A part of the graph that the device runs."""

    run_part: GraphCallable
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    frees: tuple[int, ...] = ()

    def run(self, values: list):
        """Runs the part and keeps its results."""
        results = self.run_part([values[slot] for slot in self.inputs])
        for slot, result in zip(self.results, results, strict=True):
            values[slot] = result


@dataclass(frozen=True)
class Part:
    """Nodes that run together."""

    nodes: tuple[torch.fx.Node, ...]
    #: The compiled part with the nodes it reads and gives; ``None`` where PyTorch runs it.
    device: GraphCallable | None = None
    inputs: tuple[torch.fx.Node, ...] = ()
    outputs: tuple[torch.fx.Node, ...] = ()


class Program(GraphCallable):
    """Runs parts of a graph in order."""

    def __init__(self, graph_module, parts: list[Part]):
        builder = _Builder(graph_module)
        for part in parts:
            if part.device is None:
                for node in part.nodes:
                    builder.host_step(node)
            else:
                builder.device_step(part)
        builder.output()
        super().__init__(builder.outputs)
        self.results = builder.results
        self.updates = builder.updates
        self.constants = builder.constants
        self.n_slots = len(builder.slots)
        self.steps = builder.freeing_steps()
        kept = {output.argument for output in self.outputs}
        kept |= {position for position, _ in self.updates}
        self.released = [position for position in range(len(builder.placeholders)) if position not in kept]

    def compute(self, arguments: list) -> list:
        """Runs all steps, then updates arguments."""
        values = arguments + [None] * (self.n_slots - len(arguments))
        for position in self.released:
            arguments[position] = None
        for slot, tensor in self.constants.items():
            values[slot] = tensor
        for step in self.steps:
            step.run(values)
            for slot in step.frees:
                values[slot] = None
        for position, slot in self.updates:
            arguments[position].copy_(values[slot])
        return [values[slot] for slot in self.results]


def host_program(graph_module) -> Program:
    """The whole graph, run by PyTorch."""
    return Program(graph_module, [Part(tuple(filter(is_computed, graph_module.graph.nodes)))])


def is_computed(node) -> bool:
    """True for nodes that must run, on the device or on the host: others are numbers by now."""
    return (
        node.op == "call_function"
        and not is_number_node(node)
        and not is_passed_assertion(node)
        and not is_update(node)
    )


@dataclass
class _Builder:
    graph_module: torch.fx.GraphModule
    slots: dict[torch.fx.Node, int] = field(default_factory=dict)
    steps: list[HostStep | DeviceStep] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    #: Slots of the results.
    results: list[int] = field(default_factory=list)
    #: Arguments that are updated, and from which slot.
    updates: list[tuple[int, int]] = field(default_factory=list)
    #: Tensors that are returned as they are, by slot.
    constants: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self):
        for node in self.placeholders:
            self.new_slot(node)

    @property
    def placeholders(self):
        return [node for node in self.graph_module.graph.nodes if node.op == "placeholder"]

    def new_slot(self, node) -> int:
        self.slots[node] = len(self.slots)
        return self.slots[node]

    def slot(self, node) -> int:
        if node.op == "get_attr" and node not in self.slots:
            self.constants[self.new_slot(node)] = operator.attrgetter(node.target)(self.graph_module)
        return self.slots[node]

    def host_step(self, node):
        args, kwargs = self.argument(node.args), self.argument(node.kwargs)
        value = node.meta.get("val")
        meta = tensor_meta(node, value) if _is_plain(value) else None
        self.steps.append(HostStep(node.target, args, kwargs, self.new_slot(node), meta))

    def device_step(self, part: Part):
        inputs = tuple(self.slots[node] for node in part.inputs)
        results = tuple(self.new_slot(node) for node in part.outputs)
        self.steps.append(DeviceStep(part.device, inputs, results))

    def argument(self, value):
        """An argument without nodes."""
        if isinstance(value, torch.fx.Node):
            if is_number_node(value):
                return number(value.meta["val"])
            if value.op == "get_attr":
                return operator.attrgetter(value.target)(self.graph_module)
            return Slot(self.slots[value])
        if is_number(value):
            return number(value)
        if isinstance(value, (list, tuple)):
            return (tuple if isinstance(value, tuple) else list)(map(self.argument, value))
        if isinstance(value, dict):
            return {key: self.argument(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*map(self.argument, (value.start, value.stop, value.step)))
        return value

    def output(self):
        (output,) = self.graph_module.graph.find_nodes(op="output")
        placeholders = self.placeholders
        for node in self.graph_module.graph.nodes:
            if node.op == "call_function" and is_update(node):
                argument, value = node.args[:2]
                self.updates.append((placeholders.index(argument), self.slot(value)))
        for value in output.args[0]:
            host = host_output(value, placeholders)
            if host is None:
                self.results.append(self.slot(value))
                host = Output(result=len(self.results) - 1)
            self.outputs.append(host)

    def freeing_steps(self):
        """The steps, each with the slots that are empty after it."""
        needed = set(self.results) | {slot for _, slot in self.updates}
        steps = []
        for step in reversed(self.steps):
            if isinstance(step, DeviceStep):
                touched = {*step.inputs, *step.results}
            else:
                touched = {step.result, *_slots_in(step.args), *_slots_in(step.kwargs)}
            steps.append(replace(step, frees=tuple(sorted(touched - needed))))
            needed |= touched
        steps.reverse()
        return steps


def _is_plain(value) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu"


def _filled(value, values):
    if isinstance(value, Slot):
        return values[value.index]
    if isinstance(value, (list, tuple)):
        return (tuple if isinstance(value, tuple) else list)(_filled(item, values) for item in value)
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return value


def _slots_in(value):
    if isinstance(value, Slot):
        yield value.index
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _slots_in(item)


def _laid_out(tensor, meta: TensorMeta, op):
    """The tensor with the strides that later views in the graph rely on.

    Fake strides of intermediates are not always those that an op gives on real tensors.
    """
    strides = tensor.stride()
    if strides == meta.stride and tensor.shape == meta.shape:
        return tensor
    if tensor.shape != meta.shape or tensor.dtype != meta.dtype:
        raise InputError(
            f"{target_name(op)} gave {tensor.dtype} {list(tensor.shape)} where its meta function promised "
            f"{meta.dtype} {list(meta.shape)}"
        )
    sizes = list(zip(meta.shape, strides, meta.stride, strict=True))
    is_same = tensor.numel() < 2 or all(size == 1 or real == fake for size, real, fake in sizes)
    is_overlapping = any(size > 1 and fake == 0 for size, _, fake in sizes)
    return tensor if is_same or is_overlapping else meta.empty().copy_(tensor)
