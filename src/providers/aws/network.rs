//! Where machines stand: subnets and the security group of a Pool. New resources are tagged in the
//! call that makes them, so that the sweep finds everything that a crash leaves behind.

use aws_sdk_ec2::types::{
    IpPermission, IpRange, ResourceType, SecurityGroup, TagSpecification, UserIdGroupPair,
};
use skyward_core::{Deletion, ErrorKind, Leftover, Mark, ProviderError};

use crate::{
    cloud::{Region, call},
    map::{self, filter},
};

/// [`Leftover::kind`] of a security group.
pub const GROUP: &str = "security group";
/// [`Leftover::kind`] of a launch template.
pub const TEMPLATE: &str = "launch template";

/// A subnet that machines can stand in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Its id.
    pub id: String,
    /// Its VPC.
    pub vpc: String,
    /// Its availability zone.
    pub zone: String,
    /// Whether machines get a public address.
    pub public: bool,
}

/// The given subnet, else the subnets of the default VPC, by their ids.
pub async fn subnets(region: &Region, given: Option<&str>) -> Result<Vec<Subnet>, ProviderError> {
    let filters = match given {
        Some(id) => vec![filter("subnet-id", &[id])],
        None => vec![filter("vpc-id", &[&default_vpc(region).await?])],
    };
    let all = call(
        "list the subnets",
        region
            .ec2
            .describe_subnets()
            .set_filters(Some(filters))
            .into_paginator()
            .items()
            .send()
            .try_collect(),
    )
    .await?;
    // In a default VPC only the subnets that AWS made: others may have no route to the internet.
    let default_only = given.is_none() && all.iter().any(|subnet| subnet.default_for_az() == Some(true));
    let mut found: Vec<Subnet> = all
        .iter()
        .filter(|subnet| !default_only || subnet.default_for_az() == Some(true))
        .filter_map(|subnet| {
            Some(Subnet {
                id: subnet.subnet_id()?.to_owned(),
                vpc: subnet.vpc_id()?.to_owned(),
                zone: subnet.availability_zone()?.to_owned(),
                public: given.is_none() || subnet.map_public_ip_on_launch().unwrap_or(false),
            })
        })
        .collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    if found.is_empty() {
        return Err(ProviderError::new(
            ErrorKind::InvalidOrder,
            "list the subnets",
            match given {
                Some(id) => format!("there is no subnet {id} in {}; correct aws.subnetId", region.name),
                None => format!(
                    "the default VPC of {} has no subnet; make one (aws ec2 create-default-subnet), or set aws.subnetId",
                    region.name
                ),
            },
        ));
    }
    Ok(found)
}

async fn default_vpc(region: &Region) -> Result<String, ProviderError> {
    let answer = call(
        "look for the default VPC",
        region
            .ec2
            .describe_vpcs()
            .filters(filter("is-default", &["true"]))
            .send(),
    )
    .await?;
    answer
        .vpcs()
        .iter()
        .find_map(|vpc| vpc.vpc_id())
        .map(str::to_owned)
        .ok_or_else(|| {
            ProviderError::new(
                ErrorKind::InvalidOrder,
                "look for the default VPC",
                format!(
                    "{} has no default VPC; make one (aws ec2 create-default-vpc), or set aws.subnetId",
                    region.name
                ),
            )
        })
}

/// The security group of a Pool, made where it is missing: SSH from everywhere, and
/// everything between its machines.
pub async fn group(region: &Region, mark: &Mark, provider: &str, vpc: &str) -> Result<String, ProviderError> {
    let name = format!("skyward-{}", mark.pool_uid);
    if let Some(found) = find_group(region, &name, vpc).await? {
        // A crash may have left it half made.
        let rules = found.ip_permissions().len();
        let id = found.group_id.unwrap_or_default();
        if rules < 2 {
            open(region, &id).await?;
        }
        return Ok(id);
    }
    let tags = TagSpecification::builder()
        .resource_type(ResourceType::SecurityGroup)
        .set_tags(Some(map::pool_tags(mark, provider)))
        .build();
    let made = call(
        "create the security group",
        region
            .ec2
            .create_security_group()
            .group_name(&name)
            .description(format!(
                "Machines of the Skyward Pool {}/{}",
                mark.namespace, mark.pool
            ))
            .vpc_id(vpc)
            .tag_specifications(tags)
            .send(),
    )
    .await;
    let id = match made {
        Ok(answer) => answer.group_id.unwrap_or_default(),
        // Another order was quicker.
        Err(error) if error.kind == ErrorKind::AlreadyExists => {
            let found = find_group(region, &name, vpc).await?;
            found.and_then(|group| group.group_id).ok_or_else(|| {
                ProviderError::new(
                    ErrorKind::Transient,
                    "create the security group",
                    "it exists already, but AWS does not show it yet",
                )
            })?
        }
        Err(error) => return Err(error),
    };
    open(region, &id).await?;
    Ok(id)
}

