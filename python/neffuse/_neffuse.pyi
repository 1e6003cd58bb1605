"""The compiler and the simulator, in Rust."""

from collections.abc import Sequence

__version__: str

#: Element type, shape, strides in elements.
Layout = tuple[str, Sequence[int], Sequence[int]]

class NeffuseError(RuntimeError):
    """Any error of neffuse."""

class InputError(NeffuseError):
    """A graph, tensor or option is wrong."""

class TooWideError(InputError):
    """The device cannot compute with values of an input: PyTorch must run this call."""

class UnsupportedError(NeffuseError):
    """A graph has nodes that cannot be compiled."""

    #: All of them, with the keys node, op, module, line, type and reason.
    nodes: list[dict[str, str]]

class InternalError(NeffuseError):
    """A fault of neffuse itself."""

class FallbackWarning(UserWarning):
    """Part of a graph runs on the host, by PyTorch."""

class Layouts:
    """How the tensors of a call lie in memory."""

    def __new__(cls, descriptions: Sequence[Layout]) -> Layouts: ...

class Compiled:
    """A compiled graph, loaded and ready to run."""

    @property
    def neff(self) -> bytes: ...
    @property
    def report(self) -> str: ...
    @property
    def may_leave_ranges(self) -> bool: ...
    @property
    def simulated_ns(self) -> int: ...
    def run(
        self,
        inputs: Sequence[int],
        input_layouts: Layouts,
        outputs: Sequence[int],
        output_layouts: Layouts,
    ) -> None: ...

def compile(
    document: bytes,
    *,
    target: str = "trn2",
    numerics: str = "contract",
    name: str = "the graph",
    cache: bool = True,
) -> Compiled: ...
def load(neff: bytes, *, weights: Sequence[int], report: str = "{}") -> Compiled: ...
def compiler_version() -> str: ...
def supported_overloads() -> list[str]: ...
