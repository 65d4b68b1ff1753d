#!/usr/bin/env python3
"""The simulated Hyperstack under the Python client that Hyperstack generates from its description.

Its code is not ours: it makes strict objects of what it gets, and what it cannot read or gets refused is a
mistake of the simulator. Called with the address of the simulator and a key; needs hyperstack.
"""

import sys
from importlib.metadata import version
from pathlib import Path

import hyperstack
from hyperstack import models
from hyperstack.exceptions import ApiException

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

URL, KEY = sys.argv[1:3]
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"
SSH = {
    "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp", "remote_ip_prefix": "0.0.0.0/0",
    "port_range_min": 22, "port_range_max": 22,
}


class Client:
    """One of each part of the client, with one key."""

    def __init__(self, key):
        configuration = hyperstack.Configuration(host=f"{URL}/v1", api_key={"apiKey": key})
        self.whole = hyperstack.ApiClient(configuration)

    def __getattr__(self, name):
        return getattr(hyperstack, name)(self.whole)


def refused(status, reason, call, *args, **named):
    try:
        answer = call(*args, **named)
    except ApiException as error:
        said = error.data
        assert (error.status, said.error_reason, said.status) == (status, reason, False), str(error)
        assert said.message, str(error)
        return
    raise AssertionError(f"{status} expected, got {answer}")


def every(name, call, **named):
    """All items of a list in pages of two."""
    found, page = [], 1
    while True:
        answer = call(page=page, page_size=2, **named)
        items = getattr(answer, name)
        found += items
        if not items:
            assert len(found) == answer.count, answer
            return found
        page += 1


def check_offers(client):
    regions = {region.name: region for region in client.RegionApi.list_regions().regions}
    assert regions["CANADA-1"].features["network_optimised"], regions
    groups = client.FlavorApi.list_flavors(region="CANADA-1").data
    flavors = {flavor.name: flavor for group in groups for flavor in group.flavors}
    one = flavors["n3-H100x1"]
    assert (one.gpu, one.gpu_count, one.stock_available, one.ram) == ("H100-80G-PCIe", 1, True, 180), one
    assert flavors["n3-H100x1-spot"].gpu == "H100-80G-PCIe-spot", flavors
    prices = {row.name: row.value for row in client.PricebookApi.get_pricebook()}
    assert prices["H100-80G-PCIe"] == 1.9 and prices["H100-80G-PCIe-spot"] == 1.52, prices
    stock = next(stock for stock in client.StockApi.get_gpu_stock().stocks if stock.region == "CANADA-1")
    h100 = next(model for model in stock.models if model.model == "H100-80G-PCIe")
    assert h100.configurations.var_8x == 10 and h100.available == "5+", h100
    groups = client.ImageApi.list_images(region="CANADA-1", include_public=True).images
    images = {image.name: image for group in groups for image in group.images}
    bound = images["Ubuntu Server 24.04 LTS R580 CUDA 13.0 with Docker"].flavor_restrictions
    assert bound.compatible_flavors[0].flavor_name == "n3-H100-SXM5x8", bound
    assert client.AuthApi.retrieve_authenticated_user_details().user.name == "acme"


def check_environment(client):
    api = client.EnvironmentApi
    new = models.CreateEnvironment(name="sdk", region="CANADA-1")
    made = api.create_environment(new).environment
    refused(409, "conflict", api.create_environment, new)
    refused(404, "not_found", api.create_environment, models.CreateEnvironment(name="x", region="MARS-1"))
    assert api.get_environment(made.id).environment == made
    assert [found.id for found in every_text("environments", api.list_environments)] == [made.id]
    return made


def every_text(name, call, **named):
    """The same where the description has texts as numbers of pages."""
    return every(name, lambda page, page_size: call(page=str(page), page_size=str(page_size), **named))


def check_key(client):
    api = client.KeypairApi
    new = models.ImportKeypairPayload(name="mine", environment_name="sdk", public_key=PUBLIC)
    made = api.import_key_pair(new).keypair
    refused(409, "conflict", api.import_key_pair, new)
    assert every_text("keypairs", api.list_key_pairs) == [made]
    other = api.import_key_pair(new.model_copy(update={"name": "other"})).keypair
    api.delete_key_pair(other.id)
    refused(404, "not_found", api.delete_key_pair, other.id)
    return made


