//! The caller: signatures, regions, and what a credential may still do.

use super::catalogue;
use super::context::State;
use super::failure::Failure;
use super::header_map;
use super::service::{Operation, Service};
use super::sigv4::{self, Secret, Signed};
use crate::core::account::{AccountId, CredentialState};
use crate::core::cloud::Refusal;
use crate::core::http::Request;
use crate::core::world::World;

/// Where the price list is kept.
const PRICING_REGIONS: [&str; 3] = ["us-east-1", "eu-central-1", "ap-south-1"];

/// The account that signed a request; `refused` words a failure.
pub fn account(
    state: &State,
    world: &World,
    request: &Request,
    operation: Operation,
    refused: impl Fn(Failure) -> Refusal,
) -> Result<AccountId, Refusal> {
    let service = operation.service;
    let headers = header_map(request);
    let signed = Signed {
        method: request.method.as_str(),
        path: &request.path,
        query: &request.query,
        headers: &headers,
        body: &request.body,
    };
    let secret = |key: &str| {
        let (_, credential) = world.credential(key)?;
        let known = credential.state != CredentialState::Revoked;
        let token = state.session_tokens.get(key).cloned();
        known.then(|| Secret {
            secret: credential.secret.clone(),
            token,
        })
    };
    let scope = match sigv4::verify(signed, secret, world.now()) {
        // A client signs with the clock of its machine, which is another one than the
        // clock of a test that moves it by hand. A time near either of them is accepted.
        Err(sigv4::Refusal::Expired(_)) => sigv4::verify(signed, secret, jiff::Timestamp::now()),
        other => other,
    };
    let scope = scope.map_err(|why| refused(of_signature(service, why)))?;
    if scope.service != service.signing_name() {
        return Err(refused(of_signature(
            service,
            sigv4::Refusal::Incomplete(format!(
                "Credential should be scoped to correct service: '{}'",
                service.signing_name()
            )),
        )));
    }
    let exists = match service {
        Service::Pricing => PRICING_REGIONS.contains(&scope.region.as_str()),
        Service::Ec2 | Service::Ssm | Service::Quotas | Service::Sts => catalogue::REGIONS
            .iter()
            .any(|(region, ..)| *region == scope.region),
    };
    if !exists {
        return Err(refused(Failure::new(
            401,
            "OptInRequired",
            format!(
                "You are not subscribed to this service in {}. Please go to http://aws.amazon.com to subscribe.",
                scope.region
            ),
        )));
    }
    let Some((account, credential)) = world.credential(&scope.access_key) else {
        return Err(Refusal::Unauthorized);
    };
    match credential.state {
        CredentialState::Valid => Ok(account.id.clone()),
        // Everybody may ask who they are.
        CredentialState::Forbidden if operation.name == "GetCallerIdentity" => Ok(account.id.clone()),
        CredentialState::Forbidden => Err(Refusal::Forbidden),
        CredentialState::Expired => Err(Refusal::Expired),
        CredentialState::Revoked => Err(Refusal::Unauthorized),
    }
}

fn of_signature(service: Service, refusal: sigv4::Refusal) -> Failure {
    use sigv4::Refusal as Why;
    match (refusal, service) {
        (Why::Missing, Service::Ec2) => Failure::missing("AWSAccessKeyId"),
        (Why::Missing, Service::Sts) => Failure::new(
            403,
            "MissingAuthenticationToken",
            "Request is missing Authentication Token",
        ),
        (Why::Missing, Service::Ssm | Service::Pricing | Service::Quotas) => Failure::client(
            "MissingAuthenticationTokenException",
            "Request is missing Authentication Token",
        ),
        (Why::Incomplete(text), _) => Failure::client("IncompleteSignature", text),
        (Why::UnknownKey | Why::Token, service) => Failure::bad_credentials(service),
        (Why::Expired(text), Service::Ec2) => {
            Failure::client("RequestExpired", format!("Request has expired. {text}"))
        }
        (Why::Expired(text), Service::Sts) => {
            Failure::new(403, "SignatureDoesNotMatch", format!("Signature expired: {text}"))
        }
        (Why::Expired(text), Service::Ssm | Service::Pricing | Service::Quotas) => {
            Failure::client("InvalidSignatureException", format!("Signature expired: {text}"))
        }
        (Why::Mismatch, Service::Ec2) => Failure::bad_credentials(Service::Ec2),
        (Why::Mismatch, Service::Sts) => Failure::new(
            403,
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided.",
        ),
        (Why::Mismatch, Service::Ssm | Service::Pricing | Service::Quotas) => Failure::client(
            "InvalidSignatureException",
            "The request signature we calculated does not match the signature you provided.",
        ),
    }
}
