//! No leak, proved: Pools, their Machines and clouds over many short histories, made from
//! seeds.
//!
//! Plans, sweeps and money are the real ones. Around them stand an API server ([`server`]),
//! clouds whose state is known exactly ([`cloud`], [`kinds`]) and that answer as clouds do
//! ([`client`]), a clock, and a controller process ([`process`]) that carries plans out in the
//! order of the real effects ([`pools`], [`machines`], [`providers`], [`sweeps`]) and may die
//! between any two of them. [`happenings`] has the deeds of users, clouds and chance; [`rules`]
//! what must hold at every moment and when all is calm again; [`campaign`] makes a history from a
//! seed, and runs thousands; [`restored`] has the histories in which the API server goes back to a
//! backup.
//!
//! A history that breaks a rule prints its seed, and how to see it again. [`campaign`] keeps the
//! seed once the fault is mended.

mod campaign;
mod client;
mod cloud;
mod happenings;
mod kinds;
mod machines;
mod planted;
mod pools;
mod process;
mod providers;
mod restored;
mod rules;
mod server;
mod sweeps;
mod world;
