//! Parses the text form of programs.

use smallvec::SmallVec;

use super::cursor::{Cursor, ParseError};
use crate::graph::{Location, LocationId};
use crate::program::{
    Dim, DmaAccess, DmaDim, DmaPlace, Engine, Gather, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind, Program,
    ReduceCommand, ScalarOperand, Tile, TileAddress, TileId, TileView, Update, Wait,
};
use crate::target::TargetName;
use crate::types::Dtype;

/// Most dimensions that an access pattern or a step list may have.
const MAX_DIMS: usize = 4;

/// Reads a program.
///
/// # Errors
/// The first syntax error with its line and column.
pub fn parse(text: &str) -> Result<Program, ParseError> {
    let mut parser = Parser { program: Program::new("", TargetName::Trn2) };
    let mut seen_head = false;
    let mut n_lines = 0;
    for (line_idx, line) in text.lines().enumerate() {
        n_lines = line_idx + 1;
        let mut cursor = Cursor::new(n_lines, line);
        if cursor.at_end() || cursor.eat("//") {
            continue;
        }
        if seen_head {
            parser.line(&mut cursor)?;
        } else {
            parser.head(&mut cursor)?;
            seen_head = true;
        }
        if !cursor.at_end() {
            return Err(cursor.error("end of line expected"));
        }
    }
    if !seen_head {
        return Err(Cursor::new(n_lines + 1, "").error("`program` expected"));
    }
    Ok(parser.program)
}

struct Parser {
    program: Program,
}

impl Parser {
    fn head(&mut self, cursor: &mut Cursor) -> Result<(), ParseError> {
        cursor.expect_word("program")?;
        self.program.name = cursor.string()?;
        cursor.expect_word("target")?;
        self.program.target = cursor.named()?;
        cursor.expect_word("phase")?;
        self.program.phase = cursor.named()?;
        Ok(())
    }

    fn line(&mut self, cursor: &mut Cursor) -> Result<(), ParseError> {
        if cursor.eat_word("location") {
            self.location(cursor)
        } else if cursor.eat_word("tensor") {
            self.tensor(cursor)
        } else if cursor.eat_word("tile") {
            self.tile(cursor)
        } else {
            let instruction = self.instruction(cursor)?;
            self.program.instructions.push(instruction);
            Ok(())
        }
    }

    /// Declarations are numbered in order and precede the instructions.
    fn declared(&self, cursor: &mut Cursor, sigil: &str, n_declared: usize) -> Result<(), ParseError> {
        cursor.skip_spaces();
        let start = cursor.position();
        cursor.expect(sigil)?;
        if cursor.integer::<usize>()? != n_declared {
            return Err(cursor.error_at(start, format!("`{sigil}{n_declared}` expected, declarations are in order")));
        }
        if !self.program.instructions.is_empty() {
            return Err(cursor.error_at(start, "declarations come before instructions"));
        }
        Ok(())
    }

    fn location(&mut self, cursor: &mut Cursor) -> Result<(), ParseError> {
        self.declared(cursor, "#", self.program.locations.len())?;
        let location = Location {
            node: cursor.string()?,
            target: cursor.string()?,
            module: cursor.string()?,
            line: cursor.string()?,
        };
        self.program.locations.push(location);
        Ok(())
    }

    fn tensor(&mut self, cursor: &mut Cursor) -> Result<(), ParseError> {
        self.declared(cursor, "%h", self.program.tensors.len())?;
        let name = cursor.string()?;
        let dtype = cursor.named()?;
        let shape = list(cursor, usize::MAX)?;
        let size_bytes = cursor.integer()?;
        cursor.expect_word("bytes")?;
        let kind = if cursor.eat_word("input") {
            HbmKind::Input(cursor.integer()?)
        } else if cursor.eat_word("output") {
            HbmKind::Output(cursor.integer()?)
        } else if cursor.eat_word("updated") {
            HbmKind::Updated { input: cursor.integer()?, output: cursor.integer()? }
        } else if cursor.eat_word("scratch") {
            HbmKind::Scratch
        } else {
            cursor.expect_word("constant")?;
            cursor.skip_spaces();
            HbmKind::Constant(cursor.bytes()?.into())
        };
        self.program.tensors.push(HbmTensor { name, kind, dtype, shape: shape.into_iter().collect(), size_bytes });
        Ok(())
    }

