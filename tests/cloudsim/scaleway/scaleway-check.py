#!/usr/bin/env python3
"""The simulated Scaleway under the Python client that Scaleway publishes.

Its code is not ours: it makes objects of what it gets, and what it cannot read or gets refused is a
mistake of the simulator. Called with the address of the simulator and a secret key; needs scaleway.
"""

import sys
from importlib.metadata import version
from pathlib import Path

from scaleway import Client, ScalewayException
from scaleway.block.v1alpha1 import BlockV1Alpha1API
from scaleway.iam.v1alpha1 import IamV1Alpha1API
from scaleway.instance.v1 import ServerAction, VolumeServerTemplate, VolumeVolumeType
from scaleway.instance.v1.custom_api import InstanceUtilsV1API

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

URL, SECRET = sys.argv[1:3]
PROJECT = "9f000000-0000-4000-8000-00000000000c"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"
GB = 1_000_000_000


def client_of(secret):
    return Client(
        api_url=URL, access_key="SCW" + "A" * 17, secret_key=secret, default_project_id=PROJECT,
        default_region="fr-par", default_zone="fr-par-2", default_page_size=2,
    )


def refused(status, kind, call, **named):
    try:
        answer = call(**named)
    except ScalewayException as error:
        assert (error.status_code, error.response.json()["type"]) == (status, kind), str(error)
        return
    raise AssertionError(f"{status} expected, got {answer}")


def check_offers(api):
    types = api.list_servers_types(per_page=100).servers
    assert (types["L4-1-24G"].gpu, types["L4-1-24G"].gpu_info.gpu_name) == (1, "L4"), types
    stock = api.get_server_types_availability(per_page=100).servers
    assert set(stock) == set(types) and stock["L4-1-24G"].availability == "available", stock
    images = api.list_images_all(arch="x86_64")
    assert len(images) == 3, images
    image = next(image for image in images if "GPU" in image.name)
    assert image.root_volume.volume_type == "sbs_snapshot", image
    group = api.list_security_groups(project_default=None).security_groups[0]
    assert group.inbound_default_policy == "accept", group
    return image, group


def check_keys(iam):
    keys = [iam.create_ssh_key(name=f"key-{number}", public_key=PUBLIC) for number in range(3)]
    assert {key.id for key in iam.list_ssh_keys_all(project_id=PROJECT)} == {key.id for key in keys}
    assert iam.get_ssh_key(ssh_key_id=keys[0].id).public_key == PUBLIC
    return keys


def check_server(api, block, image, group):
    order = {
        "name": "sdk", "commercial_type": "L4-1-24G", "image": image.id, "tags": ["of-the-client", "pool=p"],
        "dynamic_ip_required": True, "security_group": group.id,
        "volumes": {"0": VolumeServerTemplate(volume_type=VolumeVolumeType.SBS_VOLUME, name="root", size=50 * GB)},
    }
    refused(400, "invalid_arguments", api.create_server, **{**order, "commercial_type": "H100-9-80G"})
    refused(404, "not_found", api.create_server, **{**order, "image": "none"})
    server = api.create_server(**order).server
    assert server.state == "stopped" and server.volumes["0"].volume_type == "sbs_volume", server
    mine = {"server_id": server.id}
    api.set_server_user_data(**mine, key="cloud-init", content=b"#!/bin/sh\n")
    refused(400, "invalid_request_error", api.server_action, **mine, action=ServerAction.TERMINATE)
    task = api.server_action(**mine, action=ServerAction.POWERON).task
    assert task.status == "pending", task
    shown = lambda: api.get_server(**mine).server
    until("it runs", lambda: shown().state == "running" and shown().public_ips[0].address)
    assert shown().public_ip.address == shown().public_ips[0].address, shown()
    assert [found.id for found in api.list_servers_all(tags=["of-the-client", "pool=p"])] == [server.id]
    assert api.list_servers_all(tags=["other"]) == []
    refused(400, "invalid_request_error", api.delete_server, **mine)

    volume = block.get_volume(volume_id=shown().volumes["0"].id)
    assert (volume.size, volume.status) == (50 * GB, "in_use"), volume
    named = block.update_volume(volume_id=volume.id, name="root", tags=["of-the-client"])
    assert (named.name, named.tags, named.size) == ("root", ["of-the-client"], 50 * GB), named
    assert volume.references[0].product_resource_id == server.id, volume
    refused(412, "precondition_failed", block.delete_volume, volume_id=volume.id)
    api.server_action(**mine, action=ServerAction.TERMINATE)

    def gone():
        try:
            return not api.get_server(**mine)
        except ScalewayException as error:
            return error.status_code == 404

    until("it is gone", gone)
    until("its volume is free", lambda: block.get_volume(volume_id=volume.id).status == "available")
    assert [left.id for left in block.list_volumes_all()] == [volume.id]
    block.delete_volume(volume_id=volume.id)
    refused(404, "not_found", block.get_volume, volume_id=volume.id)

    stopped = api.create_server(**{**order, "image": "ubuntu_noble"}).server
    api.delete_server(server_id=stopped.id)
    left = stopped.volumes["0"].id
    until("its volume is free", lambda: block.get_volume(volume_id=left).status == "available")
    block.delete_volume(volume_id=left)


def main():
    refused(401, "denied_authentication", IamV1Alpha1API(client_of(PROJECT)).list_ssh_keys)
    client = client_of(SECRET)
    api, iam, block = InstanceUtilsV1API(client), IamV1Alpha1API(client), BlockV1Alpha1API(client)
    image, group = check_offers(api)
    keys = check_keys(iam)
    check_server(api, block, image, group)
    for key in keys:
        iam.delete_ssh_key(ssh_key_id=key.id)
    refused(404, "not_found", iam.delete_ssh_key, ssh_key_id=keys[0].id)
    print(f"scaleway {version('scaleway')}: everything understood")


main()
