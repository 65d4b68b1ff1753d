#!/usr/bin/env python3
"""The simulated Vast.ai under the service's own client for Python, by which SkyPilot rents.

Its code is not ours: what it cannot read or gets refused is a mistake of the
simulator. Called with the address of the simulator and a key; needs vastai.
"""

import sys
from pathlib import Path

import requests
from vastai import VastAI
from vastai.utils import VERSION

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import until  # noqa: E402

URL, KEY = sys.argv[1:3]
IMAGE = "nvidia/cuda:12.9.1-runtime-ubuntu24.04"


def refused(status, call, *values, **named):
    try:
        answer = call(*values, **named)
    except requests.HTTPError as error:
        assert error.response.status_code == status, error
        return
    raise AssertionError(f"{status} expected, got {answer}")


def runs(vast, instance):
    return lambda: vast.show_instance(instance)["actual_status"] == "running"


def check_instances(vast):
    # What SkyPilot asks for: machines that are alike, with the continent behind the country.
    offers = vast.search_offers(query="num_gpus=1 gpu_name=RTX_4090 chunked=true georegion=true")
    assert {offer["gpu_name"] for offer in offers} == {"RTX 4090"}
    assert (offers[0]["cpu_cores"], offers[0]["min_bid"]) == (32, 0)
    newer = vast.search_offers_new(query={"gpu_name": {"eq": "RTX 4090"}, "num_gpus": {"eq": 1}})
    assert {offer["id"] for offer in newer} >= {offer["id"] for offer in offers}

    made = vast.create_instance(
        offers[0]["id"], image=IMAGE, disk=20, label="head", ssh=True, direct=True, cancel_unavail=True,
        env="-e __SOURCE=skypilot -p 8000:8000", onstart_cmd="touch ~/.no_auto_tmux",
    )
    head = made["new_contract"]
    until("it runs", runs(vast, head))
    (shown,) = vast.show_instances()
    assert (shown["label"], shown["extra_env"]) == ("head", {"__SOURCE": "skypilot"})
    assert vast.ssh_url(head).startswith("ssh://root@")
    vast.stop_instance(head)
    assert vast.show_instance(head)["cur_state"] == "stopped"
    vast.start_instance(head)
    until("it runs again", runs(vast, head))
    for again in (vast.reboot_instance, vast.recycle_instance):
        again(head)
        until("it is back", runs(vast, head))
    vast.label_instance(head, "other")
    assert vast.show_instance(head)["label"] == "other"
    assert f"C.{head} started" in vast.logs(head, tail="10")
    assert "total" in vast.execute(head, "ls -l")
    refused(400, vast.execute, head, "reboot")
    refused(404, vast.logs, 1)

    several = vast.create_instances([offer["id"] for offer in offers[1:3]], image=IMAGE, cancel_unavail=True)
    assert several["success"], several
    workers = several["new_contracts"]
    until("all run", lambda: all(runs(vast, worker)() for worker in workers))
    assert vast.copy(f"C.{head}:/workspace/", f"C.{workers[0]}:/workspace/")["success"]
    assert vast.cancel_copy(str(workers[0]))["success"] and vast.cancel_sync(str(head))["success"]
    refused(400, vast.cloud_copy, "/workspace", instance=str(head), connection="1")
    assert vast.show_connections() == []
    vast.stop_instances(workers)
    assert {vast.show_instance(worker)["cur_state"] for worker in workers} == {"stopped"}
    assert {combination["gpu_name"] for combination in vast.show_instance_filters()} == {"RTX 4090"}
    vast.destroy_instances([*workers, head])
    assert vast.show_instances() == [] and vast.show_instance(head) is None
    refused(404, vast.destroy_instances, workers)

    bids = vast.search_offers(query="gpu_name=RTX_4090 num_gpus=1", type="bid")
    bid = vast.create_instance(bids[0]["id"], image=IMAGE, bid_price=0.5)["new_contract"]
    vast.change_bid(bid, price=0.6)
    assert vast.show_instance(bid)["dph_base"] == 0.6
    vast.destroy_instance(bid)


def check_templates(vast):
    vast.create_env_var("TOKEN", "one")
    refused(400, vast.create_env_var, "TOKEN", "two")
    vast.update_env_var("TOKEN", "two")
    assert vast.show_env_vars(show_values=True) == {"TOKEN": "two"}
    given = {"name": "mine", "image": "ubuntu", "image_tag": "24.04", "ssh": True, "direct": True}
    hashed = vast.create_template(**given, env="-e A=b", onstart_cmd="true", disk_space=12)["template"]["hash_id"]
    (found,) = vast.search_templates("name=mine")
    assert (found["hash_id"], found["image"]) == (hashed, "ubuntu")
    changed = vast.update_template(hashed, **given, env="-e A=c", disk_space=12)["template"]
    assert changed["id"] == found["id"] and changed["hash_id"] != hashed

    made = vast.launch_instance("RTX_4090", "1", None, template_hash=changed["hash_id"], cancel_unavail=True)
    assert made["success"], made
    instance = made["new_contract"]
    until("it runs", runs(vast, instance))
    shown = vast.show_instance(instance)
    assert (shown["image_uuid"], shown["extra_env"]) == ("ubuntu:24.04", {"A": "c"})
    assert shown["template_hash_id"] == changed["hash_id"]
    vast.delete_template(hash_id=changed["hash_id"])
    refused(404, vast.delete_template, template_id=changed["id"])
    vast.delete_env_var("TOKEN")
    assert vast.show_env_vars() == {}
    return instance


def check_volumes_and_money(vast, instance):
    there = {offer["machine_id"]: offer["id"] for offer in vast.search_volumes(limit=100)}
    (first, second) = list(there.values())[:2]
    assert vast.create_volume(first, size=20)["success"]
    (volume,) = vast.show_volumes()
    assert (volume["disk_space"], volume["instances"]) == (20, [])
    assert vast.clone_volume(volume["id"], second, size=30)["success"]
    assert sorted(volume["disk_space"] for volume in vast.show_volumes()) == [20, 30]
    offer = vast.search_offers(query="num_gpus=1")[0]
    made = vast.create_instance(
        offer["id"], image=IMAGE, create_volume=there[offer["machine_id"]], volume_size=40, mount_path="/data",
        volume_label="data",
    )
    (data,) = [volume for volume in vast.show_volumes() if volume["label"] == "data"]
    refused(400, vast.delete_volume, data["id"])
    vast.destroy_instance(made["new_contract"])
    for volume in vast.show_volumes():
        vast.delete_volume(volume["id"])
    refused(404, vast.delete_volume, data["id"])

    assert vast.show_user()["balance"] > 0 and vast.show_ipaddrs() == []
    assert vast.prepay_instance(instance, 20)["discount_rate"] > 0
    assert vast.show_deposit(instance)["refundable_deposit"] == 20

    def charged():
        rows = vast.show_invoices_v1(charges=True, format="tree", charge_type=["instance", "v"])["results"]
        return f"instance-{instance}" in [row["source"] for row in rows]

    until("it is on the bill", charged)
    assert vast.show_invoices_v1(invoice_type=["reserved"])["results"][0]["amount"] == -20
    assert vast.show_invoices()["current"]["total"] > 0
    vast.destroy_instance(instance)


def main():
    refused(401, VastAI(api_key="nobody", server_url=URL).show_user)
    vast = VastAI(api_key=KEY, server_url=URL)
    check_instances(vast)
    check_volumes_and_money(vast, check_templates(vast))
    print(f"vastai {VERSION}: everything understood")


main()
