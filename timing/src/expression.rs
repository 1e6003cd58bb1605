//! Integer expressions of kernel text: arithmetic, comparisons (1 or 0), `&&`, `||`, parentheses,
//! and the functions `min`, `max` and `size` (bytes of an element type).

use std::collections::HashMap;

use ir::Dtype;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Integer(i64),
    Dtype(Dtype),
}

pub type Names = HashMap<String, Value>;

/// Value of an expression.
///
/// # Errors
/// Unknown names, syntax, division by zero and overflow, in words.
pub fn evaluate(text: &str, names: &Names) -> Result<i64, String> {
    let mut parser = Parser { rest: text, names };
    let value = parser.either()?;
    parser.skip_spaces();
    if parser.rest.is_empty() { Ok(value) } else { Err(format!("`{}` is left over in `{text}`", parser.rest)) }
}

struct Parser<'a> {
    rest: &'a str,
    names: &'a Names,
}

impl<'a> Parser<'a> {
    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip_spaces();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn either(&mut self) -> Result<i64, String> {
        let mut value = self.both()?;
        while self.take("||") {
            let other = self.both()?;
            value = i64::from(value != 0 || other != 0);
        }
        Ok(value)
    }

    fn both(&mut self) -> Result<i64, String> {
        let mut value = self.comparison()?;
        while self.take("&&") {
            let other = self.comparison()?;
            value = i64::from(value != 0 && other != 0);
        }
        Ok(value)
    }

    fn comparison(&mut self) -> Result<i64, String> {
        let value = self.sum()?;
        // Longer operators first.
        type Compare = fn(i64, i64) -> bool;
        let operators: [(&str, Compare); 6] = [
            ("==", |a, b| a == b),
            ("!=", |a, b| a != b),
            ("<=", |a, b| a <= b),
            (">=", |a, b| a >= b),
            ("<", |a, b| a < b),
            (">", |a, b| a > b),
        ];
        for (operator, compare) in operators {
            if self.take(operator) {
                return Ok(i64::from(compare(value, self.sum()?)));
            }
        }
        Ok(value)
    }

    fn sum(&mut self) -> Result<i64, String> {
        let mut value = self.product()?;
        loop {
            let result = if self.take("+") {
                value.checked_add(self.product()?)
            } else if self.take("-") {
                value.checked_sub(self.product()?)
            } else {
                return Ok(value);
            };
            value = result.ok_or("a sum is too large")?;
        }
    }

    fn product(&mut self) -> Result<i64, String> {
        let mut value = self.atom()?;
        loop {
            let result = if self.take("*") {
                value.checked_mul(self.atom()?)
            } else if self.take("/") {
                value.checked_div(self.atom()?)
            } else if self.take("%") {
                value.checked_rem(self.atom()?)
            } else {
                return Ok(value);
            };
            value = result.ok_or("a product is too large, or a divisor is 0")?;
        }
    }

    fn atom(&mut self) -> Result<i64, String> {
        if self.take("-") {
            return Ok(-self.atom()?);
        }
        if self.take("(") {
            let value = self.either()?;
            return if self.take(")") { Ok(value) } else { Err("`)` is missing".to_string()) };
        }
        self.skip_spaces();
        let end = self.rest.find(|symbol: char| !symbol.is_ascii_alphanumeric() && symbol != '_');
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        if word.starts_with(|symbol: char| symbol.is_ascii_digit()) {
            return word.parse().map_err(|_| format!("`{word}` is no number"));
        }
        match word {
            "min" | "max" => {
                let (a, b) = self.two_arguments()?;
                Ok(if word == "min" { a.min(b) } else { a.max(b) })
            }
            "size" => self.dtype_argument().map(|dtype| dtype.size_bytes() as i64),
            "" => Err(format!("a number or name is missing before `{}`", self.rest)),
            name => match self.names.get(name) {
                Some(&Value::Integer(value)) => Ok(value),
                Some(Value::Dtype(_)) => Err(format!("`{name}` is an element type, not a number")),
                None => Err(format!("`{name}` is not declared")),
            },
        }
    }

    fn two_arguments(&mut self) -> Result<(i64, i64), String> {
        if !self.take("(") {
            return Err("`(` is missing".to_string());
        }
        let first = self.either()?;
        if !self.take(",") {
            return Err("`,` is missing".to_string());
        }
        let second = self.either()?;
        if self.take(")") { Ok((first, second)) } else { Err("`)` is missing".to_string()) }
    }

    fn dtype_argument(&mut self) -> Result<Dtype, String> {
        let inner = self.rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        let (name, rest) = inner.ok_or("`size` takes an element type in parentheses")?;
        self.rest = rest;
        match self.names.get(name.trim()) {
            Some(&Value::Dtype(dtype)) => Ok(dtype),
            _ => name.trim().parse().map_err(|_| format!("`{name}` is no element type")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_the_usual_precedence() {
        let names = Names::from([("k".to_string(), Value::Integer(7)), ("T".to_string(), Value::Dtype(Dtype::Bf16))]);
        for (text, expected) in [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("k % 3 == 1 && k > 6", 1),
            ("k / 2 - -1", 4),
            ("min(k, 3) + max(k, 9) * size(T) + size(f32)", 25),
            ("0 || k != 7", 0),
        ] {
            assert_eq!(evaluate(text, &names), Ok(expected), "{text}");
        }
        for wrong in ["", "1 +", "k / 0", "q", "T + 1", "(1", "1 2", "9223372036854775807 + 1"] {
            assert!(evaluate(wrong, &names).is_err(), "{wrong}");
        }
    }
}
