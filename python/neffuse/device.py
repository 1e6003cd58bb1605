"""A compiled graph, called with tensors of PyTorch."""

import warnings

import torch

from neffuse import _neffuse
from neffuse._neffuse import FallbackWarning, Layouts, TooWideError
from neffuse.capture import Capture
from neffuse.nodes import dtype_name
from neffuse.program import GraphCallable

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # private: without it every call describes its tensors anew
    TensorGuards = None

#: Calls whose tensors were not as those of the call before, after which none is expected to be.
MAX_SURPRISES = 16


class DeviceCallable(GraphCallable):
    """Runs a binary; tensors are neither copied nor converted.

    PyTorch does not check what a backend returns. Here it allocates the results itself, as its own
    fake values say, and the device writes into them; a result of another type or shape is an error.

    Describing a tensor takes longer than small programs run. So a description is used again while
    PyTorch's own guards, checked on every call, say that all tensors are as they were then; only
    addresses are new each time.
    """

    def __init__(self, captured: Capture, compiled: _neffuse.Compiled, host: GraphCallable | None):
        """Arguments: ``host`` is the same graph for PyTorch, for calls that the device cannot take."""
        super().__init__(captured.outputs)
        self.name = captured.name
        self.compiled = compiled
        self.host = host
        self.positions = [source for source in captured.inputs if isinstance(source, int)]
        #: Large constants, which are the document's last inputs.
        self.constants = [source for source in captured.inputs if not isinstance(source, int)]
        entries = enumerate(captured.document["inputs"])
        #: Positions of inputs that seldom change.
        self.weights = [position for position, entry in entries if entry["role"] == "static"]
        self.result_metas = captured.results
        self.in_place = sorted(captured.in_place.items())
        self.new_results = [
            (meta.shape, meta.stride, meta.dtype)
            for position, meta in enumerate(captured.results)
            if position not in captured.in_place
        ]
        self.guards = None
        self.layouts = None
        self.n_surprises = 0
        self.has_warned = False

    def __getstate__(self):
        """For a copy in another process."""
        compiled = {"neff": self.compiled.neff, "weights": self.weights, "report": self.compiled.report}
        return self.__dict__ | {"compiled": compiled, "guards": None, "layouts": None, "has_warned": False}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.compiled = _neffuse.load(**state["compiled"])

    def __call__(self, arguments: list) -> list:
        try:
            return super().__call__(arguments)
        except TooWideError as error:
            # Raised before results are written.
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
        if len(self.positions) == len(arguments):
            tensors = arguments + self.constants if self.constants else arguments
        else:
            tensors = [arguments[position] for position in self.positions] + self.constants
        results = [torch.empty_strided(shape, stride, dtype=dtype) for shape, stride, dtype in self.new_results]
        for position, argument in self.in_place:
            results.insert(position, arguments[argument])
        if self.guards is not None and self.guards.check(*tensors):
            layouts = self.layouts
        else:
            tensors, layouts = self.describe(tensors, results)
        addresses, result_addresses = list(map(_address, tensors)), list(map(_address, results))
        self.compiled.run(addresses, layouts[0], result_addresses, layouts[1])
        for position, _ in self.in_place:
            # The write went past PyTorch, which must still notice it.
            if not results[position].is_inference():
                torch.autograd.graph.increment_version(results[position])
        return results

    def describe(self, tensors, results):
        """The tensors as they can be read, and the layouts of inputs and results."""
        readable = [tensor.resolve_neg() if tensor.is_neg() else tensor for tensor in tensors]
        layouts = Layouts(list(map(_layout, readable))), Layouts(list(map(_layout, results)))
        is_plain = all(tensor is given for tensor, given in zip(readable, tensors, strict=True))
        self.guards = self.layouts = None
        if TensorGuards is not None and is_plain and tensors and self.n_surprises < MAX_SURPRISES:
            self.n_surprises += 1
            # Results that are no arguments are as `new_results` says.
            self.guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            self.layouts = layouts
        return readable, layouts


_address = torch.Tensor.data_ptr


def _layout(tensor):
    """Element type, shape and strides in elements."""
    return _TYPE_NAMES[tensor.dtype], tensor.shape, tensor.stride()


class _TypeNames(dict):
    def __missing__(self, dtype):
        self[dtype] = dtype_name(dtype)
        return self[dtype]


_TYPE_NAMES = _TypeNames()