    fn tile(&mut self, cursor: &mut Cursor) -> Result<(), ParseError> {
        self.declared(cursor, "%t", self.program.tiles.len())?;
        let label = cursor.string()?;
        let space = cursor.named()?;
        let dtype = cursor.named()?;
        let n_partitions = cursor.integer()?;
        cursor.expect("x")?;
        let bytes_per_partition = cursor.integer()?;
        cursor.expect_word("align")?;
        let alignment_bytes = cursor.integer()?;
        let mut address = None;
        if cursor.eat_word("at") {
            let partition = cursor.integer()?;
            cursor.expect("+")?;
            address = Some(TileAddress { partition, start_byte: cursor.integer()? });
        }
        self.program.tiles.push(Tile {
            label,
            space,
            dtype,
            n_partitions,
            bytes_per_partition,
            alignment_bytes,
            address,
        });
        Ok(())
    }

    fn instruction(&self, cursor: &mut Cursor) -> Result<Instruction, ParseError> {
        let engine: Engine = cursor.named()?;
        cursor.expect(":")?;
        let kind = self.kind(cursor)?;
        let mut instruction = Instruction::new(engine, kind);
        while cursor.eat_word("wait") {
            let (semaphore, at_least) = semaphore(cursor, ">=")?;
            instruction.waits.push(Wait { semaphore, at_least });
        }
        if cursor.eat_word("update") {
            let (semaphore, add) = semaphore(cursor, "+")?;
            instruction.update = Some(Update { semaphore, add });
        }
        cursor.skip_spaces();
        while cursor.eat("#") {
            instruction.locations.push(LocationId(cursor.integer()?));
            cursor.skip_spaces();
        }
        Ok(instruction)
    }

    fn kind(&self, cursor: &mut Cursor) -> Result<InstructionKind, ParseError> {
        cursor.skip_spaces();
        let start = cursor.position();
        let name = cursor.word();
        Ok(match name {
            "activation" => self.activation(cursor)?,
            "tensor_scalar" => self.tensor_scalar(cursor)?,
            "tensor_scalar_reduce" => self.tensor_scalar_reduce(cursor)?,
            "scalar_tensor_tensor" => self.scalar_tensor_tensor(cursor)?,
            "tensor_tensor" => InstructionKind::TensorTensor {
                dst: self.view_key(cursor, "dst")?,
                lhs: self.view_key(cursor, "lhs")?,
                rhs: self.view_key(cursor, "rhs")?,
                op: named_key(cursor, "op")?,
            },
            "tensor_reduce" => InstructionKind::TensorReduce {
                dst: self.view_key(cursor, "dst")?,
                data: self.view_key(cursor, "data")?,
                op: named_key(cursor, "op")?,
                n_reduced_dims: integer_key(cursor, "n_reduced_dims")?,
                negate: cursor.eat_word("negate"),
            },
            "tensor_tensor_scan" => InstructionKind::TensorTensorScan {
                dst: self.view_key(cursor, "dst")?,
                data0: self.view_key(cursor, "data0")?,
                data1: self.view_key(cursor, "data1")?,
                initial: self.operand_key(cursor, "initial")?,
                op0: named_key(cursor, "op0")?,
                op1: named_key(cursor, "op1")?,
            },
            "tensor_copy" => {
                InstructionKind::TensorCopy { dst: self.view_key(cursor, "dst")?, src: self.view_key(cursor, "src")? }
            }
            "tensor_copy_predicated" => InstructionKind::TensorCopyPredicated {
                dst: self.view_key(cursor, "dst")?,
                src: self.view_key(cursor, "src")?,
                predicate: self.view_key(cursor, "predicate")?,
            },
            "memset" => {
                let dst = self.view_key(cursor, "dst")?;
                cursor.expect_key("value")?;
                InstructionKind::Memset { dst, value: cursor.float()? }
            }
            "iota" => self.iota(cursor)?,
            "reciprocal" | "bn_stats" | "bn_aggr" | "nc_transpose" => {
                let (dst, data) = (self.view_key(cursor, "dst")?, self.view_key(cursor, "data")?);
                match name {
                    "reciprocal" => InstructionKind::Reciprocal { dst, data },
                    "bn_stats" => InstructionKind::BnStats { dst, data },
                    "bn_aggr" => InstructionKind::BnAggr { dst, data },
                    _ => InstructionKind::Transpose { dst, data },
                }
            }
            "nc_matmul" => InstructionKind::Matmul {
                dst: self.view_key(cursor, "dst")?,
                stationary: self.view_key(cursor, "stationary")?,
                moving: self.view_key(cursor, "moving")?,
                accumulate: cursor.eat_word("accumulate"),
            },
            "dma_copy" => self.dma(cursor)?,
            "load_table" => InstructionKind::LoadTable { set: cursor.named()? },
            "sync" => InstructionKind::Sync,
            "call" => {
                let (entry, bindings) = (integer_key(cursor, "entry")?, integer_key(cursor, "bindings")?);
                InstructionKind::Call { entry, bindings }
            }
            "return" => InstructionKind::Return,
            "clear_semaphores" => {
                let (first, count) = (integer_key(cursor, "first")?, integer_key(cursor, "count")?);
                InstructionKind::ClearSemaphores { first, count }
            }
            _ => return Err(cursor.error_at(start, format!("no instruction is named `{name}`"))),
        })
    }

