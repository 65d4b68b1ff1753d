//! Launch templates, with one version each.

use serde_json::{Value, json};

use super::context::{Context, moment};
use super::failure::{Failure, Outcome};
use super::input::{
    Pages, client_token, filtered, list, needed, page, read_tags, tag_set, tag_values, tags_for, text, texts,
};
use crate::core::resource::Resource;

/// The kind of launch templates among resources.
pub const TEMPLATE: &str = "launch-template";

fn templates(context: &Context<'_, '_>) -> Vec<Resource> {
    context
        .visit
        .world
        .resources_of(&context.visit.account, TEMPLATE)
        .filter(|template| template.region == context.region)
        .cloned()
        .collect()
}

/// The template that a specification names, and the version.
pub fn named(context: &Context<'_, '_>, specification: &Value) -> Result<Resource, Failure> {
    let template = match (
        text(specification, "LaunchTemplateId"),
        text(specification, "LaunchTemplateName"),
    ) {
        (Some(_), Some(_)) => {
            return Err(Failure::combination(
                "Either provide launch template ID or launch template name, not both.",
            ));
        }
        (Some(id), None) => templates(context)
            .into_iter()
            .find(|template| template.id == id)
            .ok_or_else(|| {
                Failure::client(
                    "InvalidLaunchTemplateId.NotFound",
                    format!("The specified launch template, with template ID {id}, does not exist."),
                )
            }),
        (None, Some(name)) => templates(context)
            .into_iter()
            .find(|template| template.name == name)
            .ok_or_else(|| {
                Failure::client(
                    "InvalidLaunchTemplateName.NotFoundException",
                    format!("The specified launch template, with template name {name}, does not exist."),
                )
            }),
        (None, None) => return Err(Failure::missing("LaunchTemplateId")),
    }?;
    match text(specification, "Version") {
        None | Some("$Latest" | "$Default" | "1") => Ok(template),
        Some(other) => Err(Failure::client(
            "InvalidLaunchTemplateId.VersionNotFound",
            format!(
                "Could not find the specified version {other} for the launch template with ID {}.",
                template.id
            ),
        )),
    }
}

/// `CreateLaunchTemplate`.
pub fn create(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let token = client_token(input)?;
    if let Some(answer) = context.remembered("CreateLaunchTemplate", token.as_deref(), input)? {
        return Ok(answer);
    }
    let name = needed(input, "LaunchTemplateName")?.to_owned();
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "()./_-".contains(letter);
    if !(3..=128).contains(&name.chars().count()) || !name.chars().all(allowed) {
        return Err(Failure::client(
            "InvalidLaunchTemplateName.MalformedException",
            format!("The launch template name '{name}' is not valid"),
        ));
    }
    let tags = tags_for(input, TEMPLATE, &[TEMPLATE])?;
    if !tags.is_empty() {
        context.may("ec2:CreateTags")?;
    }
    let data = input["LaunchTemplateData"].clone();
    for specification in list(&data, "TagSpecifications") {
        read_tags(specification)?;
    }
    if templates(context).iter().any(|template| template.name == name) {
        return Err(Failure::client(
            "InvalidLaunchTemplateName.AlreadyExistsException",
            format!("Launch template name already in use: {name}"),
        ));
    }
    let id = context.id("lt");
    let mut template = context
        .visit
        .world
        .new_resource(&id, TEMPLATE, &context.visit.account, &name);
    template.region.clone_from(&context.region);
    template.tags = tags;
    template.detail = data;
    let answer = json!({"LaunchTemplate": describe_one(&template)});
    context
        .visit
        .world
        .add_resource(template, rust_decimal::Decimal::ZERO);
    context.visit.subject = Some(id);
    context.remember("CreateLaunchTemplate", token.as_deref(), input, &answer);
    Ok(answer)
}

fn describe_one(template: &Resource) -> Value {
    json!({
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "CreateTime": moment(template.created),
        "CreatedBy": format!("arn:aws:iam::{}:root", template.account),
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": 1,
        "Tags": tag_set(&template.tags),
    })
}

/// `DeleteLaunchTemplate`.
pub fn delete(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let template = named(context, input)?;
    context.visit.world.end_resource(&template.id);
    context.visit.subject = Some(template.id.clone());
    Ok(json!({"LaunchTemplate": describe_one(&template)}))
}

/// `DescribeLaunchTemplates`.
pub fn describe(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let (ids, names) = (
        texts(input, "LaunchTemplateIds"),
        texts(input, "LaunchTemplateNames"),
    );
    for id in &ids {
        named(context, &json!({"LaunchTemplateId": id}))?;
    }
    for name in &names {
        named(context, &json!({"LaunchTemplateName": name}))?;
    }
    let all = templates(context)
        .into_iter()
        .filter(|template| ids.is_empty() || ids.contains(&template.id))
        .filter(|template| names.is_empty() || names.contains(&template.name))
        .collect();
    let found = filtered(
        input,
        &["launch-template-name", "create-time"],
        true,
        all,
        |template: &Resource, filter| match filter {
            "launch-template-name" => vec![template.name.clone()],
            "create-time" => vec![moment(template.created)],
            other => tag_values(&template.tags, other),
        },
    )?;
    let (found, next) = page(
        input,
        Pages {
            least: 1,
            most: 200,
            usual: Some(200),
        },
        context.visit.keep,
        found,
    )?;
    let found: Vec<Value> = found.iter().map(describe_one).collect();
    Ok(json!({"LaunchTemplates": found, "NextToken": next}))
}
