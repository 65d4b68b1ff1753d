//! Fetches from git: the built agent, the real git, and hosts that mean no good.

use std::{collections::BTreeMap, path::Path, process::Stdio};

use futures::StreamExt;
use skyward_agent::protocol::{
    FetchGitReply, FetchGitRequest, GitCredential, HelloRequest, ReadBundleRequest, RunSpec,
    fetch_git_reply::Fault,
};
use skyward_bundle::{LIMITS, Reader};
use tonic::{Code, Status};

use crate::{
    git_host::{GitHost, PASSWORD},
    machine::{Machine, command, processes_with, until},
};

/// A user that each machine has, in the place of the one that bootstrap makes.
const USER: [&str; 2] = ["--git-user", "nobody"];

async fn machine(host: &GitHost) -> Machine {
    let machine = Machine::start_with(&USER).await;
    trust(&machine, host);
    machine
}

fn trust(machine: &Machine, host: &GitHost) {
    // As bootstrap leaves it.
    let folder = machine.home().join("envs/default/certificates");
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink("envs/default", machine.home().join("venv")).unwrap();
    std::fs::write(folder.join("bundle.crt"), &host.authority).unwrap();
}

fn request(url: &str, reference: &str) -> FetchGitRequest {
    FetchGitRequest {
        epoch: 1,
        url: url.into(),
        reference: reference.into(),
        ..FetchGitRequest::default()
    }
}

async fn fetch(machine: &mut Machine, request: FetchGitRequest) -> Result<FetchGitReply, Status> {
    machine
        .agent
        .fetch_git(request)
        .await
        .map(tonic::Response::into_inner)
}

/// A fetch that succeeds: the commit, and the files of the bundle that the agent gives out.
async fn fetched(
    machine: &mut Machine,
    request: FetchGitRequest,
) -> (FetchGitReply, BTreeMap<String, String>) {
    let reply = fetch(machine, request).await.unwrap();
    assert_eq!(reply.fault(), Fault::None, "{reply:?}");
    let request = ReadBundleRequest {
        digest: reply.digest.clone(),
        offset: 0,
    };
    let mut chunks = machine.agent.read_bundle(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.unwrap();
        assert_eq!(chunk.offset, bytes.len() as u64);
        bytes.extend_from_slice(&chunk.data);
    }
    assert_eq!(bytes.len() as u64, reply.bytes);
    let reader = Reader::open(&*bytes, LIMITS).unwrap();
    assert_eq!(reader.digest().to_string(), reply.digest);
    let mut files = BTreeMap::new();
    reader
        .unpack(|entry, content| {
            let mut text = String::new();
            content.read_to_string(&mut text)?;
            let mark = if entry.executable { "*" } else { "" };
            files.insert(format!("{}{mark}", entry.path), text);
            Ok(())
        })
        .unwrap();
    (reply, files)
}

/// A fetch that fails for what the repository is, or the way to it: why.
async fn refused(machine: &mut Machine, request: FetchGitRequest, fault: Fault) -> String {
    let reply = fetch(machine, request).await.unwrap();
    assert_eq!(reply.fault(), fault, "{reply:?}");
    assert!((reply.digest.as_str(), reply.bytes) == ("", 0), "{reply:?}");
    reply.message
}

const CODE: &str = "mkdir -p exp/deep
echo 'one' > exp/train.py; printf '#!/bin/sh\\n' > exp/run.sh; chmod +x exp/run.sh
echo 'data' > exp/deep/data; ln -s deep/data exp/link; echo readme > README
git add -A; git commit -qm first; git tag -a v1 -m v1
echo 'two' > exp/train.py; git commit -qam second";

fn bundles(machine: &Machine) -> usize {
    std::fs::read_dir(machine.home().join("bundles")).unwrap().count()
}

