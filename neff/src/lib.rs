//! NEFF container, instruction codec and ELF kernel objects: reading and writing, no lowering.
//!
//! * [`container`]: header and payload of a NEFF, tolerant reader and deterministic writer.
//! * [`members`]: the documented JSON members and `.npy` constants as types.
//! * [`info`]: what an inspector says about any NEFF, as a report and as text.
//! * [`unpack`]: the members of a NEFF as files in a folder.
//! * [`isa`]: the open instruction encoding.
//! * [`decoded`]: a NEFF in the open encoding as a program again.
//! * [`objdump`]: the same as text.
//! * [`kernel_object`]: the ELF relocatable object of one kernel.
//!
//! `docs/neff.md` describes the files byte by byte. Every reader here takes bytes that anyone may have made:
//! it never panics, reads no more than [`container::Limits`] allows, and says where and why it stopped.

pub mod container;
pub mod decoded;
mod error;
pub mod info;
pub mod isa;
pub mod json;
pub mod kernel_object;
pub mod members;
pub mod objdump;
pub mod unpack;

pub use error::{Code, Error, Place};
