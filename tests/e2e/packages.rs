//! Packages that a Pool's `image` installs on its machines. The tests need a package index in reach
//! of Pods; without one they print so.

use serde_json::json;
use skyward_api::{Pool, TaskPhase};
use skyward_testkit::{Result, package_index};
pub(crate) use skyward_testkit::{certificates, image_with};

use crate::{crash::KILLING, story};

#[tokio::test]
async fn packages_variables_and_certificates_of_the_image_are_on_the_machine() -> Result {
    let space = story("packages").await?;
    let Some(index) = package_index(&space.cluster).await? else {
        println!("skipped: no package index answers; SKYWARD_TEST_INDEX can name one");
        return space.finish().await;
    };
    certificates(&space, &index).await?;
    let mut env = vec![json!({"name": "GREETING", "value": "hello"})];
    env.extend(
        index
            .environment
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value})),
    );
    // Two ways to a package: the machine's own index, and one that the Pool names.
    let image = json!({
        "pip": ["six", "iniconfig>=2"],
        "pipIndexes": [{"url": index.url, "packages": ["iniconfig"]}],
        "apt": ["hello"],
        "env": env,
        "shellVars": {"KERNEL": "uname -s", "TWO_LINES": "printf 'a\\nb\\n'"},
        "caBundleRef": {"name": "proxy"},
    });
    space.pool("p", 1, json!({"image": image})).await?;
    let wrong = json!({"pip": ["no-such-package-of-anybody"], "env": env, "caBundleRef": {"name": "proxy"}});
    space
        .pool("typo", 1, json!({"image": wrong, "maxProvisionAttempts": 1}))
        .await?;

    let source = "
import os, shutil, subprocess
import six, iniconfig
def main():
    return {
        'six': six.__name__, 'iniconfig': iniconfig.__name__,
        'hello': subprocess.run(['hello'], capture_output=True, text=True).stdout.strip(),
        'greeting': os.environ['GREETING'], 'kernel': os.environ['KERNEL'], 'lines': os.environ['TWO_LINES'],
        'bundle': os.path.getsize(os.environ['SSL_CERT_FILE']) > 1000,
    }
";
    space
        .task("look", "p", json!({"function": {"source": source}}))
        .await?;
    let done = space
        .task_ended_within("look", 480)
        .await?
        .status
        .unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_eq!(
        done.results[0].value,
        Some(
            json!({"six": "six", "iniconfig": "iniconfig", "hello": "Hello, world!", "greeting": "hello",
            "kernel": "Linux", "lines": "a\nb", "bundle": true})
        ),
        "{done:#?}"
    );
    let message = space
        .condition::<Pool>("typo", "Stalled", "ProvisioningFailed")
        .await?;
    assert!(
        message.contains("packages") && message.contains("no-such-package-of-anybody"),
        "the step and what it said: {message}"
    );
    space.finish().await
}

/// Prints a word while it is unpickled, and is the function `len`.
const PICKLE: &str =
    "BCJNGGhAMAAAAAAAAACSKwAAAPYSY2J1aWx0aW5zCnByaW50CihTJ3VucGlja2xlZCcKdFIwIQBQbGVuCi4AAAAA";

#[tokio::test]
async fn a_pickled_function_runs_where_its_packages_are_and_is_unpickled_by_its_run_alone() -> Result {
    let space = story("pickled").await?;
    let Some(index) = package_index(&space.cluster).await? else {
        println!("skipped: no package index answers; SKYWARD_TEST_INDEX can name one");
        return space.finish().await;
    };
    certificates(&space, &index).await?;
    let mut image = image_with(&index);
    image["pip"] = json!(["cloudpickle", "lz4"]);
    space.pool("p", 1, json!({"image": image})).await?;
    let python = "import platform\ndef main(): return platform.python_version()";
    space
        .task("python", "p", json!({"function": {"source": python}}))
        .await?;
    let done = space
        .task_ended_within("python", 480)
        .await?
        .status
        .unwrap_or_default();
    let version = done.results[0].value.clone().unwrap_or_default();
    let pickle = json!({"data": PICKLE, "python": version, "cloudpickle": "3.1.1"});
    space
        .task(
            "pickle",
            "p",
            json!({"function": {"pickle": pickle, "args": [[1, 2, 3]]}}),
        )
        .await?;
    let done = space.task_ended("pickle").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_eq!(done.results[0].value, Some(json!(3)));
    assert_eq!(done.results[0].log_tail.trim(), "unpickled");
    space.finish().await
}

