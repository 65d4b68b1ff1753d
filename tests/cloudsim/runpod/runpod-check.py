#!/usr/bin/env python3
"""The simulated RunPod under the Python package that RunPod publishes.

Its queries are not ours: what it cannot read or gets refused is a mistake of the
simulator. Called with the address of the simulator; needs runpod.
"""

import os
import sys
from pathlib import Path

URL, KEY = sys.argv[1:3]
os.environ["RUNPOD_API_BASE_URL"] = URL

import runpod  # noqa: E402
from runpod.api.graphql import run_graphql_query  # noqa: E402
from runpod.error import AuthenticationError, QueryError  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

GPU = "NVIDIA GeForce RTX 4090"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"


def refused(kind, message, call, *values, **named):
    try:
        answer = call(*values, **named)
    except kind as error:
        assert message in str(error), error
        return
    raise AssertionError(f"{message} expected, got {answer}")


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
    refused(QueryError, "pod not found to terminate", runpod.terminate_pod, made["id"])


def check_templates():
    auth = runpod.create_container_registry_auth("mine", "user", "secret")
    assert auth["name"] == "mine", auth
    assert runpod.update_container_registry_auth(auth["id"], "user", "other") == auth
    refused(QueryError, "name exists", runpod.create_container_registry_auth, "mine", "user", "secret")
    settings = {"container_disk_in_gb": 15, "ports": "22/tcp, 80/http", "env": {"A": "b"}, "registry_auth_id": auth["id"]}
    template = runpod.create_template("t", "runpod/stack", "python3 main.py", **settings)
    assert (template["containerDiskInGb"], template["ports"]) == (15, "22/tcp,80/http"), template
    assert (template["env"], template["dockerArgs"]) == ([{"key": "A", "value": "b"}], "python3 main.py"), template
    assert template["isServerless"] is False and template["volumeInGb"] == 0, template
    refused(QueryError, "Template name must be unique", runpod.create_template, "t", "runpod/stack")
    refused(QueryError, "no such registry", runpod.create_template, "u", "runpod/stack", registry_auth_id="none")
    made = runpod.create_pod("templated", gpu_type_id=GPU, template_id=template["id"], env={"C": "d"})
    assert made["imageName"] == "runpod/stack" and sorted(made["env"]) == ["A=b", "C=d"], made
    pod = runpod.get_pod(made["id"])
    assert (pod["containerDiskInGb"], pod["ports"], pod["dockerArgs"]) == (15, "22/tcp,80/http", "python3 main.py"), pod
    delete = 'mutation { deleteTemplate(templateName: "t") }'
    refused(QueryError, "in use", run_graphql_query, delete)
    refused(QueryError, "in use", runpod.delete_container_registry_auth, auth["id"])
    runpod.terminate_pod(made["id"])
    until("it is gone", lambda: runpod.get_pods() == [])
    run_graphql_query(delete)
    runpod.delete_container_registry_auth(auth["id"])
    refused(QueryError, "not found", runpod.delete_container_registry_auth, auth["id"])


def check_cpus():
    made = runpod.create_pod("cpu", "runpod/base", instance_id="cpu3c-2-4")
    (pod,) = runpod.get_pods()
    assert (pod["id"], pod["gpuCount"], pod["vcpuCount"], pod["costPerHr"]) == (made["id"], 0, 2, 0.06), pod
    runpod.terminate_pod(made["id"])
    until("it is gone", lambda: runpod.get_pods() == [])


def check_volumes():
    # The package can mount volumes and not make them.
    create = 'mutation { createNetworkVolume(input: { name: "v", size: 10, dataCenterId: "EU-RO-1" }) { id } }'
    volume = run_graphql_query(create)["data"]["createNetworkVolume"]["id"]
    known = [{"id": volume, "name": "v", "size": 10, "dataCenterId": "EU-RO-1"}]
    assert runpod.get_user()["networkVolumes"] == known, runpod.get_user()
    made = runpod.create_pod("mounted", "runpod/stack", GPU, network_volume_id=volume)
    pod = runpod.get_pod(made["id"])
    assert (pod["volumeInGb"], pod["volumeMountPath"]) == (0, "/runpod-volume"), pod
    elsewhere = {"network_volume_id": volume, "data_center_id": "US-TX-3"}
    refused(QueryError, "network volume", runpod.create_pod, "far", "runpod/stack", GPU, **elsewhere)
    runpod.terminate_pod(made["id"])
    until("it is gone", lambda: runpod.get_pods() == [])
    run_graphql_query(f'mutation {{ deleteNetworkVolume(input: {{ id: "{volume}" }}) }}')
    assert runpod.get_user()["networkVolumes"] == []


def main():
    runpod.api_key = "wrong"
    refused(AuthenticationError, "Unauthorized", runpod.get_gpus)
    runpod.api_key = KEY
    assert runpod.update_user_settings(PUBLIC)["pubKey"] == PUBLIC
    user = runpod.get_user()
    assert (user["pubKey"], user["networkVolumes"]) == (PUBLIC, []), user
    check_offers()
    check_pods()
    check_templates()
    check_cpus()
    check_volumes()
    print(f"runpod {runpod.__version__}: everything understood")


main()
