"""RMSNorm, spelled out, through torch.compile: one NEFF, its result and its predicted times.

Run by `make demo`. Files are written to target/demo.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target" / "demo"
COMMAND = ROOT / "target" / "release" / "neffuse"


def naive_rms_norm(x, weight):
    mean_square = (x * x).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + 1e-6) * weight


def builtin_rms_norm(x, weight):
    return torch.rms_norm(x, x.shape[-1:], weight, 1e-6)


def compile_and_run(function, folder, *inputs):
    """The result, and the paths of the graph and the one NEFF."""
    shutil.rmtree(folder, ignore_errors=True)
    compiled = torch.compile(function, backend="neffuse", fullgraph=True, options={"dump_dir": folder})
    result = compiled(*inputs)
    (neff,) = folder.glob("*.neff")
    graph = neff.with_suffix(".json")
    return result, graph, neff


def main():
    torch.manual_seed(0)
    x, weight = torch.randn(4, 512).bfloat16(), (torch.rand(512) + 0.5).bfloat16()
    result, naive_graph, neff = compile_and_run(naive_rms_norm, FOLDER / "naive", x, weight)
    _, builtin_graph, _ = compile_and_run(builtin_rms_norm, FOLDER / "builtin", x, weight)

    truth = naive_rms_norm(x.double(), weight.double())
    error, eager_error = ((tensor - truth).abs().max().item() for tensor in (result, naive_rms_norm(x, weight)))
    report = subprocess.run(
        [COMMAND, "profile", neff, "--report", "json"], check=True, stdout=subprocess.PIPE, text=True
    )
    report = json.loads(report.stdout)
    print(f"RMSNorm of bf16 {list(x.shape)}: mul, mean, add, rsqrt, mul, mul")
    print(f"  one NEFF             {neff.relative_to(ROOT)}, {report['neff_bytes']} bytes")
    print(f"  compute instructions {report['n_compute_instructions']}")
    print(f"  largest error        {error:.2e} (PyTorch eager: {eager_error:.2e})")
    print(f"  predicted body       {report['predicted_us']:.2f} us on {report['target']}")
    print(flush=True)
    if error > eager_error + torch.finfo(x.dtype).eps / 2 * truth.abs().max().item():
        sys.exit("the result is less accurate than PyTorch eager's")
    subprocess.run([COMMAND, "three-way", naive_graph, builtin_graph], check=True)


if __name__ == "__main__":
    main()
