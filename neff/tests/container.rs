//! Container: what is written is read back, the same draft gives the same bytes, and no input makes the reader panic.

use flate2::Compression;
use flate2::write::GzEncoder;
use neff::container::{
    Container, Draft, HashOrder, Header, Limits, MIN_HEADER_BYTES, Members, OPEN_ENCODING_BIT, PayloadForm, read,
    read_with_limits, write,
};
use neff::info::Report;
use neff::unpack::unpack;
use neff::{Code, Error};
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use std::io::Write;

fn draft(members: Members) -> Draft {
    Draft { name: "model.neff".to_owned(), feature_bits: 1 << OPEN_ENCODING_BIT, lnc_size: 1, members }
}

fn members(list: &[(&str, &[u8])]) -> Members {
    list.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
}

/// A file whose header is ours and whose payload is the given bytes.
fn file_of(payload: &[u8]) -> Vec<u8> {
    let mut header = Header::parse(&write(&draft(Members::new())).unwrap()).unwrap();
    header.data_size = payload.len() as u64;
    let mut file = header.to_bytes().to_vec();
    file.extend_from_slice(payload);
    file
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn tar_of(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    build(&mut builder);
    builder.into_inner().unwrap()
}

fn append(builder: &mut tar::Builder<Vec<u8>>, header: &mut tar::Header, name: &str, bytes: &[u8]) {
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    // Set by hand: the safe setters refuse the very names that must be tested.
    let field = &mut header.as_old_mut().name;
    field[..name.len()].copy_from_slice(name.as_bytes());
    header.set_cksum();
    builder.append(header, bytes).unwrap();
}

fn failure(file: &[u8]) -> Error {
    let failure = read(file).expect_err("the file is damaged");
    assert!(failure.header.is_some(), "the header is whole: {failure}");
    failure.error
}

#[test]
fn a_written_file_reads_back_with_every_header_rule_kept() {
    let members = members(&[("sg00/PE.bin", &[7; 700]), ("info.json", b"{}"), ("neff.json", b"{}")]);
    let draft = draft(members);
    let file = write(&draft).unwrap();
    let container = read(&file).unwrap();
    assert_eq!(container.members, draft.members);
    assert_eq!(container.warnings, []);
    assert_eq!(container.payload.hash_order, HashOrder::WordSwapped);
    assert_eq!(container.payload.form, PayloadForm::Gzip);
    let header = &container.header;
    assert_eq!((header.pkg_version, header.header_size, header.data_size), (2, 1024, 10_240));
    assert_eq!((header.neff_version_major, header.neff_version_minor), (2, 0));
    assert_eq!((header.num_tpb, header.requested_tpb_count, header.tpb_per_node[0]), (1, 1, 1));
    assert_eq!(header.name_text(), "model.neff");
    assert_eq!(header.feature_bits, 0x4000_0000_0000_0000);
    assert!(header.pad_is_zero);
    assert_eq!((header.uuid[6] >> 4, header.uuid[8] >> 6), (4, 2));
    assert!(container.has_open_encoding());
    // gzip header without time or name, XFL 4, made on Unix.
    assert_eq!(file[1024..1034], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 3]);
    assert_eq!(file.len() % 10_240, 1024);
}

#[test]
fn the_same_draft_gives_the_same_bytes_and_other_content_another_identity() {
    let one = draft(members(&[("a", b"1"), ("b", b"2")]));
    let other = draft(members(&[("a", b"1"), ("b", b"3")]));
    assert_eq!(write(&one).unwrap(), write(&one).unwrap());
    let uuid = |draft: &Draft| read(&write(draft).unwrap()).unwrap().header.uuid;
    assert_ne!(uuid(&one), uuid(&other));
    // The boundary between name and bytes counts.
    assert_ne!(uuid(&draft(members(&[("ab", b"c")]))), uuid(&draft(members(&[("a", b"bc")]))));
}

