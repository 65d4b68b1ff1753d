#!/usr/bin/env python3
"""Watch the Pools and Tasks of the samples until every Task has ended.

    demo-watch.py KUBECTL KUBECONFIG SAMPLES SECONDS

A line for each change, and one every ten seconds when nothing changes, so that
the person who watches knows that it lives. Exits 1 when the time is over, or a Task failed.
"""

import json
import subprocess
import sys
import time

kubectl, kubeconfig, samples, limit = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
BEGUN = time.monotonic()


def objects():
    answer = subprocess.run(
        [kubectl, "--kubeconfig", kubeconfig, "--request-timeout", "20s", "get", "-f", samples, "-o", "json"],
        capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return None
    found = json.loads(answer.stdout)
    return found["items"] if "items" in found else [found]


def say(text):
    print(f"  {time.monotonic() - BEGUN:6.1f}s  {text}", flush=True)


def message(status, *kinds):
    """The message of the first of these conditions that is not true."""
    for kind in kinds:
        for condition in status.get("conditions", []):
            if condition["type"] == kind and condition["status"] != "True" and condition.get("message"):
                return condition["message"]
    return ""


def describe(item):
    status = item.get("status", {})
    if item["kind"] == "Pool":
        text = f"{status.get('phase', 'Pending')}, machines ready: {status.get('readySummary', '0')}"
        return text if status.get("phase") == "Ready" else f"{text}  {message(status, 'Ready')}".rstrip()
    text = status.get("phase", "Pending")
    if status.get("done"):
        text += f", done {status['done']}"
    if text.startswith("Pending"):
        text = f"{text}  {message(status, 'Scheduled')}".rstrip()
    return text


def ended(item):
    # A sample may be held back on purpose.
    return item.get("status", {}).get("phase") in ("Succeeded", "Failed", "Suspended") or item["spec"].get("suspend")


def main():
    seen, spoke = {}, time.monotonic()
    while True:
        items = objects()
        tasks = [i for i in items or [] if i["kind"] == "Task"]
        for item in [i for i in items or [] if i["kind"] in ("Pool", "Task")]:
            name = f"{item['kind'].lower()} {item['metadata']['name']}"
            now = describe(item)
            if seen.get(name) != now:
                seen[name] = now
                say(f"{name}: {now[:160]}")
                spoke = time.monotonic()
        if items is not None and all(ended(task) for task in tasks):
            failed = [t["metadata"]["name"] for t in tasks if t.get("status", {}).get("phase") == "Failed"]
            say(f"all {len(tasks)} tasks ended" + (f"; failed: {', '.join(failed)}" if failed else ""))
            return 1 if failed else 0
        if time.monotonic() - BEGUN > limit:
            waiting = ", ".join(t["metadata"]["name"] for t in tasks if not ended(t))
            say(f"these tasks did not end within {limit:.0f} s: {waiting or 'unknown'}. Look with 'kubectl describe task <name>' and at the operator's log.")
            return 1
        if time.monotonic() - spoke >= 10:
            say("… " + ("waiting for " + ", ".join(t["metadata"]["name"] for t in tasks if not ended(t)) if items is not None else "the API server does not answer"))
            spoke = time.monotonic()
        time.sleep(0.5)


sys.exit(main())
