"""Splits a graph into parts for the device and parts that PyTorch runs on the host.

Parts alternate: host part 0, device part 0, host part 1, and so on. A node goes into the first part
of its side in which all its operands are there, which gives the fewest parts. Nodes that the
compiler refuses move to the host, and the rest is tried again until every device part compiles. A
part that is refused as a whole, because it needs too much memory for example, is cut in two.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import fx

from neffuse._neffuse import InputError, UnsupportedError
from neffuse.nodes import (
    description,
    is_item,
    is_number_node,
    is_update,
    is_view,
    number,
    tensor_operands,
    type_text,
    view_chain,
)
from neffuse.program import GraphCallable, Part, is_computed

#: After so many rounds a part that is refused goes to the host whole.
MAX_ROUNDS = 200


@dataclass
class Partition:
    """The parts of a graph in order, compiled."""

    parts: list[Part]
    #: Why nodes were refused, in graph order, with the keys of ``UnsupportedError.nodes``.
    refused: list[dict[str, str]]

    @property
    def host_nodes(self) -> list[fx.Node]:
        """All nodes that run on the host."""
        return [node for part in self.parts if part.device is None for node in part.nodes]


def partition(graph_module, compile_part: Callable[[fx.GraphModule, int | None], GraphCallable]) -> Partition:
    """Compiles as much of a graph as the compiler takes.

    Args:
        graph_module: functional graph of ATen overloads whose nodes carry fake values.
        compile_part: compiles a graph; is also given the position of the part, or ``None`` for the
            whole graph.

    Raises:
        NeffuseError: whatever ``compile_part`` raises beside ``UnsupportedError``.
    """
    return _Partitioner(graph_module, compile_part).run()


@dataclass
class _Partitioner:
    graph_module: fx.GraphModule
    compile_part: Callable
    nodes: list[fx.Node] = field(default_factory=list)
    #: Nodes that the device cannot run, and why; without a reason where they are not worth a part.
    host: dict[fx.Node, str | None] = field(default_factory=dict)
    #: The first part that a node may be in.
    floor: dict[fx.Node, int] = field(default_factory=dict)
    compiled: dict[tuple, Part] = field(default_factory=dict)

    def run(self) -> Partition:
        self.nodes = list(filter(is_computed, self.graph_module.graph.nodes))
        for node in _scalar_arithmetic(self.graph_module):
            self.refuse(node, None)
        for node in self.nodes:
            reason = _not_for_devices(node)
            if reason is not None:
                self.refuse(node, reason)
        for n_rounds in itertools.count():
            groups = self.groups()
            is_done = True
            for level, on_device, nodes in groups:
                if on_device:
                    is_done &= self.try_part(level, nodes, is_late=n_rounds >= MAX_ROUNDS)
            if is_done:
                return Partition([self.part(on_device, nodes) for _, on_device, nodes in groups], self.reasons())

    def reasons(self):
        return [description(node, self.host[node]) for node in self.nodes if self.host.get(node) is not None]

    def refuse(self, node, reason):
        """Moves a node to the host, with everything that it cannot be parted from."""
        for member in _inseparable(node):
            self.host.setdefault(member, None)
        if self.host[node] is None:
            self.host[node] = reason

    def try_part(self, level, nodes, is_late) -> bool:
        """Compiles a part, or notes what was refused."""
        inputs, outputs = self.interface(nodes)
        key = (nodes, outputs)
        if key in self.compiled:
            return True
        is_whole = len(nodes) == len(self.nodes)
        try:
            if is_whole:
                device = self.compile_part(self.graph_module, None)
            else:
                device = self.compile_part(subgraph(self.graph_module, nodes, inputs, outputs), level)
        except UnsupportedError as error:
            self.note_refusal(nodes, error, is_late)
            return False
        self.compiled[key] = Part(nodes, device, inputs, outputs)
        return True

    def note_refusal(self, nodes, error, is_late):
        by_name = {node.name: node for node in nodes}
        is_named = False
        for entry in error.nodes:
            node = by_name.get(entry["node"])
            if node is not None:
                self.refuse(node, entry["reason"])
                is_named = True
            elif entry["op"] in ("input", "const"):
                for user in nodes:
                    operand = next((item for item in tensor_operands(user) if item.name == entry["node"]), None)
                    if operand is not None:
                        text = type_text(operand.meta.get("val"))
                        self.refuse(user, f"it reads `{operand.name}`, {text}: {entry['reason']}")
                        is_named = True
        if is_named and not is_late:
            return
        reason = "; ".join(dict.fromkeys(entry["reason"] for entry in error.nodes))
        work = [node for node in nodes if not _is_flexible(node)]
        if len(work) < 2 or is_late:
            for node in nodes:
                self.refuse(node, reason)
        else:
            self.cut(nodes, work[len(work) // 2])

    def cut(self, nodes, first):
        """Makes two parts of one; later parts move by one, so that none is joined with the rest."""
        level = self.levels()
        at = level[first]
        for node in self.nodes:
            if level[node] > at:
                self.floor[node] = level[node] + 1
        for node in nodes[nodes.index(first) :]:
            self.floor[node] = at + 1

    def part(self, on_device, nodes) -> Part:
        if not on_device:
            return Part(nodes)
        _, outputs = self.interface(nodes)
        return self.compiled[nodes, outputs]

    def groups(self) -> list[tuple[int, bool, tuple[fx.Node, ...]]]:
        """Level, side and nodes of each part, in the order they run."""
        while True:
            groups = {}
            for node, level in self.levels().items():
                groups.setdefault((level, self.on_device[node]), []).append(node)
            islands = [nodes for (_, on_device), nodes in groups.items() if on_device and all(map(_is_flexible, nodes))]
            if not islands or not self.host:
                return [(*key, tuple(groups[key])) for key in sorted(groups)]
            for node in itertools.chain(*islands):
                self.refuse(node, None)

    def levels(self) -> dict[fx.Node, int]:
        """By node the number of its part. Sides are settled on the way."""
        self.on_device = self.sides()
        level = {}
        last_effect = 0
        for node in self.nodes:
            at = self.floor.get(node, 0)
            for operand in tensor_operands(node):
                if operand in level:
                    # In each level the host runs before the device.
                    waits = self.on_device[operand] and not self.on_device[node]
                    at = max(at, level[operand] + waits)
            if is_item(node):
                at = level[node.args[0]]
            if not self.on_device[node] and _has_effect(node):
                # Random numbers and other effects keep eager's order.
                last_effect = at = max(at, last_effect)
            level[node] = at
        return level

    def sides(self) -> dict[fx.Node, bool]:
        """Whether nodes run on the device.

        Views and nodes without operands run where their values are needed.
        """
        on_device = {node: node not in self.host for node in self.nodes}
        if not self.host:
            return on_device
        for node in reversed(self.nodes):
            if not on_device[node] or not _is_flexible(node) or is_item(node):
                continue
            group = _inseparable(node)
            readers = [user for member in group for user in member.users if user not in group and user in on_device]
            is_from_host = is_view(node) and not on_device.get(node.args[0], False)
            if not any(on_device[reader] for reader in readers) and (readers or is_from_host):
                on_device.update(dict.fromkeys(group, False))
        return on_device

    def interface(self, nodes) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
        """What a part reads from outside, and what others read of it."""
        inside = set(nodes)
        read = {operand for node in nodes for operand in tensor_operands(node)} - inside
        inputs = [node for node in self.graph_module.graph.nodes if node in read and node.op != "get_attr"]
        outputs = [node for node in nodes if any(user not in inside and _needs(user, node) for user in node.users)]
        return tuple(inputs), tuple(outputs)


def subgraph(graph_module, nodes, inputs, outputs) -> fx.GraphModule:
    """A graph of its own with these nodes; sizes in it are numbers."""
    graph = fx.Graph()
    copies = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta) if node.op == "placeholder" else {"val": node.meta["val"]}
    constants = {operand for node in nodes for operand in node.all_input_nodes if operand.op == "get_attr"}
    for node in graph_module.graph.nodes:
        if node in constants:
            copies[node] = graph.node_copy(node)
    for node in nodes:
        copy = graph.create_node(
            node.op,
            node.target,
            fx.map_arg(node.args, functools.partial(_copied, copies)),
            fx.map_arg(node.kwargs, functools.partial(_copied, copies)),
            name=node.name,
        )
        copy.meta = dict(node.meta)
        copies[node] = copy
    graph.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(graph_module, graph)


def _copied(copies, node):
    return number(node.meta["val"]) if is_number_node(node) else copies[node]


def _needs(user, node) -> bool:
    """True where a user outside reads the node's value, and not another way to it."""
    if user.op == "output":
        return view_chain(node)[0].op != "placeholder"
    return is_computed(user) or (is_update(user) and user.args[1] is node)


