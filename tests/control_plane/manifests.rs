//! Manifests that are refused, each with what to write instead.

mod providers;
mod tasks;

pub(crate) const MACHINE: &str = "{pool: p, poolUid: u, slot: 0, attempt: 1, provider: x, offer: o, instanceType: t, \
                       market: OnDemand, hourlyPrice: '0', token: k, templateHash: h}";

/// All of them: kind, spec, and what the refusal must contain.
pub(crate) fn bad() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    [POOLS_AND_RECORDS, tasks::BAD, providers::BAD]
        .into_iter()
        .flatten()
        .copied()
}

const POOLS_AND_RECORDS: &[(&str, &str, &str)] = &[
    ("Pool", "{}", "a Pool needs provider"),
    ("Pool", "{candidates: [{region: eu}]}", "a Pool needs provider"),
    (
        "Pool",
        "{provider: x, allocation: Spot, spotPercent: 50}",
        "write either allocation or spotPercent",
    ),
    (
        "Pool",
        "{provider: x, maxHourlyCost: '2,50'}",
        "maxHourlyCost must be an amount of USD",
    ),
    (
        "Pool",
        "{provider: x, maxHourlyCost: -1}",
        "maxHourlyCost must be an amount of USD such as \"2.50\" (in quotes)",
    ),
    // A fraction never reaches the rule: whatever Kubernetes says names the type that it wants.
    (
        "Pool",
        "{provider: x, maxHourlyCost: 2.5}",
        "must be of type integer,string",
    ),
    (
        "Pool",
        "{provider: x, budget: {maxTotalCost: 100 USD}}",
        "maxTotalCost must be an amount of USD",
    ),
    (
        "Pool",
        "{provider: x, budget: {maxTotalCost: 100, period: 60s}}",
        "budget.period must be at least 1h",
    ),
    ("Pool", "{provider: ''}", "spec.provider"),
    (
        "Pool",
        "{provider: x, maxLifetime: 1s}",
        "maxLifetime must be at least 1m",
    ),
    (
        "Pool",
        "{provider: x, nodes: {desired: 10000}}",
        "a Pool has at most 500 machines; use several Pools",
    ),
    (
        "Pool",
        "{provider: x, nodes: {desired: -1}}",
        "spec.nodes.desired",
    ),
    (
        "Pool",
        "{provider: x, nodes: {desired: 2, min: 3}}",
        "nodes.min must not be above nodes.desired; lower it",
    ),
    (
        "Pool",
        "{provider: x, nodes: {min: 2}}",
        "nodes.min must not be above nodes.desired",
    ),
    (
        "Pool",
        "{provider: x, nodes: {desired: 2, max: 1}}",
        "nodes.max must not be below nodes.desired; raise it",
    ),
    ("Pool", "{provider: x, nodes: {max: 501}}", "spec.nodes.max"),
    (
        "Pool",
        "{provider: x, nodes: {desired: 1, max: 2}, autoscale: {scaleDownAfter: 25h}}",
        "autoscale.scaleDownAfter must be at most 24h",
    ),
    (
        "Pool",
        "{provider: x, retries: {rules: [{action: Fail}]}}",
        "a rule of retries needs exactly one of exitCodes, reasons and exceptions",
    ),
    (
        "Pool",
        "{provider: x, retries: {rules: [{exceptions: [builtins.ValueError], action: Retry}]}}",
        "exceptions are named with their module",
    ),
    (
        "Pool",
        "{provider: x, retries: {backoff: {initial: 0s}}}",
        "retries.backoff.initial must be from 1s to 24h",
    ),
    (
        "Pool",
        "{provider: x, retries: {backoff: {max: 25h}}}",
        "retries.backoff.max must be from 1s to 24h",
    ),
    (
        "Pool",
        "{provider: x, retries: {backoff: {initial: 2m, max: 1m}}}",
        "retries.backoff.initial must not be longer than retries.backoff.max",
    ),
    (
        "Pool",
        "{provider: x, autoscale: {scaleDownAfter: 1m}}",
        "autoscale needs nodes.max",
    ),
    (
        "Pool",
        "{provider: x, idleTimeout: 5s}",
        "idleTimeout must be at least 10s",
    ),
    (
        "Pool",
        "{provider: x, idleTimeout: never}",
        "write Never, or a duration such as 300s, 10m or 1h30m",
    ),
    (
        "Pool",
        "{provider: x, maxLifetime: 5s}",
        "maxLifetime must be at least 1m",
    ),
    (
        "Pool",
        "{provider: x, nodes: {desired: two}}",
        "must be of type integer",
    ),
    (
        "Pool",
        "{provider: x, cpu: 0}",
        "cpu must be from 100m to 4096 CPUs",
    ),
    (
        "Pool",
        "{provider: x, cpu: 64Gi}",
        "write an amount of CPUs such as 500m or 4",
    ),
    (
        "Pool",
        "{provider: x, cpu: 0.5}",
        "must be of type integer,string",
    ),
    (
        "Pool",
        "{provider: x, candidates: [{cpu: 1m}]}",
        "cpu must be from 100m to 4096 CPUs",
    ),
    (
        "Pool",
        "{provider: x, memory: 16}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, memory: '16'}",
        "memory must be from 64Mi to 64Ti: write 16Gi, not 16",
    ),
    (
        "Pool",
        "{provider: x, memory: 16 GB}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, disk: 200}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, disk: 200Ti}",
        "disk must be from 64Mi to 64Ti",
    ),
    (
        "Pool",
        "{provider: x, shmSize: 8M}",
        "shmSize must be from 64Mi to 64Ti: write 16Gi, not 16",
    ),
    (
        "Pool",
        "{provider: x, candidates: [{memory: 64}]}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, candidates: [{disk: 64k}]}",
        "disk must be from 64Mi to 64Ti: write 16Gi, not 16",
    ),
    (
        "Pool",
        "{provider: x, accelerator: {name: H100, memory: 80}}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, candidates: [{accelerator: {name: H100, memory: '80'}}]}",
        "accelerator.memory must be from 64Mi to 1Ti: write 16Gi, not 16",
    ),
    (
        "Pool",
        "{provider: x, accelerator: {name: H100, memory: 80GB}}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, allocation: spot}",
        r#"supported values: "Spot", "OnDemand", "SpotIfAvailable", "Cheapest""#,
    ),
    (
        "Pool",
        "{provider: x, selection: cheapest}",
        r#"supported values: "Cheapest", "First", "Available""#,
    ),
    (
        "Pool",
        "{provider: x, topology: false}",
        r#"supported values: "Connected", "Independent""#,
    ),
    (
        "Pool",
        "{provider: x, retries: {onInterruption: 5000}}",
        "spec.retries.onInterruption",
    ),
    (
        "Pool",
        "{provider: x, accelerator: {}}",
        "spec.accelerator.name: Required value",
    ),
    (
        "Pool",
        "{provider: x, accelerator: {name: H100, count: 0}}",
        "accelerator.count must be from 0.125 to 16",
    ),
    (
        "Pool",
        "{provider: x, architecture: sparc}",
        r#"supported values: "amd64", "arm64""#,
    ),
    (
        "Pool",
        "{provider: x, shmSize: lots}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, shmSize: 8}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, shmSize: half of its memory}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, timeouts: {ssh: 5 minutes}}",
        "write a duration such as 300s, 10m or 1h30m",
    ),
    (
        "Pool",
        "{provider: x, timeouts: {ssh: 5d}}",
        "write a duration such as 300s, 10m or 1h30m",
    ),
    (
        "Pool",
        "{provider: x, timeouts: {ssh: 300}}",
        "write a duration such as 300s, 10m or 1h30m",
    ),
    (
        "Pool",
        "{provider: x, timeouts: {ssh: 1ms}}",
        "timeouts.ssh must be at least 1s",
    ),
    (
        "Pool",
        "{provider: x, timeouts: {provision: 0s}}",
        "timeouts.provision must be at least 1s",
    ),
    (
        "Pool",
        "{provider: x, timeouts: {bootstrap: 10ms}}",
        "timeouts.bootstrap must be at least 1s",
    ),
    (
        "Pool",
        "{provider: x, timeouts: {shutdown: 25h}}",
        "timeouts.shutdown must be at most 24h",
    ),
    (
        "Pool",
        "{provider: x, sshRetryInterval: 1h}",
        "sshRetryInterval must be from 100ms to 10m",
    ),
    (
        "Pool",
        "{provider: x, provisionRetryDelay: 2h}",
        "provisionRetryDelay must be at most 1h",
    ),
    (
        "Pool",
        "{provider: x, orphanTimeout: 1s}",
        "orphanTimeout must be at least 5m",
    ),
    (
        "Pool",
        "{provider: x, maxProvisionAttempts: 0}",
        "spec.maxProvisionAttempts",
    ),
    (
        "Pool",
        "{provider: x, worker: {concurrency: 0}}",
        "spec.worker.concurrency",
    ),
    (
        "Pool",
        "{provider: x, worker: {user: 'Big Boss'}}",
        "worker.user must be the name of a Linux user",
    ),
    (
        "Pool",
        "{provider: x, image: {python: '2.7'}}",
        "python must be auto or a version such as 3.12",
    ),
    (
        "Pool",
        "{provider: x, image: {python: 3.12}}",
        "must be of type string",
    ),
    (
        "Pool",
        "{provider: x, image: {python: 'the newest that there is'}}",
        "python must be auto or a version such as 3.12",
    ),
    (
        "Pool",
        "{provider: x, accelerator: {name: H100, count: '0.1'}}",
        "accelerator.count must be from 0.125 to 16, such as 8 or \"0.5\"",
    ),
    (
        "Pool",
        "{provider: x, accelerator: {name: H100, count: 0.5}}",
        "must be of type integer,string",
    ),
    (
        "Pool",
        "{provider: x, accelerator: {name: H100, count: half}}",
        "write a whole number such as 8, or a part of one as text",
    ),
    (
        "Pool",
        "{provider: x, worker: {user: a.name.that.is.longer.than.linux.allows}}",
        "worker.user must be the name of a Linux user",
    ),
    (
        "Pool",
        "{provider: x, worker: {executor: Thread, reuseProcesses: false}}",
        "threads share one process: leave worker.reuseProcesses out, or set worker.executor: Process",
    ),
    (
        "Pool",
        "{provider: x, worker: {executor: thread}}",
        "spec.worker.executor",
    ),
    (
        "Pool",
        "{provider: x, worker: {buffer: 65}}",
        "spec.worker.buffer",
    ),
    (
        "Pool",
        "{provider: x, worker: {preload: ['torch==2']}}",
        "preload takes names of Python modules",
    ),
    (
        "Pool",
        "{provider: x, image: {apt: ['git curl']}}",
        "apt takes names of Debian packages",
    ),
    (
        "Pool",
        "{provider: x, image: {apt: ['--force']}}",
        "apt takes names of Debian packages",
    ),
    ("Pool", "{provider: x, image: {pip: ['']}}", "spec.image.pip[0]"),
    (
        "Pool",
        "{provider: x, image: {pipIndexes: [{url: 'https://robot:canary@x/simple', packages: [a]}]}}",
        "name that in credentialsSecretRef",
    ),
    (
        "Pool",
        "{provider: x, image: {pip: [torch, '--extra-index-url https://x']}}",
        "for --index-url and --extra-index-url write pipIndexes",
    ),
    (
        "Pool",
        "{provider: x, image: {pip: [' -r requirements.txt']}}",
        "each line of a requirements file as its own entry",
    ),
    (
        "Pool",
        "{provider: x, image: {pip: [\"torch\\n--index-url https://x\"]}}",
        "no options that begin with -",
    ),
    (
        "Pool",
        "{provider: x, image: {pip: [torch, 'x @ https://robot:canary@x/y.whl']}}",
        "put TOKEN into a Secret that stepsEnvFrom names",
    ),
    (
        "Pool",
        "{provider: x, image: {pip: ['git+https://canary@x/y@main']}}",
        "would read the password in a URL of pip",
    ),
    (
        "Pool",
        "{provider: x, image: {pip: ['git+https://canary:@x/y']}}",
        "would read the password in a URL of pip",
    ),
    (
        "Pool",
        "{provider: x, image: {pip: ['git+https://robot:$canary@x:8443/y']}}",
        "would read the password in a URL of pip",
    ),
    (
        "Pool",
        "{provider: x, image: {pip: ['y @ git+ssh://git:canary@x/y']}}",
        "would read the password in a URL of pip",
    ),
    (
        "Pool",
        "{provider: x, image: {apt: ['-o=Debug::x']}}",
        "no options that begin with -",
    ),
    (
        "Pool",
        "{provider: x, logs: {limit: '256'}}",
        "logs.limit needs a unit: write 256Mi, not 256",
    ),
    (
        "Pool",
        "{provider: x, logs: {limit: 256}}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, logs: {limit: 64Ki}}",
        "logs.limit must be from 1Mi to 2Gi",
    ),
    (
        "Pool",
        "{provider: x, logs: {limit: 3Gi}}",
        "logs.limit must be from 1Mi to 2Gi",
    ),
    (
        "Pool",
        "{provider: x, logs: {limit: much}}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Pool",
        "{provider: x, image: {pipIndexes: [{url: 'ftp://x', packages: [a]}]}}",
        "url must begin with https://",
    ),
    (
        "Pool",
        "{provider: x, image: {pipIndexes: [{url: 'https://x'}]}}",
        "packages: Required value",
    ),
    (
        "Pool",
        "{provider: x, image: {env: [{name: 1A}]}}",
        "the name of an environment variable has letters",
    ),
    (
        "Pool",
        "{provider: x, image: {env: [{name: A, value: a}, {name: A, value: b}]}}",
        "Duplicate value",
    ),
    (
        "Pool",
        "{provider: x, image: {envFrom: [{}]}}",
        "exactly one of secretRef and configMapRef",
    ),
    (
        "Pool",
        "{provider: x, image: {envFrom: [{secretRef: {name: a}, configMapRef: {name: b}}]}}",
        "exactly one of secretRef and configMapRef",
    ),
    (
        "Pool",
        "{provider: x, image: {shellVars: {a-b: 'echo 1'}}}",
        "the names in shellVars must be names of environment",
    ),
    (
        "Pool",
        "{provider: x, image: {caBundleRef: {}}}",
        "spec.image.caBundleRef.name: Required value",
    ),
    // Written by the controller, and checked all the same.
    ("Machine", "{pool: p}", "spec.poolUid: Required value"),
    ("Offer", "{provider: x}", "spec.instanceType: Required value"),
];
