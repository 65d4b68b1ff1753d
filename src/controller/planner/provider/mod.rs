//! What becomes of one Provider: [`plan`] decides, [`catalogue`] makes its Offers, and [`deletion`]
//! plans its end.

pub mod catalogue;
pub mod deletion;
pub mod plan;
