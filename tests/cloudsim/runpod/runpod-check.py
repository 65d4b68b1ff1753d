#!/usr/bin/env python3
"""The simulated RunPod under the Python package that RunPod publishes.

Its queries are not ours: what it cannot read or gets refused is a mistake of the
simulator. Called with the address of the simulator; needs runpod.
"""

import os
import sys
import time

URL, KEY = sys.argv[1:3]
os.environ["RUNPOD_API_BASE_URL"] = URL

import runpod  # noqa: E402
from runpod.error import AuthenticationError, QueryError  # noqa: E402

GPU = "NVIDIA GeForce RTX 4090"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"


def refused(kind, message, call, *values, **named):
    try:
        answer = call(*values, **named)
    except kind as error:
        assert message in str(error), error
        return
    raise AssertionError(f"{message} expected, got {answer}")


def until(what, look, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if look():
            return
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


def check_offers():
    assert GPU in [gpu["id"] for gpu in runpod.get_gpus()]
    gpu = runpod.get_gpu(GPU)
    assert (gpu["securePrice"], gpu["communityPrice"], gpu["memoryInGb"]) == (0.69, 0.34, 24), gpu
    assert gpu["lowestPrice"] == {"minimumBidPrice": 0.2, "uninterruptablePrice": 0.34}, gpu
    refused(ValueError, "No GPU found", runpod.get_gpu, "none")


def check_pods():
    order = {"cloud_type": "SECURE", "ports": "22/tcp,8888/http", "volume_in_gb": 20, "container_disk_in_gb": 30, "env": {"A": "b"}}
    refused(QueryError, "no longer any instances available", runpod.create_pod, "many", "runpod/stack", GPU, gpu_count=64)
    made = runpod.create_pod("one", "runpod/stack", GPU, **order)
    assert made["imageName"] == "runpod/stack" and made["machine"]["podHostId"], made
    until("it has a port", lambda: ((runpod.get_pod(made["id"])["runtime"] or {}).get("ports")))
    (pod,) = runpod.get_pods()
    assert (pod["id"], pod["name"], pod["desiredStatus"], pod["costPerHr"]) == (made["id"], "one", "RUNNING", 0.69), pod
    assert (pod["containerDiskInGb"], pod["volumeInGb"], pod["ports"]) == (30, 20, "22/tcp,8888/http"), pod
    assert pod["runtime"]["ports"][0]["privatePort"] == 22 and pod["machine"]["gpuDisplayName"] == "RTX 4090", pod
    assert runpod.stop_pod(made["id"])["desiredStatus"] == "EXITED"
    assert runpod.get_pod(made["id"])["runtime"] is None
    assert runpod.resume_pod(made["id"], 1)["desiredStatus"] == "RUNNING"
    runpod.terminate_pod(made["id"])
    until("it is gone", lambda: runpod.get_pods() == [])
    refused(QueryError, "Pod not found", runpod.terminate_pod, made["id"])


def main():
    runpod.api_key = "wrong"
    refused(AuthenticationError, "Unauthorized", runpod.get_gpus)
    runpod.api_key = KEY
    assert runpod.update_user_settings(PUBLIC)["pubKey"] == PUBLIC
    user = runpod.get_user()
    assert (user["pubKey"], user["networkVolumes"]) == (PUBLIC, []), user
    check_offers()
    check_pods()
    print(f"runpod {runpod.__version__}: everything understood")


main()
