"""The ``torch.compile`` backend.

PyTorch finds :func:`neffuse` through the entry point group ``torch_dynamo_backends``. AOTAutograd
makes functional inference, forward and backward graphs of what Dynamo captured; each becomes one
binary. Parameters stay inputs, so that new weights never need a new compilation.
"""

import collections
import json
import logging
import re
import warnings
from dataclasses import dataclass

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.logging_utils import get_aot_graph_name

from neffuse import _neffuse, aot_cache, decompositions, history, options
from neffuse._neffuse import FallbackWarning, InputError, NeffuseError, UnsupportedError
from neffuse.capture import capture
from neffuse.device import DeviceCallable
from neffuse.nodes import is_item, target_name
from neffuse.partition import Partition, partition
from neffuse.program import GraphCallable, Program, host_program

log = logging.getLogger(__name__)


def neffuse(graph_module, example_inputs, **kwargs):
    """Compiles a graph for Trainium and runs it on the simulator.

    Args:
        graph_module, example_inputs: as Dynamo hands them over.
        kwargs: ``mode``, ``options`` and ``name`` of ``torch.compile``. The options are the fields
            of :class:`neffuse.options.Options`.

    Nodes that cannot be compiled run on the host, with one :class:`neffuse.FallbackWarning` that
    lists them. Sizes are those of this call; PyTorch compiles again for others.

    Raises:
        neffuse.UnsupportedError: with the option ``strict``, nodes cannot be compiled; the message
            and ``nodes`` list all.
        neffuse.InputError: unknown options, tensors that are not on the CPU, or a dimension that
            ``mark_dynamic`` forbids to compile for one size.
        neffuse.InternalError: a fault of neffuse.
    """
    chosen = options.parse(**kwargs)
    _refuse_dynamic_dimensions(graph_module, example_inputs)
    parameter_names = _parameter_names(graph_module)

    def compiler(kind):
        def compile_graph(graph_module):
            return _Compilation(graph_module, kind, chosen, parameter_names).run()

        return aot_cache.compiler(compile_graph, kind, chosen)

    # Built anew for each graph, so that the options reach the compilers.
    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions.table,
        keep_inference_input_mutations=True,
    )
    with aot_cache.keyed(chosen):
        return backend(graph_module, example_inputs)


# PyTorch calls this from `torch._dynamo.reset()`.
neffuse.reset = history.forget


class _Compilation:
    """The compilation of one AOTAutograd graph."""

    def __init__(self, graph_module, kind, chosen: options.Options, parameter_names: dict[int, str]):
        self.graph_module = graph_module
        self.kind = kind
        self.options = chosen
        self.parameter_names = parameter_names
        self.name = _graph_name(kind, chosen)
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        self.static = frozenset([] if metadata is None else metadata.static_input_indices)

    def run(self) -> aot_cache.Code:
        """Compiles the graph.

        Raises:
            NeffuseError: as :func:`neffuse`.
        """
        try:
            parted = partition(self.graph_module, self.compile_part)
            if parted.refused and self.options.strict:
                error = UnsupportedError(f"error[unsupported]: {_refusals(self.name, parted.refused, _REFUSED)}")
                error.nodes = parted.refused
                raise error
        except NeffuseError as error:
            raise self.located(error) from None
        is_whole = not parted.host_nodes and len(parted.parts) == 1
        code = parted.parts[0].device if is_whole else Program(self.graph_module, parted.parts)
        announcement = self.announcement(parted)
        announcement()
        return aot_cache.Code(code, announcement)

    def compile_part(self, graph_module, part) -> GraphCallable:
        """Compiles the whole graph, or the part with this number."""
        name = self.name if part is None else f"{self.name}_part{part}"
        captured = capture(
            graph_module,
            name=name,
            kind=self.kind,
            static=self.static_positions(graph_module),
            parameter_names=self.parameter_names,
        )
        if not captured.results:
            log.debug("%s needs no device", name)
            return GraphCallable(captured.outputs)
        document = captured.json()
        self.dump(f"{name}.json", document)
        compiled = _neffuse.compile(
            document,
            target=self.options.target,
            numerics=self.options.numerics,
            name=name,
            cache=self.options.cache,
        )
        log.info("%s: %d bytes for %s", name, len(compiled.neff), self.options.target)
        self.dump(f"{name}.neff", compiled.neff)
        has_wide_inputs = any(entry["out"]["dtype"] == "int64" for entry in captured.document["inputs"])
        may_refuse = has_wide_inputs or compiled.may_leave_ranges
        host = host_program(graph_module) if may_refuse and not self.options.strict else None
        return DeviceCallable(captured, compiled, host)

    def static_positions(self, graph_module) -> frozenset[int]:
        """Which inputs of a graph or part are parameters or buffers; for backward graphs, which of the forward's."""
        if self.kind == "backward":
            return self.static
        whole = self.graph_module.graph.find_nodes(op="placeholder")
        static = {node.name for position, node in enumerate(whole) if position in self.static}
        inputs = graph_module.graph.find_nodes(op="placeholder")
        return frozenset(position for position, node in enumerate(inputs) if node.name in static)

    def announcement(self, parted: Partition) -> "_Announcement":
        """What to tell of the graph."""
        host_ops = [target_name(node.target) for node in parted.host_nodes if not is_item(node)]
        devices = [part.device for part in parted.parts if isinstance(part.device, DeviceCallable)]
        compiled = [json.loads(device.compiled.report) for device in devices]
        report = history.joined(self.name, compiled, parted.refused, host_ops)
        self.dump(f"{self.name}.report.json", json.dumps(report).encode())
        return _Announcement(report)

    def located(self, error: NeffuseError) -> NeffuseError:
        """The error, which says so where it is about a backward graph: it comes out of `backward()`."""
        if self.kind != "backward":
            return error
        message = re.sub(r"^(error\[[\w-]+\]: )?", r"\1while compiling a backward graph: ", str(error), count=1)
        located = type(error)(message)
        if isinstance(error, UnsupportedError):
            located.nodes = error.nodes
        return located

    def dump(self, name, data):
        """Keeps a file where the user asked for it."""
        folder = self.options.dump_dir
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / re.sub(r"[^\w.-]", "_", name)).write_bytes(data)


