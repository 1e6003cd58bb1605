//! The rules, in files by theme, and what a rule is.
//!
//! A rule is one line: name, class, left and right side, and where types alone do not decide, a
//! condition that says why it does not hold. Left and right side must have one type; a right side
//! whose op does not accept its operands does not apply. The right side may take attributes after
//! `@`: `$m` the bound op, `?e` an epsilon, `eps:$m` the epsilon of a bound norm, `root` the type
//! of the whole, `last:?x` the last axis of x, `word:$m` a bound matmul with that activation.
//! Attention takes `softmax` or `safe`, by what rows without keys are, with a scale after a colon;
//! `scaled:$a:?c` and `rounded:$a` change a bound one. `(stored $m lhs ?x)` is an operand of a bound
//! product as rows of what is summed over, `rhs` as columns, `rhs-turned` as rows.

mod activation;
mod algebra;
mod attention;
mod cast;
mod contract;
mod matmul;
mod misses;
mod norm;
mod reduce;
mod softmax;

use std::sync::OnceLock;

use egg::Id;
use ir::{Op, TensorType};

use super::pattern::{Match, Names, Pattern, Sexp};
use super::template::Template;
use super::term::TermGraph;
use crate::Numerics;

pub(super) use misses::misses;

/// When a rule runs; a phase includes the ones before it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Shrinks.
    Simplify,
    /// Names a fused pattern.
    Recognise,
    /// Offers another form, for the cost to decide.
    Explore,
}

/// Stages in order.
pub(super) const STAGES: [Stage; 3] = [Stage::Simplify, Stage::Recognise, Stage::Explore];

/// Why a condition does not hold.
pub(super) type Reason = String;

/// What a condition looks at.
pub(super) type Condition = fn(&Scene<'_>) -> Result<(), Reason>;

/// A rule as it is written down.
pub(super) struct Line {
    pub name: &'static str,
    pub class: Numerics,
    pub stage: Stage,
    pub left: String,
    pub right: String,
    pub condition: Option<Condition>,
}

/// A rule ready to run.
pub(super) struct Rule {
    pub name: &'static str,
    pub class: Numerics,
    pub stage: Stage,
    pub names: Names,
    pub left: Pattern,
    pub right: Template,
    pub condition: Option<Condition>,
}

/// A match of a rule's left side.
pub(super) struct Scene<'a> {
    pub graph: &'a TermGraph,
    pub names: &'a Names,
    pub found: &'a Match,
}

impl Scene<'_> {
    /// The class of a variable of the rule.
    pub fn class(&self, name: &str) -> Id {
        let variable = self.names.classes.iter().position(|known| known == name);
        self.found.class(variable.expect("conditions name variables of their rule"))
    }

    /// Type of the class of a variable.
    pub fn ty(&self, name: &str) -> &TensorType {
        &self.graph[self.class(name)].data.types[0]
    }

    /// Type of the class that the left side matched in.
    pub fn root(&self) -> &TensorType {
        &self.graph[self.found.root].data.types[0]
    }

    /// The number that a `:number` variable is.
    pub fn number(&self, name: &str) -> f64 {
        self.graph[self.class(name)].data.number.expect("the variable is a number")
    }

    /// The op of an op variable.
    pub fn op(&self, name: &str) -> &Op {
        let variable = self.names.ops.iter().position(|known| known == name);
        self.graph.analysis.op(self.found.op(variable.expect("conditions name op variables of their rule")))
    }
}

/// One line of a rule file.
macro_rules! rw {
    ($name:literal; $stage:ident $class:ident; $left:literal => $right:literal) => {
        $crate::fuse::rules::Line {
            name: $name,
            class: $crate::Numerics::$class,
            stage: $crate::fuse::rules::Stage::$stage,
            left: $left.to_owned(),
            right: $right.to_owned(),
            condition: None,
        }
    };
    ($name:literal; $stage:ident $class:ident; $left:literal => $right:literal; if $condition:path) => {
        $crate::fuse::rules::Line {
            name: $name,
            class: $crate::Numerics::$class,
            stage: $crate::fuse::rules::Stage::$stage,
            left: $left.to_owned(),
            right: $right.to_owned(),
            condition: Some($condition),
        }
    };
}

pub(super) use rw;

/// All rules, in the order in which they are tried; compiled once.
pub(super) fn all() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| lines().into_iter().map(|line| compile(line).expect("the rules are well formed")).collect())
}

fn lines() -> Vec<Line> {
    let files = [
        cast::rules(),
        contract::rules(),
        algebra::rules(),
        reduce::rules(),
        norm::rules(),
        softmax::rules(),
        activation::rules(),
        matmul::rules(),
        attention::rules(),
    ];
    files.into_iter().flatten().collect()
}

fn compile(line: Line) -> Result<Rule, String> {
    let mut names = Names::default();
    let left = Pattern::parse(&Sexp::parse(&line.left)?, &mut names)?;
    let (n_classes, n_ops) = (names.classes.len(), names.ops.len());
    let right = Template::parse(&Sexp::parse(&line.right)?, &mut names)?;
    if (names.classes.len(), names.ops.len()) != (n_classes, n_ops) {
        return Err(format!("the right side of `{}` has variables that the left side lacks", line.name));
    }
    let Line { name, class, stage, condition, .. } = line;
    Ok(Rule { name, class, stage, names, left, right, condition })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::all;

    #[test]
    fn rules_compile_and_have_names_of_their_own() {
        let names: BTreeSet<&str> = all().iter().map(|rule| rule.name).collect();
        assert_eq!(names.len(), all().len());
    }
}
