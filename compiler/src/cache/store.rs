//! The cache's folder: entries that are whole or not there, whoever writes and dies meanwhile.
//!
//! `entries/KEY.entry` is an entry, `entries/KEY.tmp` one that is being written, `entries/KEY.uses`
//! grows by a byte with each use, so that its length counts uses and its time is the last one.
//! `locks/` holds files that are never deleted and locked while a key of theirs is compiled and
//! written: whoever has the lock knows that a `.tmp` file of that key is a dead process's.
//! Only files of these names are ever touched.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::entry::{Damage, Entry};
use super::key::Key;
use crate::report::Report;

const ENTRY: &str = "entry";
const TEMPORARY: &str = "tmp";
const USES: &str = "uses";
/// Digits of a key's digest.
const DIGEST_DIGITS: usize = 64;
/// Digits that name a lock: few enough that the files never matter, and enough that compilations of
/// different graphs hardly ever wait for each other.
const LOCK_DIGITS: usize = 3;

/// A folder of compilations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
    max_bytes: u64,
}

/// The right to compile and write the keys of one lock; given back when dropped.
#[derive(Debug)]
pub struct KeyLock {
    _file: File,
}

/// An entry as the folder shows it.
#[derive(Clone, Debug)]
pub struct Listed {
    pub digest: String,
    /// The entry's file and what belongs to it.
    pub n_bytes: u64,
    pub written: SystemTime,
    pub last_use: SystemTime,
    pub n_uses: u64,
}

/// What a removal or a look at all entries went through.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub n_entries: usize,
    pub n_bytes: u64,
}

impl Cache {
    /// A cache in this folder, which is made when something is written.
    pub fn new(folder: impl Into<PathBuf>, max_bytes: u64) -> Cache {
        Cache { folder: folder.into(), max_bytes }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How large it may grow.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The entry of this digest; `None` where there is none.
    ///
    /// # Errors
    /// Those of reading. Damage is not one of them.
    pub fn read(&self, digest: &str) -> io::Result<Option<Result<Entry, Damage>>> {
        let mut file = match File::open(self.path(digest, ENTRY)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // Nothing larger than the whole cache was ever written.
        if file.metadata()?.len() > self.max_bytes {
            return Ok(Some(Err(Damage::Foreign)));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let entry = Entry::from_bytes(&bytes);
        Ok(Some(entry.and_then(|entry| if entry.key.digest() == digest { Ok(entry) } else { Err(Damage::WrongKey) })))
    }

    /// What an entry is of, without its NEFF and without proof that it is whole.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read_header(&self, digest: &str) -> io::Result<Result<(Key, Report), Damage>> {
        Entry::read_header(&mut io::BufReader::new(File::open(self.path(digest, ENTRY))?))
    }

    /// Counts a use. A cache that cannot be written still serves.
    pub fn note_use(&self, digest: &str) {
        let uses = OpenOptions::new().append(true).create(true).open(self.path(digest, USES));
        let _ = uses.and_then(|mut uses| uses.write_all(b"."));
    }

    /// Waits until no other process or thread compiles this key; `waits` is called before a wait.
    ///
    /// # Errors
    /// When the folder cannot be written or has no locks.
    pub fn lock(&self, digest: &str, waits: &mut dyn FnMut()) -> io::Result<KeyLock> {
        fs::create_dir_all(self.folder.join("entries"))?;
        fs::create_dir_all(self.folder.join("locks"))?;
        let file = self.open_lock(digest)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waits();
                file.lock()?;
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(KeyLock { _file: file })
    }

    /// Writes an entry whole or not at all, then removes the longest unused ones beyond the bound.
    /// The lock is the digest's. What alone exceeds the bound is not kept.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&self, _lock: &KeyLock, digest: &str, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.max_bytes {
            return Ok(());
        }
        let temporary = self.path(digest, TEMPORARY);
        let written = File::create(&temporary)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, self.path(digest, ENTRY)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written?;
        self.remove_stale();
        self.evict()
    }

