#!/usr/bin/env python3
"""The simulated Vultr under the Python client that Vultr generates from its description.

Its code is not ours: it checks what it sends and what it gets, and what it cannot read or gets
refused is a mistake of the simulator. Called with the address of the simulator and a key; needs
vultr-python-client.
"""

import base64
import sys
from pathlib import Path

import vultr_python_client
from vultr_python_client.apis.tags import (
    account_api, baremetal_api, instances_api, os_api, plans_api, region_api, ssh_api, startup_api,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

URL, KEY = sys.argv[1:3]
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"
NOBODY = "00000000-0000-4000-8000-000000000000"


def client_of(key):
    configuration = vultr_python_client.Configuration(host=f"{URL}/v2")
    configuration.access_token = key
    return vultr_python_client.ApiClient(configuration)


def refused(status, call, **named):
    try:
        answer = call(**named)
    except vultr_python_client.ApiException as error:
        assert error.status == status, error
        return
    raise AssertionError(f"{status} expected, got {answer.body}")


def check_offers(client):
    plans = plans_api.PlansApi(client)
    listed = plans.list_plans(query_params={"type": "vcg", "per_page": 500}).body
    part = next(plan for plan in listed["plans"] if plan["id"] == "vcg-a16-2c-8g-2vram")
    assert (int(part["monthly_cost"]), list(part["locations"])) == (73, ["ewr", "lhr"]), part
    first = plans.list_plans(query_params={"per_page": 2}).body
    next_page = plans.list_plans(query_params={"per_page": 2, "cursor": str(first["meta"]["links"]["next"])}).body
    assert {str(plan["id"]) for plan in first["plans"]}.isdisjoint(str(plan["id"]) for plan in next_page["plans"])
    assert int(plans.list_metal_plans().body["meta"]["total"]) == 2
    regions = region_api.RegionApi(client)
    assert "ewr" in [str(region["id"]) for region in regions.list_regions().body["regions"]]
    left = regions.list_available_plans_region(path_params={"region-id": "ord"}, query_params={"type": "vcg"}).body
    assert list(left["available_plans"]) == ["vcg-l40s-16c-180g-48vram"], left
    assert 2284 in [int(system["id"]) for system in os_api.OsApi(client).list_os().body["os"]]
    assert "provisioning" in list(account_api.AccountApi(client).get_account().body["account"]["acls"])


def check_instances(client, key, script):
    api = instances_api.InstancesApi(client)
    order = {
        "region": "ewr", "plan": "vcg-a16-2c-8g-2vram", "os_id": 2284, "label": "sdk", "hostname": "sdk",
        "tags": ["of-the-client"], "sshkey_id": [key], "script_id": script, "enable_ipv6": False,
        "backups": "disabled", "activation_email": False, "ddos_protection": False,
    }
    refused(400, api.create_instance, body={**order, "plan": "vcg-a100-24c-240g-160vram"})
    refused(400, api.create_instance, body={**order, "plan": "vbm-4c-32gb"})
    refused(404, api.create_instance, body={**order, "sshkey_id": [NOBODY]})
    made = api.create_instance(body=order).body["instance"]
    mine = {"instance-id": str(made["id"])}
    shown = lambda: api.get_instance(path_params=mine).body["instance"]
    until("it runs", lambda: shown()["server_status"] == "ok" and shown()["main_ip"] != "0.0.0.0")
    listed = api.list_instances(query_params={"tag": "of-the-client", "label": "sdk"}).body
    assert [str(found["id"]) for found in listed["instances"]] == [mine["instance-id"]]
    assert list(shown()["tags"]) == ["of-the-client"]
    api.halt_instance(path_params=mine)
    assert (str(shown()["status"]), str(shown()["power_status"])) == ("active", "stopped")
    api.start_instance(path_params=mine)
    until("it runs again", lambda: shown()["power_status"] == "running" and shown()["server_status"] == "ok")
    api.delete_instance(path_params=mine)

    def gone():
        try:
            return not api.get_instance(path_params=mine).body
        except vultr_python_client.ApiException as error:
            return error.status == 404

    until("it is gone", gone)
    refused(404, api.delete_instance, path_params=mine)


def check_metal(client, key):
    api = baremetal_api.BaremetalApi(client)
    order = {"region": "ord", "plan": "vbm-4c-32gb", "image_id": "docker", "label": "metal", "sshkey_id": [key]}
    made = api.create_baremetal(body=order).body["bare_metal"]
    mine = {"baremetal-id": str(made["id"])}
    shown = lambda: api.get_baremetal(path_params=mine).body["bare_metal"]
    until("it runs", lambda: shown()["status"] == "active" and shown()["main_ip"] != "")
    assert len(api.list_baremetals().body["bare_metals"]) == 1
    api.halt_baremetal(path_params=mine)
    api.start_baremetal(path_params=mine)
    until("it runs again", lambda: shown()["status"] == "active")
    api.delete_baremetal(path_params=mine)
    until("it is gone", lambda: not api.list_baremetals().body["bare_metals"])


def main():
    refused(401, account_api.AccountApi(client_of("wrong")).get_account)
    client = client_of(KEY)
    check_offers(client)
    keys, scripts = ssh_api.SshApi(client), startup_api.StartupApi(client)
    key = str(keys.create_ssh_key(body={"name": "mine", "ssh_key": PUBLIC}).body["ssh_key"]["id"])
    assert str(keys.get_ssh_key(path_params={"ssh-key-id": key}).body["ssh_key"]["ssh_key"]) == PUBLIC
    text = base64.b64encode(b"#!/bin/sh\n").decode()
    body = {"name": "start", "type": "boot", "script": text}
    script = str(scripts.create_startup_script(body=body).body["startup_script"]["id"])
    assert [str(found["script"]) for found in scripts.list_startup_scripts().body["startup_scripts"]] == [text]
    check_instances(client, key, script)
    check_metal(client, key)
    scripts.delete_startup_script(path_params={"startup-id": script})
    keys.delete_ssh_key(path_params={"ssh-key-id": key})
    refused(404, keys.delete_ssh_key, path_params={"ssh-key-id": key})
    print(f"vultr-python-client {vultr_python_client.__version__}: everything understood")


main()
