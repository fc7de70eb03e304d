//! What the sampled thread's process says of it: the context of its request, and what it waits for.

pub mod blocker;
pub mod context;
