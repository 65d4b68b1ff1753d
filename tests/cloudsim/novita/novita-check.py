#!/usr/bin/env python3
"""The simulated Novita under the Python client and command line that Novita publishes (novita).

Its code is not ours: what it cannot read or gets refused is a mistake of the simulator. It sends what it is given
and reads fields by their names, so that the types of answers are checked here. Called with the address of the
simulator and a key; needs novita.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

from click.testing import CliRunner
from novita_cli import novita_cli
from novita_cli.core import client as core

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

URL, KEY = sys.argv[1:3]
IMAGE = "nvidia/cuda:12.4.1-runtime-ubuntu22.04"
# It has no setting for another address.
core.BASE_URL = URL


def refused(status, reason, call, *args, **named):
    try:
        answer = call(*args, **named)
    except core.NovitaError as error:
        # The client looks for another form of failures, and gives the whole text.
        said = json.loads(str(error))
        assert (error.status_code, said["reason"], said["code"]) == (status, reason, status), said
        assert said["message"], said
        return
    raise AssertionError(f"{status} expected, got {answer}")


def command(*words):
    """What the command line prints."""
    result = CliRunner().invoke(novita_cli.cli, ["--api-key", KEY, *words], obj={})
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.output


def said(*words):
    """What the command line prints as JSON."""
    return json.loads(command("--json-output", "gpu", *words))


def check_offers(client):
    clusters = {cluster["id"]: cluster["name"] for cluster in client.gpu_list_clusters()["data"]}
    assert clusters["5"] == "US-CA-06", clusters
    assert "US-CA-06" in command("gpu", "clusters")
    products = {product["id"]: product for product in client.gpu_list_products(gpuNum=8)["data"]}
    one = products["prod-4090"]
    assert (one["price"], one["spotPrice"], one["availableDeploy"]) == (35000, "18000", True), one
    assert (one["cpuPerGpu"], one["memoryPerGpu"]) == (16, 62), one
    assert not products["prod-5090"]["availableDeploy"], products
    assert said("products", "--name", "h100")["data"] == [products["prod-h100"]]
    assert "RTX 4090 24GB" in command("gpu", "products", "--gpu-num", "1", "--billing", "spot")


def every(client):
    """All instances, in pages of one; None where one of them went between two pages."""
    found, page = [], 0
    while True:
        answer = client.gpu_list_instances(page_size=1, page_num=page)
        if not answer["instances"]:
            return found if len(found) == answer["total"] else None
        found += answer["instances"]
        page += 1


def check_instance(client):
    order = {"productId": "prod-4090", "gpuNum": 1, "imageUrl": IMAGE, "rootfsSize": 40, "kind": "gpu"}
    refused(400, "INSUFFICIENT_RESOURCE", client.gpu_create_instance, **{**order, "productId": "prod-l40s"})
    refused(400, "INVALID_ARGUMENT", client.gpu_create_instance, **{**order, "productId": "none"})
    made = client.gpu_create_instance(**order)["id"]
    words = ("--product-id", "prod-h100", "--image", IMAGE, "--name", "of-the-client", "--billing", "spot")
    spot = said("create", *words, "--ports", "8888/http", "--command", "sleep infinity", "--env", "POOL=p")["id"]
    assert made in [instance["id"] for instance in every(client)] and len(every(client)) == 2

    shown = lambda: client.gpu_get_instance(spot)  # noqa: E731
    until("SSH runs", lambda: (shown()["connectComponentSSH"] or {}).get("isRunning"))
    instance = shown()
    ssh = instance["connectComponentSSH"]
    assert ssh["sshCommand"].startswith("ssh -p ") and ssh["password"], ssh
    assert (instance["status"], instance["billingMode"]) == ("running", "spot"), instance
    assert (instance["spotStatus"], instance["spotReclaimTime"]) == ("running", "0"), instance
    assert (instance["gpuNum"], instance["rootfsSize"], instance["endTime"]) == ("1", 40, "-1"), instance
    assert instance["envs"] == [{"key": "POOL", "value": "p"}], instance
    assert instance["portMappings"][0]["port"] == 8888, instance
    assert "SSH:" in command("gpu", "get", spot)
    assert said("list", "--name", "of-the", "--status", "running")["total"] == 1
    assert "of-the-client" in command("gpu", "list")

    status = lambda: client.gpu_get_instance(made)["status"]  # noqa: E731
    until("it runs", lambda: status() == "running")
    command("gpu", "stop", made)
    until("it is stopped", lambda: status() == "exited")
    client.gpu_start_instance(made)
    until("it runs again", lambda: status() == "running")
    client.gpu_restart_instance(made)
    until("it was restarted", lambda: status() == "running")
    client.gpu_delete_instance(made)
    command("gpu", "delete", spot)
    until("it is removed", lambda: status() == "removed")
    until("no list has it", lambda: every(client) == [])
    refused(404, "NOT_FOUND", client.gpu_delete_instance, made)
    refused(404, "NOT_FOUND", client.gpu_get_instance, "none")


def main():
    refused(401, "UNAUTHORIZED", core.NovitaClient("wrong").gpu_list_clusters)
    client = core.NovitaClient(KEY)
    check_offers(client)
    check_instance(client)
    print(f"novita {version('novita')}: everything understood")


main()
