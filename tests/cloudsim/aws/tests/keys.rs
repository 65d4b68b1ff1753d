//! Key pairs that the service makes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{ACCOUNT, Hand, Reply};

fn create(hand: &Hand, name: &str, more: &[(&str, &str)]) -> Reply {
    let mut parameters = vec![("KeyName", name)];
    parameters.extend(more);
    hand.ec2("CreateKeyPair", &parameters)
}

fn described(hand: &Hand, name: &str) -> Reply {
    hand.ec2(
        "DescribeKeyPairs",
        &[("KeyName.1", name), ("IncludePublicKey", "true")],
    )
    .fine()
}

#[test]
fn the_public_half_of_a_key_pair_that_was_made_is_what_machines_get() {
    let Some(hand) = Hand::new() else { return };
    let made = create(&hand, "mine", &[]).fine();
    let material = made.text("keyMaterial").expect("a private key");
    assert!(
        material.starts_with("-----BEGIN RSA PRIVATE KEY-----\n")
            && material.ends_with("\n-----END RSA PRIVATE KEY-----"),
        "{material}"
    );
    let shown = described(&hand, "mine");
    for element in ["keyPairId", "keyFingerprint", "keyName"] {
        assert_eq!(made.text(element), shown.text(element), "{element}");
    }
    assert_eq!(made.text("keyFingerprint").map(str::len), Some(59));
    assert_eq!(
        (shown.text("keyType"), shown.text("keyMaterial")),
        (Some("rsa"), None)
    );
    let line = shown.text("publicKey").expect("a public key").to_owned();
    assert!(
        line.starts_with("ssh-rsa AAAAB3NzaC1yc2E") && line.ends_with(" mine"),
        "{line}"
    );
    let id = hand.running("t3.micro", &[("KeyName", "mine")]);
    let keys = hand
        .sim
        .world(|world| world.machines[&id].boot.authorized_keys.clone());
    assert_eq!(keys, [line]);
    hand.judged_clean();
}

#[test]
fn a_key_pair_is_of_the_kind_and_in_the_form_that_was_asked_for() {
    let Some(hand) = Hand::new() else { return };
    let table = [
        ("ed25519", "pem", "-----BEGIN OPENSSH PRIVATE KEY-----\n"),
        ("ed25519", "ppk", "PuTTY-User-Key-File-2: ssh-ed25519\n"),
        ("rsa", "ppk", "PuTTY-User-Key-File-2: ssh-rsa\n"),
    ];
    for (kind, form, begin) in table {
        let name = format!("{kind}-{form}");
        let made = create(&hand, &name, &[("KeyType", kind), ("KeyFormat", form)]).fine();
        let material = made.text("keyMaterial").expect("a private key");
        assert!(material.starts_with(begin), "{material}");
        let shown = described(&hand, &name);
        assert_eq!(shown.text("keyType"), Some(kind));
        assert_eq!(made.text("keyFingerprint"), shown.text("keyFingerprint"));
    }
    let made = create(&hand, "whole", &[("KeyType", "ed25519")]).fine();
    let inside: String = made
        .text("keyMaterial")
        .expect("a private key")
        .lines()
        .filter(|line| !line.starts_with("-----"))
        .collect();
    let file = STANDARD.decode(inside).expect("base64");
    let shown = described(&hand, "whole");
    let public = shown.text("publicKey").and_then(|line| line.split(' ').nth(1));
    let public = STANDARD.decode(public.expect("a public key")).expect("base64");
    assert!(file.windows(public.len()).any(|part| part == public.as_slice()));
    hand.judged_clean();
}

#[test]
fn a_name_is_taken_by_a_key_pair_however_it_came_to_be() {
    let Some(hand) = Hand::new() else { return };
    let tags = [
        ("KeyType", "ed25519"),
        ("TagSpecification.1.ResourceType", "key-pair"),
        ("TagSpecification.1.Tag.1.Key", "skyward:managed"),
        ("TagSpecification.1.Tag.1.Value", "true"),
    ];
    let made = create(&hand, "mine", &tags).fine();
    assert_eq!(made.text("key"), Some("skyward:managed"));
    create(&hand, "mine", &[]).fails(400, "InvalidKeyPair.Duplicate");
    let shown = described(&hand, "mine");
    let material = STANDARD.encode(shown.text("publicKey").expect("a public key"));
    let import = |name: &str| {
        let parameters = [("KeyName", name), ("PublicKeyMaterial", material.as_str())];
        hand.ec2("ImportKeyPair", &parameters)
    };
    import("mine").fails(400, "InvalidKeyPair.Duplicate");
    // The same key has the same fingerprint when a client brings it.
    let brought = import("theirs").fine();
    assert_eq!(brought.text("keyFingerprint"), made.text("keyFingerprint"));
    create(&hand, " spaces ", &[]).fails(400, "InvalidParameterValue");
    create(&hand, "dry", &[("DryRun", "true")]).fails(412, "DryRunOperation");
    for name in ["mine", "theirs"] {
        hand.ec2("DeleteKeyPair", &[("KeyName", name)]).fine();
    }
    create(&hand, "mine", &[("KeyType", "ed25519")]).fine();
    hand.ec2("DeleteKeyPair", &[("KeyName", "mine")]).fine();
    assert_eq!(hand.sim.meter(|meter| meter.leftovers(ACCOUNT).len()), 0);
    hand.judged_clean();
}