#[tokio::test]
async fn images_that_cannot_be_prepared_say_which_step_and_why() -> Result {
    let space = story("prepare").await?;
    let once = |image: serde_json::Value| json!({"image": image, "maxProvisionAttempts": 1});
    space
        .create_json(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "empty"}, "data": {"ca.crt": "nothing"}}))
        .await?;
    space
        .pool("bundle", 1, once(json!({"caBundleRef": {"name": "empty"}})))
        .await?;
    space
        .pool(
            "snippet",
            1,
            once(json!({"shellVars": {"BROKEN": "echo to-err >&2; exit 3"}})),
        )
        .await?;
    space
        .pool("absent", 1, once(json!({"caBundleRef": {"name": "later"}})))
        .await?;
    let message = space
        .condition::<Pool>("absent", "Ready", "ReferenceNotFound")
        .await?;
    assert!(message.contains("later"), "{message}");
    let message = space
        .condition::<Pool>("bundle", "Stalled", "ProvisioningFailed")
        .await?;
    assert!(
        message.contains("certificates") && message.contains("BEGIN CERTIFICATE"),
        "{message}"
    );
    let message = space
        .condition::<Pool>("snippet", "Stalled", "ProvisioningFailed")
        .await?;
    for words in ["shell_vars", "BROKEN", "exit code 3", "to-err"] {
        assert!(message.contains(words), "{words} in: {message}");
    }
    space.finish().await
}

/// Where no index is in reach, that is the failure, in the same way on each machine.
#[tokio::test]
async fn a_package_that_does_not_exist_costs_two_machines_and_its_log_says_why() -> Result {
    let space = story("typo").await?;
    // Each controller that is killed begins the preparation anew, and a log is not read while none answers.
    let turn = KILLING.read().await;
    let typo = json!({"image": {"pip": ["no-such-package-xyz"]}, "provisionRetryDelay": "1s"});
    space.pool("p", 1, typo).await?;
    let message = space.condition::<Pool>("p", "Stalled", "BootstrapFailed").await?;
    assert!(
        message.contains("packages") && message.contains("failed in the same way"),
        "{message}"
    );
    let pool = space.api::<Pool>().get("p").await?;
    let status = pool.status.unwrap_or_default();
    assert_eq!(status.last_attempt, 2, "two machines and no third: {status:#?}");
    assert_eq!(status.reason, "BootstrapFailed: given up after 2 tries");
    let columns = space.kubectl(&["get", "pools"]).await?.ok()?;
    assert!(
        columns.contains("BootstrapFailed: given up after 2 tries"),
        "{columns}"
    );
    space.told(&["BootstrapFailed", "PoolStalled"]).await?;

    // Each is gone or going, and what it printed is there, for those who may read logs.
    let (_, rest) = message.split_once("machine/").unwrap_or_default();
    let machine = rest.split('`').next().unwrap_or_default();
    let plugin = ["skyward", "-n", space.name.as_str(), "logs"];
    let named = format!("machine/{machine}");
    let read = [&plugin[..], &[named.as_str()]].concat();
    let log = space.cluster.kubectl(&read).await?.ok()?;
    assert!(
        log.contains("probe ---") && log.contains("packages ---"),
        "{machine}: {log}"
    );
    let last = [&plugin[..], &[named.as_str(), "--tail", "1"]].concat();
    assert_eq!(space.cluster.kubectl(&last).await?.ok()?.lines().count(), 1);
    drop(turn);
    let user = format!("system:serviceaccount:{}:default", space.name);
    let stranger = [&read[..], &["--as", user.as_str()]].concat();
    let error = space.cluster.kubectl(&stranger).await?.refused()?;
    assert!(error.contains("machines/log"), "{error}");

    let mended = [
        "patch",
        "pool",
        "p",
        "--type=merge",
        "-p",
        r#"{"spec":{"image":{"pip":[]}}}"#,
    ];
    space.kubectl(&mended).await?.ok()?;
    let pool = space.pool_ready("p").await?;
    assert_eq!(pool.status.unwrap_or_default().reason, "");
    space.finish().await
}