def _inseparable(node) -> list[fx.Node]:
    """The node, and where a tuple is taken apart, the node that gives it and all items."""
    source = node.args[0] if is_item(node) else node
    return [source, *(user for user in source.users if is_item(user))]


def _is_flexible(node) -> bool:
    """True for nodes that compute nothing from values: views, items and new tensors."""
    return is_view(node) or is_item(node) or not tensor_operands(node)


def _has_effect(node) -> bool:
    """True for ops whose order matters: random ones, and those of which we cannot know."""
    if is_item(node):
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    op = node.target
    is_random = torch.Tag.nondeterministic_seeded in op.tags
    is_foreign = op.namespace not in ("aten", "prims")
    return is_random or is_foreign or op._schema.is_mutable or not op._schema.returns


def _not_for_devices(node) -> str | None:
    """Why a node's value can be no tensor of a device, whatever the op."""
    for source in (node, *node.all_input_nodes):
        if source.op == "call_function" and "val" not in source.meta:
            # Saved states of random number generators, for example.
            return f"PyTorch does not record what `{source.name}` gives"
    if is_item(node) and is_item(node.args[0]):
        return f"`{node.args[0].name}` is a tuple within a tuple"
    value = node.meta.get("val")
    for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, torch.Tensor):
            if item.device.type != "cpu":
                raise InputError(f"`{node.name}` is a tensor on {item.device}; neffuse takes tensors on cpu")
            if item.layout is not torch.strided:
                return f"it gives a {item.layout} tensor"
    return None


def _scalar_arithmetic(graph_module) -> list[fx.Node]:
    """Arithmetic on the user's numbers, which PyTorch passes as float64 tensors.

    ``f(x, 2.5)`` gives such a graph at the second value of the number: its conversion to the type of
    ``x`` belongs on the host.
    """
    scalars = set()
    found = []
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dim() > 0:
            continue
        operands = tensor_operands(node)
        is_arithmetic = is_computed(node) and bool(operands) and scalars.issuperset(operands)
        if is_arithmetic:
            found.append(node)
        if value.dtype is torch.float64 and (is_arithmetic or node.op == "placeholder"):
            scalars.add(node)
    return found
