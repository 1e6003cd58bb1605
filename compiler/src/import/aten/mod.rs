//! ATen overloads as IR ops: [`table`] has one row per overload, the other files its builders.
//!
//! Builders follow ATen's meaning exactly (promotion, defaults, negative dimensions); what they
//! cannot follow they refuse, they never come close.

use std::collections::BTreeMap;

use super::captured::Argument;

mod attention;
mod attention_backward;
pub(super) mod call;
mod contract;
mod create;
mod index;
mod movement;
mod norm;
mod pointwise;
mod promote;
mod reduce;
mod replace;
mod scatter;
mod table;

pub use call::{Binding, Built, Call, MAX_ELEMENTS, Refusal};
pub use table::{OVERLOADS, Overload};

/// Keyword arguments that say where or how a tensor is stored, which changes no value.
const STORAGE_OPTIONS: [&str; 5] = ["device", "layout", "memory_format", "non_blocking", "pin_memory"];

/// The row of a target, for example `aten.add.Tensor`.
pub fn overload(target: &str) -> Option<&'static Overload> {
    let position = OVERLOADS.binary_search_by(|overload| overload.target.cmp(target)).ok()?;
    Some(&OVERLOADS[position])
}

impl Overload {
    /// Arguments by the schema's names.
    ///
    /// # Errors
    /// Arguments that the schema does not have.
    pub fn bind<'a>(
        &self,
        positional: &'a [Argument],
        keywords: &'a BTreeMap<String, Argument>,
    ) -> Result<BTreeMap<&'static str, &'a Argument>, Refusal> {
        let names: Vec<&'static str> = self.schema.split_whitespace().filter(|&name| name != "*").collect();
        let n_positional = self.schema.split_whitespace().take_while(|&name| name != "*").count();
        if positional.len() > n_positional {
            let message = format!("{} positional arguments where {n_positional} are taken", positional.len());
            return Err(Refusal::Malformed(message));
        }
        let mut bound: BTreeMap<&'static str, &Argument> = names.iter().copied().zip(positional).collect();
        for (name, argument) in keywords {
            if let Some(&name) = names.iter().find(|&known| known == name) {
                if bound.insert(name, argument).is_some() {
                    return Err(Refusal::Malformed(format!("argument `{name}` is given twice")));
                }
            } else if STORAGE_OPTIONS.contains(&name.as_str()) {
                check_storage(name, argument)?;
            } else if *argument != Argument::Nothing {
                return Err(Refusal::Unsupported(format!("argument `{name}` is not known")));
            }
        }
        Ok(bound)
    }
}

fn check_storage(name: &str, argument: &Argument) -> Result<(), Refusal> {
    match argument {
        Argument::Layout(layout) if layout != "strided" => {
            Err(Refusal::Unsupported(format!("`{name}` is {layout}, not strided")))
        }
        _ => Ok(()),
    }
}
