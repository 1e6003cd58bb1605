//! `neffuse cache`: what the compile cache holds, and why a graph is or is not in it.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand};

use super::compile::{Parameters, import_file};
use super::{CompileOptions, Outcome};
use crate::cache::{Cache, Difference, Key, Listed, Why, why};
use crate::error::Error;
use crate::report::bytes_text;

/// Digits of a key that are shown.
const N_SHOWN_DIGITS: usize = 12;
/// Longest graph name that is shown whole.
const MAX_NAME_CHARS: usize = 32;

/// Look into the compile cache
///
/// Compilations are kept in NEFFUSE_CACHE_DIR, else in `neffuse` in the user's cache folder, and
/// found by everything that they depend on: the graph with its names and source lines, options,
/// target and compiler version. NEFFUSE_CACHE_SIZE bounds the cache (2G if not set; K, M, G and T are
/// powers of 1024); the longest unused compilations are removed first.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse cache ls
  neffuse cache why model.json --target trn3     found, or what differs
  neffuse cache clear --all
  NEFFUSE_CACHE_DIR=.cache neffuse compile model.json")]
pub(super) struct CacheArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List compilations, the last used first
    Ls,
    /// Say whether a graph is in the cache, or which part of its key differs
    Why {
        /// The graph, as for `neffuse compile`
        input: PathBuf,
        /// As for `neffuse compile`
        #[arg(long)]
        freeze: bool,
        #[command(flatten)]
        options: CompileOptions,
    },
    /// Remove compilations
    Clear {
        /// Remove all of them; without it, only say what would be removed
        #[arg(long)]
        all: bool,
    },
    /// Read every compilation and check that it is whole; exit code 4 if one is not
    Verify,
    /// Print the cache's folder
    Path,
}

pub(super) fn command(arguments: &CacheArgs) -> Result<Outcome, Error> {
    let cache = Cache::from_variables(&|name| std::env::var_os(name))?;
    let cache = cache.ok_or_else(|| Error::Usage("there is no cache folder: set NEFFUSE_CACHE_DIR".to_owned()))?;
    match &arguments.action {
        Action::Ls => list(&cache).map(Outcome::text),
        Action::Why { input, freeze, options } => {
            let parameters = if *freeze { Parameters::Frozen } else { Parameters::Inputs };
            let key = Key::new(&import_file(input, parameters)?, &options.options());
            let why = why(&cache, &key).map_err(|error| unusable(&cache, &error))?;
            Ok(Outcome::text(why_text(&key, &why)))
        }
        Action::Clear { all: true } => {
            let removed = cache.clear().map_err(|error| unusable(&cache, &error))?;
            let (count, bytes) = (removed.n_entries, bytes_text(removed.n_bytes));
            Ok(Outcome::text(format!("removed {}, {bytes}\n", compilations(count))))
        }
        Action::Clear { all: false } => {
            let listed = cache.list().map_err(|error| unusable(&cache, &error))?;
            let bytes = bytes_text(listed.iter().map(|entry| entry.n_bytes).sum());
            let (count, folder) = (compilations(listed.len()), cache.folder().display());
            Ok(Outcome::text(format!(
                "{folder} holds {count}, {bytes}: remove them with `neffuse cache clear --all`\n"
            )))
        }
        Action::Verify => verify(&cache),
        Action::Path => Ok(Outcome::text(format!("{}\n", cache.folder().display()))),
    }
}

fn unusable(cache: &Cache, error: &std::io::Error) -> Error {
    Error::File(format!("compile cache {}: {error}", cache.folder().display()))
}

fn compilations(count: usize) -> String {
    if count == 1 { "1 compilation".to_owned() } else { format!("{count} compilations") }
}

fn list(cache: &Cache) -> Result<String, Error> {
    let listed = cache.list().map_err(|error| unusable(cache, &error))?;
    let mut text = format!(
        "{:<N_SHOWN_DIGITS$}  {:<MAX_NAME_CHARS$}  {:<6}  {:<8}  {:>10}  {:>9}  {:>9}  {:>4}\n",
        "key", "graph", "target", "numerics", "size", "age", "last use", "uses"
    );
    let mut n_bytes = 0;
    for entry in &listed {
        n_bytes += entry.n_bytes;
        let (graph, target, numerics) = match cache.read_header(&entry.digest) {
            Ok(Ok((key, report))) => (report.graph, key.target, key.numerics),
            Ok(Err(_)) | Err(_) => ("(damaged)".to_owned(), String::new(), String::new()),
        };
        writeln!(
            text,
            "{}  {:<MAX_NAME_CHARS$}  {target:<6}  {numerics:<8}  {:>10}  {:>9}  {:>9}  {:>4}",
            shown(entry),
            shortened(&graph),
            bytes_text(entry.n_bytes),
            age(entry.written),
            age(entry.last_use),
            entry.n_uses
        )
        .expect("strings take all text");
    }
    let (count, folder) = (compilations(listed.len()), cache.folder().display());
    let (size, bound) = (bytes_text(n_bytes), bytes_text(cache.max_bytes()));
    writeln!(text, "{count}, {size} of at most {bound}, in {folder}").expect("strings take all text");
    Ok(text)
}

fn why_text(key: &Key, why: &Why) -> String {
    match why {
        Why::Hit(entry) => format!(
            "hit: {}, compiled {} ago, last used {} ago, uses: {}\n",
            shown(entry),
            age(entry.written),
            age(entry.last_use),
            entry.n_uses
        ),
        Why::Miss(None) => "miss: the cache is empty\n".to_owned(),
        Why::Miss(Some((entry, graph, differences))) => {
            let mut text = format!("miss: no entry {}\n", &key.digest()[..N_SHOWN_DIGITS]);
            let age = age(entry.written);
            writeln!(text, "the nearest is {} ({graph}), compiled {} ago; different are", shown(entry), age)
                .expect("strings take all text");
            if differences.is_empty() {
                text += "  nothing: it is damaged and will be compiled again\n";
            }
            for Difference { part, values } in differences {
                let values = values.as_ref().map(|(here, there)| format!(": {here} here, {there} there"));
                writeln!(text, "  {part}{}", values.unwrap_or_default()).expect("strings take all text");
            }
            text
        }
    }
}

fn verify(cache: &Cache) -> Result<Outcome, Error> {
    let listed = cache.list().map_err(|error| unusable(cache, &error))?;
    let mut damaged = Vec::new();
    for entry in &listed {
        match cache.read(&entry.digest) {
            Ok(Some(Ok(_)) | None) => {}
            Ok(Some(Err(damage))) => damaged.push(format!("\n  {}: {damage}", entry.digest)),
            Err(error) => damaged.push(format!("\n  {}: {error}", entry.digest)),
        }
    }
    if damaged.is_empty() {
        return Ok(Outcome::text(format!("{}, all whole\n", compilations(listed.len()))));
    }
    let folder = cache.folder().display();
    let (count, all) = (damaged.len(), compilations(listed.len()));
    let message = format!("compile cache {folder}: {count} of {all} damaged; each is compiled again when needed");
    Err(Error::Mismatch(message + &damaged.concat()))
}

fn shown(entry: &Listed) -> &str {
    &entry.digest[..N_SHOWN_DIGITS]
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= MAX_NAME_CHARS {
        return name.to_owned();
    }
    let kept: String = name.chars().take(MAX_NAME_CHARS - 3).collect();
    kept + "..."
}

/// Time since then in its largest unit.
fn age(time: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(time).map_or(0, |age| age.as_secs());
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}
