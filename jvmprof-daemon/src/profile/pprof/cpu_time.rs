//! The CPU time of profiles that count only samples.

use super::strings::text_at;
use crate::event_type::EventType;
use crate::proto::pprof::{Profile, ValueType};

/// Adds the type `cpu/nanoseconds` to a profile of `samples/count` alone, as such profiles are
/// pushed: samples times the period, which is in that unit. Other profiles stay as they are.
pub fn add_cpu_time(profile: &mut Profile) {
    let descriptor = EventType::Cpu.descriptor();
    let [pushed] = descriptor.pushed_types else { return };
    let text = |index: i64| text_at(profile, index);
    let is =
        |value: &ValueType, name: &str, unit: &str| (text(value.r#type), text(value.unit)) == (name, unit);
    let (time, period) = (&descriptor.period_type, profile.period);
    let Some(period_type) = profile.period_type else { return };
    let has_samples = matches!(&*profile.sample_type, [of] if is(of, pushed.name, pushed.unit));
    if !has_samples || !is(&period_type, time.name, time.unit) || period <= 0 {
        return;
    }
    profile.sample_type.push(period_type);
    for sample in &mut profile.sample {
        let samples = sample.value.first().copied().unwrap_or(0);
        sample.value.push(samples.saturating_mul(period));
    }
}
