//! Compilations kept on disk, found by everything that they depend on.
//!
//! A key covers the graph, the options that change results, the target and the compiler itself;
//! [`Key`] keeps its parts apart. Processes that want the same key at once compile it once: one has
//! the key's lock, the others wait and read. An entry is read only with the right checksum, and
//! whatever goes wrong with the cache is a notice, never a failed compilation. Failed compilations
//! are not kept.
//!
//! Here is no environment: callers say where the cache is.

mod entry;
mod key;
mod settings;
mod store;

use std::io;
use std::time::Instant;

use ir::Graph;

pub use entry::{Damage, Entry};
pub use key::{COMPILER_VERSION, Difference, Key};
pub use settings::{DEFAULT_MAX_BYTES, DIRECTORY_VARIABLE, SIZE_VARIABLE};
pub use store::{Cache, Extent, KeyLock, Listed};

use crate::error::Error;
use crate::pipeline::{Options, Watcher, compile};
use crate::report::{CacheUse, Report};

/// A NEFF and the report on its compilation, compiled now or earlier.
#[derive(Clone, Debug)]
pub struct Built {
    pub neff: Vec<u8>,
    pub report: Report,
}

/// Compiles a graph, or takes what an earlier compilation gave.
///
/// Compilations that are watched (`print_after`), cut short or limited by fuel neither read the
/// cache nor write it.
///
/// # Errors
/// As [`compile`], and for `stop_after`, which leaves no NEFF.
pub fn build(
    graph: &Graph,
    options: &Options,
    cache: Option<&Cache>,
    watcher: &mut dyn Watcher,
) -> Result<Built, Error> {
    let is_whole = options.print_after.is_empty() && options.stop_after.is_none() && options.fuel.is_none();
    let Some(cache) = cache.filter(|_| is_whole) else { return compiled(graph, options, CacheUse::Off, watcher) };
    let start = Instant::now();
    let key = Key::new(graph, options);
    let digest = key.digest();
    if let Lookup::Hit(entry) = lookup(cache, &digest) {
        watcher.show(&format!("compile cache: hit {}", &digest[..12]));
        return Ok(hit(cache, &digest, *entry, start));
    }
    let lock = cache.lock(&digest, &mut || watcher.show("waiting for another process that compiles the same graph"));
    match lookup(cache, &digest) {
        // Another process has compiled it meanwhile.
        Lookup::Hit(entry) => return Ok(hit(cache, &digest, *entry, start)),
        Lookup::Missing => {}
        Lookup::Useless(reason) => {
            let folder = cache.folder().display();
            watcher.notice(&format!("compile cache {folder}: entry {}: {reason}; compiling anew", &digest[..12]));
        }
    }
    let built = compiled(graph, options, CacheUse::Miss, watcher)?;
    let stored = lock.and_then(|lock| {
        let entry = Entry { key, report: built.report.clone(), neff: built.neff.clone() };
        match entry.to_bytes() {
            Some(bytes) => cache.write(&lock, &digest, &bytes),
            None => Err(io::Error::other("the report is too long")),
        }
    });
    if let Err(error) = stored {
        let folder = cache.folder().display();
        watcher.notice(&format!("compile cache {folder}: {error}; the result is not kept"));
    }
    Ok(built)
}

enum Lookup {
    Hit(Box<Entry>),
    Missing,
    /// There is something that cannot be used, for this reason.
    Useless(String),
}

fn lookup(cache: &Cache, digest: &str) -> Lookup {
    match cache.read(digest) {
        Ok(Some(Ok(entry))) => Lookup::Hit(Box::new(entry)),
        Ok(None) => Lookup::Missing,
        Ok(Some(Err(damage))) => Lookup::Useless(damage.to_string()),
        // That the folder cannot be used at all is told when writing fails.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Lookup::Missing,
        Err(error) => Lookup::Useless(error.to_string()),
    }
}

fn hit(cache: &Cache, digest: &str, entry: Entry, start: Instant) -> Built {
    cache.note_use(digest);
    let Entry { key: _, mut report, neff } = entry;
    report.cache = Some(CacheUse::Hit);
    report.compile_seconds = Some(start.elapsed().as_secs_f64());
    Built { neff, report }
}

fn compiled(graph: &Graph, options: &Options, cache: CacheUse, watcher: &mut dyn Watcher) -> Result<Built, Error> {
    let mut compiled = compile(graph, options, watcher)?;
    let mut report = Report::new(graph.name.clone());
    report.note_options(options);
    report.note_compiled(graph, &compiled);
    report.cache = Some(cache);
    report.ok = true;
    let neff = compiled.neff.take().ok_or_else(|| Error::Usage("--stop-after leaves no NEFF".to_owned()))?;
    Ok(Built { neff, report })
}

/// What the cache has for a key.
#[derive(Clone, Debug)]
pub enum Why {
    /// The entry.
    Hit(Listed),
    /// There is none for this key. The nearest entry is of this graph, and differs in this; `None`
    /// where the cache is empty.
    Miss(Option<(Listed, String, Vec<Difference>)>),
}

/// Says why a key is found in the cache, or why not.
///
/// # Errors
/// Those of reading the cache.
pub fn why(cache: &Cache, key: &Key) -> io::Result<Why> {
    let digest = key.digest();
    let listed = cache.list()?;
    if let Some(entry) = listed.iter().find(|entry| entry.digest == digest)
        && let Some(Ok(_)) = cache.read(&digest)?
    {
        return Ok(Why::Hit(entry.clone()));
    }
    let mut nearest: Option<([bool; 9], Listed, Key, String)> = None;
    for entry in listed {
        let Ok(Ok((other, report))) = cache.read_header(&entry.digest) else { continue };
        let distance = key.distance(&other);
        // Of equally near ones the last used comes first.
        if entry.digest != digest && nearest.as_ref().is_none_or(|(least, ..)| distance < *least) {
            nearest = Some((distance, entry, other, report.graph));
        }
    }
    Ok(Why::Miss(nearest.map(|(_, entry, other, graph)| (entry, graph, key.differences(&other)))))
}
