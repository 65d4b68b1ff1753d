//! What becomes of one machine, from order to Ready to gone: [`plan`] decides by the [`facts`].

pub mod facts;
pub mod plan;

#[cfg(test)]
pub(crate) mod tests;