async fn find_group(region: &Region, name: &str, vpc: &str) -> Result<Option<SecurityGroup>, ProviderError> {
    let answer = call(
        "look for the security group",
        region
            .ec2
            .describe_security_groups()
            .filters(filter("group-name", &[name]))
            .filters(filter("vpc-id", &[vpc]))
            .send(),
    )
    .await?;
    Ok(answer.security_groups.unwrap_or_default().into_iter().next())
}

/// One call for each rule: a rule that exists already would refuse the other.
async fn open(region: &Region, id: &str) -> Result<(), ProviderError> {
    let ssh = IpPermission::builder()
        .ip_protocol("tcp")
        .from_port(22)
        .to_port(22)
        .ip_ranges(
            IpRange::builder()
                .cidr_ip("0.0.0.0/0")
                .description("SSH of the Skyward operator")
                .build(),
        )
        .build();
    let among = IpPermission::builder()
        .ip_protocol("-1")
        .user_id_group_pairs(UserIdGroupPair::builder().group_id(id).build())
        .build();
    for rule in [ssh, among] {
        let opened = call(
            "open the security group",
            region
                .ec2
                .authorize_security_group_ingress()
                .group_id(id)
                .ip_permissions(rule)
                .send(),
        )
        .await;
        there(opened)?;
    }
    Ok(())
}

/// A resource that exists already needs not be made.
pub(crate) fn there<T>(made: Result<T, ProviderError>) -> Result<(), ProviderError> {
    match made {
        Err(error) if error.kind != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Everything of ours in a region that is not a machine.
pub async fn leftovers(
    region: &Region,
    cluster: &str,
    provider: &str,
    pool_uid: Option<&str>,
) -> Result<Vec<Leftover>, ProviderError> {
    let filters = map::ours(cluster, provider, pool_uid);
    let leftover = |kind, id: Option<String>, tags: &[aws_sdk_ec2::types::Tag]| {
        Some(Leftover {
            kind,
            id: id?,
            region: region.name.to_string(),
            pool_uid: map::value(tags, map::POOL_UID)?,
        })
    };
    let groups = call(
        "list the security groups",
        region
            .ec2
            .describe_security_groups()
            .set_filters(Some(filters.clone()))
            .into_paginator()
            .items()
            .send()
            .try_collect(),
    );
    let templates = call(
        "list the launch templates",
        region
            .ec2
            .describe_launch_templates()
            .set_filters(Some(filters))
            .into_paginator()
            .items()
            .send()
            .try_collect(),
    );
    let (groups, templates) = futures::try_join!(groups, templates)?;
    let groups = groups
        .into_iter()
        .filter_map(|group| leftover(GROUP, group.group_id.clone(), group.tags()));
    let templates = templates
        .into_iter()
        .filter_map(|template| leftover(TEMPLATE, template.launch_template_id.clone(), template.tags()));
    let mut all: Vec<Leftover> = groups.chain(templates).collect();
    all.sort();
    Ok(all)
}

/// Returns one resource.
pub async fn remove(region: &Region, leftover: &Leftover) -> Result<Deletion, ProviderError> {
    let ended = if leftover.kind == GROUP {
        call(
            "delete the security group",
            region.ec2.delete_security_group().group_id(&leftover.id).send(),
        )
        .await
        .map(drop)
    } else {
        call(
            "delete the launch template",
            region
                .ec2
                .delete_launch_template()
                .launch_template_id(&leftover.id)
                .send(),
        )
        .await
        .map(drop)
    };
    match ended {
        Ok(()) => Ok(Deletion::Gone),
        Err(error) => match error.code.as_deref() {
            // The network interface of a machine outlives it by a moment.
            Some("DependencyViolation" | "InvalidGroup.InUse") => Ok(Deletion::InProgress),
            Some(
                "InvalidGroup.NotFound"
                | "InvalidSecurityGroupID.NotFound"
                | "InvalidLaunchTemplateId.NotFound"
                | "InvalidLaunchTemplateId.NotFoundException",
            ) => Ok(Deletion::Gone),
            _ => Err(error),
        },
    }
}
