//! Prints programs in the canonical text form.

use std::fmt;
use std::fmt::Write as _;

use crate::program::{
    DmaAccess, DmaPlace, HbmKind, HbmTensor, Instruction, InstructionKind, Program, ScalarOperand, Tile, TileView,
};

impl fmt::Display for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write!(text, "program ")?;
        quote(&mut text, &self.name);
        writeln!(text, " target {} phase {}", self.target, self.phase)?;
        for (position, location) in self.locations.iter().enumerate() {
            write!(text, "location #{position} ")?;
            let fields = [&location.node, &location.target, &location.module, &location.line];
            for (field_idx, field) in fields.into_iter().enumerate() {
                text.push_str(if field_idx == 0 { "" } else { " " });
                quote(&mut text, field);
            }
            text.push('\n');
        }
        for (position, tensor) in self.tensors.iter().enumerate() {
            print_tensor(&mut text, position, tensor)?;
        }
        for (position, tile) in self.tiles.iter().enumerate() {
            print_tile(&mut text, position, tile)?;
        }
        formatter.write_str(&text)?;
        for instruction in &self.instructions {
            writeln!(formatter, "{}", self.instruction_text(instruction))?;
        }
        Ok(())
    }
}

impl Program {
    /// One instruction as one line without its line end.
    pub fn instruction_text(&self, instruction: &Instruction) -> String {
        let mut printer = Printer { program: self, text: String::new() };
        printer.instruction(instruction);
        printer.text
    }

    /// A tile view as the text form writes it.
    pub fn view_text(&self, view: &TileView) -> String {
        let mut printer = Printer { program: self, text: String::new() };
        printer.view(view);
        printer.text
    }

    /// One side of a DMA as the text form writes it.
    pub fn access_text(&self, access: &DmaAccess) -> String {
        let mut printer = Printer { program: self, text: String::new() };
        printer.access(access);
        printer.text
    }
}

fn print_tensor(text: &mut String, position: usize, tensor: &HbmTensor) -> fmt::Result {
    write!(text, "tensor %h{position} ")?;
    quote(text, &tensor.name);
    write!(text, " {}[", tensor.dtype)?;
    for (axis, dim) in tensor.shape.iter().enumerate() {
        write!(text, "{}{dim}", if axis == 0 { "" } else { ", " })?;
    }
    write!(text, "] {} bytes ", tensor.size_bytes)?;
    match &tensor.kind {
        HbmKind::Input(position) => write!(text, "input {position}")?,
        HbmKind::Output(position) => write!(text, "output {position}")?,
        HbmKind::Updated { input, output } => write!(text, "updated {input} {output}")?,
        HbmKind::Scratch => text.push_str("scratch"),
        HbmKind::Constant(bytes) => {
            text.push_str("constant x\"");
            for byte in bytes.iter() {
                write!(text, "{byte:02x}")?;
            }
            text.push('"');
        }
    }
    text.push('\n');
    Ok(())
}

fn print_tile(text: &mut String, position: usize, tile: &Tile) -> fmt::Result {
    write!(text, "tile %t{position} ")?;
    quote(text, &tile.label);
    write!(text, " {} {} {}x{}", tile.space, tile.dtype, tile.n_partitions, tile.bytes_per_partition)?;
    write!(text, " align {}", tile.alignment_bytes)?;
    if let Some(address) = tile.address {
        write!(text, " at {}+{}", address.partition, address.start_byte)?;
    }
    text.push('\n');
    Ok(())
}

/// Writes a string in quotes; control characters, quotes and backslashes are escaped.
fn quote(text: &mut String, value: &str) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            control if control.is_control() => text.push_str(&format!("\\u{{{:x}}}", u32::from(control))),
            other => text.push(other),
        }
    }
    text.push('"');
}

/// The shortest decimal that reads back to the same bits; bits in hexadecimal for NaN.
fn float_text(value: f32) -> String {
    if value.is_nan() { format!("nan:{:08x}", value.to_bits()) } else { format!("{value:?}") }
}

struct Printer<'a> {
    program: &'a Program,
    text: String,
}

