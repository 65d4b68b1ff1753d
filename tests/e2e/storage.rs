//! The storage client of the package inside a Task, against a server of S3's API that others wrote, on the node.

use serde_json::json;
use skyward_api::TaskPhase;
use skyward_testkit::{Bucket, Result};

use crate::story;

const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../config/samples/storage/task.yaml"
);

#[tokio::test]
async fn the_sample_stores_lists_fetches_and_removes_a_file() -> Result {
    let space = story("storage").await?;
    let Some(bucket) = Bucket::start(&space.cluster).await? else {
        return space.finish().await;
    };
    space.pool("samples", 1, json!({})).await?;
    let mut sample = std::fs::read_to_string(SAMPLE)?;
    for (given, ours) in [
        ("https://s3.example", bucket.endpoint()),
        ("my-bucket", Bucket::NAME),
        ("my-access-key", Bucket::ACCESS),
        ("my-secret-key", Bucket::KEY),
    ] {
        assert!(sample.contains(given), "{sample}");
        sample = sample.replace(given, ours);
    }
    space.apply(&sample).await?.ok()?;
    let done = space.task_ended("storage").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let expected = json!({"found": ["run-1/weights.txt"], "content": "0.5 0.25", "left": false});
    assert_eq!(done.results[0].value, Some(expected), "{done:#?}");
    assert_eq!(bucket.objects("run-1"), Vec::<String>::new(), "it was removed");
    space.finish().await
}
