//! What becomes of one Provider: [`plan`] decides, [`catalogue`] says which Offers it has, and
//! [`deletion`] what is left to do when it goes.

pub mod catalogue;
pub mod deletion;
pub mod plan;
