//! How far a rewrite may change the bits of a result.

use std::fmt;
use std::str::FromStr;

use ir::types::TypeError;

/// Class of a rewrite, and the loosest class that a compilation allows. Ordered from strict to
/// loose.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Numerics {
    /// The same bits.
    Exact,
    /// Another order of summation or of operations that are equal over the reals.
    Reassoc,
    /// Drops the rounding of an intermediate value.
    Contract,
    /// Another formula that is close over a stated range.
    Approx,
}

impl Numerics {
    /// Every class, strictest first.
    pub const ALL: [Numerics; 4] = [Numerics::Exact, Numerics::Reassoc, Numerics::Contract, Numerics::Approx];

    /// Name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Reassoc => "reassoc",
            Numerics::Contract => "contract",
            Numerics::Approx => "approx",
        }
    }

    /// True when a rewrite of class `class` may be used under this setting.
    pub fn allows(self, class: Numerics) -> bool {
        class <= self
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Numerics {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        let found = Numerics::ALL.into_iter().find(|class| class.name() == text);
        found.ok_or_else(|| {
            TypeError::new(format!(
                "no numerics class is named `{text}`; there are exact, reassoc, contract and approx"
            ))
        })
    }
}
