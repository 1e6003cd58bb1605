//! NEFF container, instruction codec and ELF kernel objects: reading and writing, no lowering
