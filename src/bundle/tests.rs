//! What goes in comes out; everything else is refused.

use std::collections::BTreeMap;

use proptest::{collection::btree_map, prelude::*};
use sha2::{Digest as _, Sha256};

use crate::{Digest, Error, File, LIMITS, Limits, MAGIC, Packed, Reader, manifest::hex, pack};

type Files = BTreeMap<String, (bool, Vec<u8>)>;

fn packed(files: &Files) -> Packed {
    try_packed(files, LIMITS).unwrap()
}

fn try_packed(files: &Files, limits: Limits) -> Result<Packed, Error> {
    pack(
        files.iter().map(|(path, (executable, content))| File {
            path,
            executable: *executable,
            content,
        }),
        limits,
    )
}

fn unpacked(bytes: &[u8], limits: Limits) -> Result<(Digest, Files), String> {
    let reader = Reader::open(bytes, limits).map_err(|error| error.to_string())?;
    let digest = reader.digest();
    let mut files = Files::new();
    let read = reader.unpack(|entry, content| {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        files.insert(entry.path.clone(), (entry.executable, bytes));
        Ok(())
    });
    read.map_err(|error| error.to_string())?;
    Ok((digest, files))
}

fn files() -> impl Strategy<Value = Files> {
    // Names without folders and folders without files of the same name never collide.
    let path = prop_oneof!["[a-zé .-]{0,6}x", "(d[a-c]/){1,3}f[a-z]{0,2}"];
    let content = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..200));
    btree_map(path, content, 1..8)
}

fn some() -> Files {
    [
        ("a.py", (false, b"print(1)\n".to_vec())),
        ("run.sh", (true, b"#!/bin/sh\n".to_vec())),
        ("src/empty", (false, Vec::new())),
    ]
    .map(|(path, file)| (path.to_owned(), file))
    .into()
}

/// A bundle with any manifest at all.
fn forged(manifest: &[u8], contents: &[u8]) -> Vec<u8> {
    let length = u32::try_from(manifest.len()).unwrap();
    [MAGIC, &length.to_be_bytes(), manifest, contents].concat()
}

fn line(mode: &str, size: u64, content: &[u8], path: &str) -> String {
    format!("{mode} {size} {} {path}\0", hex(&Sha256::digest(content)))
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(files in files()) {
        let bundle = packed(&files);
        prop_assert_eq!(unpacked(&bundle.bytes, LIMITS), Ok((bundle.digest, files)));
    }

    #[test]
    fn the_digest_does_not_depend_on_the_order(files in files(), seed in any::<prop::sample::Index>()) {
        let bundle = packed(&files);
        let mut shuffled: Vec<_> = files.iter().collect();
        let at = seed.index(shuffled.len());
        shuffled.rotate_left(at);
        let again = pack(shuffled.into_iter().rev().map(|(path, (executable, content))| File {
            path, executable: *executable, content,
        }), LIMITS).unwrap();
        prop_assert_eq!(bundle, again);
    }

    #[test]
    fn other_files_have_another_digest(files in files(), others in files()) {
        prop_assert_eq!(files == others, packed(&files).digest == packed(&others).digest);
    }

    #[test]
    fn any_bytes_are_a_bundle_only_if_they_are_the_one_way_to_write_it(
        files in files(), at in any::<prop::sample::Index>(), change in 1..=255_u8, more in any::<bool>(),
    ) {
        let mut bytes = packed(&files).bytes;
        if more {
            bytes.push(change);
        } else {
            let at = at.index(bytes.len());
            bytes[at] ^= change;
        }
        if let Ok((digest, files)) = unpacked(&bytes, LIMITS) {
            prop_assert_eq!(packed(&files), Packed { digest, bytes });
        }
    }

    #[test]
    fn a_bundle_that_ends_early_is_refused(files in files(), at in any::<prop::sample::Index>()) {
        let bytes = packed(&files).bytes;
        let cut = &bytes[..at.index(bytes.len())];
        prop_assert!(unpacked(cut, LIMITS).unwrap_err().contains("ends too early"));
    }
}

