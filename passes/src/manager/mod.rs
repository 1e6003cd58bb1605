//! The pass manager: runs passes in order, verifies the phase that each establishes, always, and
//! tells an observer what ran, how long it took and what it counted.
//!
//! The list of passes and the clock are the caller's; printing is the observer's business.

mod fuel;
mod verify;

use std::fmt;

use ir::{Graph, Program};

pub use fuel::Fuel;

/// What holds of a graph or program; each phase includes the ones before it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// A well-typed graph as the importer made it.
    Imported,
    /// A graph in canonical form.
    Canonical,
    /// A graph whose fused ops are chosen.
    Fused,
    /// A graph with a layout for every value.
    Placed,
    /// A program over virtual tiles.
    Lowered,
    /// A program with an order and an engine for every instruction.
    Scheduled,
    /// A program with an address for every tile.
    Allocated,
    /// A program whose streams are ordered by semaphores.
    Synchronized,
}

impl Phase {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Imported => "imported",
            Phase::Canonical => "canonical",
            Phase::Fused => "fused",
            Phase::Placed => "placed",
            Phase::Lowered => "lowered",
            Phase::Scheduled => "scheduled",
            Phase::Allocated => "allocated",
            Phase::Synchronized => "synchronized",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What a pass counted, in the order in which it counted: names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    entries: Vec<(String, u64)>,
}

impl Statistics {
    /// No counts.
    pub fn new() -> Self {
        Statistics::default()
    }

    /// Adds `count` to the entry of this name, which is made at the end if there is none.
    pub fn add(&mut self, name: &str, count: u64) {
        match self.entries.iter_mut().find(|(entry, _)| entry == name) {
            Some((_, value)) => *value += count,
            None => self.entries.push((name.to_owned(), count)),
        }
    }

