//! The operator's own certificates: which are made and when ([`issuer`]), and how they come into
//! the cluster ([`trust`]).

pub(crate) mod issuer;
pub(crate) mod trust;
