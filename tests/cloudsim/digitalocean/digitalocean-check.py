#!/usr/bin/env python3
"""The simulated DigitalOcean under pydo, the Python client that DigitalOcean generates from its description.

Its code is not ours: it knows the statuses of each call, and what it cannot read or gets refused is a
mistake of the simulator. Called with the address of the simulator and a token; needs pydo.
"""

import sys
from importlib.metadata import version
from pathlib import Path

from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.policies import AzureKeyCredentialPolicy
from pydo import Client

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

URL, KEY = sys.argv[1:3]
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"
RULE = {"protocol": "tcp", "ports": "22", "sources": {"addresses": ["0.0.0.0/0"]}}


def client_of(token):
    # The client's own policy refuses to send a token without TLS.
    policy = AzureKeyCredentialPolicy(AzureKeyCredential(token), "Authorization", prefix="Bearer")
    return Client(token, endpoint=URL, authentication_policy=policy, retry_total=0)


def refused(code, call, *args, **named):
    """The client returns failures that the description has, and raises the others."""
    try:
        answer = call(*args, **named)
    except HttpResponseError as error:
        answer = error.response.json()
    assert answer["id"] == code and answer["message"], answer


def every(name, call, **named):
    """All items of a list in pages of two."""
    found, page = [], 1
    while True:
        answer = call(per_page=2, page=page, **named)
        found += answer[name]
        if "next" not in answer["links"].get("pages", {}):
            assert len(found) == answer["meta"]["total"], answer
            return found
        page += 1


def check_offers(client):
    sizes = {size["slug"]: size for size in every("sizes", client.sizes.list)}
    one = sizes["gpu-h100x1-80gb"]
    assert one["gpu_info"]["vram"] == {"amount": 80, "unit": "gib"} and "tor1" in one["regions"], one
    regions = {region["slug"]: region for region in every("regions", client.regions.list)}
    assert one["slug"] in regions["tor1"]["sizes"], regions
    images = every("images", client.images.list, type="distribution")
    image = next(image for image in images if image["slug"] == "gpu-h100x1-base")
    assert client.images.get(image_id=image["id"])["image"] == image
    assert client.images.get(image_id=image["slug"])["image"] == image
    refused("not_found", client.images.get, image_id="none")
    assert client.account.get()["account"]["status"] == "active"
    return next(vpc["id"] for vpc in every("vpcs", client.vpcs.list) if vpc["region"] == "tor1")


def check_keys(client):
    key = client.ssh_keys.create(body={"name": "mine", "public_key": PUBLIC})["ssh_key"]
    refused("unprocessable_entity", client.ssh_keys.create, body={"name": "mine", "public_key": PUBLIC})
    assert client.ssh_keys.get(key["fingerprint"])["ssh_key"] == key
    assert every("ssh_keys", client.ssh_keys.list) == [key]
    return key


def check_droplets(client, key, vpc):
    order = {
        "name": "sdk", "region": "tor1", "size": "gpu-h100x1-80gb", "image": "gpu-h100x1-base",
        "ssh_keys": [key["id"], key["fingerprint"]], "tags": ["of:the-client"], "user_data": "#!/bin/sh\n",
        "vpc_uuid": vpc, "monitoring": False, "ipv6": False, "backups": False, "with_droplet_agent": False,
    }
    create = client.droplets.create
    refused("unprocessable_entity", create, body={**order, "size": "gpu-6000adax1-48gb"})
    refused("unprocessable_entity", create, body={**order, "ssh_keys": [1]})
    made = create(body=order)
    mine, action = made["droplet"]["id"], made["links"]["actions"][0]
    shown = lambda: client.droplets.get(droplet_id=mine)["droplet"]
    until("it runs", lambda: shown()["status"] == "active")
    assert client.actions.get(action_id=action["id"])["action"]["status"] == "completed"
    of_droplet = client.droplet_actions.get(droplet_id=mine, action_id=action["id"])
    assert of_droplet["action"]["resource_id"] == mine
    public = [network for network in shown()["networks"]["v4"] if network["type"] == "public"]
    assert public[0]["ip_address"], shown()
    assert [one["id"] for one in every("droplets", client.droplets.list, type="gpus")] == [mine]
    assert every("droplets", client.droplets.list) == []
    client.droplets.destroy(droplet_id=mine)
    until("it is gone", lambda: client.droplets.get(droplet_id=mine).get("id") == "not_found")
    refused("not_found", client.droplets.destroy, droplet_id=mine)


def check_tags_and_firewalls(client):
    create = client.firewalls.create
    refused("unprocessable_entity", create, body={"name": "fw", "inbound_rules": [RULE], "tags": ["group"]})
    assert client.tags.create(body={"name": "group"})["tag"]["resources"]["count"] == 0
    made = create(body={"name": "fw", "inbound_rules": [RULE], "tags": ["group"]})["firewall"]
    assert client.firewalls.get(firewall_id=made["id"])["firewall"]["tags"] == ["group"]
    assert [firewall["id"] for firewall in every("firewalls", client.firewalls.list)] == [made["id"]]
    client.firewalls.delete(firewall_id=made["id"])
    refused("not_found", client.firewalls.delete, firewall_id=made["id"])
    assert [tag["name"] for tag in every("tags", client.tags.list)] == ["group", "of:the-client"]
    client.tags.delete(tag_id="of:the-client")
    refused("not_found", client.tags.get, tag_id="of:the-client")


def main():
    refused("unauthorized", client_of("wrong").account.get)
    client = client_of(KEY)
    vpc = check_offers(client)
    key = check_keys(client)
    check_droplets(client, key, vpc)
    check_tags_and_firewalls(client)
    client.ssh_keys.delete(ssh_key_identifier=key["id"])
    refused("not_found", client.ssh_keys.delete, ssh_key_identifier=key["fingerprint"])
    print(f"pydo {version('pydo')}: everything understood")


main()
