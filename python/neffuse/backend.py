"""The ``torch.compile`` backend.

PyTorch finds :func:`neffuse` through the entry point group ``torch_dynamo_backends``. AOTAutograd
makes functional inference, forward and backward graphs of what Dynamo captured; each becomes one
binary. Parameters stay inputs, so that new weights never need a new compilation.
"""

import logging
import re

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.logging_utils import get_aot_graph_name

from neffuse import _neffuse, decompositions, options
from neffuse.capture import Capture, capture

log = logging.getLogger(__name__)


def neffuse(graph_module, example_inputs, **kwargs):
    """Compiles a graph for Trainium and runs it on the simulator.

    Args:
        graph_module, example_inputs: as Dynamo hands them over.
        kwargs: ``mode``, ``options`` and ``name`` of ``torch.compile``. The options are the fields
            of :class:`neffuse.options.Options`.

    Raises:
        neffuse.UnsupportedError: the graph has nodes that cannot be compiled; the message lists all.
        neffuse.InputError: unknown options, or tensors that are not on the CPU.
    """
    chosen = options.parse(**kwargs)
    parameter_names = _parameter_names(graph_module)

    def compiler(kind):
        def compile_graph(graph_module, example_inputs):
            return _compile(graph_module, kind, chosen, parameter_names)

        return compile_graph

    # Built anew for each graph, so that the options reach the compilers.
    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions.table,
        keep_inference_input_mutations=True,
    )
    return backend(graph_module, example_inputs)


def _compile(graph_module, kind, chosen, parameter_names):
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    captured = capture(
        graph_module,
        name=_graph_name(kind, chosen),
        kind=kind,
        static=[] if metadata is None else metadata.static_input_indices,
        parameter_names=parameter_names,
    )
    if not captured.results:
        log.debug("%s needs no device", captured.name)
        return _boxed(HostCallable(captured))
    document = captured.json()
    if chosen.dump_dir is not None:
        _dump(chosen.dump_dir, f"{captured.name}.json", document)
    compiled = _neffuse.compile(document, target=chosen.target, numerics=chosen.numerics, name=captured.name)
    log.info("%s: %d bytes for %s", captured.name, len(compiled.neff), chosen.target)
    if chosen.dump_dir is not None:
        _dump(chosen.dump_dir, f"{captured.name}.neff", compiled.neff)
    return _boxed(DeviceCallable(captured, compiled))


def _boxed(callable):
    """A function with PyTorch's mark for "one list in, one list out", which wrappers keep."""

    def run(arguments):
        return callable(arguments)

    run._boxed_call = True
    return run


class HostCallable:
    """Returns views of its arguments and constants. Empties the list of arguments."""

    def __init__(self, captured: Capture):
        self.outputs = captured.outputs

    def __call__(self, arguments: list) -> list:
        results = self.collect(arguments, [])
        arguments.clear()
        return results

    def collect(self, arguments, results):
        returned = []
        for output in self.outputs:
            if output.device is not None:
                returned.append(results[output.device])
            elif output.view is not None:
                position, view = output.view
                returned.append(view(arguments[position]))
            else:
                returned.append(output.constant)
        return returned


class DeviceCallable(HostCallable):
    """Runs a binary. Empties the list of arguments; tensors are neither copied nor converted.

    PyTorch does not check what a backend returns. Here it allocates the results itself, as its own
    fake values say, and the device writes into them; a result of another type or shape is an error.
    """

    def __init__(self, captured: Capture, compiled: _neffuse.Compiled):
        super().__init__(captured)
        self.inputs = captured.inputs
        self.results = captured.results
        self.in_place = captured.in_place
        self.compiled = compiled

    def __call__(self, arguments: list) -> list:
        tensors = [arguments[source] if isinstance(source, int) else source for source in self.inputs]
        tensors = [tensor.resolve_neg() if tensor.is_neg() else tensor for tensor in tensors]
        results = [
            arguments[self.in_place[position]] if position in self.in_place else meta.empty()
            for position, meta in enumerate(self.results)
        ]
        self.compiled.run([_buffer(tensor) for tensor in tensors], [_buffer(tensor) for tensor in results])
        for position in self.in_place:
            # The write went past PyTorch, which must still notice it.
            if not results[position].is_inference():
                torch.autograd.graph.increment_version(results[position])
        returned = self.collect(arguments, results)
        arguments.clear()
        return returned


def _buffer(tensor):
    """Address, element type, shape and strides in elements."""
    return tensor.data_ptr(), _TYPE_NAMES[tensor.dtype], tensor.shape, tensor.stride()


def _graph_name(kind, chosen) -> str:
    name = get_aot_graph_name()
    return name if chosen.name is None else f"{chosen.name}_{name.rpartition('__')[2]}"


def _dump(folder, name, data):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / re.sub(r"[^\w.-]", "_", name)).write_bytes(data)


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


class _TypeNames(dict):
    def __missing__(self, dtype):
        self[dtype] = str(dtype).removeprefix("torch.")
        return self[dtype]


_TYPE_NAMES = _TypeNames()
