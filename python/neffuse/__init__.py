"""neffuse compiles PyTorch graphs for AWS Trainium and runs them on a NeuronCore simulator.

Nothing here needs importing to use the backend: after installation,
``torch.compile(model, backend="neffuse")`` finds it. The names below are for handling errors and
for tools. The module does not import torch.
"""

from neffuse._neffuse import (
    Compiled,
    FallbackWarning,
    InputError,
    InternalError,
    NeffuseError,
    TooWideError,
    UnsupportedError,
    __version__,
    compile,
    supported_overloads,
)
from neffuse.history import reports

__all__ = [
    "Compiled",
    "FallbackWarning",
    "InputError",
    "InternalError",
    "NeffuseError",
    "TooWideError",
    "UnsupportedError",
    "__version__",
    "compile",
    "reports",
    "supported_overloads",
]