#[test]
fn the_digest_of_a_bundle_is_written_down_here_and_stays() {
    assert_eq!(
        packed(&some()).digest,
        Digest(
            Sha256::new()
                .chain_update("skyward-bundle 1\n")
                .chain_update(line("0644", 9, b"print(1)\n", "a.py"))
                .chain_update(line("0755", 10, b"#!/bin/sh\n", "run.sh"))
                .chain_update(line("0644", 0, b"", "src/empty"))
                .finalize()
                .into()
        )
    );
}

#[test]
fn contents_that_change_places_and_bits_that_are_set_change_the_digest() {
    let first = some();
    let mut other = first.clone();
    let (a, run) = (first["a.py"].1.clone(), first["run.sh"].1.clone());
    other.get_mut("a.py").unwrap().1 = run;
    other.get_mut("run.sh").unwrap().1 = a;
    assert_ne!(packed(&first).digest, packed(&other).digest);
    let mut other = first.clone();
    other.get_mut("a.py").unwrap().0 = true;
    assert_ne!(packed(&first).digest, packed(&other).digest);
}

#[test]
fn a_digest_is_read_back_and_nothing_else_is_one() {
    let digest = packed(&some()).digest;
    assert_eq!(digest.to_string().parse(), Ok(digest));
    let hex = digest.hex();
    for text in [
        "",
        "sha256:",
        &hex,
        &format!("md5:{hex}"),
        &format!("sha256:{}", &hex[1..]),
        &format!("sha256:{hex}0"),
        &format!("sha256:{}", "A".repeat(64)),
        &format!("sha256:{}", "é".repeat(32)),
        &format!("sha256:../{}", &hex[3..]),
    ] {
        assert!(text.parse::<Digest>().is_err(), "{text}");
    }
}

#[test]
fn names_that_lead_out_or_mean_something_else_are_refused_on_both_sides() {
    let long = "x".repeat(256);
    let deep = "d/".repeat(64) + "f";
    let wide = "dd/".repeat(60)
        + &"x".repeat(250)
        + "/"
        + &"y".repeat(250)
        + "/"
        + &"z".repeat(250)
        + "/"
        + &"w".repeat(250);
    for (path, why) in [
        ("", "no name"),
        ("/etc/passwd", "absolute"),
        ("..", ". or .."),
        ("a/../../b", ". or .."),
        ("./a", ". or .."),
        ("a//b", "empty name"),
        ("a/", "empty name"),
        (".git/hooks/post-checkout", ".git"),
        ("sub/.GIT/config", ".git"),
        ("a\nb", "control character"),
        ("a\u{7f}b", "control character"),
        (&long, "more than 255"),
        (&deep, "folders deep"),
        (&wide, "at most 1024"),
    ] {
        let files = [(path.to_owned(), (false, Vec::new()))].into();
        let ours = try_packed(&files, LIMITS).unwrap_err().to_string();
        assert!(ours.contains(why), "{path}: {ours}");
        let bytes = forged(line("0644", 0, b"", path).as_bytes(), b"");
        let theirs = unpacked(&bytes, LIMITS).unwrap_err();
        assert!(theirs.contains(why) && theirs.len() < 400, "{path}: {theirs}");
    }
    for path in [
        "a b",
        "é",
        "-rf",
        "..a",
        "a..",
        ".github/x",
        "~",
        "con",
        "A",
        "a\\b",
    ] {
        let files: Files = [(path.to_owned(), (false, Vec::new()))].into();
        assert!(unpacked(&packed(&files).bytes, LIMITS).is_ok(), "{path}");
    }
}

