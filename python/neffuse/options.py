"""What ``torch.compile`` may pass to the backend: ``mode``, ``options`` and ``name``."""

import difflib
import warnings
from dataclasses import dataclass, fields
from pathlib import Path

from neffuse._neffuse import InputError


@dataclass(frozen=True)
class Options:
    """Options of one ``torch.compile`` call."""

    #: The chip: ``trn1``, ``trn2`` or ``trn3``.
    target: str = "trn2"
    #: The loosest class of rewrites allowed: ``exact``, ``reassoc``, ``contract`` or ``approx``.
    numerics: str = "contract"
    #: Makes it an error when something cannot run on the device: nodes that cannot be compiled, and
    #: 64-bit integers of inputs that do not fit 32 bits. Otherwise PyTorch runs it, with a warning.
    strict: bool = False
    #: Takes what was compiled before from the compile cache and from PyTorch's AOTAutogradCache.
    cache: bool = True
    #: Folder for the graph (``NAME.json``), the binary (``NAME.neff``) and the report
    #: (``NAME.report.json``) of every compilation; of a graph that is run in parts, the graph and
    #: binary of each (``NAME_partN``).
    dump_dir: Path | None = None
    #: Name of the graphs; ``None`` takes PyTorch's.
    name: str | None = None

    @property
    def aot_cache(self) -> bool:
        """Whether PyTorch may keep graphs; what it kept leaves no files in ``dump_dir``."""
        return self.cache and self.dump_dir is None


def parse(mode=None, options=None, name=None, **unknown) -> Options:
    """Reads the keyword arguments of a backend.

    Raises:
        InputError: an argument or option that is not known, or a value it cannot have.
    """
    if unknown:
        raise InputError(f"the backend takes mode, options and name, not {', '.join(sorted(unknown))}")
    if mode not in (None, "default"):
        warnings.warn(f"neffuse has no mode {mode!r}: compiling in the default mode", stacklevel=2)
    options = dict(options or {})
    known = [field.name for field in fields(Options) if field.name != "name"]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(str(option), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise InputError(f"unknown option {option!r}: {hint}")
    for option in ("strict", "cache"):
        if not isinstance(options.get(option, False), bool):
            raise InputError(f"option {option!r} is True or False, not {options[option]!r}")
    if options.get("dump_dir") is not None:
        options["dump_dir"] = Path(options["dump_dir"])
    return Options(name=name, **options)