    fn activation(&self, cursor: &mut Cursor) -> Result<InstructionKind, ParseError> {
        Ok(InstructionKind::Activation {
            function: cursor.named()?,
            dst: self.view_key(cursor, "dst")?,
            data: self.view_key(cursor, "data")?,
            scale: self.operand_key(cursor, "scale")?,
            bias: self.operand_key(cursor, "bias")?,
            reduce: if cursor.eat_key("reduce") { Some(cursor.named::<ReduceCommand>()?) } else { None },
            reduce_result: if self.arrow(cursor) { Some(self.view(cursor)?) } else { None },
        })
    }

    fn tensor_scalar(&self, cursor: &mut Cursor) -> Result<InstructionKind, ParseError> {
        Ok(InstructionKind::TensorScalar {
            dst: self.view_key(cursor, "dst")?,
            data: self.view_key(cursor, "data")?,
            op0: named_key(cursor, "op0")?,
            operand0: self.operand_key(cursor, "operand0")?,
            reverse0: cursor.eat_word("reverse0"),
            second: if cursor.eat_key("op1") {
                Some((cursor.named()?, self.operand_key(cursor, "operand1")?, cursor.eat_word("reverse1")))
            } else {
                None
            },
        })
    }

    fn tensor_scalar_reduce(&self, cursor: &mut Cursor) -> Result<InstructionKind, ParseError> {
        Ok(InstructionKind::TensorScalarReduce {
            dst: self.view_key(cursor, "dst")?,
            data: self.view_key(cursor, "data")?,
            op0: named_key(cursor, "op0")?,
            operand0: self.operand_key(cursor, "operand0")?,
            reduce_op: named_key(cursor, "reduce")?,
            reduce_result: {
                cursor.skip_spaces();
                cursor.expect("->")?;
                self.view(cursor)?
            },
        })
    }

    fn scalar_tensor_tensor(&self, cursor: &mut Cursor) -> Result<InstructionKind, ParseError> {
        Ok(InstructionKind::ScalarTensorTensor {
            dst: self.view_key(cursor, "dst")?,
            data: self.view_key(cursor, "data")?,
            op0: named_key(cursor, "op0")?,
            operand0: self.operand_key(cursor, "operand0")?,
            reverse0: cursor.eat_word("reverse0"),
            op1: named_key(cursor, "op1")?,
            operand1: self.view_key(cursor, "operand1")?,
            reverse1: cursor.eat_word("reverse1"),
        })
    }

    fn iota(&self, cursor: &mut Cursor) -> Result<InstructionKind, ParseError> {
        let dst = self.view_key(cursor, "dst")?;
        cursor.expect_key("steps")?;
        Ok(InstructionKind::Iota {
            dst,
            steps: list(cursor, MAX_DIMS)?.into_iter().collect(),
            offset: integer_key(cursor, "offset")?,
            channel_multiplier: integer_key(cursor, "channel_multiplier")?,
        })
    }

    fn dma(&self, cursor: &mut Cursor) -> Result<InstructionKind, ParseError> {
        cursor.expect_key("dst")?;
        let dst = self.access(cursor)?;
        cursor.expect_key("src")?;
        let src = self.access(cursor)?;
        let queue = named_key(cursor, "queue")?;
        let mut gather = None;
        if cursor.eat_key("gather") {
            gather = Some(Gather {
                index: self.view(cursor)?,
                row_elements: integer_key(cursor, "row_elements")?,
                n_rows: integer_key(cursor, "n_rows")?,
            });
        }
        Ok(InstructionKind::Dma { dst, src, queue, gather })
    }

    fn arrow(&self, cursor: &mut Cursor) -> bool {
        cursor.skip_spaces();
        cursor.eat("->")
    }

    fn view_key(&self, cursor: &mut Cursor, key: &str) -> Result<TileView, ParseError> {
        cursor.expect_key(key)?;
        self.view(cursor)
    }

    fn operand_key(&self, cursor: &mut Cursor, key: &str) -> Result<ScalarOperand, ParseError> {
        cursor.expect_key(key)?;
        if cursor.peek() == Some('%') {
            return Ok(ScalarOperand::Vector(self.view(cursor)?));
        }
        Ok(ScalarOperand::Immediate(cursor.float()?))
    }

