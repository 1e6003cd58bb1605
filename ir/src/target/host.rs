//! What a runtime adds to one execution of a NEFF outside the device, one constant per runtime.
//!
//! The rows behind each constant stand with it. A host time depends on the machine and the
//! framework; none of it depends on the program.

/// A way to run NEFFs from the host.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostRuntime {
    /// The vendor's benchmark tool: one execution, nothing around it.
    NeuronBench,
    /// PyTorch through XLA.
    TorchXla,
    /// PyTorch's native backend.
    TorchNeuron,
}

/// The device time that a dispatch constant comes on top of.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceTime {
    /// First trigger to last completion.
    Body,
    /// What the vendor's tools call device latency: the body and a constant.
    NcLatency,
}

/// A dispatch constant with the rows it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    pub runtime: HostRuntime,
    /// Host time of one execution.
    pub dispatch_ps: u64,
    pub on_top_of: DeviceTime,
    /// What was measured, and how the constant follows.
    pub source: &'static str,
}

impl HostRuntime {
    /// Every runtime, fastest dispatch first.
    pub const ALL: [HostRuntime; 3] = [HostRuntime::NeuronBench, HostRuntime::TorchXla, HostRuntime::TorchNeuron];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            HostRuntime::NeuronBench => "neuron-bench",
            HostRuntime::TorchXla => "torch-xla",
            HostRuntime::TorchNeuron => "torchneuron",
        }
    }

    /// Its dispatch constant.
    pub fn dispatch(self) -> &'static Dispatch {
        match self {
            HostRuntime::NeuronBench => &NEURON_BENCH,
            HostRuntime::TorchXla => &TORCH_XLA,
            HostRuntime::TorchNeuron => &TORCH_NEURON,
        }
    }
}

/// Published wall times of three ways to run RMSNorm, bf16 [4, 512], in picoseconds, with their
/// numbers of dispatches: naive eager, the built-in operator, the naive spelling compiled.
pub const TORCH_NEURON_TOTALS: [(u64, u64); 3] = [(2_355_000_000, 6), (403_300_000, 1), (375_500_000, 1)];

static NEURON_BENCH: Dispatch = Dispatch {
    runtime: HostRuntime::NeuronBench,
    dispatch_ps: 81_000_000,
    on_top_of: DeviceTime::NcLatency,
    source: "mean of 80, 61, 101 and 83 us on trn2 (TM0671, TM0672, TM0674, TM0675); 42 to 61 us on trn1 (TM0420 to TM0443, TM0522)",
};

static TORCH_XLA: Dispatch = Dispatch {
    runtime: HostRuntime::TorchXla,
    dispatch_ps: 220_000_000,
    on_top_of: DeviceTime::NcLatency,
    source: "single operators of a few microseconds take 220 to 250 us (TM0597)",
};

static TORCH_NEURON: Dispatch = Dispatch {
    runtime: HostRuntime::TorchNeuron,
    dispatch_ps: 389_100_000,
    on_top_of: DeviceTime::Body,
    source: "least squares on three totals of RMSNorm [4, 512]: 2,355 us in 6 dispatches, 403.3 and 375.5 us in one (TM0676, TM0677), with simulated bodies of 18.2, 6.0 and 6.0 us",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_torchneuron_constant_is_the_least_squares_one() {
        let bodies_ps = [18_200_000, 6_000_000, 6_000_000];
        let ways = TORCH_NEURON_TOTALS.iter().zip(bodies_ps);
        let (numerator, denominator) = ways.fold((0, 0), |(numerator, denominator), (&(total_ps, n), body_ps)| {
            (numerator + n * (total_ps - body_ps), denominator + n * n)
        });
        let fitted_ps = numerator / denominator;
        assert!(fitted_ps.abs_diff(HostRuntime::TorchNeuron.dispatch().dispatch_ps) < 500_000, "{fitted_ps}");
    }
}