#[test]
fn the_written_bytes_are_pinned() {
    let file = write(&draft(members(&[("info.json", b"{}"), ("sg00/PE.bin", &[1; 512])]))).unwrap();
    let text: String = neff::container::md5(&file).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text, "31ae3717d49b9f272878241e312a438f");
}

#[test]
fn members_are_plain_ustar_entries_in_sorted_order() {
    let file = write(&draft(members(&[("neff.json", b"{}"), ("sg00/def.json", b"{}"), ("info.json", b"[]")]))).unwrap();
    let rows = |file: &[u8]| -> Vec<(String, u32, u64, u64, u64, String, String)> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&file[1024..]));
        let entries = archive.entries().unwrap().map(Result::unwrap);
        let row = |entry: tar::Entry<'_, _>| {
            let header = entry.header();
            assert!(header.as_ustar().is_some() && header.entry_type().is_file());
            (
                entry.path().unwrap().to_str().unwrap().to_owned(),
                header.mode().unwrap(),
                header.mtime().unwrap(),
                header.uid().unwrap(),
                header.gid().unwrap(),
                header.username().unwrap().unwrap().to_owned(),
                header.groupname().unwrap().unwrap().to_owned(),
            )
        };
        entries.map(row).collect()
    };
    let names = |file: &[u8]| rows(file).into_iter().map(|row| row.0).collect::<Vec<_>>();
    for row in rows(&file) {
        assert_eq!((row.1, row.2, row.3, row.4), (0o664, 0, 1000, 1000));
        assert_eq!((row.5.as_str(), row.6.as_str()), ("nobody", "nobody"));
    }
    assert_eq!(names(&file), ["info.json", "neff.json", "sg00/def.json"]);
    let mut two_cores = draft(read(&file).unwrap().members);
    two_cores.lnc_size = 2;
    assert_eq!(names(&write(&two_cores).unwrap()), ["info.json", "sg00/def.json", "neff.json"]);
}

#[test]
fn long_member_names_use_the_prefix_and_longer_ones_are_refused() {
    let long = format!("{}/{}", "d".repeat(140), "f".repeat(90));
    let draft_of = |name: &str| draft(members(&[(name, b"x")]));
    let container = read(&write(&draft_of(&long)).unwrap()).unwrap();
    assert_eq!(container.members.keys().collect::<Vec<_>>(), [&long]);
    assert_eq!(write(&draft_of(&"f".repeat(101))).unwrap_err().code, Code::Unwritable);
    assert_eq!(write(&draft_of("../x")).unwrap_err().code, Code::UnsafeMember);
    let nameless = Draft { name: "n".repeat(256), ..draft(Members::new()) };
    assert_eq!(write(&nameless).unwrap_err().code, Code::Unwritable);
}

#[test]
fn content_that_packs_too_well_for_the_reader_is_stored_plain() {
    let zeros = vec![0; 65 << 20];
    let draft = draft(members(&[("sg00/value_w.npy", &zeros)]));
    let container = read(&write(&draft).unwrap()).unwrap();
    assert_eq!(container.payload.form, PayloadForm::PlainTar);
    assert_eq!(container.members, draft.members);
}

#[test]
fn gnu_pax_and_folder_entries_are_read() {
    let long = "g".repeat(150);
    let archive = tar_of(|builder| {
        let mut folder = tar::Header::new_ustar();
        folder.set_entry_type(tar::EntryType::Directory);
        append(builder, &mut folder, "sg00/", b"");
        append(builder, &mut tar::Header::new_gnu(), "./info.json", b"{}");
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_cksum();
        builder.append_data(&mut header, &long, &b"abc"[..]).unwrap();
        builder.append_pax_extensions([("path", b"pax/name.bin".as_slice())]).unwrap();
        append(builder, &mut tar::Header::new_ustar(), "short", b"de");
        append(builder, &mut tar::Header::new_ustar(), "twice", b"first");
        append(builder, &mut tar::Header::new_ustar(), "twice", b"last");
    });
    let expected = members(&[("info.json", b"{}"), (&long, b"abc"), ("pax/name.bin", b"de"), ("twice", b"last")]);
    for file in [file_of(&archive), file_of(&gzip(&archive))] {
        let container = read(&file).unwrap();
        assert_eq!(container.members, expected);
        assert!(container.warnings.iter().any(|warning| warning.to_string().contains("this member twice")));
    }
}