/// Nothing of a fetch is left but its bundle.
async fn is_clean(machine: &Machine) {
    let (folder, trash) = (machine.home().join("git"), machine.home().join("trash"));
    until("the folders of fetches are gone", || {
        [&folder, &trash]
            .iter()
            .all(|folder| std::fs::read_dir(folder).unwrap().next().is_none())
    })
    .await;
    let left = processes_with(&folder.to_string_lossy());
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn branch_tag_and_commit_become_the_files_of_a_folder_and_a_run_has_them() {
    let host = GitHost::start().await;
    host.repository("code", CODE);
    let mut machine = machine(&host).await;
    let hello = HelloRequest {
        protocol_min: 1,
        protocol_max: 1,
        ..HelloRequest::default()
    };
    assert!(machine.agent.hello(hello).await.unwrap().into_inner().fetches_git);
    let url = host.url("plain", "code");
    let (second, first) = (
        host.run("code", "git rev-parse main"),
        host.run("code", "git rev-parse main~1"),
    );
    let of = |reference: &str| FetchGitRequest {
        path: "exp".into(),
        ..request(&url, reference)
    };
    for (reference, commit, train) in [
        ("main", &second, "two\n"),
        ("HEAD", &second, "two\n"),
        ("refs/heads/main", &second, "two\n"),
        ("v1", &first, "one\n"),
        (first.as_str(), &first, "one\n"),
    ] {
        let (reply, files) = fetched(&mut machine, of(reference)).await;
        let expected = [
            ("deep/data", "data\n"),
            ("link", "data\n"),
            ("run.sh*", "#!/bin/sh\n"),
            ("train.py", train),
        ];
        let expected = expected.map(|(path, text)| (path.to_owned(), text.to_owned()));
        assert_eq!((&reply.commit, files), (commit, expected.into()), "{reference}");
    }
    assert_eq!(bundles(&machine), 2, "each commit is one bundle");
    let (reply, files) = fetched(&mut machine, request(&url, "main")).await;
    assert!(
        files.contains_key("README") && files.contains_key("exp/link"),
        "{files:?}"
    );
    let run = RunSpec {
        bundle: reply.digest,
        ..command("r", &["cat", "exp/link"])
    };
    assert_eq!(machine.run(run).await.log_tail, b"data\n");
    is_clean(&machine).await;
}

#[tokio::test]
async fn include_and_exclude_choose_files_of_the_folder_before_they_are_read() {
    let host = GitHost::start().await;
    // What is left out may be what no bundle holds.
    host.repository(
        "code",
        &format!("{CODE}; ln -s /etc exp/out; git add -A; git commit -qm third"),
    );
    let mut machine = machine(&host).await;
    let with = |include: &[&str], exclude: &[&str]| FetchGitRequest {
        path: "exp".into(),
        include: include.iter().map(|&pattern| pattern.to_owned()).collect(),
        exclude: exclude.iter().map(|&pattern| pattern.to_owned()).collect(),
        ..request(&host.url("plain", "code"), "main")
    };
    let (some, files) = fetched(&mut machine, with(&["*.py", "deep"], &["/deep/", "out"])).await;
    assert_eq!(files, [("train.py".to_owned(), "two\n".to_owned())].into());
    // The same files are the same bundle, whichever patterns chose them.
    let (same, _) = fetched(&mut machine, with(&["/train.py"], &[])).await;
    assert_eq!(same.digest, some.digest);
    // Names begin at the folder.
    let why = refused(&mut machine, with(&["exp/train.py"], &[]), Fault::Invalid).await;
    assert!(why.contains("leave all of it out"), "{why}");
    let many = vec!["a"; 65];
    for (exclude, word) in [
        (&["[a"][..], "cannot be read"),
        (&["!a"], "there are no exceptions"),
        (&many[..], "at most 64"),
    ] {
        let before = host.asked().len();
        let why = refused(&mut machine, with(&[], exclude), Fault::Invalid).await;
        assert!(why.contains(word), "{why}");
        assert_eq!(host.asked().len(), before, "the host is not asked");
    }
    is_clean(&machine).await;
}

#[tokio::test]
async fn the_commit_on_record_is_fetched_although_the_branch_moved_on_and_the_host_gives_nothing_by_id() {
    let host = GitHost::start().await;
    host.repository("code", CODE);
    host.run(
        "code",
        "for n in $(seq 60); do git commit -q --allow-empty -m $n; done",
    );
    let (first, gone) = (
        host.run("code", "git rev-parse v1^{commit}"),
        "0".repeat(39) + "1",
    );
    let mut machine = machine(&host).await;
    for behaviour in ["plain", "old"] {
        let of = |reference: &str, commit: &str| FetchGitRequest {
            commit: commit.into(),
            ..request(&host.url(behaviour, "code"), reference)
        };
        for reference in ["main", first.as_str()] {
            let (reply, files) = fetched(&mut machine, of(reference, &first)).await;
            assert_eq!(
                (reply.commit, files["exp/train.py"].as_str()),
                (first.clone(), "one\n")
            );
        }
        let why = refused(&mut machine, of("main", &gone), Fault::Invalid).await;
        assert!(why.contains(&gone), "{why}");
    }
    is_clean(&machine).await;
}

#[tokio::test]
async fn the_credential_is_seen_by_its_host_alone() {
    let host = GitHost::start().await;
    host.repository("code", CODE);
    let mut machine = machine(&host).await;
    let with = |behaviour: &str, meant: &str, password: &str| FetchGitRequest {
        credential: Some(GitCredential {
            host: meant.into(),
            username: "user".into(),
            password: password.into(),
            ..GitCredential::default()
        }),
        ..request(&host.url(behaviour, "code"), "main")
    };
    let bare = request(&host.url("private", "code"), "main");
    let why = refused(&mut machine, bare, Fault::Unavailable).await;
    assert!(why.contains("git cannot fetch"), "{why}");
    let why = refused(
        &mut machine,
        with("private", &host.name(), "canary-other"),
        Fault::Unavailable,
    )
    .await;
    assert!(
        why.contains("Authentication failed") && !why.contains("canary"),
        "{why}"
    );
    let before = host.asked().len();
    let status = fetch(&mut machine, with("private", "localhost", PASSWORD))
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), host.asked().len()),
        (Code::InvalidArgument, before)
    );
    // While the host takes its time, nobody finds it in a list of processes.
    let (mut agent, slow) = (machine.agent.clone(), with("slow", &host.name(), PASSWORD));
    let fetching = tokio::spawn(async move { agent.fetch_git(slow).await });
    until("git asks", || host.asked().len() > before).await;
    for pid in processes_with("git") {
        for file in ["cmdline", "environ"] {
            let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            assert!(!text.contains(PASSWORD), "{file} of {pid}: {text}");
        }
    }
    assert!(!holds(machine.home(), PASSWORD), "in a file");
    while !fetching.is_finished() {
        host.let_go();
        tokio::task::yield_now().await;
    }
    assert_eq!(fetching.await.unwrap().unwrap().into_inner().fault(), Fault::None);
    fetched(&mut machine, with("private", &host.name(), PASSWORD)).await;
    is_clean(&machine).await;
    assert!(!holds(machine.home(), PASSWORD), "in a file afterwards");
}

