#!/usr/bin/env python3
"""The simulated Massed Compute under the program that Massed Compute publishes for Python.

Its code is not ours: a server of the Model Context Protocol, whose tools are the calls of the API, with schemas
of what they take. What it forwards and gets refused, or gets and cannot read, is a mistake of the simulator.
Called with the address of the simulator and a token; needs massed-compute-mcp, of a version that still calls
the API itself.
"""

import asyncio
import json
import sys
import time
from contextlib import asynccontextmanager
from importlib.metadata import version

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

URL, TOKEN = sys.argv[1:3]
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test"
UNKNOWN = "00000000-0000-4000-8000-000000000001"
LABELS = {400: "invalid_request", 401: "unauthorized"}


class Program:
    """The program in a session."""

    def __init__(self, session):
        self.session = session

    async def said(self, tool, arguments):
        answer = await self.session.call_tool(tool, arguments)
        assert not answer.isError, answer
        return answer.content[0].text

    async def call(self, tool, **arguments):
        return json.loads(await self.said(tool, arguments))

    async def refused(self, status, text, tool, **arguments):
        said = await self.said(tool, arguments)
        begins = f"[{LABELS[status]} {status}] "
        assert said.startswith(begins), said
        assert json.loads(said.removeprefix(begins)) == {"message": text}, said


@asynccontextmanager
async def program(token):
    environment = {"MASSED_COMPUTE_API_KEY": token, "MASSED_COMPUTE_API_BASE_URL": URL}
    server = StdioServerParameters(command=sys.executable, args=["-m", "massed_compute_mcp"], env=environment)
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield Program(session)


async def until(what, look, seconds=30):
    """Waits until `look` answers with something true; fails with `what` after so many seconds."""
    end = time.monotonic() + seconds
    while not await look():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.1)


async def check_offers(cloud):
    inventory = (await cloud.call("gpu_inventory_list"))["gpu_inventory"]
    spot = inventory["gpu_1x_h100_spot"]
    assert spot["instance_type"]["price_cents_per_hour"] == 198 and spot["capacity_available"] > 0, spot
    assert inventory["gpu_1x_h200_nvl"]["regions_with_capacity_available"] == [], inventory
    images = {image["vm_image_id"]: image for image in (await cloud.call("images_list"))["images"]}
    assert images[184]["vm_image_name"] == "Ubuntu Server 24.04", images
    assert await cloud.call("account_token_validation") == {"message": "Valid Token"}
    assert (await cloud.call("account_billing"))["billing"]["recharge_amount"]


async def check_key(cloud):
    made = (await cloud.call("ssh_keys_create", name="mine", publicKey=PUBLIC))["sshKey"]
    await cloud.refused(400, "Failed to create SSH key", "ssh_keys_create", name="mine", publicKey=PUBLIC)
    keys = (await cloud.call("ssh_keys_list"))["sshKeys"]
    assert [(key["id"], key["name"]) for key in keys] == [(made["id"], "mine")], keys
    return made["id"]


async def check_instance(cloud):
    thin = (400, "Failed to launch instance", "instances_launch")
    order = {
        "imageId": 184, "productName": "gpu_1x_h100_spot", "regionName": "any", "instanceName": "sdk-0",
        "sshKeys": ["mine"], "command": "touch /ready",
    }
    await cloud.refused(*thin, **{**order, "productName": "gpu_1x_none"})
    await cloud.refused(*thin, **{**order, "productName": "gpu_1x_h200_nvl"})
    uuid = (await cloud.call("instances_launch", **order))["response"]

    async def shown():
        return (await cloud.call("instances_get", uuid=uuid))["runningInstances"]

    async def runs():
        [instance] = await shown()
        return instance["status"] == "Running" and instance["os_booted"] == 1 and instance["ip"]

    await until("it runs", runs)
    [instance] = (await cloud.call("instances_list"))["runningInstances"]
    assert (instance["uuid"], instance["name"]) == (uuid, "sdk-0"), instance
    assert (instance["username"], instance["password"]) == ("Ubuntu", "[redacted]"), instance
    assert instance["product"]["final_price_hr"] == "1.98", instance
    await cloud.call("instances_restart", instanceUuids=[uuid])
    await until("it runs again", runs)
    await cloud.call("instances_terminate", instanceUuids=[uuid])

    async def gone():
        return await shown() == []

    await until("it is gone", gone)
    for tool in ["instances_restart", "instances_terminate"]:
        await cloud.refused(400, "No valid VMs found", tool, instanceUuids=[uuid])
    assert await cloud.call("instances_get", uuid=UNKNOWN) == {"runningInstances": []}


async def main():
    async with program("wrong") as stranger:
        await stranger.refused(401, "Authentication not correct.", "instances_list")
    async with program(TOKEN) as cloud:
        await check_offers(cloud)
        key = await check_key(cloud)
        await check_instance(cloud)
        for _ in range(2):
            assert await cloud.call("ssh_keys_delete", sshKeyId=key) == {}
        assert (await cloud.call("ssh_keys_list"))["sshKeys"] == []
    print(f"massed-compute-mcp {version('massed-compute-mcp')}: everything understood")


asyncio.run(main())
