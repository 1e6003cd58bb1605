//! Where the cache is and how large it may grow, from variables that the caller reads.

use std::ffi::OsString;
use std::path::PathBuf;

use super::Cache;
use crate::error::Error;

/// Names the cache's folder.
pub const DIRECTORY_VARIABLE: &str = "NEFFUSE_CACHE_DIR";
/// Bounds the cache's size: bytes, or a number with K, M, G or T for powers of 1024.
pub const SIZE_VARIABLE: &str = "NEFFUSE_CACHE_SIZE";
/// Bound where the variable is not set.
pub const DEFAULT_MAX_BYTES: u64 = 2 << 30;

impl Cache {
    /// The cache that the user's variables ask for: in NEFFUSE_CACHE_DIR, else where the platform
    /// keeps caches; `None` where there is no such place.
    ///
    /// # Errors
    /// A size that is none.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<Cache>, Error> {
        let max_bytes = match variable(SIZE_VARIABLE).filter(|size| !size.is_empty()) {
            None => DEFAULT_MAX_BYTES,
            Some(size) => {
                let bytes = size.to_str().and_then(size_bytes);
                bytes.ok_or_else(|| {
                    let size = size.to_string_lossy();
                    Error::Usage(format!("{SIZE_VARIABLE}: `{size}` is no size"))
                        .with_help("give bytes, or a number with K, M, G or T")
                })?
            }
        };
        Ok(folder(variable).map(|folder| Cache::new(folder, max_bytes)))
    }
}

/// The cache's folder; relative platform folders are ignored, as the XDG rules ask.
fn folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(folder) = variable(DIRECTORY_VARIABLE).filter(|folder| !folder.is_empty()) {
        return Some(PathBuf::from(folder));
    }
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let platform = if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        absolute("HOME").map(|home| home.join("Library").join("Caches"))
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))
    };
    platform.map(|caches| caches.join("neffuse"))
}

fn size_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = text.chars().last()?.to_ascii_uppercase();
    let power = "KMGT".find(unit).map_or(0, |position| position as u32 + 1);
    let number = if power == 0 { text } else { &text[..text.len() - 1] };
    let number: u64 = number.trim_end().parse().ok()?;
    number.checked_mul(1024_u64.checked_pow(power)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::path::Path;

    use super::{Cache, size_bytes};

    fn cache(variables: &[(&'static str, &str)]) -> Result<Option<Cache>, crate::Error> {
        let variables: BTreeMap<&str, OsString> =
            variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
        Cache::from_variables(&|name| variables.get(name).cloned())
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size_bytes("4096"), Some(4096));
        assert_eq!(size_bytes("3k"), Some(3 << 10));
        assert_eq!(size_bytes(" 2 G "), Some(2 << 30));
        for wrong in ["", "G", "-1", "1.5G", "many", "99999999T", "é"] {
            assert_eq!(size_bytes(wrong), None, "{wrong}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn our_variable_decides_then_the_platform() {
        let folder = |variables: &[(&'static str, &str)]| {
            cache(variables).unwrap().map(|cache| cache.folder().to_string_lossy().into_owned())
        };
        assert_eq!(folder(&[("NEFFUSE_CACHE_DIR", "here"), ("HOME", "/h")]).as_deref(), Some("here"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]).as_deref(), Some("/c/neffuse"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "c"), ("HOME", "/h")]).as_deref(), Some("/h/.cache/neffuse"));
        assert_eq!(folder(&[("NEFFUSE_CACHE_DIR", "")]), None);
    }

    #[test]
    fn a_wrong_size_is_refused() {
        let error = cache(&[("NEFFUSE_CACHE_DIR", "x"), ("NEFFUSE_CACHE_SIZE", "big")]).unwrap_err();
        assert!(error.to_string().contains("`big` is no size"), "{error}");
        let cache = cache(&[("NEFFUSE_CACHE_DIR", "x"), ("NEFFUSE_CACHE_SIZE", "1M")]).unwrap().unwrap();
        assert_eq!((cache.folder(), cache.max_bytes()), (Path::new("x"), 1 << 20));
    }
}