    /// All entries, the last used first.
    ///
    /// # Errors
    /// Those of reading the folder; one that is not there is empty.
    pub fn list(&self) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for digest in self.names(ENTRY)? {
            // Another process may remove it meanwhile.
            let Ok(metadata) = fs::metadata(self.path(&digest, ENTRY)) else { continue };
            let uses = fs::metadata(self.path(&digest, USES)).ok();
            let written = metadata.modified()?;
            let last_use =
                uses.as_ref().and_then(|uses| uses.modified().ok()).map_or(written, |used| used.max(written));
            let n_uses = uses.map_or(0, |uses| uses.len());
            listed.push(Listed { digest, n_bytes: metadata.len() + n_uses, written, last_use, n_uses });
        }
        listed.sort_by(|one, other| other.last_use.cmp(&one.last_use).then_with(|| one.digest.cmp(&other.digest)));
        Ok(listed)
    }

    /// Removes one entry, if it is there.
    ///
    /// # Errors
    /// Those of removing it.
    pub fn remove(&self, digest: &str) -> io::Result<()> {
        let _ = fs::remove_file(self.path(digest, USES));
        match fs::remove_file(self.path(digest, ENTRY)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes all entries and what dead processes left.
    ///
    /// # Errors
    /// The first error of removing one.
    pub fn clear(&self) -> io::Result<Extent> {
        let mut removed = Extent::default();
        for listed in self.list()? {
            self.remove(&listed.digest)?;
            removed.n_entries += 1;
            removed.n_bytes += listed.n_bytes;
        }
        self.remove_stale();
        Ok(removed)
    }

    fn evict(&self) -> io::Result<()> {
        let listed = self.list()?;
        let mut n_bytes: u64 = listed.iter().map(|entry| entry.n_bytes).sum();
        for entry in listed.iter().rev() {
            if n_bytes <= self.max_bytes {
                break;
            }
            self.remove(&entry.digest)?;
            n_bytes -= entry.n_bytes;
        }
        Ok(())
    }

    /// Removes what dead processes were writing, and counts of entries that are gone.
    fn remove_stale(&self) {
        for digest in self.names(TEMPORARY).unwrap_or_default() {
            // A living writer has the lock.
            let Ok(lock) = self.open_lock(&digest) else { continue };
            if lock.try_lock().is_ok() {
                let _ = fs::remove_file(self.path(&digest, TEMPORARY));
            }
        }
        for digest in self.names(USES).unwrap_or_default() {
            if !self.path(&digest, ENTRY).exists() {
                let _ = fs::remove_file(self.path(&digest, USES));
            }
        }
    }

    fn open_lock(&self, digest: &str) -> io::Result<File> {
        let path = self.folder.join("locks").join(&digest[..LOCK_DIGITS]);
        OpenOptions::new().write(true).create(true).truncate(false).open(path)
    }

    fn path(&self, digest: &str, extension: &str) -> PathBuf {
        self.folder.join("entries").join(format!("{digest}.{extension}"))
    }

    /// Digests with a file of this extension, sorted.
    fn names(&self, extension: &str) -> io::Result<Vec<String>> {
        let folder = match fs::read_dir(self.folder.join("entries")) {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in folder {
            let name = entry?.file_name();
            let digest = name.to_str().and_then(|name| name.strip_suffix(extension)?.strip_suffix('.'));
            let is_digest = |digest: &&str| {
                digest.len() == DIGEST_DIGITS && digest.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
            };
            names.extend(digest.filter(is_digest).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::{Cache, Extent};

    fn digest(number: usize) -> String {
        format!("{number:064x}")
    }

    fn write(cache: &Cache, number: usize, n_bytes: usize) {
        let lock = cache.lock(&digest(number), &mut || panic!("nobody else is here")).unwrap();
        cache.write(&lock, &digest(number), &vec![0; n_bytes]).unwrap();
    }

    /// Makes an entry's last use so many seconds older.
    fn age(cache: &Cache, number: usize, seconds: u64) {
        for extension in ["entry", "uses"] {
            if let Ok(file) = fs::OpenOptions::new().append(true).open(cache.path(&digest(number), extension)) {
                file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
            }
        }
    }

    fn digests(cache: &Cache) -> Vec<String> {
        cache.list().unwrap().into_iter().map(|listed| listed.digest).collect()
    }

    #[test]
    fn the_longest_unused_entries_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path(), 2500);
        for number in 0..2 {
            write(&cache, number, 1000);
        }
        age(&cache, 0, 300);
        age(&cache, 1, 200);
        cache.note_use(&digest(0));
        write(&cache, 2, 1000);
        assert_eq!(digests(&cache).len(), 2);
        assert!(!digests(&cache).contains(&digest(1)), "1 was used before 0 and 2");
        assert_eq!(cache.list().unwrap().iter().find(|listed| listed.digest == digest(0)).unwrap().n_uses, 1);
        // What does not fit at all drives nothing out.
        write(&cache, 3, 2501);
        assert_eq!(digests(&cache).len(), 2);
    }

    #[test]
    fn leftovers_of_dead_writers_go_and_those_of_living_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path(), 1 << 20);
        write(&cache, 0, 10);
        // Different locks: the leading digits differ.
        let (dead, living) = (format!("1{}", digest(1).split_off(1)), format!("2{}", digest(2).split_off(1)));
        fs::write(cache.path(&dead, "tmp"), b"half an ent").unwrap();
        fs::write(cache.path(&living, "tmp"), b"half an ent").unwrap();
        fs::write(cache.path(&dead, "uses"), b"...").unwrap();
        fs::write(folder.path().join("entries").join("notes.tmp"), b"not ours").unwrap();
        let held = cache.lock(&living, &mut || ()).unwrap();
        write(&cache, 3, 10);
        assert!(!cache.path(&dead, "tmp").exists());
        assert!(!cache.path(&dead, "uses").exists());
        assert!(cache.path(&living, "tmp").exists());
        drop(held);
        assert_eq!(cache.clear().unwrap(), Extent { n_entries: 2, n_bytes: 20 });
        assert!(!cache.path(&living, "tmp").exists());
        assert!(folder.path().join("entries").join("notes.tmp").exists());
    }

    #[test]
    fn a_folder_that_is_not_there_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("missing"), 1 << 20);
        assert!(cache.list().unwrap().is_empty());
        assert!(cache.read(&digest(0)).unwrap().is_none());
        assert_eq!(cache.clear().unwrap(), Extent::default());
        assert!(!cache.folder().exists());
    }
}
