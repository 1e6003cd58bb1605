//! Patterns over terms: their text, and how they match.
//!
//! `(op child ..)` matches a node whatever its attributes are. `?x` binds a class, `?x:number` one
//! that is a rank-0 number, a literal one that is that number (to f32 precision after `~`).
//! `(as ?x pattern)` binds the class that the pattern matches in. After the name of an op, `@last`
//! asks for a reduction over the last axis alone and `@$m` binds the op with its attributes.
//! `(result N pattern)` is a result of a tuple. Operands of commutative ops match in either order.

use egg::Id;
use ir::Op;
use smallvec::SmallVec;

use super::term::{Discriminant, Head, OpId, OpKind, Origin, Term, TermGraph, kind_of};

/// Most variables of a pattern.
const MAX_VARIABLES: usize = 10;

/// Relative distance at which a number still is an approximate literal.
const LITERAL_TOLERANCE: f64 = 2e-7;

/// What a pattern asks of the attributes of an op.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attributes {
    Any,
    /// A reduction over the last axis alone.
    LastAxis,
    /// Any, bound to this op variable.
    Bind(String),
}

/// A pattern.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Pattern {
    /// A class, by position in [`PatternText::variables`].
    Variable {
        variable: usize,
        is_number: bool,
    },
    Literal {
        number: f64,
        is_approximate: bool,
    },
    Named {
        variable: usize,
        pattern: Box<Pattern>,
    },
    Result {
        index: u32,
        tuple: Box<Pattern>,
    },
    Op {
        kind: OpKind,
        attributes: Attributes,
        children: Vec<Pattern>,
    },
}

/// Classes that variables are bound to.
#[derive(Clone, Debug, Default)]
pub(super) struct Bindings {
    classes: [Option<Id>; MAX_VARIABLES],
}

/// A way in which a pattern matches.
#[derive(Clone, Debug)]
pub(super) struct Match {
    pub root: Id,
    pub bindings: Bindings,
    /// Ops that `@$m` bound, in order of the pattern.
    pub ops: SmallVec<[BoundOp; 2]>,
    /// Where the matched nodes come from.
    pub origins: SmallVec<[Origin; 8]>,
    /// Applications that the equality of matched classes rests on.
    pub merges: SmallVec<[u32; 4]>,
}

/// Names of the variables of a rule, in order of appearance.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub classes: Vec<String>,
    pub ops: Vec<String>,
}

impl Names {
    pub fn class(&mut self, name: &str) -> usize {
        position_or_push(&mut self.classes, name)
    }

    pub fn op(&mut self, name: &str) -> usize {
        position_or_push(&mut self.ops, name)
    }
}

fn position_or_push(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}

/// An s-expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sexp {
    Word(String),
    List(Vec<Sexp>),
}

impl Sexp {
    /// Parses one expression.
    ///
    /// # Errors
    /// Says what is missing or left over.
    pub fn parse(text: &str) -> Result<Sexp, String> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut stack: Vec<Vec<Sexp>> = vec![Vec::new()];
        for word in spaced.split_whitespace() {
            match word {
                "(" => stack.push(Vec::new()),
                ")" => {
                    let list = stack.pop().filter(|_| !stack.is_empty()).ok_or("a `)` too many")?;
                    stack.last_mut().ok_or("a `)` too many")?.push(Sexp::List(list));
                }
                word => stack.last_mut().ok_or("a `)` too many")?.push(Sexp::Word(word.to_owned())),
            }
        }
        match (stack.pop().as_deref(), stack.is_empty()) {
            (Some([one]), true) => Ok(one.clone()),
            (Some(_) | None, _) => Err(format!("`{text}` is not one expression")),
        }
    }
}

impl Pattern {
    /// Parses a pattern; variables get positions in `names`.
    ///
    /// # Errors
    /// Says which word is not understood.
    pub fn parse(sexp: &Sexp, names: &mut Names) -> Result<Pattern, String> {
        match sexp {
            Sexp::Word(word) => Pattern::parse_word(word, names),
            Sexp::List(list) => Pattern::parse_list(list, names),
        }
    }

