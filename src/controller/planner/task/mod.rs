//! What a dispatcher of Tasks knows ([`model`]), and which machines a Task gets ([`placement`]).

pub mod model;
pub mod placement;
