"""What was compiled in this process. Does not import torch."""

import collections

#: Graphs that are remembered.
MAX_REPORTS = 256

_reports = collections.deque(maxlen=MAX_REPORTS)

#: Keys that add up over the parts of a graph.
_SUMS = (
    "neff_bytes",
    "compile_seconds",
    "n_nodes",
    "n_kernels",
    "n_instructions",
    "n_compute_instructions",
    "n_dispatches",
    "hbm_read_bytes",
    "hbm_write_bytes",
    "compulsory_bytes",
    "spill_bytes",
)


def reports() -> list[dict]:
    """Reports of the graphs that the backend compiled in this process, oldest first.

    Each is a dictionary with the keys of ``neffuse compile --report json``. A graph of which PyTorch
    runs a part on the host has its ops in ``host_ops``, those that the compiler refused with the
    reasons in ``unsupported``, and in ``parts`` a report on each binary. ``torch._dynamo.reset()``
    forgets all.
    """
    return list(_reports)


def add(report: dict):
    """Remembers a report."""
    _reports.append(report)


def forget():
    """Forgets all reports."""
    _reports.clear()


def joined(graph: str, parts: list[dict], refused: list[dict], host_ops: list[str]) -> dict:
    """The report on a graph whose parts have reports of their own: counts, bytes and times are sums."""
    if len(parts) == 1:
        report = dict(parts[0])
    else:
        report = {key: sum(part[key] or 0 for part in parts) for key in _SUMS}
        report |= {key: [entry for part in parts for entry in part[key]] for key in ("fusions", "regions", "passes")}
        report["sbuf_peak_bytes"] = max((part["sbuf_peak_bytes"] for part in parts), default=0)
    return report | {"graph": graph, "ok": True, "unsupported": refused, "host_ops": host_ops, "parts": parts}