    fn parse_word(word: &str, names: &mut Names) -> Result<Pattern, String> {
        if let Some(name) = word.strip_prefix('?') {
            let (name, is_number) = name.strip_suffix(":number").map_or((name, false), |name| (name, true));
            return Ok(Pattern::Variable { variable: names.class(name), is_number });
        }
        let (text, is_approximate) = word.strip_prefix('~').map_or((word, false), |text| (text, true));
        let number = text.parse().map_err(|_| format!("`{word}` is no variable and no number"))?;
        Ok(Pattern::Literal { number, is_approximate })
    }

    fn parse_list(list: &[Sexp], names: &mut Names) -> Result<Pattern, String> {
        let [Sexp::Word(head), rest @ ..] = list else { return Err("an op's name is missing".to_owned()) };
        match (head.as_str(), rest) {
            ("as", [Sexp::Word(name), pattern]) => {
                let variable = names.class(name.trim_start_matches('?'));
                Ok(Pattern::Named { variable, pattern: Box::new(Pattern::parse(pattern, names)?) })
            }
            ("result", [Sexp::Word(index), tuple]) => {
                let index = index.parse().map_err(|_| format!("`{index}` is no result"))?;
                Ok(Pattern::Result { index, tuple: Box::new(Pattern::parse(tuple, names)?) })
            }
            (head, children) => {
                let (name, attributes) = head.split_once('@').unwrap_or((head, ""));
                let kind = kind_of(name).ok_or_else(|| format!("no op is named `{name}`"))?;
                let attributes = match attributes {
                    "" => Attributes::Any,
                    "last" => Attributes::LastAxis,
                    bound => {
                        let variable = bound.strip_prefix('$').ok_or_else(|| format!("`@{bound}` in a pattern"))?;
                        names.op(variable);
                        Attributes::Bind(variable.to_owned())
                    }
                };
                let children = children.iter().map(|child| Pattern::parse(child, names)).collect::<Result<_, _>>()?;
                Ok(Pattern::Op { kind, attributes, children })
            }
        }
    }

    /// What the roots of matches are; `None` for patterns that match any class.
    pub fn discriminant(&self) -> Option<Discriminant> {
        match self {
            Pattern::Op { kind, .. } => Some(Discriminant::Op(*kind)),
            Pattern::Result { .. } => Some(Discriminant::Result),
            Pattern::Named { pattern, .. } => pattern.discriminant(),
            Pattern::Variable { .. } | Pattern::Literal { .. } => None,
        }
    }

    /// All matches in a class.
    pub fn matches(&self, names: &Names, graph: &TermGraph, root: Id, found: &mut Vec<Match>) {
        let search = Search { graph, names };
        let start = Match {
            root,
            bindings: Bindings::default(),
            ops: SmallVec::new(),
            origins: SmallVec::new(),
            merges: SmallVec::new(),
        };
        let mut goals: SmallVec<[Goal<'_>; 16]> = SmallVec::new();
        goals.push(Goal { pattern: self, class: root, is_root: true });
        search.solve(goals, start, found);
    }
}

/// A pattern that has to match in a class.
#[derive(Copy, Clone)]
struct Goal<'a> {
    pattern: &'a Pattern,
    class: Id,
    is_root: bool,
}

/// An op variable and what it is bound to.
type BoundOp = (usize, OpId);

struct Search<'a> {
    graph: &'a TermGraph,
    names: &'a Names,
}

