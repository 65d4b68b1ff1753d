#!/usr/bin/env python3
"""Compares what the chart grants with what the operator asked for.

    tests/chart/permissions.py AUDIT.LOG...

That is what the API server of the local cluster wrote while the end-to-end tests ran
(hack/cluster/audit.yaml), in more than one file when they ran long. It fails when the operator was refused something, and when
something is granted that nobody asked for and RARE does not explain. helm and kubectl are
taken from SKYWARD_BIN_DIR or the path; kubectl needs KUBECONFIG to read the chart's YAML.
"""

import fileinput
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMESPACE = "skyward-system"
ACCOUNTS = ("skyward-controller", "skyward-subresources")

# Granted although the tests need not ask for it: (resource, verb) and why.
RARE = {
    ("events", "patch"): "only when an event repeats within its series",
    ("events.events.k8s.io", "create"): "only by an older version, until it has handed over",
    ("events.events.k8s.io", "patch"): "only by an older version, until it has handed over",
    ("leases.coordination.k8s.io", "create"): "only at the first start on a cluster",
    ("leases.coordination.k8s.io", "get"): "in other namespaces only while another installation has the claim to lead",
    ("customresourcedefinitions.apiextensions.k8s.io", "patch"): "once for each leader",
    ("apiservices.apiregistration.k8s.io", "patch"): "only when the certificate authority is new",
    ("configmaps", "get"): "only where a manifest names a ConfigMap",
    ("tasks.skyward.dev", "get"): "only for logs and results, and where a watch lags",
    ("tasks.skyward.dev", "delete"): "only after ttlSecondsAfterFinished, and beyond the history of a CronTask",
    ("tasks.skyward.dev", "create"): "only for CronTasks",
    ("crontasks/status.skyward.dev", "patch"): "only for CronTasks",
    ("tasks/status.skyward.dev", "update"): "only for values that a patch cannot carry, such as nulls",
    ("offers.skyward.dev", "create"): "asked for inside a server-side apply, which the log calls patch",
    ("machines.skyward.dev", "get"): "only where a watch lags",
    ("configmaps", "create"): "only when the authority of our certificates is first published",
    ("configmaps", "update"): "only when the certificate authority is new",
    ("secrets", "create"): "only when a key or certificate is new",
    ("secrets", "update"): "only when a certificate is renewed",
}


def run(*command, text=None):
    path = os.environ.get("SKYWARD_BIN_DIR", "") + os.pathsep + os.environ["PATH"]
    answer = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": path}
    )
    if answer.returncode != 0:
        sys.exit(f"{' '.join(command[:2])} failed: {answer.stderr.strip()}")
    return answer.stdout


def rendered():
    """Every object of the chart, as Helm renders it."""
    chart = run(
        "helm", "template", "skyward", "charts/skyward", "--namespace", NAMESPACE, "--kube-version", "1.34.0",
        "--no-hooks", "--set", "store.storageClass=default",
    )
    text = run("kubectl", "create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", text=chart)
    decoder, objects, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):
        value, at = decoder.raw_decode(text, at)
        objects += value.get("items", [value])
        while at < len(text) and text[at].isspace():
            at += 1
    return objects


def full_name(group, resource, subresource=""):
    name = resource + (f"/{subresource}" if subresource else "")
    return f"{name}.{group}" if group else name


def granted(objects):
    """{(account, namespace or None for everywhere, resource, verb): names or None}."""
    rules = {(o["kind"], o["metadata"]["name"]): o.get("rules") for o in objects if o["kind"].endswith("Role")}
    grants = {}
    for binding in objects:
        if binding["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        reference = (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for rule in rules.get(reference) or []:
            for subject in binding["subjects"]:
                if subject["name"] not in ACCOUNTS:
                    continue  # what people may read
                where = binding["metadata"].get("namespace")
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        base, _, sub = resource.partition("/")
                        for verb in rule["verbs"]:
                            key = (subject["name"], where, full_name(group, base, sub), verb)
                            grants[key] = rule.get("resourceNames")
    return grants


def asked(logs):
    """What our accounts asked for, and what they were refused."""
    uses, refusals = {}, {}
    with fileinput.input(logs, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line, still being written
            account = event["user"]["username"].removeprefix(f"system:serviceaccount:{NAMESPACE}:")
            target = event.get("objectRef")
            if account not in ACCOUNTS or not target:
                continue
            name = full_name(target.get("apiGroup", ""), target["resource"], target.get("subresource", ""))
            key = (account, target.get("namespace"), name, event["verb"])
            if event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid":
                refusals[key] = event.get("requestURI", "")
            else:
                uses[key] = uses.get(key, 0) + 1
    return uses, refusals


def faults(uses, refusals, grants):
    """What was refused and never granted, and what was granted and never asked for, as sentences."""
    found = []
    for account, namespace, name, verb in sorted(refusals, key=str):
        # What is granted is refused only while the chart is uninstalled, which takes the roles away first. A role
        # that names its objects does not say whether this one was meant.
        meant = [(account, space, name, verb) for space in (None, namespace)]
        is_granted = any(grant in grants and grants[grant] is None for grant in meant)
        if is_granted or (account, namespace, name, verb) in uses:
            continue
        uri = refusals[account, namespace, name, verb]
        found.append(f"{account} was refused: {verb} {name} in {namespace or 'the cluster'} ({uri})")
    for account, where, name, verb in sorted(grants, key=str):
        used = any(
            (account, name, verb) == (who, what, did) and where in (None, namespace)
            for who, namespace, what, did in uses
        )
        base = name.split("/")[0]
        if not used and (name, verb) not in RARE and (base, verb) not in RARE:
            found.append(f"{account} may {verb} {name} in {where or 'the cluster'}, and never did")
    return found


def main():
    logs = sys.argv[1:]
    if not logs or not all(pathlib.Path(log).is_file() for log in logs):
        sys.exit(__doc__)
    uses, refusals = asked(logs)
    if not uses:
        sys.exit(f"{', '.join(logs)}: no request of the operator; run the end-to-end tests first")
    grants = granted(rendered())
    found = faults(uses, refusals, grants)
    for fault in found:
        print(fault)
    if found:
        sys.exit("the chart's rules (charts/skyward/templates/rbac*.yaml) are not what the operator uses")
    print(f"{len(grants)} permissions granted, {sum(uses.values())} requests, none refused but while they were taken away")


if __name__ == "__main__":
    main()
