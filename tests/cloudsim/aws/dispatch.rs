//! Which function carries an operation out.

use serde_json::Value;

use super::context::Context;
use super::failure::{Failure, Outcome};
use super::service::{Operation, WEB_IDENTITY};
use super::{
    fleet, fleets, groups, images, instances, keys, network, offers, price_list, quotas, run, spot, sts,
    tags, templates,
};

/// Carries an operation out.
pub fn dispatch(context: &mut Context<'_, '_>, operation: Operation, input: &Value) -> Outcome {
    match operation.name {
        "AuthorizeSecurityGroupIngress" => groups::authorize_ingress(context, input),
        "CancelSpotInstanceRequests" => spot::cancel_requests(context, input),
        "CreateFleet" => fleet::create(context, input),
        "CreateKeyPair" => keys::create(context, input),
        "CreateLaunchTemplate" => templates::create(context, input),
        "CreateSecurityGroup" => groups::create_group(context, input),
        "CreateTags" => tags::create_tags(context, input),
        "DeleteFleets" => fleets::delete(context, input),
        "DeleteKeyPair" => keys::delete(context, input),
        "DeleteLaunchTemplate" => templates::delete(context, input),
        "DeleteSecurityGroup" => groups::delete_group(context, input),
        "DescribeAvailabilityZones" => network::describe_zones(context, input),
        "DescribeFleetInstances" => fleets::describe_instances(context, input),
        "DescribeFleets" => fleets::describe(context, input),
        "DescribeImages" => images::describe(context, input),
        "DescribeInstanceStatus" => instances::describe_status(context, input),
        "DescribeInstanceTypeOfferings" => offers::describe_offerings(context, input),
        "DescribeInstanceTypes" => offers::describe_types(context, input),
        "DescribeInstances" => instances::describe(context, input),
        "DescribeKeyPairs" => keys::describe(context, input),
        "DescribeLaunchTemplates" => templates::describe(context, input),
        "DescribeRegions" => network::describe_regions(context, input),
        "DescribeSecurityGroups" => groups::describe_groups(context, input),
        "DescribeSpotInstanceRequests" => spot::describe_requests(context, input),
        "DescribeSpotPriceHistory" => spot::describe_prices(context, input),
        "DescribeSubnets" => network::describe_subnets(context, input),
        "DescribeTags" => tags::describe_tags(context, input),
        "DescribeVpcs" => network::describe_vpcs(context, input),
        "GetConsoleOutput" => instances::console_output(context, input),
        "GetSpotPlacementScores" => spot::placement_scores(context, input),
        "ImportKeyPair" => keys::import(context, input),
        "RunInstances" => run::run(context, input),
        "TerminateInstances" => instances::terminate(context, input),
        "GetParameter" => images::get_parameter(context, input),
        "GetParameters" => images::get_parameters(context, input),
        "GetParametersByPath" => images::get_parameters_by_path(context, input),
        "DescribeServices" => price_list::describe_services(context, input),
        "GetAttributeValues" => price_list::get_attribute_values(context, input),
        "GetProducts" => price_list::get_products(context, input),
        "ListServiceQuotas" => quotas::list(context, input),
        "AssumeRole" => sts::assume_role(context, input),
        "GetCallerIdentity" => sts::caller_identity(context),
        WEB_IDENTITY => sts::assume_role_with_web_identity(context, input),
        other => Err(Failure::internal(format!("{other} is listed and not written"))),
    }
}