/// Whether any file of a folder has that text.
fn holds(folder: &Path, text: &str) -> bool {
    let found = std::process::Command::new("grep")
        .args(["-rqaF", "--devices=skip", "-e", text])
        .arg(folder)
        .stderr(Stdio::null())
        .status();
    found.unwrap().success()
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let host = GitHost::start().await;
    host.repository("code", CODE);
    let mut machine = machine(&host).await;
    let why = refused(
        &mut machine,
        request(&host.url("redirect", "code"), "main"),
        Fault::Unavailable,
    )
    .await;
    assert!(why.contains("302"), "{why}");
    assert_eq!(host.asked(), ["/redirect/code/info/refs"]);
}

#[tokio::test]
async fn what_is_not_there_and_who_does_not_answer_is_named() {
    let host = GitHost::start().await;
    host.repository("code", CODE);
    let mut machine = machine(&host).await;
    let url = host.url("plain", "code");
    let why = refused(&mut machine, request(&url, "mian"), Fault::Invalid).await;
    assert!(why.contains("no branch or tag \"mian\""), "{why}");
    let nowhere = FetchGitRequest {
        path: "exp/trian".into(),
        ..request(&url, "main")
    };
    let why = refused(&mut machine, nowhere, Fault::Invalid).await;
    assert!(why.contains("\"exp/trian\" is not in the repository"), "{why}");
    let missing = request(&host.url("plain", "missing"), "main");
    let why = refused(&mut machine, missing, Fault::Unavailable).await;
    assert!(why.contains("not found"), "{why}");
    let closed = request("https://localhost:1/code", "main");
    let why = refused(&mut machine, closed, Fault::Unavailable).await;
    assert!(why.contains("localhost"), "{why}");
    // An authority that the machine does not trust.
    let other = GitHost::start().await;
    other.repository("code", CODE);
    let stranger = request(&other.url("plain", "code"), "main");
    let why = refused(&mut machine, stranger, Fault::Unavailable).await;
    assert!(why.contains("certificate"), "{why}");
    assert_eq!(bundles(&machine), 0);
    is_clean(&machine).await;
}

