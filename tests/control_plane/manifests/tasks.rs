//! Tasks that are refused.

/// Kind, spec, and what the refusal must contain.
pub(super) const BAD: &[(&str, &str, &str)] = &[
    (
        "Task",
        "{command: [a]}",
        "exactly one of pool, the name of a Pool that runs it, and poolTemplate",
    ),
    (
        "Task",
        "{pool: p, poolTemplate: {spec: {provider: x}}, command: [a]}",
        "exactly one of pool, the name of a Pool that runs it, and poolTemplate",
    ),
    ("Task", "{pool: '', command: [a]}", "spec.pool"),
    (
        "Task",
        "{pool: p, command: [a], forEach: {}}",
        "forEach needs exactly one of items, count, matrix and itemsFrom",
    ),
    (
        "Task",
        "{pool: p, command: [a], forEach: {count: 1, items: [a]}}",
        "forEach needs exactly one of items, count, matrix and itemsFrom",
    ),
    (
        "Task",
        "{pool: p, command: [a], forEach: {count: 1000001}}",
        "should be less than or equal to 1000000",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: All, forEach: {count: 1}}",
        "each item of forEach runs on one machine: leave placement out",
    ),
    (
        "Task",
        "{pool: p, command: [a], forEach: {matrix: {}}}",
        "matrix needs an axis",
    ),
    (
        "Task",
        "{pool: p, command: [a], forEach: {matrix: {axes: [{name: a b, values: [1]}]}}}",
        "the name of an axis must be letters",
    ),
    (
        "Task",
        "{pool: p, command: [a], forEach: {itemsFrom: {}}}",
        "itemsFrom needs exactly one of sourceFile, configMapKeyRef and taskResult",
    ),
    (
        "Task",
        "{pool: p, command: [a], forEach: {itemsFrom: {sourceFile: a.jsonl}}}",
        "sourceFile is looked for in the source",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {configMap: {name: c}}, forEach: {itemsFrom: {sourceFile: ../a.jsonl}}}",
        "sourceFile must be a file of the source",
    ),
    (
        "Task",
        "{pool: p, command: [a], forEach: {itemsFrom: {taskResult: prepare}}}",
        "the Task of forEach.itemsFrom.taskResult ends first",
    ),
    (
        "Task",
        "{poolTemplate: {}, command: [a]}",
        "spec.poolTemplate.spec: Required value",
    ),
    (
        "Task",
        "{poolTemplate: {spec: {}}, command: [a]}",
        "a Pool needs provider",
    ),
    (
        "Task",
        "{poolTemplate: {spec: {provider: x, suspend: true}}, command: [a]}",
        "leave poolTemplate.spec.suspend out",
    ),
    (
        "Task",
        "{poolTemplate: {spec: {provider: x, nodes: {desired: 0}}}, command: [a]}",
        "poolTemplate.spec.nodes.desired must be at least 1",
    ),
    (
        "Task",
        "{poolTemplate: {spec: {provider: x, nodes: {min: 2}}}, command: [a]}",
        "nodes.min must not be above nodes.desired",
    ),
    (
        "Task",
        "{poolTemplate: {spec: {provider: x, memory: '16'}}, command: [a]}",
        "memory must be from 64Mi to 64Ti: write 16Gi, not 16",
    ),
    (
        "Task",
        "{poolTemplate: {metadata: {labels: {a b: c}}, spec: {provider: x}}, command: [a]}",
        "labels take names such as team",
    ),
    (
        "Task",
        "{poolTemplate: {metadata: {labels: {a: b c}}, spec: {provider: x}}, command: [a]}",
        "labels take values of letters",
    ),
    (
        "Task",
        "{poolTemplate: {metadata: {annotations: {-a: b}}, spec: {provider: x}}, command: [a]}",
        "annotations take names such as team",
    ),
    (
        "Task",
        "{poolTemplate: {metadata: {labels: {skyward.dev/pool: p}}, spec: {provider: x}}, command: [a]}",
        "names that begin with skyward.dev/ are the operator's own",
    ),
    ("Task", "{pool: p}", "exactly one of command, script and function"),
    (
        "Task",
        "{pool: p, command: [a], script: {source: b}}",
        "exactly one of command, script and function",
    ),
    ("Task", "{pool: p, command: []}", "spec.command"),
    ("Task", "{pool: p, command: ls}", "must be of type array"),
    ("Task", "{pool: p, script: {source: ''}}", "spec.script.source"),
    (
        "Task",
        "{pool: p, script: {source: a, interpreter: perl}}",
        r#"supported values: "bash", "python""#,
    ),
    (
        "Task",
        "{pool: p, function: {}}",
        "a function needs exactly one of source (its text), module",
    ),
    (
        "Task",
        "{pool: p, function: {source: a, module: b}, source: {configMap: {name: c}}}",
        "a function needs exactly one of source (its text), module",
    ),
    (
        "Task",
        "{pool: p, function: {source: a, pickle: {data: AAAA, python: '3.12', cloudpickle: '3.1'}}}",
        "a function needs exactly one of source (its text), module",
    ),
    (
        "Task",
        "{pool: p, function: {pickle: {data: AAAA, python: '3.12', cloudpickle: '3.1'}, entrypoint: main}}",
        "a pickle is the function itself: leave entrypoint out",
    ),
    (
        "Task",
        "{pool: p, function: {pickle: {data: AAAA, cloudpickle: '3.1'}}}",
        "spec.function.pickle.python: Required value",
    ),
    (
        "Task",
        "{pool: p, function: {pickle: {data: AAAA, python: three, cloudpickle: '3.1'}}}",
        "python must be the version of the Python that pickled the function, such as 3.12.4",
    ),
    (
        "Task",
        "{pool: p, function: {pickle: {data: AAAA, python: '3.12', cloudpickle: latest}}}",
        "cloudpickle must be the version of the package",
    ),
    (
        "Task",
        "{pool: p, function: {pickle: {data: AAA, python: '3.12', cloudpickle: '3.1'}}}",
        "data must be Base64",
    ),
    (
        "Task",
        "{pool: p, function: {pickle: {data: 'AA-_', python: '3.12', cloudpickle: '3.1'}}}",
        "data must be Base64",
    ),
    (
        "Task",
        "{pool: p, command: [a], processesPerMachine: 2}",
        "processesPerMachine is for Tasks that run on all machines: set placement: All",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: 0, processesPerMachine: 1}",
        "processesPerMachine is for Tasks that run on all machines: set placement: All",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: All, processesPerMachine: 0}",
        "spec.processesPerMachine",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: All, processesPerMachine: 65}",
        "spec.processesPerMachine",
    ),
    (
        "Task",
        "{pool: p, function: {module: train}}",
        "name one in spec.source",
    ),
    (
        "Task",
        "{pool: p, function: {module: exp/train.py}, source: {configMap: {name: c}}}",
        "such as exp.train for the file exp/train.py",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {}}",
        "source needs exactly one of configMap, git and bundle",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {configMap: {name: c}, bundle: {digest: 'sha256:256fe92a9a642545964298a809a6f5a7c206a2d2c8c0da6d3b8ba0f0251151b4'}}}",
        "source needs exactly one of configMap, git and bundle",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {bundle: {}}}",
        "spec.source.bundle.digest: Required value",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {bundle: {digest: 'sha256:256FE'}}}",
        "the digest that kubectl skyward upload prints",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {configMap: {name: c}, include: ['!a.py']}}",
        "a pattern of include cannot begin with !",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {configMap: {name: c}, exclude: [a, '!a.py']}}",
        "a pattern of exclude cannot begin with !",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {configMap: {name: c}, exclude: ['']}}",
        "spec.source.exclude[0]",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {configMap: {name: c}, git: {url: 'https://git.example/a'}}}",
        "source needs exactly one of configMap, git and bundle",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'http://git.example/a'}}}",
        "url must begin with https://HOST/",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'git@git.example:a'}}}",
        "url must begin with https://HOST/",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: '--upload-pack=id'}}}",
        "url must begin with https://HOST/",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'https://user:password@git.example/a'}}}",
        "put user and password into a Secret",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'ssh://git:password@git.example/a', knownHosts: x}}}",
        "put user and password into a Secret",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'https://-oProxyCommand=id/a'}}}",
        "characters that are not taken",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'https://git.example/a b'}}}",
        "characters that are not taken",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'ssh://git@git.example/a'}}}",
        "needs knownHosts",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'https://git.example/a', ref: --upload-pack=id}}}",
        "ref must be the name of a branch or tag",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'https://git.example/a', ref: 'a..b'}}}",
        "ref must be the name of a branch or tag",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'https://git.example/a', ref: '+a:b'}}}",
        "ref must be the name of a branch or tag",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'https://git.example/a', path: ../a}}}",
        "path must be a folder of the repository",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'https://git.example/a', path: /a}}}",
        "path must be a folder of the repository",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {url: 'https://git.example/a', path: a//b}}}",
        "path must be a folder of the repository",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {git: {}}}",
        "spec.source.git.url: Required value",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {configMap: {}}}",
        "spec.source.configMap.name: Required value",
    ),
    (
        "Task",
        "{pool: p, command: [a], source: {configMap: {name: c}}, workingDir: /data}",
        "leave workingDir out, or source",
    ),
    (
        "Task",
        "{pool: p, function: {source: a, entrypoint: 'a b'}}",
        "entrypoint must be the name of a Python function",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: some}",
        "placement must be One, All, Head, or the number of a rank",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: 500}",
        "placement must be One, All, Head, or the number of a rank",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: -1}",
        "placement must be One, All, Head, or the number of a rank",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: '500'}",
        "placement must be One, All, Head, or the number of a rank from 0 to 499",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: ''}",
        "placement must be One, All, Head, or the number of a rank",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: everywhere}",
        "placement must be One, All, Head, or the number of a rank",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: all}",
        "placement must be One, All, Head, or the number of a rank",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: first two}",
        "placement must be One, All, Head, or the number of a rank",
    ),
    (
        "Task",
        "{pool: p, command: [a], timeout: 60}",
        "write a duration such as",
    ),
    (
        "Task",
        "{pool: p, command: [a], terminationGracePeriod: 30}",
        "write a duration such as",
    ),
    (
        "Task",
        "{pool: p, command: [a], env: [{name: a-b}]}",
        "the name of an environment variable has letters",
    ),
    (
        "Task",
        "{pool: p, command: [a], envFrom: [{}]}",
        "exactly one of secretRef and configMapRef",
    ),
    (
        "Task",
        "{pool: p, command: [a], timeout: 1ms}",
        "timeout must be at least 100ms",
    ),
    (
        "Task",
        "{pool: p, command: [a], timeout: soon}",
        "write a duration such as",
    ),
    (
        "Task",
        "{pool: p, command: [a], terminationGracePeriod: 48h}",
        "terminationGracePeriod must be at most 24h",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {onInterruption: -1}}",
        "spec.retries.onInterruption",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {onFailure: 1001}}",
        "spec.retries.onFailure",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {rules: [{action: Fail}]}}",
        "a rule of retries needs exactly one of exitCodes, reasons and exceptions",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {rules: [{exitCodes: [1], reasons: [TimedOut], action: Fail}]}}",
        "a rule of retries needs exactly one of exitCodes, reasons and exceptions",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {rules: [{exitCodes: [0], action: Fail}]}}",
        "spec.retries.rules[0].exitCodes[0]",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {rules: [{exitCodes: [], action: Fail}]}}",
        "spec.retries.rules[0].exitCodes",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {rules: [{exitCodes: [1]}]}}",
        "spec.retries.rules[0].action: Required value",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {rules: [{reasons: [Interrupted], action: Retry}]}}",
        "supported values: \"NonZeroExit\"",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {rules: [{exitCodes: [1], action: retry}]}}",
        "supported values: \"Retry\", \"Fail\", \"Ignore\"",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {rules: [{exceptions: [builtins.ValueError], action: Retry}]}}",
        "those of Python without one, such as ValueError",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {rules: [{exceptions: ['Value Error'], action: Retry}]}}",
        "exceptions are named with their module",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {backoff: {initial: 2m, max: 1m}}}",
        "retries.backoff.initial must not be longer than retries.backoff.max",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {onFailure: 1, scope: Rank}}",
        "retries.scope is for Tasks that run on all machines",
    ),
    (
        "Task",
        "{pool: p, command: [a], placement: All, retries: {scope: Machine}}",
        "supported values: \"All\", \"Rank\"",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {backoff: {initial: 10}}}",
        "write a duration such as",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {backoff: {initial: 10ms}}}",
        "retries.backoff.initial must be from 1s to 24h",
    ),
    (
        "Task",
        "{pool: p, command: [a], retries: {backoff: {max: 48h}}}",
        "retries.backoff.max must be from 1s to 24h",
    ),
    (
        "Task",
        "{pool: p, command: [a], activeDeadline: 1ms}",
        "activeDeadline must be from 1s to 87600h",
    ),
    (
        "Task",
        "{pool: p, command: [a], queueTimeout: 0s}",
        "queueTimeout must be from 1s to 87600h",
    ),
    (
        "Task",
        "{pool: p, command: [a], queueTimeout: soon}",
        "write a duration such as",
    ),
    (
        "Task",
        "{pool: p, command: [a], priority: 2000000}",
        "spec.priority",
    ),
    (
        "Task",
        "{pool: p, command: [a], workingDir: data}",
        "workingDir must be an absolute path",
    ),
    (
        "Task",
        "{pool: p, command: [a], env: [{value: x}]}",
        "spec.env[0].name: Required value",
    ),
    (
        "Task",
        "{pool: p, command: [a], dependsOn: [{task: Prepare}]}",
        "task must be the name of a Task of this namespace",
    ),
    (
        "Task",
        "{pool: p, command: [a], dependsOn: [{task: a}, {task: a, status: Finished}]}",
        "Duplicate value",
    ),
    (
        "Task",
        "{pool: p, command: [a], dependsOn: [{task: a, status: Failed}]}",
        "Unsupported value: \"Failed\"",
    ),
    (
        "Task",
        "{pool: p, command: [a], retention: {logs: 5s}}",
        "retention.logs must be from 1m to 87600h",
    ),
    (
        "Task",
        "{pool: p, command: [a], retention: {results: 90000h}}",
        "retention.results must be from 1m to 87600h",
    ),
    (
        "Task",
        "{pool: p, command: [a], retention: {results: 7}}",
        "write a duration such as",
    ),
    (
        "CronTask",
        "{schedule: nightly, taskTemplate: {spec: {pool: p, command: [a]}}}",
        "schedule has five fields",
    ),
    (
        "CronTask",
        "{schedule: 'TZ=UTC 0 3 * * *', taskTemplate: {spec: {pool: p, command: [a]}}}",
        "schedule has five fields",
    ),
    (
        "CronTask",
        "{schedule: 0 3 * * *, timeZone: 'Europe Berlin', taskTemplate: {spec: {pool: p, command: [a]}}}",
        "timeZone must be a name",
    ),
    (
        "CronTask",
        "{schedule: 0 3 * * *, taskTemplate: {spec: {pool: p, command: [a], script: {source: a}}}}",
        "a Task needs exactly one of command, script and function",
    ),
    (
        "Task",
        "{pool: p, command: [a], ttlSecondsAfterFinished: -1}",
        "spec.ttlSecondsAfterFinished",
    ),
];