    fn view(&self, cursor: &mut Cursor) -> Result<TileView, ParseError> {
        cursor.skip_spaces();
        let start = cursor.position();
        cursor.expect("%t")?;
        let tile = TileId(cursor.integer()?);
        cursor.expect("[")?;
        let partition: u8 = cursor.integer()?;
        cursor.expect(":")?;
        let end_start = cursor.position();
        let end: u16 = cursor.integer()?;
        let n_partitions = end.checked_sub(u16::from(partition)).and_then(|count| u8::try_from(count).ok());
        let n_partitions = n_partitions.ok_or_else(|| cursor.error_at(end_start, "no such partition range"))?;
        cursor.expect(",")?;
        let offset = cursor.integer()?;
        let mut dims = SmallVec::new();
        while matches!(cursor.peek(), Some('+' | '-')) {
            if dims.len() == MAX_DIMS {
                return Err(cursor.error("at most four dimensions"));
            }
            let step = cursor.integer()?;
            cursor.expect("x")?;
            dims.push(Dim { step, count: cursor.integer()? });
        }
        cursor.expect("]")?;
        let declared = self.program.tiles.get(tile.index()).map(|tile| tile.dtype);
        let dtype = element_type(cursor, start, declared)?;
        Ok(TileView { tile, partition, n_partitions, offset, dims, dtype })
    }

    fn access(&self, cursor: &mut Cursor) -> Result<DmaAccess, ParseError> {
        let start = cursor.position();
        let (place, declared) = if cursor.eat("%b") {
            let place: u32 = cursor.integer()?;
            cursor.expect("[")?;
            (DmaPlace::Hbm { tensor: HbmId::bound(place) }, None)
        } else if cursor.eat("%h") {
            let tensor = HbmId(cursor.integer()?);
            cursor.expect("[")?;
            (DmaPlace::Hbm { tensor }, self.program.tensors.get(tensor.index()).map(|tensor| tensor.dtype))
        } else {
            cursor.expect("%t")?;
            let tile = TileId(cursor.integer()?);
            cursor.expect("[")?;
            let partition = cursor.integer()?;
            cursor.expect(",")?;
            (DmaPlace::Tile { tile, partition }, self.program.tiles.get(tile.index()).map(|tile| tile.dtype))
        };
        let offset = cursor.integer()?;
        let mut dims = SmallVec::new();
        while matches!(cursor.peek(), Some('+' | '-')) {
            if dims.len() == MAX_DIMS {
                return Err(cursor.error("at most four dimensions"));
            }
            dims.push(dma_dim(cursor)?);
        }
        cursor.expect("]")?;
        let dtype = element_type(cursor, start, declared)?;
        Ok(DmaAccess { place, offset, dims, dtype })
    }
}

fn dma_dim(cursor: &mut Cursor) -> Result<DmaDim, ParseError> {
    let start = cursor.position();
    let mut step: i64 = cursor.integer()?;
    let mut partition_step = 0;
    if cursor.eat("p") {
        partition_step = i16::try_from(step).map_err(|_| cursor.error_at(start, "partition step is out of range"))?;
        step = cursor.integer()?;
    }
    cursor.expect("x")?;
    Ok(DmaDim { partition_step, step, count: cursor.integer()? })
}

/// `:dtype` if it comes next, else the declared type.
fn element_type(cursor: &mut Cursor, start: usize, declared: Option<Dtype>) -> Result<Dtype, ParseError> {
    if cursor.eat(":") {
        return cursor.named();
    }
    declared.ok_or_else(|| cursor.error_at(start, "not declared"))
}

fn semaphore(cursor: &mut Cursor, relation: &str) -> Result<(u16, u16), ParseError> {
    cursor.skip_spaces();
    cursor.expect("s")?;
    let semaphore = cursor.integer()?;
    cursor.expect(relation)?;
    Ok((semaphore, cursor.integer()?))
}

fn named_key<T: std::str::FromStr<Err: std::fmt::Display>>(cursor: &mut Cursor, key: &str) -> Result<T, ParseError> {
    cursor.expect_key(key)?;
    cursor.named()
}

fn integer_key<T: TryFrom<i128>>(cursor: &mut Cursor, key: &str) -> Result<T, ParseError> {
    cursor.expect_key(key)?;
    cursor.integer()
}

/// `[a, b, ...]`.
fn list<T: TryFrom<i128>>(cursor: &mut Cursor, max_len: usize) -> Result<Vec<T>, ParseError> {
    cursor.expect("[")?;
    let mut values = Vec::new();
    if cursor.eat("]") {
        return Ok(values);
    }
    loop {
        if values.len() == max_len {
            return Err(cursor.error(format!("at most {max_len} numbers")));
        }
        values.push(cursor.integer()?);
        if cursor.eat("]") {
            return Ok(values);
        }
        cursor.expect(",")?;
    }
}
