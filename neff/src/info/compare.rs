//! Two NEFFs side by side: which members differ, and which header fields.
//!
//! Content is the members without the network's name: `info.json` repeats the header's, so that the same program under
//! another file name would otherwise count as another one.

use super::hexadecimal;
use crate::container::{Container, content_sha256};
use crate::members::{BuildInfo, read_json, to_compact_json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// A field that two NEFFs have with different values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderDifference {
    /// Name of the field as reports spell it.
    pub field: &'static str,
    /// Value on the left, as printed.
    pub left: String,
    /// Value on the right, as printed.
    pub right: String,
}

/// Names of the members that only one side has or whose bytes differ, but for the network's name in `info.json`.
/// Empty means equal content.
pub fn content_differences(left: &Container, right: &Container) -> Vec<String> {
    let (left, right) = (nameless(left), nameless(right));
    let names: BTreeSet<&str> = left.keys().chain(right.keys()).copied().collect();
    names.into_iter().filter(|name| left.get(name) != right.get(name)).map(str::to_owned).collect()
}

/// SHA-256 of the content in hexadecimal: equal exactly when [`content_differences`] is empty.
pub fn content_hash(container: &Container) -> String {
    let members = nameless(container);
    hexadecimal(&content_sha256(members.iter().map(|(name, bytes)| (*name, &**bytes))))
}

/// The members with the network's name taken out of `info.json`.
fn nameless(container: &Container) -> BTreeMap<&str, Cow<'_, [u8]>> {
    const MEMBER: &str = "info.json";
    let borrowed = container.members.iter().map(|(name, bytes)| (name.as_str(), Cow::Borrowed(bytes.as_slice())));
    let mut members: BTreeMap<_, _> = borrowed.collect();
    let parsed = read_json::<BuildInfo>(container, MEMBER);
    if let Ok(mut info) = parsed {
        info.name.clear();
        members.insert(MEMBER, Cow::Owned(to_compact_json(&info)));
    }
    members
}

/// Fields of header and payload form whose values differ, in the order of the header.
pub fn header_differences(left: &Container, right: &Container) -> Vec<HeaderDifference> {
    let rows = |side: &Container| {
        let header = super::HeaderReport::of(&side.header);
        [
            ("file_size", side.payload.file_bytes.to_string()),
            ("pkg_version", header.pkg_version.to_string()),
            ("header_size", header.header_size.to_string()),
            ("data_size", header.data_size.to_string()),
            ("neff_version", header.neff_version),
            ("build_version", header.build_version),
            ("num_tpb", header.num_tpb.to_string()),
            ("hash", header.hash),
            ("uuid", header.uuid),
            ("name", header.name),
            ("requested_tpb_count", header.requested_tpb_count.to_string()),
            ("tpb_per_node_first", header.tpb_per_node_first.to_string()),
            ("feature_bits", header.feature_bits),
            ("lnc_size", header.lnc_size.to_string()),
            ("pad_zero", header.pad_zero.to_string()),
            ("form", side.payload.form.as_str().to_owned()),
            ("hash_order", side.payload.hash_order.as_str().to_owned()),
            ("gzip_trailing_zero_bytes", side.payload.gzip_trailing_zero_bytes.to_string()),
        ]
    };
    let pairs = rows(left).into_iter().zip(rows(right));
    let differing = pairs.filter(|((_, left), (_, right))| left != right);
    differing.map(|((field, left), (_, right))| HeaderDifference { field, left, right }).collect()
}
