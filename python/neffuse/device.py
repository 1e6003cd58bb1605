"""A compiled graph, called with tensors of PyTorch."""

import warnings

import torch

from neffuse import _neffuse
from neffuse._neffuse import FallbackWarning, TooWideError
from neffuse.capture import Capture
from neffuse.nodes import dtype_name
from neffuse.program import GraphCallable


class DeviceCallable(GraphCallable):
    """Runs a binary; tensors are neither copied nor converted.

    PyTorch does not check what a backend returns. Here it allocates the results itself, as its own
    fake values say, and the device writes into them; a result of another type or shape is an error.
    """

    def __init__(self, captured: Capture, compiled: _neffuse.Compiled, host: GraphCallable | None):
        """Arguments: ``host`` is the same graph for PyTorch, for calls that the device cannot take."""
        super().__init__(captured.outputs)
        self.name = captured.name
        self.inputs = captured.inputs
        self.result_metas = captured.results
        self.in_place = captured.in_place
        self.compiled = compiled
        self.host = host
        self.has_warned = False

    def __call__(self, arguments: list) -> list:
        try:
            return super().__call__(arguments)
        except TooWideError as error:
            # Raised while inputs are bound: nothing has been written yet.
            if self.host is None:
                raise
            if not self.has_warned:
                self.has_warned = True
                reason = str(error).removeprefix("error[bad-input]: ")
                text = f"{self.name}: {reason}: PyTorch runs this graph for such values, on the host"
                warnings.warn(text, FallbackWarning, stacklevel=2)
            return self.host(arguments)

    def compute(self, arguments: list) -> list:
        """Runs the binary."""
        tensors = [arguments[source] if isinstance(source, int) else source for source in self.inputs]
        tensors = [tensor.resolve_neg() if tensor.is_neg() else tensor for tensor in tensors]
        results = [
            arguments[self.in_place[position]] if position in self.in_place else meta.empty()
            for position, meta in enumerate(self.result_metas)
        ]
        self.compiled.run([_buffer(tensor) for tensor in tensors], [_buffer(tensor) for tensor in results])
        for position in self.in_place:
            # The write went past PyTorch, which must still notice it.
            if not results[position].is_inference():
                torch.autograd.graph.increment_version(results[position])
        return results


def _buffer(tensor):
    """Address, element type, shape and strides in elements."""
    return tensor.data_ptr(), _TYPE_NAMES[tensor.dtype], tensor.shape, tensor.stride()


class _TypeNames(dict):
    def __missing__(self, dtype):
        self[dtype] = dtype_name(dtype)
        return self[dtype]


_TYPE_NAMES = _TypeNames()
