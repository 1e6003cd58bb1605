//! The chips that programs are compiled for. Hardware numbers stand here and nowhere else, each
//! with its grade and source.

use std::fmt;
use std::str::FromStr;

use crate::types::TypeError;

/// A chip generation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetName {
    /// NeuronCore v2.
    Trn1,
    /// NeuronCore v3.
    Trn2,
    /// NeuronCore v4.
    Trn3,
}

impl TargetName {
    /// Every target, oldest first.
    pub const ALL: [TargetName; 3] = [TargetName::Trn1, TargetName::Trn2, TargetName::Trn3];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            TargetName::Trn1 => "trn1",
            TargetName::Trn2 => "trn2",
            TargetName::Trn3 => "trn3",
        }
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for TargetName {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        let found = TargetName::ALL.into_iter().find(|target| target.name() == text);
        found.ok_or_else(|| TypeError::new(format!("no target is named `{text}`; there are trn1, trn2 and trn3")))
    }
}