impl Printer<'_> {
    fn word(&mut self, word: impl fmt::Display) {
        self.text.push(' ');
        self.text.push_str(&word.to_string());
    }

    fn key(&mut self, key: &str, value: impl fmt::Display) {
        self.word(key);
        self.text.push('=');
        self.text.push_str(&value.to_string());
    }

    fn view_key(&mut self, key: &str, view: &TileView) {
        self.key(key, "");
        self.view(view);
    }

    fn operand_key(&mut self, key: &str, operand: &ScalarOperand) {
        match operand {
            ScalarOperand::Immediate(value) => self.key(key, float_text(*value)),
            ScalarOperand::Vector(view) => self.view_key(key, view),
        }
    }

    fn flag(&mut self, word: &str, set: bool) {
        if set {
            self.word(word);
        }
    }

    fn result(&mut self, view: &TileView) {
        self.word("-> ");
        self.view(view);
    }

    fn view(&mut self, view: &TileView) {
        let last = u32::from(view.partition) + u32::from(view.n_partitions);
        self.text.push_str(&format!("%t{}[{}:{last}, {}", view.tile.0, view.partition, view.offset));
        for dim in &view.dims {
            self.text.push_str(&format!("{:+}x{}", dim.step, dim.count));
        }
        self.text.push(']');
        if self.program.tiles.get(view.tile.index()).is_none_or(|tile| tile.dtype != view.dtype) {
            self.text.push_str(&format!(":{}", view.dtype));
        }
    }

    fn access(&mut self, access: &DmaAccess) {
        let declared = match access.place {
            DmaPlace::Hbm { tensor } => {
                match tensor.bound_place() {
                    Some(place) => self.text.push_str(&format!("%b{place}[{}", access.offset)),
                    None => self.text.push_str(&format!("%h{}[{}", tensor.0, access.offset)),
                }
                self.program.tensors.get(tensor.index()).map(|tensor| tensor.dtype)
            }
            DmaPlace::Tile { tile, partition } => {
                self.text.push_str(&format!("%t{}[{partition}, {}", tile.0, access.offset));
                self.program.tiles.get(tile.index()).map(|tile| tile.dtype)
            }
        };
        for dim in &access.dims {
            if dim.partition_step != 0 {
                self.text.push_str(&format!("{:+}p", dim.partition_step));
            }
            self.text.push_str(&format!("{:+}x{}", dim.step, dim.count));
        }
        self.text.push(']');
        if declared != Some(access.dtype) {
            self.text.push_str(&format!(":{}", access.dtype));
        }
    }

    fn access_key(&mut self, key: &str, access: &DmaAccess) {
        self.key(key, "");
        self.access(access);
    }

    fn instruction(&mut self, instruction: &Instruction) {
        self.text.push_str(&format!("{}: {}", instruction.engine, instruction.kind.name()));
        self.kind(&instruction.kind);
        for wait in &instruction.waits {
            self.word(format_args!("wait s{}>={}", wait.semaphore, wait.at_least));
        }
        if let Some(update) = instruction.update {
            self.word(format_args!("update s{}+{}", update.semaphore, update.add));
        }
        for location in &instruction.locations {
            self.word(format_args!("#{}", location.0));
        }
    }

    fn kind(&mut self, kind: &InstructionKind) {
        match kind {
            InstructionKind::Activation { function, dst, data, scale, bias, reduce, reduce_result } => {
                self.word(function);
                self.view_key("dst", dst);
                self.view_key("data", data);
                self.operand_key("scale", scale);
                self.operand_key("bias", bias);
                if let Some(command) = reduce {
                    self.key("reduce", command);
                }
                if let Some(view) = reduce_result {
                    self.result(view);
                }
            }
            InstructionKind::Dma { dst, src, queue, gather } => {
                self.access_key("dst", dst);
                self.access_key("src", src);
                self.key("queue", queue);
                if let Some(gather) = gather {
                    self.view_key("gather", &gather.index);
                    self.key("row_elements", gather.row_elements);
                    self.key("n_rows", gather.n_rows);
                }
            }
            InstructionKind::Matmul { dst, stationary, moving, accumulate } => {
                self.view_key("dst", dst);
                self.view_key("stationary", stationary);
                self.view_key("moving", moving);
                self.flag("accumulate", *accumulate);
            }
            InstructionKind::LoadTable { set } => self.word(set),
            InstructionKind::Call { entry, bindings } => {
                self.key("entry", entry);
                self.key("bindings", bindings);
            }
            InstructionKind::ClearSemaphores { first, count } => {
                self.key("first", first);
                self.key("count", count);
            }
            InstructionKind::Sync | InstructionKind::Return => {}
            InstructionKind::TensorScalar { .. }
            | InstructionKind::TensorScalarReduce { .. }
            | InstructionKind::ScalarTensorTensor { .. }
            | InstructionKind::TensorTensor { .. }
            | InstructionKind::TensorReduce { .. }
            | InstructionKind::TensorTensorScan { .. } => self.arithmetic(kind),
            InstructionKind::TensorCopy { dst, src } => {
                self.view_key("dst", dst);
                self.view_key("src", src);
            }
            InstructionKind::TensorCopyPredicated { dst, src, predicate } => {
                self.view_key("dst", dst);
                self.view_key("src", src);
                self.view_key("predicate", predicate);
            }
            InstructionKind::Memset { dst, value } => {
                self.view_key("dst", dst);
                self.key("value", float_text(*value));
            }
            InstructionKind::Iota { dst, steps, offset, channel_multiplier } => {
                self.view_key("dst", dst);
                let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
                self.key("steps", format_args!("[{}]", steps.join(", ")));
                self.key("offset", offset);
                self.key("channel_multiplier", channel_multiplier);
            }
            InstructionKind::Reciprocal { dst, data }
            | InstructionKind::BnStats { dst, data }
            | InstructionKind::BnAggr { dst, data }
            | InstructionKind::Transpose { dst, data } => {
                self.view_key("dst", dst);
                self.view_key("data", data);
            }
        }
    }

    /// The vector engine's instructions with ALU operators; the others print nothing here.
    fn arithmetic(&mut self, kind: &InstructionKind) {
        match kind {
            InstructionKind::TensorScalar { dst, data, op0, operand0, reverse0, second } => {
                self.first_stage(dst, data, (op0, operand0, *reverse0));
                if let Some((op1, operand1, reverse1)) = second {
                    self.key("op1", op1);
                    self.operand_key("operand1", operand1);
                    self.flag("reverse1", *reverse1);
                }
            }
            InstructionKind::TensorScalarReduce { dst, data, op0, operand0, reduce_op, reduce_result } => {
                self.first_stage(dst, data, (op0, operand0, false));
                self.key("reduce", reduce_op);
                self.result(reduce_result);
            }
            InstructionKind::ScalarTensorTensor { dst, data, op0, operand0, reverse0, op1, operand1, reverse1 } => {
                self.first_stage(dst, data, (op0, operand0, *reverse0));
                self.key("op1", op1);
                self.view_key("operand1", operand1);
                self.flag("reverse1", *reverse1);
            }
            InstructionKind::TensorTensor { dst, lhs, rhs, op } => {
                self.view_key("dst", dst);
                self.view_key("lhs", lhs);
                self.view_key("rhs", rhs);
                self.key("op", op);
            }
            InstructionKind::TensorReduce { dst, data, op, n_reduced_dims, negate } => {
                self.view_key("dst", dst);
                self.view_key("data", data);
                self.key("op", op);
                self.key("n_reduced_dims", n_reduced_dims);
                self.flag("negate", *negate);
            }
            InstructionKind::TensorTensorScan { dst, data0, data1, initial, op0, op1 } => {
                self.view_key("dst", dst);
                self.view_key("data0", data0);
                self.view_key("data1", data1);
                self.operand_key("initial", initial);
                self.key("op0", op0);
                self.key("op1", op1);
            }
            InstructionKind::Activation { .. }
            | InstructionKind::TensorCopy { .. }
            | InstructionKind::TensorCopyPredicated { .. }
            | InstructionKind::Reciprocal { .. }
            | InstructionKind::Memset { .. }
            | InstructionKind::Iota { .. }
            | InstructionKind::BnStats { .. }
            | InstructionKind::BnAggr { .. }
            | InstructionKind::Matmul { .. }
            | InstructionKind::Transpose { .. }
            | InstructionKind::Dma { .. }
            | InstructionKind::LoadTable { .. }
            | InstructionKind::Sync
            | InstructionKind::Call { .. }
            | InstructionKind::Return
            | InstructionKind::ClearSemaphores { .. } => {}
        }
    }

    fn first_stage(
        &mut self,
        dst: &TileView,
        data: &TileView,
        (op, operand, reverse): (&crate::program::AluOp, &ScalarOperand, bool),
    ) {
        self.view_key("dst", dst);
        self.view_key("data", data);
        self.key("op0", op);
        self.operand_key("operand0", operand);
        self.flag("reverse0", reverse);
    }
}
