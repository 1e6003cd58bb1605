//! Damage, drawn from a seed.

use neff::container::{Draft, Members, read, write};
use serde_json::{Value, json};

/// Sebastiano Vigna's splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 where there is none.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    pub fn of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Numbers at which sizes and indices go wrong.
const NUMBERS: [&str; 12] = [
    "0",
    "1",
    "-1",
    "2",
    "127",
    "65536",
    "2147483648",
    "4294967295",
    "1099511627776",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
];

/// One change of bytes.
fn change_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    let length = 1 + random.below(16);
    match random.below(8) {
        0 => bytes.truncate(at),
        1 | 2 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        3 if !bytes.is_empty() => bytes[at] = random.next() as u8,
        4 => drop(bytes.drain(at..(at + length).min(bytes.len()))),
        5 => {
            let copied: Vec<u8> = bytes[at..(at + length).min(bytes.len())].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copied);
        }
        6 => {
            let added: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            bytes.splice(at..at, added);
        }
        _ => inflate(bytes, at, random),
    }
}

/// Puts another number in place of the next one from `at` on.
fn inflate(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = (at..bytes.len()).find(|&place| bytes[place].is_ascii_digit()) else { return };
    let end = (start..bytes.len()).find(|&place| !bytes[place].is_ascii_digit()).unwrap_or(bytes.len());
    bytes.splice(start..end, random.of(&NUMBERS).bytes());
}

pub fn mutated_bytes(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(4) {
        change_bytes(&mut bytes, random);
    }
    bytes
}

/// Swaps, drops, repeats and exchanges words and lines of a text.
pub fn mutated_text(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let text = std::str::from_utf8(seed).expect("seeds are text");
    let mut words: Vec<String> = vec![String::new()];
    for character in text.chars() {
        let is_word = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '%' | '.' | '-');
        let joins = words.last().and_then(|word| word.chars().next_back()).is_some_and(is_word) && is_word(character);
        if !joins {
            words.push(String::new());
        }
        words.last_mut().expect("there is one").push(character);
    }
    for _ in 0..1 + random.below(3) {
        let (one, other) = (random.below(words.len()), random.below(words.len()));
        match random.below(5) {
            0 => words.swap(one, other),
            1 => words[one] = words[other].clone(),
            2 => drop(words.remove(one)),
            3 => words.insert(one, words[other].clone()),
            _ => {
                let numbers: Vec<usize> = (0..words.len())
                    .filter(|&position| words[position].starts_with(|first: char| first.is_ascii_digit()))
                    .collect();
                if !numbers.is_empty() {
                    words[*random.of(&numbers)] = (*random.of(&NUMBERS)).to_owned();
                }
            }
        }
        if words.is_empty() {
            break;
        }
    }
    words.concat().into_bytes()
}