#[test]
fn links_devices_and_paths_out_of_the_folder_are_refused() {
    for name in ["/etc/passwd", "../x", "sg00/../../x", "a/./b", "a//b", "c:\\x", "a\\..\\b"] {
        let archive = tar_of(|builder| append(builder, &mut tar::Header::new_ustar(), name, b"x"));
        assert_eq!(failure(&file_of(&gzip(&archive))).code, Code::UnsafeMember, "{name}");
    }
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link, tar::EntryType::Char, tar::EntryType::Fifo] {
        let archive = tar_of(|builder| {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(kind);
            header.set_link_name("/etc/passwd").unwrap();
            append(builder, &mut header, "link", b"");
        });
        assert_eq!(failure(&file_of(&gzip(&archive))).code, Code::UnsafeMember, "{kind:?}");
    }
}

#[test]
fn bombs_stop_at_the_limit() {
    let archive = tar_of(|builder| append(builder, &mut tar::Header::new_ustar(), "zeros", &vec![0; 80 << 20]));
    let error = failure(&file_of(&gzip(&archive)));
    assert_eq!(error.code, Code::TooLarge);
    // A size that is only claimed is refused before anything is read.
    let archive = tar_of(|builder| {
        let mut header = tar::Header::new_gnu();
        header.set_path("huge").unwrap();
        header.set_size(u64::MAX / 4);
        header.set_cksum();
        builder.append(&header, std::io::empty()).unwrap();
    });
    assert_eq!(failure(&file_of(&gzip(&archive))).code, Code::TooLarge);
    let many = tar_of(|builder| {
        (0..9).for_each(|at| append(builder, &mut tar::Header::new_ustar(), &format!("m{at}"), b""));
    });
    let limits = Limits { unpacked_bytes: 1 << 20, members: 8 };
    let error = read_with_limits(&file_of(&gzip(&many)), &limits).unwrap_err().error;
    assert_eq!(error.code, Code::TooLarge);
    // gzip data that never becomes an entry counts too.
    let long_name = tar_of(|builder| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::GNULongName);
        append(builder, &mut header, "././@LongLink", &vec![b'a'; 2 << 20]);
    });
    let error = read_with_limits(&file_of(&gzip(&long_name)), &limits).unwrap_err().error;
    assert_eq!(error.code, Code::TooLarge);
}