#[tokio::test]
async fn words_that_git_could_take_for_something_else_start_no_process() {
    let host = GitHost::start().await;
    let mut machine = machine(&host).await;
    let url = host.url("plain", "code");
    for (url, reference) in [
        ("--upload-pack=id", "main"),
        ("ext::sh -c id", "main"),
        ("file:///etc", "main"),
        ("http://localhost/code", "main"),
        ("https://user:canary@localhost/code", "main"),
        (url.as_str(), "--upload-pack=id"),
        (url.as_str(), "-main"),
        (url.as_str(), "+main:main"),
        (url.as_str(), ""),
    ] {
        let status = fetch(&mut machine, request(url, reference)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{url} {reference}");
        assert!(!status.message().contains("canary"), "{status}");
    }
    let older = FetchGitRequest {
        epoch: 0,
        ..request(&url, "main")
    };
    machine.try_begin(2, command("newer", &["true"])).await.unwrap();
    let status = fetch(&mut machine, older).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(host.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_repository_holds_acts_on_nothing_and_is_refused_by_name() {
    let host = GitHost::start().await;
    let sub = "git update-index --add --cacheinfo 160000,0123456789012345678901234567890123456789,vendor/lib; git commit -qm x";
    let lfs = "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 1\\n' > model.bin; git add -A; git commit -qm x";
    let dot_git = "blob=$(echo x | git hash-object -w --stdin); inner=$(printf '100644 blob %s\\tconfig\\n' $blob | git mktree)
        tree=$(printf '040000 tree %s\\t.git\\n' $inner | git mktree); git update-ref refs/heads/main $(git commit-tree -m x $tree)";
    let up = "blob=$(echo x | git hash-object -w --stdin); tree=$(printf '100644 blob %s\\t..\\n' $blob | git mktree)
        git update-ref refs/heads/main $(git commit-tree -m x $tree)";
    let many = "blob=$(echo x | git hash-object -w --stdin)
        git update-ref refs/heads/main $(git commit-tree -m x $(seq 50001 | sed \"s/.*/100644 blob $blob\\tf&/\" | git mktree))";
    for (name, script, why) in [
        ("submodule", sub, "\"vendor/lib\""),
        ("lfs", lfs, "\"model.bin\""),
        (
            "out",
            "ln -s /etc/passwd secret; git add -A; git commit -qm x",
            "\"secret\"",
        ),
        (
            "up",
            "mkdir a; ln -s ../../x a/up; git add -A; git commit -qm x",
            "\"a/up\"",
        ),
        (
            "folder",
            "mkdir a; echo x > a/b; ln -s a c; git add -A; git commit -qm x",
            "\"c\"",
        ),
        ("dot-git", dot_git, "git does not take"),
        ("dots", up, "git does not take"),
        ("many", many, "50000 files"),
        ("empty", "git commit -q --allow-empty -m x", "no file is left"),
    ] {
        host.repository(name, script);
        let mut machine = machine(&host).await;
        let said = refused(
            &mut machine,
            request(&host.url("plain", name), "main"),
            Fault::Invalid,
        )
        .await;
        assert!(said.contains(why), "{name}: {said}");
        assert_eq!(bundles(&machine), 0);
        is_clean(&machine).await;
    }
    // Attributes and hooks are files like any other.
    let mark = host.path().join("acted");
    let script = format!(
        "mkdir .githooks; printf '#!/bin/sh\\ntouch {0}' > .githooks/post-checkout; chmod +x .githooks/*
        printf '* filter=evil\\n' > .gitattributes; printf '[submodule \"x\"]\\npath = x\\nurl = https://localhost/x\\n' > .gitmodules
        git add -A; git commit -qm x",
        mark.display()
    );
    host.repository("acts", &script);
    let mut machine = machine(&host).await;
    let (_, files) = fetched(&mut machine, request(&host.url("plain", "acts"), "main")).await;
    assert!(files.contains_key(".gitattributes") && !mark.exists());
}

#[tokio::test]
async fn a_fetch_ends_with_its_caller_and_with_its_daemon() {
    let host = GitHost::start().await;
    host.repository("code", CODE);
    let mut machine = machine(&host).await;
    for way in ["caller", "daemon"] {
        let (mut agent, before) = (machine.agent.clone(), host.asked().len());
        let endless = request(&host.url("endless", "code"), "main");
        let fetching = tokio::spawn(async move { agent.fetch_git(endless).await });
        until("git asks", || host.asked().len() > before).await;
        // Others are served meanwhile.
        machine.run(command(way, &["true"])).await;
        let of_git = || processes_with(&format!("localhost:{}/endless", host.port));
        assert!(!of_git().is_empty());
        if way == "caller" {
            fetching.abort();
        } else {
            machine.kill_daemon();
        }
        until("git is gone", || of_git().is_empty()).await;
        if way == "daemon" {
            machine.start_daemon().await;
        }
        is_clean(&machine).await;
    }
    assert_eq!(bundles(&machine), 0);
}

#[tokio::test]
async fn more_fetches_than_a_machine_has_places_for_are_told_to_come_again() {
    let host = GitHost::start().await;
    host.repository("code", CODE);
    let mut machine = machine(&host).await;
    let mut under_way = Vec::new();
    for number in 0..4 {
        let mut agent = machine.agent.clone();
        let slow = request(&host.url("slow", "code"), "main");
        under_way.push(tokio::spawn(async move { agent.fetch_git(slow).await }));
        until("git asks", || host.asked().len() > number).await;
    }
    let status = fetch(&mut machine, request(&host.url("plain", "code"), "main"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    while !under_way.iter().all(tokio::task::JoinHandle::is_finished) {
        host.let_go();
        tokio::task::yield_now().await;
    }
    fetched(&mut machine, request(&host.url("plain", "code"), "main")).await;
}

#[tokio::test]
async fn a_repository_that_is_too_large_for_the_disk_is_named_and_leaves_room_again() {
    let Some(mut machine) = Machine::start_on_small_disk("220m").await else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let host = GitHost::start().await;
    host.repository(
        "large",
        "head -c 90000000 /dev/urandom > data; git add -A; git commit -qm x",
    );
    trust(&machine, &host);
    machine.restart_with(&USER).await;
    let large = request(&host.url("plain", "large"), "main");
    let why = refused(&mut machine, large, Fault::Invalid).await;
    assert!(why.contains("is larger than the"), "{why}");
    is_clean(&machine).await;
}

#[tokio::test]
async fn a_key_reaches_its_host_over_ssh_and_only_a_host_whose_key_is_known() {
    const SSHD: &str = "/usr/sbin/sshd";
    if !Path::new(SSHD).exists() {
        eprintln!("skipped: there is no {SSHD}: apt-get install -y openssh-server");
        return;
    }
    let host = GitHost::start().await;
    host.repository("code", CODE);
    let keys = tempfile::tempdir().unwrap();
    let key = |name: &str| {
        let path = keys.path().join(name);
        let made = std::process::Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-t", "ed25519", "-f"])
            .arg(&path)
            .status();
        assert!(made.unwrap().success());
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        (read(&path), read(&path.with_extension("pub")))
    };
    let ((_, host_public), (private, public), (stranger, _)) = (key("host"), key("own"), key("stranger"));
    std::fs::write(keys.path().join("authorized"), public).unwrap();
    if nix::unistd::Uid::effective().is_root() {
        std::fs::create_dir_all("/run/sshd").unwrap();
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut sshd = std::process::Command::new(SSHD)
        .args([
            "-D",
            "-f",
            "/dev/null",
            "-o",
            "ListenAddress=127.0.0.1",
            "-o",
            "PidFile=none",
            "-o",
            "UsePAM=no",
        ])
        .args([
            "-o",
            "StrictModes=no",
            "-o",
            "PermitRootLogin=prohibit-password",
            "-o",
            &format!("Port={port}"),
        ])
        .args(["-o", &format!("HostKey={}", keys.path().join("host").display())])
        .args([
            "-o",
            &format!("AuthorizedKeysFile={}", keys.path().join("authorized").display()),
        ])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("sshd listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    })
    .await;
    let mut machine = machine(&host).await;
    let user = String::from_utf8(
        std::process::Command::new("id")
            .arg("-un")
            .output()
            .unwrap()
            .stdout,
    )
    .unwrap();
    let url = format!(
        "ssh://{}@127.0.0.1:{port}{}",
        user.trim(),
        host.path().join("code").display()
    );
    let with = |known: &str, ssh_key: &str| FetchGitRequest {
        known_hosts: format!("[127.0.0.1]:{port} {known}"),
        credential: Some(GitCredential {
            host: format!("127.0.0.1:{port}"),
            ssh_key: ssh_key.into(),
            ..GitCredential::default()
        }),
        ..request(&url, "main")
    };
    let unknown = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    for (known, key, why) in [
        (unknown, &private, "No key that its host has is in knownHosts"),
        (host_public.as_str(), &stranger, "Permission denied"),
    ] {
        let said = refused(&mut machine, with(known, key), Fault::Unavailable).await;
        assert!(said.contains(why), "{said}");
    }
    let (_, files) = fetched(&mut machine, with(&host_public, &private)).await;
    assert_eq!(files["exp/train.py"], "two\n");
    is_clean(&machine).await;
    let secret = private.lines().nth(1).unwrap();
    assert!(!holds(machine.home(), secret), "the key is in a file");
    sshd.kill().unwrap();
    sshd.wait().unwrap();
}