/// Every place in a document, as a JSON pointer.
fn pointers(value: &Value, prefix: &str, found: &mut Vec<String>) {
    found.push(prefix.to_owned());
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| pointers(item, &format!("{prefix}/{at}"), found));
        }
        Value::Object(entries) => {
            entries.iter().for_each(|(key, item)| pointers(item, &format!("{prefix}/{}", escaped(key)), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Changes places of a document: other numbers and words, places exchanged, dropped and repeated.
fn change_json(document: &mut Value, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let mut places = Vec::new();
        pointers(document, "", &mut places);
        let other = document.pointer(random.of::<String>(&places)).cloned().unwrap_or_default();
        let place = random.of(&places).clone();
        let choice = random.below(8);
        let Some(value) = document.pointer_mut(&place) else { continue };
        match (choice, &mut *value) {
            (0 | 1, Value::Number(_)) => {
                *value = serde_json::from_str(random.of::<&str>(&NUMBERS)).expect("the numbers are JSON");
            }
            (0 | 1, Value::String(_)) => {
                let words = ["float32", "bfloat16", "int64", "bool", "float64", "x", "", "\u{1f980}\n", "../x"];
                *value = json!(random.of(&words));
            }
            (2, Value::Array(items)) if !items.is_empty() => drop(items.remove(random.below(items.len()))),
            (3, Value::Array(items)) if !items.is_empty() => {
                let item = items[random.below(items.len())].clone();
                items.push(item);
            }
            (2, Value::Object(entries)) if !entries.is_empty() => {
                let keys: Vec<String> = entries.keys().cloned().collect();
                entries.remove(random.of(&keys));
            }
            (4, _) => {
                let odd =
                    [json!(null), json!({}), json!([]), json!(-0.5), json!(1e308), json!({"ref": 1}), json!(true)];
                *value = random.of(&odd).clone();
            }
            (_, _) => *value = other,
        }
    }
}

pub fn mutated_json(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut document: Value = serde_json::from_slice(seed).expect("seeds are JSON");
    change_json(&mut document, random);
    document.to_string().into_bytes()
}

/// A NEFF whose archive is whole and whose members are damaged.
pub fn mutated_members(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let container = read(seed).expect("seeds are NEFFs");
    let mut members: Members = container.members.clone();
    let names: Vec<String> = members.keys().cloned().collect();
    for _ in 0..1 + random.below(2) {
        let name = random.of(&names);
        let Some(bytes) = members.get_mut(name) else { continue };
        match (random.below(12), serde_json::from_slice::<Value>(bytes)) {
            (0, _) => drop(members.remove(name)),
            (1, _) => change_bytes(bytes, random),
            (_, Ok(mut document)) => {
                change_json(&mut document, random);
                *bytes = document.to_string().into_bytes();
            }
            (_, Err(_)) => change_stream(bytes, random),
        }
    }
    let header = &container.header;
    let draft = Draft {
        name: header.name_text().into_owned(),
        feature_bits: header.feature_bits,
        lnc_size: header.lnc_size,
        members,
    };
    write(&draft).expect("members keep their names")
}

/// Changes fields of records, and their order and number.
pub fn change_stream(stream: &mut Vec<u8>, random: &mut Random) {
    const RECORD_BYTES: usize = neff::isa::RECORD_BYTES;
    let n_records = stream.len() / RECORD_BYTES;
    if n_records == 0 {
        return stream.extend([0; RECORD_BYTES]);
    }
    let (one, other) = (random.below(n_records) * RECORD_BYTES, random.below(n_records) * RECORD_BYTES);
    match random.below(6) {
        0 => drop(stream.drain(one..one + RECORD_BYTES)),
        1 => {
            let record = stream[one..one + RECORD_BYTES].to_vec();
            stream.splice(other..other, record);
        }
        2 => (0..RECORD_BYTES).for_each(|byte| stream.swap(one + byte, other + byte)),
        _ => {
            // Fields in use stand among zeros: change those.
            let used: Vec<usize> = (one..one + RECORD_BYTES).filter(|&byte| stream[byte] != 0).collect();
            let at = if used.is_empty() { one } else { *random.of(&used) };
            stream[at] = match random.below(4) {
                0 => stream[at].wrapping_add(1),
                1 => stream[at].wrapping_sub(1),
                2 => 0xff,
                _ => random.next() as u8,
            };
        }
    }
}

/// A zip archive whose directory is whole and whose members are damaged.
pub fn mutated_zip(seed: &[u8], random: &mut Random) -> Vec<u8> {
    use std::io::{Cursor, Read, Write};
    let mut archive = zip::ZipArchive::new(Cursor::new(seed)).expect("seeds are archives");
    let mut members = Vec::new();
    for position in 0..archive.len() {
        let mut member = archive.by_index(position).expect("seeds are whole");
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).expect("seeds are whole");
        let name = member.name().expect("seeds have plain names").into_owned();
        members.push((name, bytes));
    }
    // Members that say something are worth more changes than bytes of weights.
    let documents: Vec<usize> = (0..members.len()).filter(|&member| members[member].1.starts_with(b"{")).collect();
    for _ in 0..1 + random.below(2) {
        let member = if documents.is_empty() || random.below(4) == 0 {
            random.below(members.len())
        } else {
            *random.of(&documents)
        };
        let bytes = &mut members[member].1;
        match (random.below(8), serde_json::from_slice::<Value>(bytes)) {
            (0, _) => change_bytes(bytes, random),
            (_, Ok(mut document)) => {
                change_json(&mut document, random);
                *bytes = document.to_string().into_bytes();
            }
            (_, Err(_)) => change_bytes(bytes, random),
        }
    }
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut written = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        written.start_file(name, options).expect("names come from an archive");
        written.write_all(&bytes).expect("memory takes all bytes");
    }
    written.finish().expect("memory takes all bytes").into_inner()
}

/// A NEFF whose archive is damaged before it is compressed.
pub fn mutated_archive(seed: &[u8], random: &mut Random) -> Vec<u8> {
    use std::io::{Read, Write};
    let (header, payload) = seed.split_at(neff::container::HEADER_BYTES);
    let mut archive = Vec::new();
    flate2::read::GzDecoder::new(payload).read_to_end(&mut archive).expect("seeds are compressed");
    let n_changes = 1 + random.below(3);
    for _ in 0..n_changes {
        // Headers of entries decide what is read; there are few bytes of them.
        let block = random.below(archive.len() / 512) * 512;
        let at = if random.below(2) == 0 { block + random.below(160) } else { random.below(archive.len()) };
        match random.below(3) {
            0 => archive[at] = random.next() as u8,
            1 => archive[at] ^= 1 << random.below(8),
            _ => archive[at] = *random.of(b"0179/.\\\0"),
        }
        // With a right checksum, what the header says is believed.
        let header = &mut archive[block..block + 512];
        if header[257..262] == *b"ustar" {
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    let mut encoder = flate2::write::GzEncoder::new(header.to_vec(), flate2::Compression::fast());
    encoder.write_all(&archive).and_then(|()| encoder.finish()).expect("memory takes all bytes")
}
