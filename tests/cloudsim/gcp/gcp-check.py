#!/usr/bin/env python3
"""The simulated Google Cloud under the Python client that Google generates from its description.

Its code is not ours: it makes strict objects of what it gets, and what it cannot read or gets refused is a
mistake of the simulator. Called with the address of the simulator and the key file of a service account; needs
google-cloud-compute.
"""

import json
import sys
import uuid
from importlib.metadata import version
from pathlib import Path

from google.api_core import exceptions
from google.auth.transport.requests import Request
from google.cloud import compute_v1 as compute
from google.oauth2 import credentials, service_account

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

URL, KEY = sys.argv[1], json.loads(sys.argv[2])
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"
HERE = {"project": "acme", "zone": "us-central1-a"}
DEEP = "deeplearning-platform-release"
FAMILY = "common-cu128-ubuntu-2204-nvidia-570"


class Client:
    """One of each part of the client, with one set of credentials."""

    def __init__(self, own):
        self.own = own

    def __getattr__(self, name):
        kind = getattr(compute, f"{name}Client")
        return kind(credentials=self.own, client_options={"api_endpoint": URL})


def refused(kind, reason, call, *args, **named):
    try:
        answer = call(*args, **named)
    except kind as error:
        assert [one["reason"] for one in error.errors] == [reason], error
        return str(error)
    raise AssertionError(f"{kind} expected, got {answer}")


def done(client, operation):
    """The operation once it is done. The client waits at Google's own address, whatever it was given."""

    def look():
        if operation.zone:
            return client.ZoneOperations.get(operation=operation.name, **HERE)
        return client.GlobalOperations.wait(project="acme", operation=operation.name)

    found = []
    until(f"{operation.name} is done", lambda: found.append(look()) or found[-1].status.name == "DONE")
    return found[-1]


def check_offers(client):
    zones = {zone.name: zone for zone in client.Zones.list(project="acme")}
    assert zones["us-central1-a"].status == "UP", zones
    assert zones["us-central1-a"].region.endswith("/regions/us-central1"), zones
    quotas = {quota.metric: quota for quota in client.Regions.get(project="acme", region="us-central1").quotas}
    assert (quotas["NVIDIA_L4_GPUS"].limit, quotas["NVIDIA_L4_GPUS"].usage) == (128, 0), quotas
    assert [quota.metric for quota in client.Projects.get(project="acme").quotas] == ["GPUS_ALL_REGIONS"]

    request = compute.AggregatedListMachineTypesRequest(project="acme", max_results=20)
    parts = list(client.MachineTypes.aggregated_list(request))
    types = [one for zone, part in parts if zone == "zones/us-central1-a" for one in part.machine_types]
    one = next(one for one in types if one.name == "a2-highgpu-1g")
    assert (one.guest_cpus, one.architecture) == (12, "X86_64"), one
    cards = [(card.guest_accelerator_type, card.guest_accelerator_count) for card in one.accelerators]
    assert cards == [("nvidia-tesla-a100", 1)], one
    empty = {part.warning.code for zone, part in parts if zone == "zones/asia-southeast1-c"}
    assert empty == {"NO_RESULTS_ON_PAGE"}, parts
    cards = {card.name: card for card in client.AcceleratorTypes.list(**HERE)}
    assert cards["nvidia-tesla-t4"].maximum_cards_per_instance == 4, cards

    image = client.Images.get_from_family(project=DEEP, family=FAMILY)
    assert (image.disk_size_gb, image.status) == (50, "READY"), image
    assert client.Images.get(project=DEEP, image=image.name) == image
    refused(exceptions.NotFound, "notFound", client.Images.get_from_family, project=DEEP, family="common-cu110")
    network = client.Networks.get(project="acme", network="default")
    assert network.auto_create_subnetworks and network.subnetworks, network


def check_firewall(client):
    rule = compute.Firewall(
        name="sdk-ssh", network="global/networks/default", direction="INGRESS", source_ranges=["0.0.0.0/0"],
        allowed=[compute.Allowed(I_p_protocol="tcp", ports=["22"])], target_tags=["sdk"],
    )
    assert not done(client, client.Firewalls.insert(project="acme", firewall_resource=rule)).error.errors
    refused(exceptions.Conflict, "alreadyExists", client.Firewalls.insert, project="acme", firewall_resource=rule)
    found = client.Firewalls.get(project="acme", firewall="sdk-ssh")
    assert (found.allowed, found.target_tags) == (rule.allowed, ["sdk"]), found
    names = [one.name for one in client.Firewalls.list(project="acme")]
    assert "sdk-ssh" in names and "default-allow-ssh" in names, names


