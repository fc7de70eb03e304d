//! Data that the sampled thread's process publishes of it: the context of its request, and what it
//! waits for.

pub mod blocker;
pub mod context;
