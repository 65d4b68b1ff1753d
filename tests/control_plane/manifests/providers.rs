//! Providers that are refused.

/// Kind, spec, and what the refusal must contain.
pub(super) const BAD: &[(&str, &str, &str)] = &[
    ("Provider", "{}", "spec.allowedNamespaces: Required value"),
    (
        "Provider",
        "{allowedNamespaces: {}}",
        "write `container: {}` for Pods of this cluster",
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, refreshInterval: 1s}",
        "refreshInterval must be at least 10s",
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {matchExpressions: [{key: a, operator: Like}]}}",
        r#"supported values: "In""#,
    ),
    (
        "Provider",
        "{container: {}, instanceTimeout: 5s, allowedNamespaces: {}}",
        "instanceTimeout must be at least 60s",
    ),
    (
        "Provider",
        "{container: {}, idleTimeout: 5s, allowedNamespaces: {}}",
        "idleTimeout must be at least 10s",
    ),
    (
        "Provider",
        "{container: {}, idleTimeout: sometimes, allowedNamespaces: {}}",
        "write Never, or a duration such as 300s, 10m or 1h30m",
    ),
    (
        "Provider",
        "{container: {imagePullPolicy: Sometimes}, allowedNamespaces: {}}",
        r#"supported values: "Always""#,
    ),
    (
        "Provider",
        "{container: {sshUser: 'a b'}, allowedNamespaces: {}}",
        "sshUser must be the name of a Linux user",
    ),
    (
        "Provider",
        "{container: {resources: {requests: {cpu: many}}}, allowedNamespaces: {}}",
        "write an amount of CPUs such as 500m or 4",
    ),
    (
        "Provider",
        "{container: {resources: {requests: {cpu: -4}}}, allowedNamespaces: {}}",
        "write an amount of CPUs such as 500m or 4",
    ),
    (
        "Provider",
        "{container: {resources: {limits: {memory: 4}}}, allowedNamespaces: {}}",
        "write an amount with its unit such as 512Mi or 16Gi",
    ),
    (
        "Provider",
        "{container: {resources: {limits: {memory: '16'}}}, allowedNamespaces: {}}",
        "memory must be from 64Mi to 64Ti: write 16Gi, not 16",
    ),
    (
        "Provider",
        "{container: {resources: {requests: {memory: 512Ki}}}, allowedNamespaces: {}}",
        "memory must be from 64Mi to 64Ti: write 16Gi, not 16",
    ),
    (
        "Provider",
        "{container: {resources: {requests: {ephemeralStorage: '10'}}}, allowedNamespaces: {}}",
        "ephemeralStorage must be from 64Mi to 64Ti: write 16Gi, not 16",
    ),
    (
        "Provider",
        "{vastai: {overlayTimeout: 1h}, allowedNamespaces: {}}",
        "vastai.overlayTimeout must be from 1s to 10m",
    ),
    (
        "Provider",
        "{vastai: {overlayTimeout: 0s}, allowedNamespaces: {}}",
        "vastai.overlayTimeout must be from 1s to 10m",
    ),
    (
        "Provider",
        "{container: {}, instanceTimeout: 300, allowedNamespaces: {}}",
        "write a duration such as 300s",
    ),
    (
        "Provider",
        "{lambda: {}, requestTimeout: 10m, allowedNamespaces: {}}",
        "requestTimeout must be from 1s to 5m",
    ),
    (
        "Provider",
        "{container: {}, requestTimeout: 10s, allowedNamespaces: {}}",
        "a Provider of kind container asks no cloud: leave requestTimeout out",
    ),
    (
        "Provider",
        "{verda: {disk: 100}, allowedNamespaces: {}}",
        "write the size of a disk from 1G to 64Ti: 100Gi, not 100",
    ),
    (
        "Provider",
        "{vastai: {disk: '0'}, allowedNamespaces: {}}",
        "write the size of a disk from 1G to 64Ti: 100Gi, not 100",
    ),
    (
        "Provider",
        "{runpod: {containerDisk: '50'}, allowedNamespaces: {}}",
        "write the size of a disk from 1G to 64Ti: 100Gi, not 100",
    ),
    (
        "Provider",
        "{runpod: {volume: 0}, allowedNamespaces: {}}",
        "write the size of a disk from 1G to 64Ti, or \"0\" for none: 100Gi, not 100",
    ),
    (
        "Provider",
        "{container: {tolerations: [{effect: Sulk}]}, allowedNamespaces: {}}",
        r#"supported values: "NoSchedule""#,
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, overridable: [image]}",
        "leave overridable out, and write another Provider",
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, limits: {machines: -1}}",
        "spec.limits.machines",
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, limits: {hourlyCost: '$50'}}",
        r#"limits.hourlyCost must be an amount of USD such as "50""#,
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, limits: {hourlyCost: -50}}",
        r#"limits.hourlyCost must be an amount of USD such as "50" (in quotes)"#,
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, limits: {hourlyCostPerNamespace: '-1'}}",
        "limits.hourlyCostPerNamespace must be an amount of USD",
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, limits: {monthlyCost: '5,000'}}",
        "limits.monthlyCost must be an amount of USD",
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, limits: {monthlyCostPerNamespace: many}}",
        "limits.monthlyCostPerNamespace must be an amount of USD",
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, limits: {namespaces: [{machines: 2}]}}",
        "spec.limits.namespaces[0].selector: Required value",
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, limits: {namespaces: [{selector: {}, hourlyCost: '$5'}]}}",
        r#"limits.namespaces[].hourlyCost must be an amount of USD such as "80""#,
    ),
    (
        "Provider",
        "{container: {}, allowedNamespaces: {}, limits: {namespaces: [{selector: {}, monthlyCost: lots}]}}",
        r#"limits.namespaces[].monthlyCost must be an amount of USD such as "7000""#,
    ),
    (
        "Provider",
        "{vastai: {}, overridable: [disk, geolocation], allowedNamespaces: {}}",
        "overridable cannot name geolocation",
    ),
    (
        "Provider",
        "{vastai: {}, overridable: [requireDirectPort], allowedNamespaces: {}}",
        "overridable cannot name geolocation, requireDirectPort",
    ),
    (
        "Provider",
        "{runpod: {}, overridable: [cloudType], allowedNamespaces: {}}",
        "overridable cannot name cloudType, cpuClock",
    ),
    (
        "Provider",
        "{lambda: {}, overridable: [region], allowedNamespaces: {}}",
        "overridable cannot name region of lambda",
    ),
    (
        "Provider",
        "{verda: {}, overridable: [region], allowedNamespaces: {}}",
        "overridable cannot name region of verda",
    ),
    (
        "Provider",
        "{vultr: {}, overridable: [mode], allowedNamespaces: {}}",
        "overridable cannot name mode, region of vultr",
    ),
    (
        "Provider",
        "{digitalocean: {}, overridable: [region], allowedNamespaces: {}}",
        "overridable cannot name region of digitalocean",
    ),
    (
        "Provider",
        "{hyperstack: {}, overridable: [regions], allowedNamespaces: {}}",
        "overridable cannot name regions, networkOptimised, networkOptimisedRegions of hyperstack",
    ),
    (
        "Provider",
        "{tensordock: {}, overridable: [tier], allowedNamespaces: {}}",
        "overridable cannot name location, tier, minRam, minVcpus of tensordock",
    ),
    (
        "Provider",
        "{jarvislabs: {}, overridable: [template], allowedNamespaces: {}}",
        "overridable cannot name region, template, currency, exchangeRate of jarvislabs",
    ),
    (
        "Provider",
        "{novita: {}, overridable: [clusterId], allowedNamespaces: {}}",
        "overridable cannot name clusterId of novita",
    ),
    (
        "Provider",
        "{massedcompute: {imageId: 0}, allowedNamespaces: {}}",
        "spec.massedcompute.imageId",
    ),
    (
        "Provider",
        "{gcp: {}, overridable: [prices], allowedNamespaces: {}}",
        "overridable cannot name project, zone, regions, prices of gcp",
    ),
    (
        "Provider",
        "{scaleway: {}, overridable: [zone], allowedNamespaces: {}}",
        "overridable cannot name projectId, zone, exchangeRate of scaleway",
    ),
    (
        "Provider",
        "{aws: {region: us-east-1}, overridable: [regions], allowedNamespaces: {}}",
        "overridable cannot name region, regions, excludeBurstable",
    ),
];
