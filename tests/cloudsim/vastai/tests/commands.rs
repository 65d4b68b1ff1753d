//! Commands, logs and copies.

use serde_json::json;

use super::Hand;

#[test]
fn a_command_and_logs_say_something_at_another_address() {
    let hand = Hand::new();
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let execute = |command: &str| {
        hand.put(
            &format!("/api/v0/instances/command/{id}/"),
            json!({"command": command}),
        )
    };
    let said = |answer: &serde_json::Value| {
        let url = answer["result_url"].as_str().expect("an address");
        let path = url.strip_prefix("http://127.0.0.1:1").expect("of the simulator");
        hand.get(path).1
    };
    let (status, size) = execute("du -d2 -h");
    assert_eq!((status, &size["success"]), (200, &json!(true)), "{size}");
    let disk = size["writeable_path"].as_str().expect("a path");
    assert!(said(&size).as_str().is_some_and(|text| text.contains(disk)));
    let (status, refused) = execute("cat /etc/passwd");
    assert_eq!((status, &refused["error"]), (400, &json!("invalid_args")));
    assert_eq!(
        hand.put("/api/v0/instances/command/1/", json!({"command": "ls"}))
            .0,
        400
    );

    let logs = |body| {
        let (status, logs) = hand.put(&format!("/api/v0/instances/request_logs/{id}/"), body);
        assert_eq!(status, 200, "{logs}");
        said(&logs).as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(logs(json!({})).lines().count(), 2);
    assert_eq!(logs(json!({"tail": "1"})).lines().count(), 1);
    assert!(logs(json!({"filter": "created"})).contains("created"));
    assert!(logs(json!({"daemon_logs": "true"})).contains("daemon"));
    hand.judged_clean();
}

#[test]
fn a_copy_has_two_ends_that_are_there() {
    let hand = Hand::new();
    let first = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let second = hand.running(&hand.offer_of(118, 1, "ondemand"), json!({}));
    let copy = |from: &str, to: &str| {
        let body = json!({
            "client_id": "me", "src_id": from, "dst_id": to, "src_path": "/a", "dst_path": "/b",
        });
        hand.put("/api/v0/commands/copy_direct/", body)
    };
    assert_eq!(copy(&first, &format!("C.{second}")).0, 200);
    assert_eq!(copy(&first, "V.1").0, 404);
    assert_eq!(copy(&first, "s3.101").0, 404);
    let (_, local) = copy("local", &second);
    assert!(local["dst_port"].is_i64(), "{local}");
    let rsync =
        json!({"client_id": "me", "src_id": first, "dst_id": null, "src_path": "/a", "dst_path": "b"});
    let (status, local) = hand.put("/api/v0/commands/rsync/", rsync);
    assert_eq!((status, local["src_addr"].is_string()), (200, true), "{local}");
    let stop = json!({"client_id": "me", "dst_id": second});
    assert_eq!(hand.delete("/api/v0/commands/copy_direct/", stop.clone()).0, 200);
    assert_eq!(hand.delete("/api/v0/commands/rclone/", stop).0, 200);
    assert_eq!(hand.get("/api/v0/users/cloud_integrations/").1, json!([]));
    let sync = json!({"instance_id": first, "src": "/a", "dst": "/b", "selected": "1", "transfer": "x", "flags": []});
    assert_eq!(hand.post("/api/v0/commands/rclone/", sync).0, 400);
    hand.judged_clean();
}
