//! No leak, proved on the real controller: short histories of Pools, Machines and clouds, made from seeds.
//!
//! A history runs `skyward_controller::runtime` as it is, with its observing, planning and acting, in one
//! thread and in simulated time. Around it stand an API server in memory (`skyward_apisim`), clouds whose
//! state is known exactly ([`cloud`], [`kinds`]) and that answer as clouds do ([`client`]), machines that
//! connect, break and lie ([`sessions`]), agents that run what Tasks ask for ([`agents`], [`journal`]), and users. Each process ([`process`]) has a runtime and a clock of
//! its own, so that it can be killed at any of its calls, or stand still there while another one leads.
//!
//! All calls of a process, to the API server, to clouds and to agents, wait for their turn ([`calls`]): one at a time,
//! in an order that the seed decides, and with what befalls each of them. A seed tells nearly the same history
//! each time: the order in which a process polls its tasks is not the seed's.
//!
//! [`happenings`] has the deeds of users, clouds and chance; [`rules`] what must hold at every effect, [`calm`]
//! when all is calm again; [`tasks`] all of that for Tasks, [`shortages`] for what cannot be had, [`elastic`] for Pools that grow and sleep, [`order`] for Tasks that wait for each other and for the clock, [`maps`] for items
//! of maps, which machines keep in [`shares`] and tell over streams ([`items`]) and whose logs are written through
//! [`stored`], with stories in [`mapping`], and [`restored`] for an API server that
//! goes back to a backup; [`play`] brings them together; [`histories`] makes a history from a seed,
//! [`branches`] forks a story at each of its calls, and [`campaign`] tells thousands. `SKYWARD_HISTORY=<seed>` tells one of them. [`planted`] has bugs on purpose,
//! which must be found.

#![cfg(test)]

/// A tenth of the time of histories is that of the allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod agents;
mod branches;
mod calls;
mod calm;
mod campaign;
mod canary;
mod client;
mod cloud;
mod elastic;
mod happenings;
mod histories;
mod items;
mod journal;
mod kinds;
mod mapping;
mod maps;
mod order;
mod planted;
mod play;
mod process;
mod restored;
mod rules;
mod sessions;
mod shares;
mod shortages;
mod stored;
mod tasks;
mod time;
mod world;
