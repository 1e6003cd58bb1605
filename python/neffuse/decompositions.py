"""Which ATen ops PyTorch takes apart before the backend sees a graph.

The importer has a row for every overload that the compiler takes whole; those stay as they are,
because fused forms are found in them. Everything else comes apart where PyTorch knows how.
"""

import functools

from torch._decomp import core_aten_decompositions

from neffuse._neffuse import supported_overloads


@functools.cache
def table():
    """Decompositions by overload, for ``aot_autograd``."""
    whole = set(supported_overloads())
    decompositions = dict(core_aten_decompositions())
    return {overload: function for overload, function in decompositions.items() if str(overload) not in whole}