impl<'a> Search<'a> {
    fn solve(&self, mut goals: SmallVec<[Goal<'a>; 16]>, mut state: Match, found: &mut Vec<Match>) {
        let Some(goal) = goals.pop() else {
            found.push(state);
            return;
        };
        match goal.pattern {
            Pattern::Variable { variable, is_number } => {
                // Equal constants of a graph are one node, so where they come from says nothing.
                let is_missing = *is_number && self.graph[goal.class].data.number.is_none();
                if !is_missing && self.bind(*variable, goal.class, &mut state) {
                    self.solve(goals, state, found);
                }
            }
            Pattern::Literal { number, is_approximate } => {
                let value = self.graph[goal.class].data.number;
                if value.is_some_and(|value| is_literal(value, *number, *is_approximate)) {
                    self.solve(goals, state, found);
                }
            }
            Pattern::Named { variable, pattern } => {
                if self.bind(*variable, goal.class, &mut state) {
                    goals.push(Goal { pattern, ..goal });
                    self.solve(goals, state, found);
                }
            }
            Pattern::Result { .. } | Pattern::Op { .. } => self.solve_node(goal, &goals, &state, found),
        }
    }

    fn bind(&self, variable: usize, class: Id, state: &mut Match) -> bool {
        match state.bindings.classes[variable] {
            None => {
                state.bindings.classes[variable] = Some(class);
                true
            }
            Some(bound) if bound == class => {
                state.merges.extend_from_slice(&self.graph[class].data.merges);
                true
            }
            Some(_) => false,
        }
    }

    fn solve_node(&self, goal: Goal<'a>, goals: &[Goal<'a>], state: &Match, found: &mut Vec<Match>) {
        let class = &self.graph[goal.class];
        for term in &class.nodes {
            let Some((children, bound)) = self.node_fits(goal.pattern, term) else { continue };
            let mut next = state.clone();
            next.origins.push(term.origin);
            next.ops.extend(bound);
            if !goal.is_root {
                next.merges.extend_from_slice(&class.data.merges);
            }
            let is_commutative = matches!(term.head, Head::Op { is_commutative: true, .. });
            let swaps = is_commutative && term.children[0] != term.children[1] && children[0] != children[1];
            for is_swapped in [false, true].into_iter().take(1 + usize::from(swaps)) {
                let mut goals: SmallVec<[Goal<'a>; 16]> = SmallVec::from_slice(goals);
                for (position, pattern) in children.iter().enumerate().rev() {
                    let child = if is_swapped { term.children.len() - 1 - position } else { position };
                    goals.push(Goal { pattern, class: self.graph.find(term.children[child]), is_root: false });
                }
                self.solve(goals, next.clone(), found);
            }
        }
    }

    /// The patterns for a node's children and the op variable that it binds, if its head fits.
    fn node_fits(&self, pattern: &'a Pattern, term: &Term) -> Option<(&'a [Pattern], Option<BoundOp>)> {
        match (pattern, term.head) {
            (Pattern::Result { index, tuple }, Head::Result(found)) if found == *index => {
                Some((std::slice::from_ref(tuple.as_ref()), None))
            }
            (Pattern::Op { kind, attributes, children }, Head::Op { kind: found, op, is_commutative: _ })
                if found == *kind && children.len() == term.children.len() =>
            {
                match attributes {
                    Attributes::Any => Some((children, None)),
                    Attributes::LastAxis => {
                        let ty = self.graph[term.children[0]].data.ty()?;
                        is_over_last_axis(self.graph.analysis.op(op), ty.rank()).then_some((children.as_slice(), None))
                    }
                    Attributes::Bind(name) => {
                        let variable = self.names.ops.iter().position(|known| known == name)?;
                        Some((children, Some((variable, op))))
                    }
                }
            }
            (_, _) => None,
        }
    }
}

/// True when the number is the literal, or close to it where the literal is approximate.
fn is_literal(value: f64, literal: f64, is_approximate: bool) -> bool {
    value == literal || is_approximate && (value - literal).abs() <= LITERAL_TOLERANCE * literal.abs()
}

/// True for a reduction over the last axis alone.
pub(super) fn is_over_last_axis(op: &Op, rank: usize) -> bool {
    let axes = match op {
        Op::ReduceSum(reduce) => &reduce.axes,
        Op::ReduceMean(reduce) => &reduce.axes,
        Op::ReduceMax(reduce) => &reduce.axes,
        Op::ReduceMin(reduce) => &reduce.axes,
        Op::Any(reduce) => &reduce.axes,
        Op::All(reduce) => &reduce.axes,
        _ => return false,
    };
    axes.len() == 1 && axes[0] + 1 == rank
}

impl Match {
    /// The class of a variable.
    pub fn class(&self, variable: usize) -> Id {
        self.bindings.classes[variable].expect("the left side binds every variable of the right side")
    }

    /// The op of an op variable.
    pub fn op(&self, variable: usize) -> OpId {
        let bound = self.ops.iter().find(|(bound, _)| *bound == variable);
        bound.expect("the left side binds every op variable of the right side").1
    }
}
