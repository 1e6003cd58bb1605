//! What `benches/peers.py` measured.

use std::path::Path;

use serde_json::Value;

/// Figures by peer; none where no file is.
#[derive(Default)]
pub struct Peers(serde_json::Map<String, Value>);

impl Peers {
    /// Reads the file that the script writes.
    pub fn read(path: &Path) -> Peers {
        let bytes = std::fs::read(path).unwrap_or_default();
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(peers)) => Peers(peers),
            Ok(_) | Err(_) => Peers::default(),
        }
    }

    /// Seconds of each peer that compiled a graph, and why others have none.
    pub fn text(&self, graph: &str) -> String {
        let figures = self.0.iter().filter_map(|(peer, found)| {
            let text = match found["seconds"][graph].as_f64() {
                Some(seconds) => super::rows::seconds_text(seconds),
                None => found["missing"][graph].as_str()?.to_owned(),
            };
            Some(format!("{peer} {text}"))
        });
        figures.collect::<Vec<String>>().join(", ")
    }

    /// A line for each peer: its version, or why it is not here.
    pub fn lines(&self) -> Vec<String> {
        if self.0.is_empty() {
            return vec!["peers: not measured; `make bench` does".to_owned()];
        }
        let lines = self.0.iter().map(|(peer, found)| {
            let version = found["versions"].as_str().or_else(|| found["skipped"].as_str());
            format!("{peer}: {}", version.unwrap_or("no version"))
        });
        lines.collect()
    }
}
