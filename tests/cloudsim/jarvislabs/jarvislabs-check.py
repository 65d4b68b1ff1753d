#!/usr/bin/env python3
"""The simulated JarvisLabs under the Python client that JarvisLabs publishes.

Its code is not ours: it makes strict objects of what it gets, and what it cannot read or gets refused is a
mistake of the simulator. It calls the host of each region; all of them are led to the simulator here, which sees
the host by its name. Called with the address of the simulator and a key; needs jarvislabs.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from jarvislabs import Client, instances
from jarvislabs.constants import CHENNAI_REGION, EUROPE_REGION, INDIA_NOIDA_REGION
from jarvislabs.exceptions import APIError, AuthError, NotFoundError, ValidationError
from jarvislabs.ssh import parse_ssh_command

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

URL, KEY = sys.argv[1:3]
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"
# The client looks every three seconds otherwise.
instances.POLL_INTERVAL_S = 0.2


def client_of(key):
    client = Client(api_key=key)
    address = urlsplit(URL)

    def lead(request):
        request.url = request.url.copy_with(scheme="http", host=address.hostname, port=address.port)

    client._transport._client.event_hooks = {"request": [lead]}
    return client


def refused(kind, call, *args, **named):
    """The error with which the client ends a call."""
    try:
        answer = call(*args, **named)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} expected, got {answer}")


def check_account(client):
    balance = client.account.balance()
    assert (balance.balance, balance.grants) == (100, 0), balance
    assert client.account.currency() == "USD"
    templates = {template.id for template in client.account.templates()}
    assert {"pytorch", "vm"} <= templates, templates
    rows = client.account.gpu_availability()
    regions = {row.region for row in rows}
    assert regions == {INDIA_NOIDA_REGION, CHENNAI_REGION, EUROPE_REGION}, regions
    l4 = next(row for row in rows if row.gpu_type == "L4")
    assert (l4.price_per_hour, l4.spot_price, l4.vram) == (0.44, 0.2, "24"), l4
    assert (l4.spot_free_devices, l4.effective_num_free_devices) == (8, 8), l4
    sold_out = next(row for row in rows if row.gpu_type == "A6000")
    assert sold_out.num_free_devices == 0, sold_out
    assert client.instances.resolve_cpu_vm_plan() == (4, 16, INDIA_NOIDA_REGION)


def check_keys(client):
    refused(ValidationError, client.instances.create, gpu_type="H100", template="vm", region="IN2")
    assert client.ssh_keys.add(PUBLIC, "mine") and client.ssh_keys.add(PUBLIC, "again")
    found = {key.key_name: key for key in client.ssh_keys.list()}
    assert set(found) == {"mine", "again"} and found["mine"].ssh_key == PUBLIC, found
    assert refused(APIError, client.ssh_keys.add, "nothing", "other").status_code == 400
    assert client.ssh_keys.remove(found["again"].key_id)
    refused(NotFoundError, client.ssh_keys.remove, found["again"].key_id)
    return found["mine"].key_id


def check_script(client):
    assert client.scripts.add(b"#!/bin/sh\ntouch /ready\n", "setup")
    script = client.scripts.list()[0]
    assert script.script_name == "setup", script
    return script.script_id


def logs_in(client, machine_id):
    """Waits for the command for SSH of an instance. Returns its parts."""
    shown = lambda: client.instances.get(machine_id).ssh_command
    until("it tells how to log in", shown)
    return parse_ssh_command(shown())


def destroy(client, machine_id):
    assert client.instances.destroy(machine_id)

    def gone():
        try:
            assert client.instances.get(machine_id).status == "Destroying"
        except NotFoundError:
            return True
        return False

    until("it is gone", gone)
    refused(NotFoundError, client.instances.destroy, machine_id)


def check_container(client, script_id):
    order = {"gpu_type": "L4", "storage": 50, "name": "sdk-0", "script_id": str(script_id)}
    refused(ValidationError, client.instances.create, **{**order, "gpu_type": "A6000"}, region="IN1")
    refused(APIError, client.instances.create, **{**order, "script_id": "7"})
    made = client.instances.create(**order)
    assert (made.status, made.template, made.region) == ("Running", "pytorch", INDIA_NOIDA_REGION), made
    assert (made.name, made.storage_gb, made.num_gpus, made.is_spot) == ("sdk-0", 50, 1, False), made
    login = logs_in(client, made.machine_id)
    assert login.user == "root" and login.port != 22, login
    assert [found.machine_id for found in client.instances.list()] == [made.machine_id]
    assert client.instances.rename(made.machine_id, "other name")
    shown = client.instances.get(made.machine_id)
    assert shown.name == "other name" and shown.cost > 0 and shown.public_ip is None, shown
    assert client.instances.pause(made.machine_id)
    until("it is paused", lambda: client.instances.get(made.machine_id).status == "Paused")
    assert "not run" in refused(APIError, client.instances.pause, made.machine_id).message
    destroy(client, made.machine_id)


def check_spot(client):
    made = client.instances.create(gpu_type="L4", name="spot", is_spot=True)
    assert made.is_spot, made
    destroy(client, made.machine_id)


def check_vms(client):
    for region, gpu in [("IN2", "H100"), ("EU1", "H200")]:
        made = client.instances.create(gpu_type=gpu, template="vm", name="vm", region=region)
        login = logs_in(client, made.machine_id)
        shown = client.instances.get(made.machine_id)
        assert (login.user, login.port, login.host) == ("cloud", 22, shown.public_ip), (login, shown)
        destroy(client, made.machine_id)


def main():
    refused(AuthError, client_of("wrong").instances.list)
    client = client_of(KEY)
    check_account(client)
    key_id = check_keys(client)
    script_id = check_script(client)
    check_container(client, script_id)
    check_spot(client)
    check_vms(client)
    assert client.scripts.remove(script_id)
    refused(NotFoundError, client.scripts.remove, script_id)
    assert client.ssh_keys.remove(key_id)
    assert client.ssh_keys.list() == []
    print(f"jarvislabs {version('jarvislabs')}: everything understood")


main()