@dataclass(frozen=True)
class _Announcement:
    """Tells that a graph was compiled, and warns of what was not."""

    report: dict

    def __call__(self):
        name, refused = self.report["graph"], self.report["unsupported"]
        n_parts, n_host_ops = len(self.report["parts"]), len(self.report["host_ops"])
        log.info("%s: %d parts on the device, %d ops on the host", name, n_parts, n_host_ops)
        history.add(self.report)
        if refused:
            text = f"{_refusals(name, refused, _ON_HOST)}\nThe option strict makes this an error."
            warnings.warn(text, FallbackWarning, stacklevel=2)


_REFUSED = "cannot be compiled"
_ON_HOST = "cannot be compiled and run on the host"


def _refusals(graph: str, refused: list[dict[str, str]], what: str) -> str:
    """Refused nodes under a line that stands alone."""
    counts = sorted(collections.Counter(entry["op"] for entry in refused).items())
    ops = ", ".join(f"{op} ({count})" for op, count in counts)
    lines = [f"{graph}: {len(refused)} node{'s' * (len(refused) > 1)} {what}: {ops}"]
    for entry in refused:
        type_text = f" -> {entry['type']}" if entry["type"] else ""
        places = "".join(f", {entry[key]}" for key in ("module", "line") if entry[key])
        lines += [f"  {entry['node']} = {entry['op']}{type_text}{places}", f"      {entry['reason']}"]
    return "\n".join(lines)


def _graph_name(kind, chosen) -> str:
    name = get_aot_graph_name()
    return name if chosen.name is None else f"{chosen.name}_{name.rpartition('__')[2]}"


def _refuse_dynamic_dimensions(graph_module, example_inputs):
    """Raises for what `mark_dynamic` asks, before PyTorch's less telling error."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    for node, example in zip(placeholders, example_inputs, strict=True):
        dimensions = getattr(example, "_dynamo_dynamic_indices", None)
        if not dimensions:
            continue
        source = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", node.name)
        sizes = ", ".join(f"dimension {index} (now {int(example.shape[index])})" for index in sorted(dimensions))
        raise InputError(
            f"error[bad-input]: {source}: {sizes} is marked dynamic, but neffuse compiles for fixed shapes\n"
            "  Use torch._dynamo.maybe_mark_dynamic instead of mark_dynamic, or leave the mark out: "
            "each size that occurs is then compiled once."
        )


def _parameter_names(graph_module) -> dict[int, str]:
    """Names of parameters and buffers by position in the flat inputs, where Dynamo tells them."""
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    names = {}
    for position, node in enumerate(placeholders):
        # For example `L['self']._modules['layers']._modules['0']._parameters['weight']`.
        source = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", None)
        parts = re.findall(r"\._(modules|parameters|buffers)\['([^']*)'\]", source) if isinstance(source, str) else []
        if parts and parts[-1][0] != "modules":
            names[position] = ".".join(part for _, part in parts)
    return names
