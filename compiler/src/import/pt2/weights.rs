//! Stored tensors by name: parameters, buffers and constants, where they lie in the archive.
//!
//! Tensors that share a storage share a member. Elements are read from the mapped file where they
//! are taken; types, strides and places are checked when the tables are read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use ir::types::packed_strides;
use ir::{Dtype, TensorType};

use super::archive::Archive;
use super::schema::{Payload, PayloadTable, Size, TensorMeta, dtype_name};
use crate::import::captured::dtype_of;
use crate::strided::{View, ViewMut, extent_bytes, is_same_layout};

const TABLES: [(&str, &str); 2] = [
    ("data/weights/", "data/weights/model_weights_config.json"),
    ("data/constants/", "data/constants/model_constants_config.json"),
];

/// How much larger than the file its tensors may be: expanded ones repeat elements.
const MAX_GROWTH: usize = 32;

/// What tensors of any file may take.
const FREE_BYTES: usize = 8 << 20;

/// All stored tensors of an archive.
pub struct Weights<'a> {
    archive: &'a Archive<'a>,
    tensors: BTreeMap<String, Stored>,
    /// Entries of types that the IR does not have.
    others: BTreeSet<String>,
}

/// A stored tensor of a type that the IR has.
struct Stored {
    ty: TensorType,
    strides: Vec<usize>,
    start_byte: usize,
    member: String,
}

impl<'a> Weights<'a> {
    /// Reads the tables.
    ///
    /// # Errors
    /// Tables that are damaged, or tensors that reach beyond their member.
    pub fn read(archive: &'a Archive<'a>) -> Result<Self, String> {
        let mut tensors = BTreeMap::new();
        let mut others = BTreeSet::new();
        for (folder, table) in TABLES {
            if !archive.contains(table) {
                continue;
            }
            let parsed: PayloadTable = serde_json::from_str(archive.text(table)?)
                .map_err(|error| format!("member `{table}` is no table of tensors: {error}"))?;
            for (name, payload) in parsed.config {
                let stored = stored(archive, folder, payload).map_err(|reason| format!("tensor `{name}`: {reason}"))?;
                let is_new = match stored {
                    Some(stored) => tensors.insert(name.clone(), stored).is_none(),
                    None => others.insert(name.clone()),
                };
                if !is_new {
                    return Err(format!("tensor `{name}` is stored twice"));
                }
            }
        }
        let total =
            tensors.values().fold(0usize, |total, stored: &Stored| total.saturating_add(stored.ty.size_bytes()));
        if total > archive.size_bytes().saturating_mul(MAX_GROWTH).saturating_add(FREE_BYTES) {
            let size = archive.size_bytes();
            return Err(format!("its tensors claim {total} bytes, far more than the file's {size}"));
        }
        Ok(Weights { archive, tensors, others })
    }

    /// Type of a tensor; `None` where there is none of this name and of a type that the IR has.
    pub fn ty(&self, name: &str) -> Option<&TensorType> {
        self.tensors.get(name).map(|stored| &stored.ty)
    }

    /// True where the tables have an entry of this name, whatever its type.
    pub fn is_listed(&self, name: &str) -> bool {
        self.tensors.contains_key(name) || self.others.contains(name)
    }

    /// The member that holds a tensor's elements, for telling which tensors share memory.
    pub fn member(&self, name: &str) -> Option<&str> {
        self.tensors.get(name).map(|stored| stored.member.as_str())
    }

    /// Elements of a tensor in row-major order.
    ///
    /// # Errors
    /// When there is no such tensor, or its member is damaged.
    pub fn elements(&self, name: &str) -> Result<Cow<'a, [u8]>, String> {
        let stored = self.tensors.get(name).ok_or_else(|| format!("there is no tensor `{name}`"))?;
        let Stored { ty, strides, start_byte, member } = stored;
        let extent = extent_bytes(ty, strides).expect("extents were checked when the table was read");
        let bytes = &self.archive.member(member)?[*start_byte..start_byte + extent];
        let packed = packed_strides(&ty.shape);
        if bytes.len() == ty.size_bytes() && is_same_layout(&ty.shape, strides, &packed) {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut elements = vec![0; ty.size_bytes()];
        View { ty, strides, bytes }.copy_to(&mut ViewMut { ty, strides: &packed, bytes: &mut elements });
        Ok(Cow::Owned(elements))
    }
}

/// `None` where the IR has no such tensor: an input that needs it is refused with its type.
fn stored(archive: &Archive<'_>, folder: &str, payload: Payload) -> Result<Option<Stored>, String> {
    let Payload { path_name, use_pickle, tensor_meta } = payload;
    let Some(meta) = tensor_meta.filter(|_| !use_pickle) else { return Ok(None) };
    let Some(dtype) = dtype_name(meta.dtype).and_then(dtype_of) else { return Ok(None) };
    let (ty, strides, offset) = place(&meta, dtype)?;
    let member = format!("{folder}{path_name}");
    let available = archive.member_size(&member).ok_or_else(|| format!("there is no member `{member}`"))?;
    let start_byte = offset.checked_mul(dtype.size_bytes());
    let end = start_byte.zip(extent_bytes(&ty, &strides)).and_then(|(start, extent)| start.checked_add(extent));
    match (start_byte, end) {
        (Some(start_byte), Some(end)) if end <= available => Ok(Some(Stored { ty, strides, start_byte, member })),
        (_, _) => {
            Err(format!("{ty} with strides {strides:?} from {offset} leaves the {available} bytes of `{member}`"))
        }
    }
}

fn place(meta: &TensorMeta, dtype: Dtype) -> Result<(TensorType, Vec<usize>, usize), String> {
    let number = |size: &Size| match size {
        Size::AsInt(size) => usize::try_from(*size).map_err(|_| format!("the size {size}")),
        Size::AsExpr(expression) => Err(format!("the symbolic size {}", expression.expr_str)),
    };
    let shape = meta.sizes.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let strides = meta.strides.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    if shape.len() != strides.len() {
        return Err(format!("{} dimensions but {} strides", shape.len(), strides.len()));
    }
    let offset = meta.storage_offset.as_ref().map(number).transpose()?.unwrap_or(0);
    Ok((TensorType::new(dtype, shape), strides, offset))
}
