//! No leak, proved: Pools, their Machines and clouds over many short histories, made from
//! seeds.
//!
//! Plans, sweeps and money are the real ones. Around them stand an API server ([`server`]),
//! clouds that are known exactly ([`cloud`], [`kinds`]) and answer as clouds do
//! ([`client`]), a clock, and a controller process ([`process`]) that carries out what is
//! planned in the order of the real effects ([`pools`], [`machines`], [`providers`],
//! [`sweeps`]) and may die between any two of them. [`happenings`] is what users, clouds
//! and chance do; [`rules`] what must hold at every moment and when all is calm again;
//! [`campaign`] makes a history from a seed, and runs thousands; [`restored`] has the histories in
//! which the API server goes back to a backup.
//!
//! A history that breaks a rule prints its seed, and how to see it again. It is kept in
//! [`campaign`] when what it found is mended.

mod campaign;
mod client;
mod cloud;
mod happenings;
mod kinds;
mod machines;
mod pools;
mod process;
mod providers;
mod restored;
mod rules;
mod server;
mod sweeps;
mod world;
