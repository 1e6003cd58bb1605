"""Compiled graphs in PyTorch's AOTAutogradCache.

That cache keeps what AOTAutograd made of a model, so that a second process neither runs AOTAutograd nor
compiles. It is private API, laid out for PyTorch's own compiler: where a version of PyTorch does not
have it as expected, graphs are compiled as if there were no such cache, and the compile cache of
neffuse still holds.
"""

import contextlib
import functools
import hashlib
import io
import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import torch

from neffuse import _neffuse
from neffuse.options import Options
from neffuse.program import GraphCallable

try:
    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor import config as inductor_config
    from torch._inductor.output_code import OutputCode

    # Entries of both settings are parts of the cache's key, or decide whether there is one.
    IS_AVAILABLE = hasattr(functorch_config, "bundled_autograd_cache") and isinstance(
        inductor_config.unsafe_marked_cacheable_functions, dict
    )
except (ImportError, AttributeError):
    IS_AVAILABLE = False
    OutputCode = object

log = logging.getLogger(__name__)


def keyed(options: Options) -> contextlib.AbstractContextManager:
    """While a graph is compiled: entries carry their results, found by the options and our version too."""
    if not IS_AVAILABLE or not options.aot_cache:
        return contextlib.nullcontext()
    marked = inductor_config.unsafe_marked_cacheable_functions
    ours = {"neffuse.backend.neffuse": f"{fingerprint()} {options}"}
    stack = contextlib.ExitStack()
    stack.enter_context(inductor_config.patch(unsafe_marked_cacheable_functions=marked | ours))
    stack.enter_context(functorch_config.patch(bundled_autograd_cache=True))
    return stack


def compiler(compile_graph: Callable[[torch.fx.GraphModule], "Code"], kind: str, options: Options) -> Callable:
    """A compiler for AOTAutograd whose results can be kept."""

    def compile_one(graph_module, example_inputs):
        code = compile_graph(graph_module)
        if kind == "backward" and IS_AVAILABLE and options.aot_cache:
            code.keep_open(keyed(options))
        return code

    if not IS_AVAILABLE or not options.aot_cache:
        return compile_one
    return SerializableAOTDispatchCompiler(Code, compile_one)


class Code(OutputCode):
    """A compiled graph as AOTAutograd calls and keeps it."""

    def __init__(self, run: GraphCallable, announce: Callable[[], None]):
        """Arguments: ``announce`` tells the user about the graph, in each process."""
        self.run = run
        self.announce = announce
        # PyTorch's mark for "one list in, one list out". Wrappers copy an instance's attributes only.
        self._boxed_call = True
        self._fx_graph_cache_key = None
        self._fx_graph_cache_debug_lines = None
        self._time_taken_ns = 0
        self.open = None

    def __call__(self, arguments: list) -> list:
        if self.open is not None:
            self.open.close()
            self.open = None
        return self.run(arguments)

    def keep_open(self, context):
        """Enters a context until the first call.

        A backward graph is compiled right before it runs, and kept in between, outside of the calls
        that PyTorch makes to the backend.
        """
        self.open = contextlib.ExitStack()
        self.open.enter_context(context)

    def prepare_for_serialization(self):
        """Called before it is kept, on a copy."""
        self.open = None
        try:
            self.run = _to_bytes((self.run, self.announce))
        except Exception as error:
            # Subgraphs, for example. Whatever it is, it must not fail a compilation.
            log.info("not kept in AOTAutogradCache: %s", error)
            raise BypassAOTAutogradCache(f"neffuse: {error}") from error
        self.announce = None

    def post_compile(self, example_inputs, constants, graph_kwargs):
        """Called after it was found in the cache."""
        if isinstance(self.run, bytes):
            self.run, self.announce = pickle.loads(self.run)
            self.announce()

    def set_triton_bundle(self, triton_bundle):
        """Not for us."""


@functools.cache
def fingerprint() -> str:
    """Tells versions of neffuse apart: the compiler's, and that of these files."""
    digest = hashlib.sha256(_neffuse.compiler_version().encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Pickler(pickle.Pickler):
    """Writes ops by name; PyTorch's own objects for them cannot be written."""

    def reducer_override(self, obj):
        if isinstance(obj, torch._ops.OpOverload):
            return _op, (str(obj),)
        if isinstance(obj, (torch._ops.HigherOrderOperator, torch.nn.Module)):
            raise pickle.PicklingError(f"{obj.__class__.__name__} cannot be kept")
        return NotImplemented


def _to_bytes(value) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _op(name: str):
    """An overload by name, for example ``aten.add.Tensor``."""
    return functools.reduce(getattr, name.split("."), torch.ops)
