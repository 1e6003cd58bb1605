//! Every sentence that a rule has for a broken instruction comes up for some instruction.

use super::check_instruction;
use crate::program::text::parse;

const BROKEN: &str = include_str!("broken.txt");

/// What rules are written in.
const SOURCES: [&str; 4] =
    [include_str!("operations.rs"), include_str!("views.rs"), include_str!("dma.rs"), include_str!("mod.rs")];

fn program(target: &str, instruction: &str) -> String {
    let instruction = instruction
        .replace("{s}", "%t0[0:128, 0+1x8]")
        .replace("{p}", "%t1[0:128, 0+1x8]")
        .replace("{one}", "%t0[0:128, 64]")
        .replace("{h}", "%h0[0+64x128+1x64]")
        .replace("{d}", "%t0[0, 0+1p+0x128+1x64]");
    format!(
        "program \"broken\" target {target} phase synchronized
tensor %h0 \"x\" f32[128, 64] 32768 bytes input 0
tile %t0 \"sbuf\" sbuf f32 128x212984 align 4 at 0+0
tile %t1 \"psum\" psum f32 128x16384 align 4 at 0+0
tile %t2 \"beyond\" sbuf f32 32x212992 align 4 at 128+0
tile %t3 \"odd\" sbuf f32 32x1024 align 4 at 0+2
{instruction}
"
    )
}

#[test]
fn every_rule_has_an_instruction_that_breaks_it() {
    let mut messages = Vec::new();
    for line in BROKEN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let columns: Vec<&str> = line.split(" | ").collect();
        let [target, code, words, instruction] = columns[..] else { panic!("four columns: {line}") };
        let program = parse(&program(target, instruction)).unwrap_or_else(|error| panic!("{line}: {error}"));
        let target = program.target.target();
        let found = check_instruction(target, &program.instructions[0], &program.tiles, &program.tensors);
        let expected = found.iter().find(|found| found.rule.code() == code && found.message.contains(words));
        messages.push(expected.unwrap_or_else(|| panic!("{line}: {found:?}")).message.clone());
    }
    let missing: Vec<&str> = SOURCES
        .into_iter()
        .flat_map(sentences)
        .filter(|sentence| !messages.iter().any(|message| follows(message, sentence)))
        .collect();
    assert!(missing.is_empty(), "no instruction in broken.txt for {missing:#?}");
}

/// Texts that conditions have for what is broken, with braces where values stand.
fn sentences(source: &str) -> Vec<&str> {
    let openings = source.match_indices("|| \"").chain(source.match_indices("format!("));
    let texts = openings.filter_map(|(at, opening)| {
        let rest = source[at + opening.trim_end_matches('"').len()..].trim_start().strip_prefix('"')?;
        rest.split('"').next()
    });
    // What puts the instruction's name before a sentence is none.
    texts.filter(|text| !text.contains("{message}")).collect()
}

/// True where the message is the sentence with something for each pair of braces.
fn follows(message: &str, sentence: &str) -> bool {
    let parts: Vec<&str> =
        sentence.split('{').map(|part| part.split_once('}').map_or(part, |(_, after)| after)).collect();
    let Some((last, others)) = parts.split_last() else { return false };
    let mut rest = message;
    for part in others {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}