#[test]
fn damage_is_named_with_its_byte() {
    let whole = write(&draft(members(&[("sg00/PE.bin", &(0..=255).cycle().take(5000).collect::<Vec<u8>>())]))).unwrap();
    assert_eq!(read(&whole[..100]).unwrap_err().header, None);
    assert_eq!(read(&whole[..100]).unwrap_err().error.code, Code::Truncated);
    assert_eq!(failure(&whole[..600]).code, Code::Truncated);
    let cut = failure(&whole[..1200]);
    assert_eq!((cut.code, cut.place.byte), (Code::Truncated, Some(1200)));
    let cut_in_padding = read(&whole[..whole.len() - 1]).unwrap();
    let codes: Vec<Code> = cut_in_padding.warnings.iter().map(|warning| warning.code).collect();
    assert_eq!(codes, [Code::BadHeader, Code::HashMismatch]);
    let mut flipped = whole.clone();
    flipped[1060] ^= 0xff;
    assert!(matches!(failure(&flipped).code, Code::BadGzip | Code::BadTar | Code::Truncated));
    let mut trailing = whole.clone();
    *trailing.last_mut().unwrap() = 1;
    assert_eq!(read(&trailing).unwrap().warnings[0].place.byte, Some(whole.len() as u64 - 1));
    let neither = failure(&file_of(b"neither gzip nor tar"));
    assert_eq!((neither.code, neither.place.byte), (Code::BadHeader, Some(1024)));
    let mut small_header = whole.clone();
    small_header[8..16].copy_from_slice(&24_u64.to_le_bytes());
    assert_eq!(failure(&small_header).code, Code::BadHeader);
    let mut huge_header = whole;
    huge_header[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(failure(&huge_header).code, Code::Truncated);
}

#[test]
fn a_second_gzip_member_is_not_read() {
    let archive = tar_of(|builder| append(builder, &mut tar::Header::new_ustar(), "info.json", b"{}"));
    let mut payload = gzip(&archive);
    payload.extend(gzip(b"something else"));
    let container = read(&file_of(&payload)).unwrap();
    assert_eq!(container.members.len(), 1);
    assert!(container.warnings.iter().any(|warning| warning.code == Code::BadGzip));
}

#[test]
fn sha256_and_plain_md5_hashes_are_recognised() {
    use sha2::{Digest, Sha256};
    let whole = write(&draft(members(&[("a", b"b")]))).unwrap();
    let order_with = |hash: [u8; 32]| {
        let mut file = whole.clone();
        file[172..204].copy_from_slice(&hash);
        read(&file).unwrap().payload.hash_order
    };
    let sha256: [u8; 32] = Sha256::digest(&whole[1024..]).into();
    let mut md5 = [0; 32];
    md5[..16].copy_from_slice(&neff::container::md5(&whole[1024..]));
    let mut swapped = sha256;
    swapped.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    assert_eq!(order_with(sha256), HashOrder::Sha256Plain);
    assert_eq!(order_with(swapped), HashOrder::Sha256WordSwapped);
    assert_eq!(order_with(md5), HashOrder::Plain);
    assert_eq!(order_with([0; 32]), HashOrder::Absent);
    assert_eq!(order_with([1; 32]), HashOrder::Mismatch);
}

#[test]
fn a_name_of_256_bytes_without_nul_is_shown_whole() {
    let mut file = write(&draft(Members::new())).unwrap();
    file[220..476].fill(b'n');
    file[300] = 0xff;
    let name = read(&file).unwrap().header.name_text().into_owned();
    assert_eq!(name, format!("{}\u{fffd}{}", "n".repeat(80), "n".repeat(175)));
}

#[test]
fn unpacking_writes_members_and_payload_and_follows_no_link() {
    let file = write(&draft(members(&[("info.json", b"{}"), ("sg00/PE.bin", b"abc")]))).unwrap();
    let container = read(&file).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("out");
    assert_eq!(unpack(&container, &file, &root).unwrap(), ["neff.tgz", "info.json", "sg00/PE.bin"]);
    assert_eq!(std::fs::read(root.join("sg00/PE.bin")).unwrap(), b"abc");
    assert_eq!(std::fs::read(root.join("neff.tgz")).unwrap(), &file[1024..]);
    // A second time over the same files is fine.
    unpack(&container, &file, &root).unwrap();

    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::remove_dir_all(root.join("sg00")).unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&outside, root.join("sg00")).unwrap();
        assert_eq!(unpack(&container, &file, &root).unwrap_err().code, Code::UnsafeMember);
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
    let mut hostile: Container = container;
    hostile.members.insert("../escaped".to_owned(), b"x".to_vec());
    let elsewhere = folder.path().join("other");
    assert_eq!(unpack(&hostile, &file, &elsewhere).unwrap_err().code, Code::UnsafeMember);
    assert!(!folder.path().join("escaped").exists());
    assert!(!elsewhere.exists());
}

