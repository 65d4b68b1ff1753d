//! Instance types, where they are, their prices, and images.

use serde_json::{Value, json};

use super::Hand;

#[test]
fn types_come_in_pages_with_their_accelerators() {
    let Some(hand) = Hand::new() else { return };
    let mut names = Vec::new();
    let mut token = String::new();
    loop {
        let mut parameters = vec![("MaxResults", "10")];
        if !token.is_empty() {
            parameters.push(("NextToken", &token));
        }
        let reply = hand.ec2("DescribeInstanceTypes", &parameters).fine();
        names.extend(reply.all("instanceType").into_iter().map(str::to_owned));
        match reply.text("nextToken") {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert!(
        names.len() > 25 && names.iter().any(|name| name == "p5.48xlarge"),
        "{names:?}"
    );
    let gpu = hand
        .ec2("DescribeInstanceTypes", &[("InstanceType.1", "p5.48xlarge")])
        .fine();
    assert!(
        gpu.body.contains("<gpuInfo><gpus><item>") && gpu.body.contains("<count>8</count>"),
        "{}",
        gpu.body
    );
    assert!(
        gpu.body
            .contains("<totalGpuMemoryInMiB>655360</totalGpuMemoryInMiB>")
    );
    let fast = [
        ("Filter.1.Name", "network-info.efa-supported"),
        ("Filter.1.Value.1", "true"),
    ];
    let reply = hand.ec2("DescribeInstanceTypes", &fast).fine();
    let efa = reply.all("instanceType");
    assert!(
        efa.contains(&"p5.48xlarge") && !efa.contains(&"g6f.large"),
        "{efa:?}"
    );
    let part = hand
        .ec2("DescribeInstanceTypes", &[("InstanceType.1", "g6f.large")])
        .fine();
    assert!(
        part.body.contains("<gpuPartitionSize>0.125</gpuPartitionSize>"),
        "{}",
        part.body
    );
    let neuron = hand
        .ec2("DescribeInstanceTypes", &[("InstanceType.1", "trn1.32xlarge")])
        .fine();
    assert!(neuron.body.contains("<neuronInfo>") && neuron.body.contains("<name>Trainium</name>"));
    let old = hand
        .ec2("DescribeInstanceTypes", &[("InstanceType.1", "inf1.xlarge")])
        .fine();
    assert!(old.body.contains("<inferenceAcceleratorInfo>"));
    hand.ec2("DescribeInstanceTypes", &[("InstanceType.1", "x9.huge")])
        .fails(400, "InvalidInstanceType");
    hand.judged_clean();
}

#[test]
fn filters_take_wildcards_and_architectures() {
    let Some(hand) = Hand::new() else { return };
    let p5 = hand
        .ec2(
            "DescribeInstanceTypes",
            &[("Filter.1.Name", "instance-type"), ("Filter.1.Value.1", "p5*")],
        )
        .fine();
    assert_eq!(p5.all("instanceType"), ["p5.4xlarge", "p5.48xlarge"]);
    let arm = hand
        .ec2(
            "DescribeInstanceTypes",
            &[
                ("Filter.1.Name", "processor-info.supported-architecture"),
                ("Filter.1.Value.1", "arm64"),
            ],
        )
        .fine();
    assert!(
        arm.all("instanceType").contains(&"c7g.large") && !arm.all("instanceType").contains(&"g5.xlarge")
    );
    hand.ec2(
        "DescribeInstanceTypes",
        &[("Filter.1.Name", "colour"), ("Filter.1.Value.1", "red")],
    )
    .fails(400, "InvalidParameterValue");
}

#[test]
fn offerings_tell_the_zones_that_carry_a_type() {
    let Some(hand) = Hand::new() else { return };
    let parameters = [
        ("LocationType", "availability-zone"),
        ("Filter.1.Name", "instance-type"),
        ("Filter.1.Value.1", "p5.48xlarge"),
    ];
    let reply = hand.ec2("DescribeInstanceTypeOfferings", &parameters).fine();
    assert_eq!(reply.all("location"), ["us-east-1b", "us-east-1f"]);
    assert_eq!(
        hand.in_region("eu-central-1")
            .ec2("DescribeInstanceTypeOfferings", &parameters)
            .fine()
            .all("location")
            .len(),
        0
    );
    hand.judged_clean();
}

#[test]
fn with_a_start_of_now_only_the_newest_spot_price_of_each_zone_comes_back() {
    let Some(hand) = Hand::new() else { return };
    let now = hand.sim.clock().now().to_string();
    let asked = [
        ("InstanceType.1", "g5.xlarge"),
        ("ProductDescription.1", "Linux/UNIX"),
        ("StartTime", now.as_str()),
    ];
    let reply = hand.ec2("DescribeSpotPriceHistory", &asked).fine();
    let mut zones = reply.all("availabilityZone");
    zones.sort_unstable();
    assert_eq!(
        zones,
        [
            "us-east-1a",
            "us-east-1b",
            "us-east-1c",
            "us-east-1d",
            "us-east-1f"
        ]
    );
    let past = hand.ec2("DescribeSpotPriceHistory", &asked[..2]).fine();
    assert!(past.all("spotPrice").len() > 300);
    let price = json!({"type": "g5.xlarge", "zone": "us-east-1a", "price": "0.5"});
    hand.sim
        .control("spot-price", &price)
        .expect("known")
        .expect("done");
    hand.wait(1);
    let now = hand.sim.clock().now().to_string();
    let asked = [
        ("InstanceType.1", "g5.xlarge"),
        ("AvailabilityZone", "us-east-1a"),
        ("StartTime", now.as_str()),
    ];
    assert_eq!(
        hand.ec2("DescribeSpotPriceHistory", &asked)
            .fine()
            .all("spotPrice"),
        ["0.500000"]
    );
    hand.judged_clean();
}

fn filters(kind: &str, region: &str, count: usize) -> Value {
    let all = [
        ("instanceType", kind),
        ("regionCode", region),
        ("operatingSystem", "Linux"),
        ("tenancy", "Shared"),
        ("preInstalledSw", "NA"),
        ("capacitystatus", "Used"),
        ("marketoption", "OnDemand"),
    ];
    all.iter()
        .take(count)
        .map(|(field, value)| json!({"Type": "TERM_MATCH", "Field": field, "Value": value}))
        .collect()
}

#[test]
fn the_price_list_is_documents_as_strings_and_only_all_filters_leave_one() {
    let Some(hand) = Hand::new() else { return };
    let ask = |count| {
        let body = json!({"ServiceCode": "AmazonEC2", "Filters": filters("p5.48xlarge", "us-east-1", count), "MaxResults": 100});
        let reply = hand
            .json("pricing", "AWSPriceListService.GetProducts", &body)
            .fine()
            .json();
        reply["PriceList"].as_array().expect("a list").clone()
    };
    assert_eq!(ask(2).len(), 6);
    assert_eq!(ask(6).len(), 2);
    let one = ask(7);
    assert_eq!(one.len(), 1);
    let product: Value = serde_json::from_str(one[0].as_str().expect("a string")).expect("JSON");
    let term = product["terms"]["OnDemand"]
        .as_object()
        .and_then(|terms| terms.values().next())
        .expect("a term");
    let dimension = term["priceDimensions"]
        .as_object()
        .and_then(|all| all.values().next())
        .expect("a dimension");
    assert_eq!(dimension["pricePerUnit"]["USD"], "55.0400000000");
    hand.judged_clean();
}

#[test]
fn the_price_list_lives_in_few_regions() {
    let Some(hand) = Hand::new() else { return };
    let body = json!({"ServiceCode": "AmazonEC2", "Filters": filters("g5.xlarge", "us-west-2", 7)});
    let reply = hand
        .in_region("us-west-2")
        .json("pricing", "AWSPriceListService.GetProducts", &body);
    assert_eq!(reply.json()["__type"], "OptInRequired");
    hand.json("pricing", "AWSPriceListService.GetProducts", &body)
        .fine();
}

#[test]
fn the_price_list_tells_its_services_their_attributes_and_the_values_of_those() {
    let Some(hand) = Hand::new() else { return };
    let ask = |call: &str, body: Value| {
        let reply = hand.json("pricing", &format!("AWSPriceListService.{call}"), &body);
        reply.json()
    };
    let mut codes = Vec::new();
    let mut body = json!({"FormatVersion": "aws_v1", "MaxResults": 2});
    loop {
        let page = ask("DescribeServices", body.clone());
        let services = page["Services"].as_array().expect("services");
        codes.extend(services.iter().map(|service| service["ServiceCode"].to_string()));
        match page.get("NextToken") {
            Some(token) => body["NextToken"] = token.clone(),
            None => break,
        }
    }
    assert!(
        codes.len() > 2 && codes.contains(&"\"AmazonEC2\"".to_owned()),
        "{codes:?}"
    );
    let one = ask("DescribeServices", json!({"ServiceCode": "AmazonEC2"}));
    let names = one["Services"][0]["AttributeNames"].as_array().expect("names");
    assert!(names.contains(&json!("instanceType")) && names.contains(&json!("productFamily")));
    for name in names {
        // The bucket of this call is small.
        hand.wait(1);
        let values = ask(
            "GetAttributeValues",
            json!({"ServiceCode": "AmazonEC2", "AttributeName": name}),
        );
        assert!(
            values["AttributeValues"][0]["Value"].is_string(),
            "{name}: {values}"
        );
    }
    let systems = json!({"ServiceCode": "AmazonEC2", "AttributeName": "operatingSystem"});
    assert_eq!(
        ask("GetAttributeValues", systems)["AttributeValues"],
        json!([{"Value": "Linux"}, {"Value": "Windows"}])
    );
    let nobody = json!({"ServiceCode": "AmazonNothing"});
    assert_eq!(ask("DescribeServices", nobody)["__type"], "NotFoundException");
    let nothing = json!({"ServiceCode": "AmazonEC2", "AttributeName": "colour"});
    assert_eq!(ask("GetAttributeValues", nothing)["__type"], "NotFoundException");
    let token = json!({"NextToken": "nonsense"});
    assert_eq!(
        ask("DescribeServices", token)["__type"],
        "InvalidNextTokenException"
    );
    hand.judged_clean();
}

#[test]
fn images_are_found_by_parameter_and_some_combinations_do_not_exist() {
    let Some(hand) = Hand::new() else { return };
    let gpu = "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id";
    let image = hand.parameter(gpu).fine().json()["Parameter"]["Value"]
        .as_str()
        .expect("an id")
        .to_owned();
    let described = hand.ec2("DescribeImages", &[("ImageId.1", &image)]).fine();
    assert_eq!(described.text("architecture"), Some("arm64"));
    assert_eq!(described.text("rootDeviceName"), Some("/dev/sda1"));
    let tokyo = hand.in_region("ap-northeast-1");
    assert_eq!(tokyo.parameter(gpu).json()["__type"], "ParameterNotFound");
    tokyo
        .ec2("DescribeImages", &[("ImageId.1", &image)])
        .fails(400, "InvalidAMIID.NotFound");
    let both = hand
        .json(
            "ssm",
            "AmazonSSM.GetParameters",
            &json!({"Names": [gpu, "/no/such"]}),
        )
        .fine()
        .json();
    assert_eq!(
        (&both["Parameters"][0]["Value"], &both["InvalidParameters"]),
        (&json!(image), &json!(["/no/such"]))
    );
    let under = |path: &str, recursive: bool| {
        let body = json!({"Path": path, "Recursive": recursive});
        let answer = hand
            .json("ssm", "AmazonSSM.GetParametersByPath", &body)
            .fine()
            .json();
        answer["Parameters"].as_array().expect("parameters").len()
    };
    assert_eq!(under("/aws/service/ami-amazon-linux-latest", false), 1);
    assert_eq!(under("/aws/service/deeplearning/", false), 0);
    assert!(under("/aws/service/deeplearning/", true) > 1);
    let gp3_before_2404 =
        "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp3/ami-id";
    assert_eq!(
        hand.parameter(gp3_before_2404).json()["__type"],
        "ParameterNotFound"
    );
    hand.judged_clean();
}