def check_vm(client):
    api = client.VirtualMachineApi
    order = {
        "name": "sdk-0", "environment_name": "sdk", "key_name": "mine", "flavor_name": "n3-H100x1", "count": 1,
        "image_name": "Ubuntu Server 22.04 LTS R535 CUDA 12.2 with Docker", "assign_floating_ip": True,
        "enable_port_randomization": False, "user_data": "#!/bin/sh\n", "labels": ["of-the-client"],
        "security_rules": [models.CreateSecurityRulePayload(**SSH)],
    }
    payload = lambda **change: models.CreateInstancesPayload(**{**order, **change})
    refused(404, "not_found", api.create_vms, payload(flavor_name="n3-H100x9"))
    refused(404, "not_found", api.create_vms, payload(key_name="none"))
    made = api.create_vms(payload()).instances[0]
    assert (made.floating_ip, made.floating_ip_status, made.vm_state) == (None, "ATTACHING", None), made
    shown = lambda: api.get_vm(made.id).instance
    until("it runs", lambda: shown().status == "ACTIVE" and shown().floating_ip_status == "ATTACHED")
    vm = shown()
    assert vm.floating_ip and vm.fixed_ip and vm.labels == ["of-the-client"], vm
    assert (vm.flavor.gpu_count, vm.environment.name, vm.port_randomization) == (1, "sdk", False), vm
    found = every("instances", api.list_vms, environment="sdk", exact_environment_match=True)
    assert [one.id for one in found] == [vm.id]

    refused(409, "conflict", api.create_firewall_rule_for_vm, vm.id, models.CreateSecurityRulePayload(**SSH))
    peer = models.CreateSecurityRulePayload(**{**SSH, "remote_ip_prefix": "10.0.0.7/32"})
    rule = api.create_firewall_rule_for_vm(vm.id, peer).security_rule
    assert rule.id in [own.id for own in shown().security_rules], shown()
    api.delete_firewall_rule_for_vm(vm.id, rule.id)
    client.FloatingIpApi.detach_public_ip_from_vm(vm.id)
    assert shown().floating_ip is None
    client.FloatingIpApi.attach_public_ipto_vm(vm.id)

    refused(400, "bad_request", client.EnvironmentApi.delete_environment, vm.environment.id)
    api.stop_vm(vm.id)
    until("it is off", lambda: shown().status == "SHUTOFF")
    api.start_vm(vm.id)
    until("it runs again", lambda: shown().status == "ACTIVE")
    api.hibernate_vm(vm.id, retain_ip="true")
    until("it hibernates", lambda: shown().status == "HIBERNATED")
    api.restore_vm_from_hibernation(vm.id)
    until("it is restored", lambda: shown().status == "ACTIVE")
    api.delete_vm(vm.id)

    def gone():
        try:
            return not api.get_vm(vm.id)
        except ApiException as error:
            return error.status == 404

    until("it is gone", gone)
    refused(404, "not_found", api.delete_vm, vm.id)


def main():
    refused(401, "unauthorized", Client("wrong").RegionApi.list_regions)
    client = Client(KEY)
    check_offers(client)
    environment = check_environment(client)
    key = check_key(client)
    check_vm(client)

    refused(400, "bad_request", client.EnvironmentApi.delete_environment, environment.id)
    client.KeypairApi.delete_key_pair(key.id)
    network = client.EnvironmentApi.get_environment_vm_quota(environment.id)
    assert (network.cidr, network.current_vms, network.max_vms) == ("10.0.0.0/24", 0, 250), network

    def deleted():
        try:
            return client.EnvironmentApi.delete_environment(environment.id).status
        except ApiException as error:
            return error.status == 404

    until("its environment is deleted", deleted)
    refused(404, "not_found", client.EnvironmentApi.delete_environment, environment.id)
    assert every_text("keypairs", client.KeypairApi.list_key_pairs) == []
    print(f"hyperstack {version('hyperstack')}: everything understood")


main()
