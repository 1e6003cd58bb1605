"""What a call of a compiled model costs beside the work itself.

Each row is a model whose work is as small as can be. The floor is what PyTorch takes before any
backend: Dynamo with a backend that returns a ready tuple. The wrapper is what a call through neffuse
takes above the floor, without the simulated run, which is measured inside. All times are medians in
microseconds, on one thread.

    make bench-calls
"""

import argparse
import statistics
import time
from typing import ClassVar

import torch
from torch import nn

from neffuse import backend
from neffuse.device import DeviceCallable

#: The target: microseconds of the wrapper for a call, and for each parameter.
TARGET_CALL_US = 15.0
TARGET_PARAMETER_US = 0.3


class Sums(nn.Module):
    """Adds all its parameters to its input."""

    def __init__(self, n_parameters):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(8)) for _ in range(n_parameters))

    def forward(self, x):
        for weight in self.weights:
            x = x + weight
        return x


def increment(x):
    return x + 1


def ready(graph_module, example_inputs):
    """A backend that has its results before it is called."""
    results = tuple(graph_module(*example_inputs))
    return lambda *arguments: results


def sample(function, x, n_samples, seconds):
    """Microseconds of one call, in samples of many calls."""
    function(x)
    start = time.perf_counter()
    function(x)
    n_calls = max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))
    samples = []
    for _ in range(n_samples):
        start = time.perf_counter_ns()
        for _ in range(n_calls):
            function(x)
        samples.append((time.perf_counter_ns() - start) / n_calls / 1e3)
    return statistics.median(samples)


class Recorded(DeviceCallable):
    """Keeps all that were made."""

    made: ClassVar[list[DeviceCallable]] = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        Recorded.made.append(self)


def compiled(model, x):
    """A compiled model and the device callable inside."""
    torch._dynamo.reset()
    Recorded.made.clear()
    function = torch.compile(model, backend="neffuse", options={"cache": False})
    function(x)
    (device,) = Recorded.made
    return function, device


def row(name, model, n_parameters, n_samples, seconds):
    x = torch.randn(8)
    torch._dynamo.reset()
    eager = sample(model, x, n_samples, seconds)
    floor = sample(torch.compile(model, backend=ready), x, n_samples, seconds)
    function, device = compiled(model, x)
    # The simulated run is measured in the same calls.
    totals, runs, wrappers = [], [], []
    until = time.perf_counter() + n_samples * seconds
    while time.perf_counter() < until:
        simulated = device.compiled.simulated_ns
        start = time.perf_counter_ns()
        function(x)
        total = (time.perf_counter_ns() - start) / 1e3
        run = (device.compiled.simulated_ns - simulated) / 1e3
        totals.append(total)
        runs.append(run)
        wrappers.append(total - run - floor)
    target = TARGET_CALL_US + TARGET_PARAMETER_US * n_parameters
    columns = [eager, floor, *map(statistics.median, (totals, runs, wrappers)), target]
    print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in columns) + " |", flush=True)
    return columns[4] <= target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=30, help="samples of each figure")
    parser.add_argument("--seconds", type=float, default=0.01, help="length of a sample")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    backend.DeviceCallable = Recorded
    print("| model | eager | floor | neffuse | simulated run | wrapper | target |")
    print("|---|---|---|---|---|---|---|")
    with torch.no_grad():
        rows = [("x + 1, a function", increment, 0)]
        for count in (1, 10, 100, 500):
            rows.append((f"{count} parameter{'s' * (count > 1)}", Sums(count), count))
        met = [row(*each, arguments.samples, arguments.seconds) for each in rows]
    print(f"\n{sum(met)} of {len(met)} within the target")


if __name__ == "__main__":
    main()