#[test]
fn nothing_is_unpacked_where_one_member_has_no_place() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("out");
    for names in [["a", "a/b"], ["a", "neff.tgz/b"], ["a", "b\\..\\c"], ["a", "c:d"]] {
        let file = write(&draft(Members::new())).unwrap();
        let mut container = read(&file).unwrap();
        container.members = members(&names.map(|name| (name, &b"x"[..])));
        let error = unpack(&container, &file, &root).unwrap_err();
        assert_eq!(error.code, Code::UnsafeMember, "{names:?}");
        assert!(!root.exists(), "{names:?}");
    }
    std::fs::create_dir_all(root.join("b")).unwrap();
    let file = write(&draft(members(&[("a", b"x"), ("b", b"y")]))).unwrap();
    assert_eq!(unpack(&read(&file).unwrap(), &file, &root).unwrap_err().code, Code::Io);
    assert!(!root.join("a").exists());
}

fn member_names() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_.-]{1,12}(/[a-zA-Z0-9_-]{1,12}){0,2}"
        .prop_filter("no dot components", |name| name.split('/').all(|component| component != "." && component != ".."))
}

fn drafts() -> impl Strategy<Value = Draft> {
    let members = proptest::collection::btree_map(member_names(), proptest::collection::vec(any::<u8>(), 0..900), 0..8);
    ("[a-z0-9./]{0,40}", any::<u64>(), 1..3_u32, members).prop_map(|(name, feature_bits, lnc_size, members)| Draft {
        name,
        feature_bits,
        lnc_size,
        members,
    })
}

proptest! {
    #[test]
    fn any_header_bytes_survive_parse_and_write(mut bytes in proptest::collection::vec(any::<u8>(), 1024)) {
        let header = Header::parse(&bytes).unwrap();
        prop_assert_eq!(&header.to_bytes()[..], &bytes[..]);
        bytes.truncate(MIN_HEADER_BYTES);
        let short = Header::parse(&bytes).unwrap();
        prop_assert_eq!(&short.to_bytes()[..MIN_HEADER_BYTES], &bytes[..]);
    }

    #[test]
    fn any_draft_reads_back(draft in drafts()) {
        let container = read(&write(&draft).unwrap()).unwrap();
        prop_assert_eq!(&container.members, &draft.members);
        prop_assert_eq!(container.header.name_text(), draft.name);
        prop_assert_eq!(container.header.feature_bits, draft.feature_bits);
        prop_assert_eq!(container.header.lnc_size, draft.lnc_size);
        prop_assert!(container.warnings.is_empty());
    }

    #[test]
    fn truncated_and_flipped_files_never_panic(
        draft in drafts(),
        cut in any::<proptest::sample::Index>(),
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), 0..8_u8), 0..4),
    ) {
        let mut file = write(&draft).unwrap();
        for (at, bit) in flips {
            let at = at.index(file.len());
            file[at] ^= 1 << bit;
        }
        let cut = cut.index(file.len() + 1);
        for file in [&file[..], &file[..cut]] {
            match read(file) {
                Ok(container) => drop(Report::of(&container).to_string()),
                Err(failure) => drop(failure.to_string() + &failure.header_text()),
            }
        }
    }

    #[test]
    fn damaged_plain_archives_never_panic(
        draft in drafts(),
        cut in any::<proptest::sample::Index>(),
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let file = write(&draft).unwrap();
        let mut archive = Vec::new();
        std::io::copy(&mut flate2::read::GzDecoder::new(&file[1024..]), &mut archive).unwrap();
        for (at, value) in flips {
            let at = at.index(archive.len());
            archive[at] = value;
        }
        archive.truncate(cut.index(archive.len() + 1));
        for file in [file_of(&archive), file_of(&gzip(&archive))] {
            if let Ok(container) = read(&file) {
                drop(Report::of(&container).to_json());
            }
        }
    }
}