#[test]
fn manifests_that_lie_are_refused_before_any_content_is_given_out() {
    let ok = |path: &str| line("0644", 1, b"1", path);
    let many = "0644 1 x y\0".repeat(LIMITS.files + 2);
    for (manifest, why) in [
        (String::new(), "no files"),
        (ok("a").trim_end_matches('\0').to_owned(), "does not end"),
        (ok("a") + &ok("a"), "twice"),
        (ok("b") + &ok("a"), "not sorted"),
        (ok("a") + &ok("a-b") + &ok("a/b"), "a file and a folder"),
        (line("0777", 1, b"1", "a"), "mode"),
        (line("120000", 1, b"1", "a"), "mode"),
        (line("04755", 1, b"1", "a"), "mode"),
        (ok("a").replace(" 1 ", " 01 "), "another way"),
        (ok("a").replace(" 1 ", " +1 "), "another way"),
        (ok("a").replace(" 1 ", " -1 "), "size"),
        (ok("a").replace(" 1 ", " 99999999999999999999 "), "size"),
        (ok("a").to_uppercase(), "SHA-256"),
        (line("0644", LIMITS.bytes + 1, b"", "a"), "bytes together"),
        (
            line("0644", u64::MAX, b"", "a") + &line("0644", u64::MAX, b"", "b"),
            "bytes together",
        ),
        (many, "SHA-256"),
        ("\0\0\0".to_owned(), "mode"),
    ] {
        let why_not = unpacked(&forged(manifest.as_bytes(), b"111"), LIMITS).unwrap_err();
        assert!(why_not.contains(why), "{manifest:.100}: {why_not}");
    }
    let not_text = [line("0644", 0, b"", "a").into_bytes(), b"0644 0 \xff\0".to_vec()].concat();
    assert!(
        unpacked(&forged(&not_text, b""), LIMITS)
            .unwrap_err()
            .contains("UTF-8")
    );
    let announced = [MAGIC, &u32::MAX.to_be_bytes()].concat();
    assert!(unpacked(&announced, LIMITS).unwrap_err().contains("too long"));
    let zip = b"PK\x03\x04 and what follows in a zip file";
    assert!(unpacked(zip, LIMITS).unwrap_err().contains("no bundle"));
}

#[test]
fn contents_that_are_not_those_of_the_manifest_are_refused() {
    let manifest = line("0644", 1, b"1", "a") + &line("0644", 2, b"22", "b");
    for (contents, why) in [
        (&b"122"[..], ""),
        (b"222", "the content of \"a\""),
        (b"123", "the content of \"b\""),
        (b"12", "ends too early"),
        (b"1222", "behind the bundle's last file"),
    ] {
        let found = unpacked(&forged(manifest.as_bytes(), contents), LIMITS);
        match found {
            Ok(_) => assert_eq!(why, ""),
            Err(found) => assert!(!why.is_empty() && found.contains(why), "{found}"),
        }
    }
}

#[test]
fn more_files_or_bytes_than_are_allowed_are_refused_on_both_sides() {
    let bundle = packed(&some());
    let (files, bytes) = (3, 19);
    assert!(unpacked(&bundle.bytes, Limits { files, bytes }).is_ok());
    for limits in [Limits { files: 2, bytes }, Limits { files, bytes: 18 }] {
        assert!(unpacked(&bundle.bytes, limits).unwrap_err().contains("more than"));
        assert!(
            try_packed(&some(), limits)
                .unwrap_err()
                .to_string()
                .contains("more than")
        );
    }
    assert!(bundle.bytes.len() as u64 <= Limits { files, bytes }.packed());
}

#[test]
fn what_a_reader_does_not_read_of_a_content_is_checked_all_the_same() {
    let bundle = packed(&some());
    let verify = |bytes: &[u8]| Reader::open(bytes, LIMITS).and_then(Reader::verify);
    assert!(verify(&bundle.bytes).is_ok());
    let mut other = bundle.bytes.clone();
    *other.last_mut().unwrap() ^= 1;
    assert!(verify(&other).is_err());
}

#[test]
fn an_error_of_the_one_who_unpacks_is_not_one_of_the_bundle() {
    let bundle = packed(&some());
    let reader = Reader::open(&*bundle.bytes, LIMITS).unwrap();
    match reader.unpack(|_, _| Err(std::io::ErrorKind::StorageFull.into())) {
        Err(Error::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull),
        other => panic!("{other:?}"),
    }
}
