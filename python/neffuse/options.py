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
    #: Nodes that cannot be compiled are an error. Running them on the host is not possible yet,
    #: so this cannot be switched off.
    strict: bool = True
    #: Folder for the graph (``NAME.json``) and the binary (``NAME.neff``) of every compilation.
    dump_dir: Path | None = None
    #: Name of the graphs; ``None`` takes PyTorch's.
    name: str | None = None


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
    if options.get("strict", True) is not True:
        raise InputError("option 'strict' must be True: nodes that cannot be compiled cannot run on the host yet")
    if options.get("dump_dir") is not None:
        options["dump_dir"] = Path(options["dump_dir"])
    return Options(name=name, **options)
