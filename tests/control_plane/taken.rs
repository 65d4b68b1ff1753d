//! Manifests that are accepted.

use crate::manifests::MACHINE;

pub(crate) const GOOD: &[(&str, &str)] = &[
    ("Pool", "{provider: x}"),
    ("Pool", "{provider: x, nodes: {desired: 0}}"),
    ("Pool", "{provider: x, nodes: {desired: 0, min: 2}}"),
    ("Pool", "{provider: x, nodes: {desired: 500, min: 1}}"),
    ("Pool", "{provider: x, accelerator: {name: L4, count: '0.125'}}"),
    (
        "Pool",
        "{provider: x, accelerator: {name: L4, count: '2'}, cpu: 64, memory: 64Mi, disk: 64Ti}",
    ),
    (
        "Pool",
        "{candidates: [{provider: x, instanceType: t, cpu: '0.5', memory: 1T, disk: 200G, architecture: amd64, \
         allocation: OnDemand, accelerator: {name: H100, memory: 80G}}], selection: Available, topology: Independent, \
         retries: {onInterruption: 0}}",
    ),
    (
        "Pool",
        "{provider: x, accelerator: {name: H100, count: 8, memory: 80Gi}, cpu: 500m, memory: 1500Mi, disk: 10G}",
    ),
    (
        "Pool",
        "{provider: x, architecture: arm64, shmSize: 512Mi, suspend: true, retries: {onInterruption: 0}, topology: Connected}",
    ),
    (
        "Pool",
        "{provider: x, timeouts: {provision: 1h30m, ssh: 90.5s, bootstrap: 500000ms, shutdown: 0s}}",
    ),
    (
        "Pool",
        "{provider: x, image: {python: auto, pip: ['torch==2.9', 'numpy'], apt: [git, libgl1, g++], env: [{name: A}], \
         envFrom: [{secretRef: {name: s, optional: true}, prefix: S_}, {configMapRef: {name: c}}], \
         shellVars: {CUDA: 'echo /usr'}, pipIndexes: [{url: 'https://x/@simple', packages: [torch], credentialsSecretRef: {name: index}}], stepsEnvFrom: [{secretRef: {name: proxy}}], \
         caBundleRef: {name: ca}}, worker: {concurrency: 4, user: root}}",
    ),
    (
        "Pool",
        "{provider: x, logs: {limit: 1Mi}, image: {pip: [' torch >= 2', 'x @ git+https://x/y', 'a-b[c]; python_version > \"3\"']}}",
    ),
    (
        "Pool",
        "{provider: x, image: {pip: ['a @ git+https://x:8443/@y@main', 'git+ssh://git@x:22/y@main', 'b @ git+https://${TOKEN}@x/y', \
         'https://robot:${TOKEN}@x:8443/y.whl', 'https://${USER}:${TOKEN}@x/y.whl', 'c @ file:///opt/c@1']}}",
    ),
    ("Pool", "{provider: x, logs: {limit: 2Gi}}"),
    ("Pool", "{provider: x, logs: {limit: 100M}}"),
    ("Pool", "{provider: x, logs: {}}"),
    ("Pool", "{provider: x, maxLifetime: 24h}"),
    // Whole numbers are exact.
    (
        "Pool",
        "{provider: x, maxHourlyCost: 50, budget: {maxTotalCost: 100}, candidates: [{maxHourlyCost: 0}]}",
    ),
    // As in Kubernetes' own kinds, null is absent.
    (
        "Pool",
        "{provider: x, image: null, cpu: null, timeouts: {ssh: null}, nodes: null}",
    ),
    ("Task", "{pool: p, command: [a], script: null}"),
    (
        "Task",
        "{pool: p, command: [a], timeout: 30m, activeDeadline: 6h, queueTimeout: 1h, retries: {onInterruption: 3, onFailure: 2, \
         backoff: {initial: 10s, max: 5m}, rules: [{exitCodes: [64, 255], action: Fail}, \
         {reasons: [OutOfMemory, ResultNotJSON], action: Ignore}, \
         {exceptions: [requests.exceptions.ConnectionError, 'main.<locals>.Größe'], action: Retry}]}}",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {backoff: {initial: 1h}}}",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: All, retries: {onFailure: 1, scope: Rank}}",
    ),
    (
        "Pool",
        "{provider: x, retries: {onFailure: 1000, scope: Rank, rules: [{exitCodes: [1], action: Ignore}]}}",
    ),
    (
        "Task",
        "{pool: p, script: {source: 'echo', interpreter: python}, placement: Head}",
    ),
    ("Task", "{pool: p, command: [a], placement: 3}"),
    ("Task", "{pool: p, command: [a], placement: '3'}"),
    ("Task", "{pool: p, command: [a], placement: '499'}"),
    (
        "Task",
        "{pool: p, command: [a], placement: All, timeout: 1h, terminationGracePeriod: 0s, priority: -5}",
    ),
    (
        "Task",
        "{pool: p, command: [a], retention: {logs: 168h, results: 720h}}",
    ),
    (
        "CronTask",
        "{schedule: '*/5 8-18 * * MON-FRI', timeZone: America/New_York, concurrencyPolicy: Replace, suspend: true, \
         startingDeadlineSeconds: 600, successfulTasksHistoryLimit: 0, failedTasksHistoryLimit: 100, \
         taskTemplate: {metadata: {labels: {a: b}}, spec: {pool: p, command: [a]}}}",
    ),
    (
        "CronTask",
        "{schedule: '@daily', taskTemplate: {spec: {pool: p, command: [a]}}}",
    ),
    (
        "Task",
        "{pool: p, command: [a], dependsOn: [{task: prepare}, {task: clean.v2, status: Finished}]}",
    ),
    (
        "Task",
        "{pool: p, command: [a], output: {stdout: Head, stderr: None, ranks: [0, 499]}}",
    ),
    (
        "Task",
        "{pool: p, function: {source: 'def f(): pass', entrypoint: f, args: [1, 'a', null, [1, {b: 2}], {c: [true]}], \
         kwargs: {x: null, y: {z: [1]}, n: 1.5}}}",
    ),
    (
        "Task",
        "{pool: p, function: {pickle: {data: 'AA+/AA==', python: 3.12.4+, cloudpickle: 3.1.1}, args: [1], kwargs: {a: null}}}",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: All, processesPerMachine: 64}",
    ),
    ("Task", "{poolTemplate: {spec: {provider: x}}, command: [a]}"),
    (
        "Task",
        "{poolTemplate: {metadata: {labels: {team: vision, a.example/b: ''}, annotations: {note: 'a b'}}, spec: {nodes: {min: 1}, \
         maxLifetime: 72h, candidates: [{provider: x, settings: {any: [1, {a: null}]}}]}}, command: [a], placement: All}",
    ),
    ("Provider", "{container: {}, allowedNamespaces: {}}"),
    (
        "Provider",
        "{container: {resources: {requests: {cpu: 4}}}, allowedNamespaces: {}, limits: {hourlyCost: 50, monthlyCost: 0}}",
    ),
    (
        "Provider",
        "{container: {image: i, imagePullPolicy: Never, imagePullSecrets: [{name: s}], nodeSelector: {a: b}, \
         tolerations: [{key: gpu, operator: Exists}], securityProfile: Restricted, sshUser: worker, \
         resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: '2'}}}, instanceTimeout: 5m, \
         allowedNamespaces: {matchLabels: {team: a}}, \
         limits: {machines: 10, machinesPerNamespace: 2, hourlyCost: '0', monthlyCost: '99.95', namespaces: [ \
         {selector: {matchLabels: {kubernetes.io/metadata.name: a}}, machines: 5, hourlyCost: '1', monthlyCost: '9'}]}, \
         hostKeyPolicy: Verified, refreshInterval: 1m}",
    ),
    (
        "Provider",
        "{runpod: {containerDisk: 100Gi, volume: '0'}, requestTimeout: 1s, instanceTimeout: 60s, allowedNamespaces: {}}",
    ),
    (
        "Provider",
        "{verda: {disk: 1Ti}, requestTimeout: 5m, allowedNamespaces: {}}",
    ),
    (
        "Provider",
        "{massedcompute: {imageId: 84}, overridable: [imageId], allowedNamespaces: {}}",
    ),
    ("Provider", "{vastai: {disk: 32G}, allowedNamespaces: {}}"),
    ("Machine", MACHINE),
    (
        "Machine",
        "{pool: p, poolUid: u, slot: 0, attempt: 1, provider: x, offer: o, instanceType: t, market: Spot, \
         hourlyPrice: '0', token: k, templateHash: h, accelerator: {name: L4, count: '0.125'}, cpu: 500m, memory: 4Gi, disk: 20G, maxHourlyCost: '2', \
         billingStep: 60s, billingMinimum: 0s, \
         grantedAccelerator: {name: L4, count: '0.125', memory: 3584Mi, formFactor: PCIe}}",
    ),
    (
        "Offer",
        "{provider: x, instanceType: t, cpu: 3900m, memory: 16G, architecture: amd64, availability: Yes, connected: true}",
    ),
];
