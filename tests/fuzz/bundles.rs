//! Bundles: what an agent takes in from a controller, and finds on its disk again.

use std::path::{Component, Path};

use skyward_bundle::{
    Digest, File, Limits, Outline, Reader, START, Selection, head_bytes, pack, pack_selected,
};

use crate::input::{Input, Maker};

const LIMITS: Limits = Limits {
    files: 8,
    bytes: 4096,
};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.u8() % 4 {
        0 => read(input.rest()),
        1 => make(input),
        3 => select(input),
        _ => {
            let text = String::from_utf8_lossy(input.rest());
            if let Ok(digest) = text.parse::<Digest>() {
                assert_eq!(digest.to_string(), text);
                assert_eq!(digest.hex().len(), 64);
            }
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let file = |path, executable, content| File {
        path,
        executable,
        content,
    };
    let files = [
        file("a.py", false, &b"print(1)"[..]),
        file("src/run.sh", true, b"#!/bin/sh"),
        file("src/empty", false, b""),
    ];
    let bundle = pack(files, LIMITS).expect("the seed is a bundle");
    vec![
        Maker::default().u8(0).end(&bundle.bytes),
        Maker::default()
            .u8(1)
            .u8(0)
            .sized("a/b")
            .sized("x")
            .u8(1)
            .sized("a")
            .sized("y")
            .end(b""),
        Maker::default().u8(2).end(bundle.digest.to_string()),
        Maker::default()
            .u8(3)
            .sized("src/**")
            .sized("*.py/")
            .sized("src/a.py")
            .sized("b")
            .end(b""),
    ]
}

/// Any bytes are refused, or the only way to write the files that come out.
fn read(bytes: &[u8]) {
    let Ok(reader) = Reader::open(bytes, LIMITS) else {
        return;
    };
    let digest = reader.digest();
    let mut files = Vec::new();
    let mut sum = 0;
    let unpacked = reader.unpack(|entry, content| {
        stays_inside(&entry.path);
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        sum += bytes.len() as u64;
        assert!(sum <= LIMITS.bytes && files.len() < LIMITS.files);
        files.push((entry.path.clone(), entry.executable, bytes));
        Ok(())
    });
    if unpacked.is_err() {
        return;
    }
    let again = pack(
        files.iter().map(|(path, executable, content)| File {
            path,
            executable: *executable,
            content,
        }),
        LIMITS,
    );
    let again = again.expect("what came out goes in");
    assert!(
        again.digest == digest && again.bytes == bytes,
        "there are two ways to write one bundle"
    );
}

/// Any files are refused, or come out.
fn make(mut input: Input<'_>) {
    let mut files = Vec::new();
    while !input.is_empty() {
        files.push((input.u8() % 2 == 1, input.text(), input.sized().to_vec()));
    }
    let made = pack(
        files.iter().map(|(executable, path, content)| File {
            path,
            executable: *executable,
            content,
        }),
        LIMITS,
    );
    if let Ok(bundle) = made {
        let reader = Reader::open(&*bundle.bytes, LIMITS).expect("our own bundle is read");
        assert_eq!(reader.digest(), bundle.digest);
        reader.verify().expect("our own bundle is whole");
    }
}

/// Any patterns are refused or mean the same to a walk and to a list, and the outline of any part of a bundle
/// leads to its bytes.
fn select(mut input: Input<'_>) {
    let (include, exclude) = (input.text(), input.text());
    let Ok(selection) = Selection::new(&[include], &[exclude]) else {
        return;
    };
    let mut paths = Vec::new();
    while !input.is_empty() {
        paths.push(input.text());
    }
    let files = || {
        paths.iter().map(|path| File {
            path,
            executable: false,
            content: path.as_bytes(),
        })
    };
    let Ok(all) = pack(files(), LIMITS) else { return };
    for path in paths.iter().filter(|path| selection.takes(path)) {
        let mut folders = path.match_indices('/').map(|(at, _)| &path[..at]);
        assert!(
            folders.all(|folder| selection.enters(folder)),
            "{path:?} would not be found"
        );
    }
    let reader = Reader::open(&*all.bytes, LIMITS).expect("our own bundle is read");
    let outline = Outline::of(reader.manifest());
    assert_eq!(outline.bytes(), all.bytes.len() as u64);
    assert_eq!(
        head_bytes(&all.bytes[..START]).ok(),
        Some(outline.head().len() as u64)
    );
    let selected = reader.manifest().select(&selection).ok();
    let packed = pack_selected(files(), &selection, LIMITS).ok();
    assert_eq!(
        selected.map(|manifest| manifest.digest()),
        packed.map(|packed| packed.digest)
    );
}

fn stays_inside(path: &str) {
    let is_plain =
        |part: Component<'_>| matches!(part, Component::Normal(name) if !name.eq_ignore_ascii_case(".git"));
    assert!(
        !path.is_empty() && Path::new(path).components().all(is_plain),
        "{path:?}"
    );
    assert!(!path.contains('\0') && path.len() <= 1024);
}
