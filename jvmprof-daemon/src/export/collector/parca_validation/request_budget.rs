//! Limits of a request as a whole. Those of a profile alone don't bound the work for a request: a
//! message of a few megabytes has room for many profiles that each unpack to a lot.

use super::WriteRefusal;
use crate::profile::gzip::GzipError;
use crate::profile::pprof::decode::{self, DecodeError, DecodeLimits};
use crate::proto::pprof::Profile;
use crate::proto::profilestore::WriteRawRequest;

/// More than our daemons' requests of 16 MiB mostly unpack to: beyond it they are divided.
const MAX_REQUEST_BYTES: usize = 128 << 20;

/// A series has one in each window: so many JVMs run on no host.
const MAX_REQUEST_PROFILES: usize = 10_000;

/// Limits of a request, and of each of its profiles.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Those of each profile.
    pub profile: DecodeLimits,
    /// Bytes of all profiles after decompression, and of the labels of all series.
    pub max_bytes: usize,
    pub max_profiles: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        DecodeLimits::default().into()
    }
}

impl From<DecodeLimits> for RequestLimits {
    /// The defaults with these limits of each profile.
    fn from(profile: DecodeLimits) -> Self {
        Self { profile, max_bytes: MAX_REQUEST_BYTES, max_profiles: MAX_REQUEST_PROFILES }
    }
}

/// The remainder of a request's limits.
#[derive(Debug)]
pub(super) struct RequestBudget {
    limits: RequestLimits,
    left: usize,
}

impl RequestBudget {
    /// The budget of a request that doesn't have too many profiles.
    pub(super) fn of(request: &WriteRawRequest, limits: RequestLimits) -> Result<Self, WriteRefusal> {
        let profiles: usize = request.series.iter().map(|series| series.samples.len()).sum();
        if profiles > limits.max_profiles {
            return Err(WriteRefusal::TooManyProfiles { profiles, limit: limits.max_profiles });
        }
        Ok(Self { limits, left: limits.max_bytes })
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<(), WriteRefusal> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| self.exceeded())?;
        Ok(())
    }

    /// Decodes a profile, within its own limits and this one.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Result<Profile, WriteRefusal> {
        let limits = self.limits.profile;
        let unpacked = match decode::unpack(bytes, limits.max_bytes.min(self.left)) {
            Err(GzipError::TooLarge { limit }) if limit < limits.max_bytes => return Err(self.exceeded()),
            other => other.map_err(DecodeError::from)?,
        };
        self.take(unpacked.len())?;
        Ok(decode::parse(&unpacked, limits)?)
    }

    fn exceeded(&self) -> WriteRefusal {
        WriteRefusal::TooLarge { limit: self.limits.max_bytes }
    }
}
