#!/usr/bin/env python3
"""The simulated AWS under Amazon's own client.

boto3 signs, encodes and decodes by the same service models as the simulator, with
code that is not ours: what it cannot read or gets refused is a mistake of the
simulator. Called with the address of the simulator; needs boto3.
"""

import base64
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError

URL = sys.argv[1]
REGION = "us-east-1"
KEYS = {"aws_access_key_id": sys.argv[2], "aws_secret_access_key": sys.argv[3]}


def client(service, region=REGION, retries=0, **keys):
    config = Config(retries={"total_max_attempts": retries + 1, "mode": "standard"})
    return boto3.client(service, endpoint_url=URL, region_name=region, config=config, **(keys or KEYS))


def refused(code, call, **parameters):
    try:
        answer = call(**parameters)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error.response
        return error.response
    raise AssertionError(f"{code} expected, got {answer}")


def until(what, look, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if look():
                return
        except ClientError as error:
            if not error.response["Error"]["Code"].endswith("NotFound"):
                raise
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


def check_identity():
    assert client("sts").get_caller_identity()["Account"] == "123456789012"
    wrong = {"aws_access_key_id": KEYS["aws_access_key_id"], "aws_secret_access_key": "wrong"}
    refused("SignatureDoesNotMatch", client("sts", **wrong).get_caller_identity)
    refused("AuthFailure", client("ec2", **wrong).describe_regions)
    refused("InvalidSignatureException", client("ssm", **wrong).get_parameter, Name="x")


def check_role():
    sts = client("sts")
    order = {"RoleArn": "arn:aws:iam::123456789012:role/boto", "RoleSessionName": "boto3@check"}
    taken = sts.assume_role(DurationSeconds=900, Tags=[{"Key": "a", "Value": "b"}], **order)
    keys = taken["Credentials"]
    as_role = {
        "aws_access_key_id": keys["AccessKeyId"],
        "aws_secret_access_key": keys["SecretAccessKey"],
        "aws_session_token": keys["SessionToken"],
    }
    caller = client("sts", **as_role).get_caller_identity()
    assert caller["Arn"] == taken["AssumedRoleUser"]["Arn"] == "arn:aws:sts::123456789012:assumed-role/boto/boto3@check"
    assert client("ec2", **as_role).describe_regions()["Regions"]
    refused("ValidationError", client("sts", **as_role).assume_role, DurationSeconds=7200, **order)
    refused("AccessDenied", sts.assume_role, **{**order, "RoleArn": "arn:aws:iam::210987654321:role/boto"})
    refused("MalformedPolicyDocument", sts.assume_role, Policy="no policy", **order)


def check_offers(ec2):
    types = [kind for page in ec2.get_paginator("describe_instance_types").paginate(PaginationConfig={"PageSize": 7}) for kind in page["InstanceTypes"]]
    by_name = {kind["InstanceType"]: kind for kind in types}
    assert len(by_name) == len(types) > 25
    p5 = by_name["p5.48xlarge"]
    assert (p5["GpuInfo"]["Gpus"][0]["Count"], p5["GpuInfo"]["Gpus"][0]["MemoryInfo"]["SizeInMiB"]) == (8, 81920)
    assert by_name["trn1.32xlarge"]["NeuronInfo"]["NeuronDevices"][0]["Name"] == "Trainium"
    assert by_name["g6f.large"]["GpuInfo"]["Gpus"][0]["Count"] == 0
    offerings = ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["p5.48xlarge"]}]
    )["InstanceTypeOfferings"]
    assert {offering["Location"] for offering in offerings} == {"us-east-1b", "us-east-1f"}
    prices = ec2.describe_spot_price_history(
        InstanceTypes=["g5.xlarge"], ProductDescriptions=["Linux/UNIX"], StartTime=time.time()
    )["SpotPriceHistory"]
    assert len(prices) == 5 and all(0 < float(price["SpotPrice"]) < 1.006 for price in prices)
    products = client("pricing").get_products(
        ServiceCode="AmazonEC2",
        Filters=[
            {"Type": "TERM_MATCH", "Field": field, "Value": value}
            for field, value in {
                "instanceType": "g5.xlarge", "regionCode": REGION, "operatingSystem": "Linux", "tenancy": "Shared",
                "preInstalledSw": "NA", "capacitystatus": "Used", "marketoption": "OnDemand",
            }.items()
        ],
    )["PriceList"]
    (product,) = map(json.loads, products)
    (term,) = product["terms"]["OnDemand"].values()
    (dimension,) = term["priceDimensions"].values()
    assert float(dimension["pricePerUnit"]["USD"]) == 1.006
    pricing = client("pricing", retries=4)
    pages = pricing.get_paginator("describe_services").paginate(PaginationConfig={"PageSize": 2})
    services = {service["ServiceCode"]: service["AttributeNames"] for page in pages for service in page["Services"]}
    assert len(services) > 2 and "instanceType" in services["AmazonEC2"]
    pages = pricing.get_paginator("get_attribute_values").paginate(
        ServiceCode="AmazonEC2", AttributeName="instanceType", PaginationConfig={"PageSize": 9}
    )
    assert {value["Value"] for page in pages for value in page["AttributeValues"]} == set(by_name_everywhere())
    refused("NotFoundException", pricing.describe_services, ServiceCode="AmazonNothing")
    service_quotas = client("service-quotas")
    pages = service_quotas.get_paginator("list_service_quotas").paginate(ServiceCode="ec2")
    quotas = [{quota["QuotaName"]: quota["Value"] for quota in page["Quotas"]} for page in pages]
    assert len(quotas) > 1 and any(page.get("Running On-Demand P instances") == 0 for page in quotas)
    refused("NoSuchResourceException", service_quotas.list_service_quotas, ServiceCode="lambda")
    assert p5["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] == len(p5["NetworkInfo"]["NetworkCards"]) == 32
    assert ec2.get_spot_placement_scores(InstanceTypes=["g5.xlarge"], TargetCapacity=1)["SpotPlacementScores"]
    refused("InvalidInstanceType", ec2.describe_instance_types, InstanceTypes=["x9.huge"])


def by_name_everywhere():
    for region in ("us-east-1", "us-west-2", "eu-central-1", "ap-northeast-1"):
        for page in client("ec2", region).get_paginator("describe_instance_types").paginate():
            yield from (kind["InstanceType"] for kind in page["InstanceTypes"])


def find_image():
    ssm = client("ssm")
    name = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
    parameter = ssm.get_parameter(Name=name)["Parameter"]
    assert parameter["DataType"] == "aws:ec2:image" and parameter["LastModifiedDate"].year == 2026
    refused("ParameterNotFound", ssm.get_parameter, Name="/no/such/parameter")
    return parameter["Value"]


def check_network(ec2):
    (vpc,) = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    subnets = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc["VpcId"]]}])["Subnets"]
    zones = {zone["ZoneName"] for zone in ec2.describe_availability_zones()["AvailabilityZones"]}
    assert {subnet["AvailabilityZone"] for subnet in subnets} == zones
    assert len(ec2.describe_regions()["Regions"]) == 4
    group = ec2.create_security_group(GroupName="boto", Description="of boto3", VpcId=vpc["VpcId"])["GroupId"]
    refused("InvalidGroup.Duplicate", ec2.create_security_group, GroupName="boto", Description="x", VpcId=vpc["VpcId"])
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    itself = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ssh, itself])
    refused("InvalidPermission.Duplicate", ec2.authorize_security_group_ingress, GroupId=group, IpPermissions=[ssh])
    (described,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    open_to_all, among = described["IpPermissions"]
    assert open_to_all["FromPort"] == 22 and open_to_all["UserIdGroupPairs"] == []
    assert among["IpRanges"] == [] and among["UserIdGroupPairs"][0]["GroupId"] == group
    return subnets, group


def import_key(ec2):
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(32)
    line = b"ssh-ed25519 " + base64.b64encode(blob) + b" boto"
    ec2.import_key_pair(KeyName="boto", PublicKeyMaterial=line)
    refused("InvalidKeyPair.Duplicate", ec2.import_key_pair, KeyName="boto", PublicKeyMaterial=line)
    (key,) = ec2.describe_key_pairs(KeyNames=["boto"], IncludePublicKey=True)["KeyPairs"]
    assert key["KeyType"] == "ed25519" and key["PublicKey"].encode() == line


def create_keys(ec2):
    for kind, form, begin in (
        ("rsa", "pem", "-----BEGIN RSA PRIVATE KEY-----"),
        ("ed25519", "pem", "-----BEGIN OPENSSH PRIVATE KEY-----"),
        ("rsa", "ppk", "PuTTY-User-Key-File-2: ssh-rsa"),
    ):
        name = f"boto-{kind}-{form}"
        made = ec2.create_key_pair(KeyName=name, KeyType=kind, KeyFormat=form)
        assert made["KeyMaterial"].startswith(begin + "\n"), made["KeyMaterial"]
        refused("InvalidKeyPair.Duplicate", ec2.create_key_pair, KeyName=name)
        (shown,) = ec2.describe_key_pairs(KeyPairIds=[made["KeyPairId"]], IncludePublicKey=True)["KeyPairs"]
        assert (shown["KeyName"], shown["KeyType"]) == (name, kind)
        assert shown["KeyFingerprint"] == made["KeyFingerprint"]
        if form == "pem":
            check_private_half(made["KeyMaterial"], shown["PublicKey"])
        ec2.delete_key_pair(KeyPairId=made["KeyPairId"])


def check_private_half(material, line):
    """OpenSSH, where there is one, reads the file that was handed out, and it is the other half."""
    if shutil.which("ssh-keygen") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "key")
        file.touch(mode=0o600)
        file.write_text(material)
        told = subprocess.run(["ssh-keygen", "-y", "-P", "", "-f", file], capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        assert told.stdout.split()[:2] == line.split()[:2], (told.stdout, line)


def check_instances(ec2, image, subnets, group):
    order = {
        "ImageId": image, "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 2, "KeyName": "boto",
        "SubnetId": subnets[0]["SubnetId"], "SecurityGroupIds": [group], "ClientToken": "boto-token",
        "UserData": "#!/bin/sh\necho hi", "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "boto:managed", "Value": "yes & <no>"}]}],
        "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3", "DeleteOnTermination": True}}],
    }
    refused("DryRunOperation", ec2.run_instances, DryRun=True, **order)
    first, again = ec2.run_instances(**order), ec2.run_instances(**order)
    ids = [instance["InstanceId"] for instance in first["Instances"]]
    assert len(ids) == 2 and {instance["InstanceId"] for instance in again["Instances"]} == set(ids)
    refused("IdempotentParameterMismatch", ec2.run_instances, **{**order, "InstanceType": "t3.medium"})

    def described(**question):
        return [found for answer in ec2.describe_instances(**question)["Reservations"] for found in answer["Instances"]]

    until("running", lambda: all(found["State"]["Name"] == "running" for found in described(InstanceIds=ids)))
    for found in described(Filters=[{"Name": "tag:boto:managed", "Values": ["yes*"]}]):
        assert found["PublicIpAddress"] and found["Tags"] == [{"Key": "boto:managed", "Value": "yes & <no>"}]
        (interface,) = found["NetworkInterfaces"]
        assert interface["Association"]["PublicIp"] == found["PublicIpAddress"] and found["PlatformDetails"] == "Linux/UNIX"
        assert interface["Groups"] == found["SecurityGroups"] == [{"GroupId": group, "GroupName": "boto"}]
    assert len(ec2.describe_instance_status(InstanceIds=ids)["InstanceStatuses"]) == 2
    ec2.create_tags(Resources=ids, Tags=[{"Key": "more", "Value": "1"}])
    assert len(ec2.describe_tags(Filters=[{"Name": "key", "Values": ["more"]}])["Tags"]) == 2
    refused("DependencyViolation", ec2.delete_security_group, GroupId=group)
    refused("InvalidInstanceID.NotFound", ec2.terminate_instances, InstanceIds=[ids[0], "i-0ffffffffffffffff"])
    changes = ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
    assert {change["CurrentState"]["Name"] for change in changes} == {"shutting-down"}
    until("terminated", lambda: all(found["State"]["Name"] == "terminated" for found in described(InstanceIds=ids)))
    assert described(InstanceIds=ids)[0]["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


def check_fleet(ec2, image, subnets, group):
    template = ec2.create_launch_template(
        LaunchTemplateName="boto-template",
        LaunchTemplateData={
            "ImageId": image, "KeyName": "boto", "UserData": base64.b64encode(b"#!/bin/sh\n").decode(),
            "NetworkInterfaces": [{"DeviceIndex": 0, "AssociatePublicIpAddress": True, "Groups": [group]}],
            "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "boto:fleet", "Value": "1"}]}],
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        },
    )["LaunchTemplate"]["LaunchTemplateId"]

    def fleet(kind, count, how="instant"):
        return ec2.create_fleet(
            Type=how,
            LaunchTemplateConfigs=[{
                "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "$Latest"},
                "Overrides": [{"InstanceType": kind, "SubnetId": subnet["SubnetId"]} for subnet in subnets],
            }],
            TargetCapacitySpecification={"TotalTargetCapacity": count, "DefaultTargetCapacityType": "spot"},
            SpotOptions={"AllocationStrategy": "price-capacity-optimized", "SingleAvailabilityZone": True},
        )

    got = fleet("g6.xlarge", 2)
    (part,) = got["Instances"]
    assert part["Lifecycle"] == "spot" and len(part["InstanceIds"]) == 2 and not got["Errors"]
    refused("Unsupported", ec2.describe_fleet_instances, FleetId=got["FleetId"])
    later = fleet("g6.xlarge", 1, "request")["FleetId"]
    (active,) = ec2.describe_fleet_instances(FleetId=later)["ActiveInstances"]
    assert active["InstanceHealth"] == "healthy" and active["InstanceType"] == "g6.xlarge"
    assert [one["FleetId"] for one in ec2.describe_fleets()["Fleets"]] == [later]
    (gone,) = ec2.delete_fleets(FleetIds=[later], TerminateInstances=True)["SuccessfulFleetDeletions"]
    assert gone["CurrentFleetState"] == "deleted_terminating"
    nothing = fleet("p6-b200.48xlarge", 1)
    assert not nothing["Instances"] and {error["ErrorCode"] for error in nothing["Errors"]} == {"Unsupported"}
    ec2.delete_launch_template(LaunchTemplateId=template)
    until("seen", lambda: ec2.describe_instances(InstanceIds=part["InstanceIds"]))
    mine = [{"Name": "instance-id", "Values": part["InstanceIds"]}]
    (request, _) = ec2.describe_spot_instance_requests(Filters=mine)["SpotInstanceRequests"]
    assert request["State"] == "active" and request["Status"]["Code"] == "fulfilled"
    ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[request["SpotInstanceRequestId"]])
    ec2.terminate_instances(InstanceIds=part["InstanceIds"])


def main():
    ec2 = client("ec2")
    check_identity()
    check_role()
    check_offers(ec2)
    image = find_image()
    (described,) = ec2.describe_images(ImageIds=[image])["Images"]
    assert described["RootDeviceName"] == "/dev/sda1"
    subnets, group = check_network(ec2)
    import_key(ec2)
    create_keys(ec2)
    check_instances(ec2, image, subnets, group)
    check_fleet(ec2, image, subnets, group)
    until("the group is free", lambda: not refused_or_none(ec2.delete_security_group, GroupId=group))
    ec2.delete_key_pair(KeyName="boto")
    print(f"boto3 {boto3.__version__}, botocore {botocore.__version__}: everything understood")


def refused_or_none(call, **parameters):
    try:
        call(**parameters)
    except ClientError as error:
        assert error.response["Error"]["Code"] == "DependencyViolation", error.response
        return error
    return None


main()