    /// The value of an entry; 0 where there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.entries.iter().find(|(entry, _)| entry == name).map_or(0, |&(_, value)| value)
    }

    /// Entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (name, value)) in self.iter().enumerate() {
            let separator = if position == 0 { "" } else { " " };
            write!(formatter, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

/// Why a pass failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// What the pass cannot do; the model is right, the compiler is limited.
    #[error("{}", .reasons.join("; "))]
    Unsupported { reasons: Vec<String> },
    /// A fault of the compiler: the pass broke its own promise.
    #[error("pass `{pass}` left a unit that is not {phase}: {}", .faults.join("; "))]
    Broken { pass: &'static str, phase: Phase, faults: Vec<String> },
    /// A fault of the compiler inside a pass.
    #[error("pass `{pass}`: {message}")]
    Internal { pass: &'static str, message: String },
    /// A disabled rule that does not exist.
    #[error("no rule is named `{name}`")]
    UnknownRule { name: String },
    /// `stop-after` or `print-after` names no pass.
    #[error("no pass is named `{name}`; there are {}", .known.join(", "))]
    UnknownPass { name: String, known: Vec<&'static str> },
}

/// What a pass may use and leaves behind.
#[derive(Debug, Default)]
pub struct PassContext {
    pub fuel: Fuel,
    pub statistics: Statistics,
}

/// A graph or a program: something that passes transform and the verifier checks.
pub trait Unit {
    /// Everything that keeps this unit from being in the phase; empty when it is.
    fn faults(&self, phase: Phase) -> Vec<String>;
}

impl Unit for Graph {
    fn faults(&self, phase: Phase) -> Vec<String> {
        verify::graph_faults(self, phase)
    }
}

impl Unit for Program {
    fn faults(&self, phase: Phase) -> Vec<String> {
        verify::program_faults(self, phase)
    }
}

/// One transformation.
pub trait Pass<U> {
    /// A verb in `snake_case`.
    fn name(&self) -> &'static str;

    /// The phase that the result is in.
    fn establishes(&self) -> Phase;

    /// Transforms the unit.
    ///
    /// # Errors
    /// What the pass cannot do, or a fault of its own.
    fn run(&self, unit: U, context: &mut PassContext) -> Result<U, PassError>;
}

/// A pass made of a name, a phase and a function.
pub struct FnPass<F> {
    pub name: &'static str,
    pub establishes: Phase,
    pub run: F,
}

impl<U, F: Fn(U, &mut PassContext) -> Result<U, PassError>> Pass<U> for FnPass<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn establishes(&self) -> Phase {
        self.establishes
    }

    fn run(&self, unit: U, context: &mut PassContext) -> Result<U, PassError> {
        (self.run)(unit, context)
    }
}

/// Time as the caller counts it.
pub trait Clock {
    /// Seconds since some fixed moment.
    fn seconds(&self) -> f64;
}

/// A clock that stands still, for runs whose times nobody reads.
#[derive(Copy, Clone, Debug, Default)]
pub struct StoppedClock;

impl Clock for StoppedClock {
    fn seconds(&self) -> f64 {
        0.0
    }
}

/// What one pass did.
#[derive(Clone, Debug, PartialEq)]
pub struct PassReport {
    pub name: &'static str,
    pub phase: Phase,
    /// Time of the pass and of the verifier after it, by the caller's clock.
    pub seconds: f64,
    pub statistics: Statistics,
}

/// Is told of every pass after the verifier has passed its result.
pub trait Observer<U> {
    /// A pass has run.
    fn after(&mut self, report: &PassReport, unit: &U);

    /// The unit after a pass that `print_after` names.
    fn print(&mut self, pass: &'static str, unit: &U);
}

/// An observer that ignores everything.
#[derive(Copy, Clone, Debug, Default)]
pub struct Unobserved;

impl<U> Observer<U> for Unobserved {
    fn after(&mut self, _: &PassReport, _: &U) {}

    fn print(&mut self, _: &'static str, _: &U) {}
}

/// Which passes to print and where to stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Names of passes after which the unit is printed; `all` stands for every pass.
    pub print_after: Vec<String>,
    /// Name of the last pass to run.
    pub stop_after: Option<String>,
}

impl RunOptions {
    /// Checks the names against those of all passes of a pipeline.
    ///
    /// # Errors
    /// Names the first that is unknown.
    pub fn check_names(&self, known: &[&'static str]) -> Result<(), PassError> {
        let printed = self.print_after.iter().filter(|name| name.as_str() != "all");
        match printed.chain(&self.stop_after).find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(PassError::UnknownPass { name: name.clone(), known: known.to_vec() }),
            None => Ok(()),
        }
    }

    fn prints(&self, pass: &str) -> bool {
        self.print_after.iter().any(|name| name == pass || name == "all")
    }
}

/// Whether the list was run to its end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Finished,
    /// The pass that `stop_after` names was the last to run.
    Stopped,
}

/// Runs the passes in order; a pass's result is verified before anyone sees it.
///
/// # Errors
/// The first error of a pass, or the faults that the verifier finds in its result.
pub fn run<U: Unit>(
    passes: &[&dyn Pass<U>],
    mut unit: U,
    context: &mut PassContext,
    options: &RunOptions,
    clock: &dyn Clock,
    observer: &mut dyn Observer<U>,
) -> Result<(U, Progress), PassError> {
    for pass in passes {
        let start = clock.seconds();
        context.statistics = Statistics::new();
        unit = pass.run(unit, context)?;
        let faults = unit.faults(pass.establishes());
        if !faults.is_empty() {
            return Err(PassError::Broken { pass: pass.name(), phase: pass.establishes(), faults });
        }
        let report = PassReport {
            name: pass.name(),
            phase: pass.establishes(),
            seconds: clock.seconds() - start,
            statistics: std::mem::take(&mut context.statistics),
        };
        observer.after(&report, &unit);
        if options.prints(pass.name()) {
            observer.print(pass.name(), &unit);
        }
        if options.stop_after.as_deref() == Some(pass.name()) {
            return Ok((unit, Progress::Stopped));
        }
    }
    Ok((unit, Progress::Finished))
}