def order(kind="a2-highgpu-1g", **change):
    disk = compute.AttachedDisk(
        boot=True, auto_delete=True, type_="PERSISTENT",
        initialize_params=compute.AttachedDiskInitializeParams(
            source_image=f"projects/{DEEP}/global/images/family/{FAMILY}", disk_size_gb=100,
            disk_type="zones/us-central1-a/diskTypes/pd-balanced",
        ),
    )
    interface = compute.NetworkInterface(
        network="global/networks/default",
        access_configs=[compute.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")],
    )
    metadata = {"ssh-keys": f"skyward:{PUBLIC}", "enable-oslogin": "FALSE", "startup-script": "#!/bin/sh\n"}
    instance = compute.Instance(
        name="sdk-0", machine_type=f"zones/us-central1-a/machineTypes/{kind}", disks=[disk],
        network_interfaces=[interface], labels={"of": "the-client"}, tags=compute.Tags(items=["sdk"]),
        metadata=compute.Metadata(items=[compute.Items(key=key, value=value) for key, value in metadata.items()]),
        scheduling=compute.Scheduling(
            provisioning_model="SPOT", instance_termination_action="DELETE", on_host_maintenance="TERMINATE",
            automatic_restart=False, max_run_duration=compute.Duration(seconds=3600),
        ),
    )
    for name, value in change.items():
        setattr(instance, name, value)
    return instance


def check_instance(client):
    api = client.Instances
    insert = lambda instance, request_id=None: api.insert(
        compute.InsertInstanceRequest(instance_resource=instance, request_id=request_id or str(uuid.uuid4()), **HERE)
    )
    refused(exceptions.BadRequest, "invalid", insert, order(machine_type="a2-highgpu-1g"))
    refused(exceptions.NotFound, "notFound", insert, order("a2-highgpu-3g"))
    request_id = str(uuid.uuid4())
    first, second = insert(order(), request_id), insert(order(), request_id)
    assert first.name == second.name, (first, second)
    refused(exceptions.Conflict, "alreadyExists", insert, order())
    operation = done(client, first)
    assert not operation.error.errors and operation.target_link.endswith("/instances/sdk-0"), operation

    get = lambda: api.get(instance="sdk-0", **HERE)
    until("it has an address", lambda: get().network_interfaces[0].access_configs[0].nat_i_p)
    instance = get()
    assert (instance.status, instance.id) == ("RUNNING", operation.target_id), instance
    assert instance.scheduling.provisioning_model == "SPOT" and dict(instance.labels) == {"of": "the-client"}, instance
    assert [card.accelerator_count for card in instance.guest_accelerators] == [1], instance
    named = lambda text: [one.name for one in api.list(compute.ListInstancesRequest(filter=text, **HERE))]
    assert (named("labels.of=the-client"), named('name != "sdk-0"')) == (["sdk-0"], [])
    request = compute.AggregatedListInstancesRequest(project="acme", filter="labels.of=the-client")
    found = {zone: [one.name for one in part.instances] for zone, part in api.aggregated_list(request) if part.instances}
    assert found == {"zones/us-central1-a": ["sdk-0"]}, found

    assert not done(client, api.delete(instance="sdk-0", **HERE)).error.errors
    refused(exceptions.NotFound, "notFound", get)
    refused(exceptions.NotFound, "notFound", api.delete, instance="sdk-0", **HERE)


def main():
    stranger = service_account.Credentials.from_service_account_info({**KEY, "client_email": "nobody@acme"})
    refused(exceptions.Unauthorized, "authError", Client(stranger).Zones.list, project="acme")
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    # A token of the token service, and a statement that is a token itself.
    by_token = service_account.Credentials.from_service_account_info(KEY, scopes=scopes)
    by_token.refresh(Request())
    assert by_token.token.startswith("ya29."), by_token
    assert list(Client(credentials.Credentials(by_token.token)).Zones.list(project="acme"))
    client = Client(service_account.Credentials.from_service_account_info(KEY))
    refused(exceptions.Forbidden, "forbidden", client.Zones.list, project="another")
    check_offers(client)
    check_firewall(client)
    check_instance(client)
    done(client, client.Firewalls.delete(project="acme", firewall="sdk-ssh"))
    refused(exceptions.NotFound, "notFound", client.Firewalls.get, project="acme", firewall="sdk-ssh")
    print(f"google-cloud-compute {version('google-cloud-compute')}: everything understood")


main()
