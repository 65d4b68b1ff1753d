#!/usr/bin/env python3
"""The simulated Verda under Verda's own client.

Its code is not ours: what it cannot read or gets refused is a mistake of the
simulator. Called with the address of the simulator; needs verda.
"""

import sys
from pathlib import Path

from verda import VerdaClient
from verda.exceptions import APIException

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

URL, ID, SECRET = sys.argv[1:4]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"
NOBODY = "00000000-0000-4000-8000-000000000000"


def refused(code, message, call, *values, **named):
    try:
        answer = call(*values, **named)
    except APIException as error:
        assert (error.code, error.message) == (code, message), error
        return
    raise AssertionError(f"{message} expected, got {answer}")


def check_offers(client):
    (h100,) = [kind for kind in client.instance_types.get() if kind.instance_type == "1H100.80S.22V"]
    assert (h100.price_per_hour, h100.spot_price_per_hour, h100.gpu["number_of_gpus"]) == (3.17, 1.11, 1)
    spot = client.instances.get_availabilities(is_spot=True, location_code="FIN-03")
    assert [place["location_code"] for place in spot] == ["FIN-03"] and "1V100.6V" not in spot[0]["availabilities"]
    assert client.instances.is_available("1V100.6V") is True
    assert client.instances.is_available("1V100.6V", is_spot=True, location_code="FIN-03") is False
    assert "ubuntu-22.04-cuda-12.0" in [image.image_type for image in client.images.get("1V100.6V")]
    assert {place["code"] for place in client.locations.get()} >= {"FIN-01", "ICE-01"}
    assert client.balance.get().currency == "usd"
    (nvme,) = [kind for kind in client.volume_types.get() if kind.type == "NVMe"]
    assert nvme.price_per_month_per_gb == 0.2
    assert "3_MONTHS" in [period.code for period in client.long_term.get_instance_periods()]


def check_keys_and_scripts(client):
    key = client.ssh_keys.create("mine", KEY).id
    assert [found.public_key for found in client.ssh_keys.get()] == [KEY]
    assert client.ssh_keys.get_by_id(key).name == "mine"
    script = client.startup_scripts.create("start", "#!/bin/sh\n").id
    assert client.startup_scripts.get_by_id(script).script == "#!/bin/sh\n"
    assert [found.script for found in client.startup_scripts.get()] == ["#!/bin/sh\n"]
    return key, script


def check_instances(client, key, script):
    order = {
        "instance_type": "1H100.80S.22V", "image": "ubuntu-24.04-cuda-13.0-open", "hostname": "sdk", "description": "of the client",
        "ssh_key_ids": [key], "startup_script_id": script, "location": "FIN-01", "wait_for_status": None,
    }
    create, act = client.instances.create, client.instances.action
    refused("service_unavailable", "No capacity available", create, **{**order, "location": "FIN-02"})
    refused("invalid_request", "Invalid instance type", create, **{**order, "instance_type": "none"})
    refused("not_found", "Invalid instance id", client.instances.get_by_id, NOBODY)
    refused("not_found", "Invalid instance id", act, NOBODY, "delete")

    made = create(**order)
    assert (made.hostname, made.price_per_hour, made.ssh_key_ids) == ("sdk", 3.17, [key])
    until("it runs", lambda: client.instances.get_by_id(made.id).status == "running")
    assert [found.ip is not None for found in client.instances.get("running")] == [True]
    act(made.id, "shutdown")
    assert client.instances.get_by_id(made.id).status == "offline"
    act(made.id, "start")
    until("it runs again", lambda: client.instances.get_by_id(made.id).status == "running")
    act(made.id, "delete", [made.os_volume_id], delete_permanently=True)
    until("it is gone", lambda: client.instances.get_by_id(made.id).status == "discontinued")
    refused("invalid_request", "Can't discontinue a discontinued instance", act, made.id, "delete")

    disk = {"name": "os", "size": 100, "on_spot_discontinue": "delete_permanently"}
    spot = create(**order, is_spot=True, contract="SPOT", os_volume=disk)
    assert (spot.is_spot, spot.price_per_hour, spot.contract) == (True, 1.11, "SPOT")
    until("the spot one runs", lambda: client.instances.get_by_id(spot.id).status == "running")
    act([spot.id], "delete")
    (left,) = client.volumes.get_in_trash()
    assert (left.id, left.size, client.volumes.get()) == (spot.os_volume_id, 100, [])
    client.volumes.delete_by_id(left.id, is_permanent=True)
    refused("not_found", "Cannot find volume", client.volumes.get_by_id, left.id)


def check_volumes(client, key):
    volumes, act = client.volumes, client.instances.action
    refused("invalid_request", "Invalid location code", volumes.create, "NVMe", "data", 100, location="none")
    data = volumes.create("NVMe", "data", 100, location="FIN-01")
    assert (data.name, data.size, data.location, data.currency) == ("data", 100, "FIN-01", "usd")
    until("the volume is there", lambda: volumes.get_by_id(data.id).status == "detached")
    volumes.rename(data.id, "more")
    volumes.increase_size([data.id], 200)
    (found,) = volumes.get("detached")
    assert (found.id, found.name, found.size, found.monthly_price) == (data.id, "more", 200, 40)

    order = {
        "instance_type": "1H100.80S.22V", "hostname": "disks", "description": "with volumes", "ssh_key_ids": [key],
        "location": "FIN-01", "wait_for_status": "running",
    }
    made = client.instances.create(image="ubuntu-24.04-cuda-12.8-open-docker", **order)
    off = "One or more of the specified instances is not shut down"
    refused("forbidden_action", off, volumes.attach, data.id, made.id)
    act(made.id, "shutdown")
    volumes.attach([data.id], made.id)
    attached = volumes.get_by_id(data.id)
    assert (attached.status, attached.instance_id, attached.instances[0]["hostname"]) == ("attached", made.id, "disks")
    volumes.detach(data.id)
    clone = volumes.clone(data.id, "copy")
    assert (clone.name, clone.size, clone.status) == ("copy", 200, "cloning")

    # What is hibernated is gone, and its disk boots another.
    act(made.id, "hibernate")
    until("it is gone", lambda: client.instances.get_by_id(made.id).status == "discontinued")
    again = client.instances.create(image=made.os_volume_id, **order)
    assert (again.status, again.os_volume_id) == ("running", made.os_volume_id)
    act(again.id, "delete", [again.os_volume_id], delete_permanently=True)
    until("the other is gone", lambda: client.instances.get_by_id(again.id).status == "discontinued")

    until("the clone is there", lambda: volumes.get_by_id(clone.id).status == "detached")
    volumes.delete([data.id, clone.id])
    assert {left.id for left in volumes.get_in_trash()} == {data.id, clone.id}
    volumes.delete([data.id, clone.id], is_permanent=True)
    assert (volumes.get_in_trash(), volumes.get()) == ([], [])
    refused("not_found", "Cannot find volume", volumes.rename, clone.id, "nothing")


def main():
    refused("unauthorized_request", "Invalid client id or client secret", VerdaClient, ID, "wrong", base_url=f"{URL}/v1")
    client = VerdaClient(ID, SECRET, base_url=f"{URL}/v1")
    client._authentication.refresh()
    check_offers(client)
    key, script = check_keys_and_scripts(client)
    check_instances(client, key, script)
    check_volumes(client, key)
    client.startup_scripts.delete([script])
    client.ssh_keys.delete([key])
    refused("not_found", "Cannot find ssh-key", client.ssh_keys.delete_by_id, key)
    print(f"verda {client.constants.version}: everything understood")


main()
