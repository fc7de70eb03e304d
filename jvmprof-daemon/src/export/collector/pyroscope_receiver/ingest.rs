//! Pyroscope's `/ingest`, which its SDKs for single languages push to: a profile in pprof's form,
//! as the body or as a part of a form, with the series' name and labels in the query.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use prost::Message as _;
use serde::Deserialize;
use tonic::Status;

use super::connect_code;
use super::form;
use crate::export::collector::http_body;
use crate::export::collector::parca_receiver::{CollectorService, WriteError};
use crate::export::split_to_limits::SERVICE_LABEL;
use crate::export::store::NAME_LABEL;
use crate::profile::pprof::decode::{DecodeError, DecodeLimits, decode};
use crate::profile::pprof::text_at;
use crate::proto::pprof::Profile;
use crate::proto::profilestore::{Label, LabelSet, RawProfileSeries, RawSample, WriteRawRequest};

pub(in crate::export::collector) const PATH: &str = "/ingest";

/// A profile that began before this is one whose clock doesn't count nanoseconds, or none.
const YEAR_NANOS: i64 = 366 * 86_400 * 1_000_000_000;

/// The query of a push; what isn't here says nothing that a profile doesn't say itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::export::collector) struct IngestParameters {
    /// `APPLICATION{LABEL=VALUE,...}`
    name: String,
    from: String,
    until: String,
    format: String,
}

/// What a push has beside its query.
struct IngestBody {
    pprof: Bytes,
    /// The names under which sample types are shown.
    display_names: HashMap<String, String>,
}

/// An entry of the form's part `sample_type_config`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct SampleTypeConfig {
    display_name: String,
}

/// A push.
pub(in crate::export::collector) async fn post(
    State(collector): State<Arc<CollectorService>>,
    Query(parameters): Query<IngestParameters>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let received = async {
        refuse_browsers(&headers)?;
        let labels = labels(&parameters.name)?;
        let body = IngestBody::of(&parameters, &headers, body)?;
        let stored = collector.store_series(move |limits| Ok(body.request(labels, &parameters, limits)?));
        stored.await.map_err(|error| match error {
            WriteError::Refused(refusal) => refusal.into_plain_status(),
            other => other.into(),
        })
    };
    match received.await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(status) => {
            let (http_status, _) = connect_code(status.code());
            (http_status, format!("{}\n", status.message())).into_response()
        }
    }
}

/// Refuses what a browser sends: a form is what a page of another site may have it send anywhere.
fn refuse_browsers(headers: &HeaderMap) -> Result<(), Status> {
    if headers.contains_key("sec-fetch-site") || headers.contains_key(header::ORIGIN) {
        return Err(Status::permission_denied("profiles aren't taken from pages in a browser"));
    }
    Ok(())
}

impl IngestBody {
    fn of(parameters: &IngestParameters, headers: &HeaderMap, body: Bytes) -> Result<Self, Status> {
        let content_type = http_body::text(headers, &header::CONTENT_TYPE);
        let is_form = content_type.trim_start().starts_with("multipart/form-data");
        let format = parameters.format.as_str();
        if format == "jfr" {
            return Err(Status::unimplemented(
                "a profile of format jfr, as Pyroscope's Java agent pushes it: only pprof is taken; a jvmprof \
                 daemon on its host profiles that JVM without an agent, which may push to Pyroscope itself",
            ));
        }
        if format != "pprof" && (!is_form || !format.is_empty()) {
            return Err(Status::unimplemented(format!(
                "a profile of format {format:?} and type {content_type:?}: only pprof is taken"
            )));
        }
        let body = http_body::uncompressed(headers, body)?;
        if !is_form {
            return Ok(Self { pprof: body, display_names: HashMap::new() });
        }
        let parts = form::parts(content_type, &body);
        let parts = parts.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let profile = parts.get("profile");
        let profile = profile.ok_or_else(|| Status::invalid_argument("a form without a part profile"))?;
        // Without the difference between the two, each push would count all that came before it.
        if parts.get("prev_profile").is_some_and(|previous| !previous.is_empty()) {
            return Err(Status::invalid_argument(
                "a form with a part prev_profile: profiles that are sums since a program's start aren't \
                 taken, and a newer SDK pushes none",
            ));
        }
        let config = match parts.get("sample_type_config") {
            Some(json) if !json.is_empty() => serde_json::from_slice(json)
                .map_err(|error| Status::invalid_argument(format!("parsing sample_type_config: {error}")))?,
            Some(_) | None => HashMap::<String, SampleTypeConfig>::new(),
        };
        let named = config.into_iter().filter(|(_, config)| !config.display_name.is_empty());
        let display_names = named.map(|(kind, config)| (kind, config.display_name)).collect();
        Ok(Self { pprof: body.slice_ref(profile), display_names })
    }

    /// Returns the push as a request of Parca's: without series if it has no profile.
    fn request(
        self,
        mut labels: BTreeMap<String, String>,
        parameters: &IngestParameters,
        limits: DecodeLimits,
    ) -> Result<WriteRawRequest, DecodeError> {
        if self.pprof.is_empty() {
            return Ok(WriteRawRequest::default());
        }
        let mut profile = decode(&self.pprof, limits)?;
        let has_other_types = rename_types(&mut profile);
        labels.insert(NAME_LABEL.to_owned(), self.series_name(&profile));
        let has_other_time = set_time(&mut profile, nanos(&parameters.from), nanos(&parameters.until));
        let is_as_it_came = !has_other_types && !has_other_time;
        let raw_profile = if is_as_it_came { self.pprof } else { profile.encode_to_vec().into() };
        let labels = labels.into_iter().map(|(name, value)| Label { name, value }).collect();
        let series = RawProfileSeries {
            labels: Some(LabelSet { labels }),
            samples: vec![RawSample { raw_profile, executable_info: Vec::new() }],
        };
        Ok(WriteRawRequest { series: vec![series], ..WriteRawRequest::default() })
    }

    /// Returns the name of a series by the sample types of its profile, as Pyroscope names it.
    fn series_name(&self, profile: &Profile) -> String {
        let types: Vec<&str> = profile.sample_type.iter().map(|of| text_at(profile, of.r#type)).collect();
        if types.contains(&"wall") {
            return "wall".to_owned();
        }
        let shown: Vec<&str> = types.into_iter().map(|kind| self.display_name(kind)).collect();
        let of_type = |kind: &str| match kind {
            "space" | "objects" => Some("memory"),
            _ => SERIES.iter().find(|(part, _)| kind.contains(part)).map(|(_, name)| *name),
        };
        let named = shown.iter().find_map(|kind| of_type(kind));
        label_name(named.or(shown.last().copied()).unwrap_or_default())
    }

    fn display_name<'a>(&'a self, kind: &'a str) -> &'a str {
        let known = || DISPLAY_NAMES.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name);
        let own = self.display_names.get(kind).map(String::as_str);
        own.or_else(|| known().filter(|_| self.display_names.is_empty())).unwrap_or(kind)
    }
}

/// Parts of the names under which sample types are shown, and the series that these are of.
const SERIES: [(&str, &str); 6] = [
    ("cpu", "process_cpu"),
    ("alloc_", "memory"),
    ("inuse_", "memory"),
    ("mutex_", "mutex"),
    ("block_", "block"),
    ("goroutines", "goroutines"),
];

/// The names under which sample types are shown if a push says nothing of it.
const DISPLAY_NAMES: [(&str, &str); 4] = [
    ("samples", "cpu"),
    ("goroutine", "goroutines"),
    ("contentions", "mutex_count"),
    ("delay", "mutex_duration"),
];

/// Returns the labels that a name has in braces, with that of its service.
fn labels(name: &str) -> Result<BTreeMap<String, String>, Status> {
    let (application, braces) = name.split_once('{').unwrap_or((name, ""));
    let application = application.trim();
    if application.is_empty() {
        return Err(Status::invalid_argument("a push without the name of an application"));
    }
    let mut labels = BTreeMap::from([(SERVICE_LABEL.to_owned(), application.to_owned())]);
    for label in braces.trim_end().trim_end_matches('}').split(',') {
        let Some((name, value)) = label.split_once('=') else { continue };
        let (name, value) = (label_name(name.trim()), value.trim());
        // Those with two underscores are for Pyroscope itself.
        if !name.is_empty() && !name.starts_with("__") && !value.is_empty() {
            labels.insert(name, value.to_owned());
        }
    }
    Ok(labels)
}

/// Returns a name with `_` for characters that names of labels don't have.
fn label_name(name: &str) -> String {
    let allowed = with_allowed_characters(name);
    if allowed.starts_with(|first: char| first.is_ascii_digit()) { format!("_{allowed}") } else { allowed }
}

fn with_allowed_characters(name: &str) -> String {
    name.chars().map(|character| if character.is_ascii_alphanumeric() { character } else { '_' }).collect()
}

/// Gives types and units names that selectors can have. Returns true if one had another name.
fn rename_types(profile: &mut Profile) -> bool {
    let mut is_renamed = false;
    for of in profile.sample_type.iter_mut().chain(&mut profile.period_type) {
        for index in [&mut of.r#type, &mut of.unit] {
            let name = usize::try_from(*index).ok().and_then(|at| profile.string_table.get(at));
            let Some(name) = name else { continue };
            let allowed = with_allowed_characters(name);
            if allowed != *name {
                *index = i64::try_from(profile.string_table.len()).unwrap_or_default();
                profile.string_table.push(allowed);
                is_renamed = true;
            }
        }
    }
    is_renamed
}

/// Gives a profile that doesn't say when it began, or how long it took, what its push says. Returns
/// true if that is something.
fn set_time(profile: &mut Profile, from: Option<i64>, until: Option<i64>) -> bool {
    let before = (profile.time_nanos, profile.duration_nanos);
    if profile.time_nanos < YEAR_NANOS {
        profile.time_nanos = from.unwrap_or_default();
    }
    if let (Some(from), Some(until)) = (from, until)
        && profile.duration_nanos <= 0
    {
        profile.duration_nanos = until.saturating_sub(from).max(0);
    }
    before != (profile.time_nanos, profile.duration_nanos)
}

/// Returns a time in nanoseconds since 1970, of digits that are seconds, milliseconds, microseconds
/// or nanoseconds by their number.
fn nanos(text: &str) -> Option<i64> {
    let text = text.trim();
    let unit = match text.len() {
        1..=10 => 1_000_000_000,
        13 => 1_000_000,
        16 => 1_000,
        19 => 1,
        _ => return None,
    };
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
    text.parse::<i64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::pprof::ValueType;

    fn profile(types: &[&str]) -> Profile {
        let texts = std::iter::once("").chain(types.iter().copied());
        let of = |at: usize| ValueType { r#type: at as i64, unit: 0 };
        Profile {
            string_table: texts.map(str::to_owned).collect(),
            sample_type: (1..=types.len()).map(of).collect(),
            ..Profile::default()
        }
    }

    fn body(display_names: &[(&str, &str)]) -> IngestBody {
        let display_names = display_names.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned()));
        IngestBody { pprof: Bytes::new(), display_names: display_names.collect() }
    }

    #[test]
    fn series_have_the_names_that_pyroscope_gives_them() {
        let cases: [(&[&str], &str); 12] = [
            (&["samples", "cpu"], "process_cpu"),
            (&["samples"], "process_cpu"),
            (&["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"], "memory"),
            (&["objects", "space"], "memory"),
            (&["contentions", "delay"], "mutex"),
            (&["goroutine"], "goroutines"),
            (&["samples", "wall"], "wall"),
            (&["exceptions"], "exceptions"),
            // As the SDK for .NET names them.
            (&["alloc-samples", "alloc-size"], "memory"),
            (&["lock-count", "lock-time"], "lock_time"),
            (&["4x y"], "_4x_y"),
            (&[], ""),
        ];
        for (types, expected) in cases {
            let mut profile = profile(types);
            rename_types(&mut profile);
            assert_eq!(body(&[]).series_name(&profile), expected, "{types:?}");
        }
        let shown = body(&[("wall", "a wall's"), ("samples", "off CPU")]);
        assert_eq!(shown.series_name(&profile(&["wall"])), "wall");
        assert_eq!(shown.series_name(&profile(&["samples"])), "off_CPU");
        let blocked = body(&[("contentions", "block_count"), ("delay", "block_duration")]);
        assert_eq!(blocked.series_name(&profile(&["contentions", "delay"])), "block");
        let lost = Profile { string_table: Vec::new(), ..profile(&["samples"]) };
        assert_eq!(body(&[]).series_name(&lost), "");
    }

    #[test]
    fn a_name_has_a_service_and_labels() {
        let cases: [(&str, &[(&str, &str)]); 4] = [
            ("shop", &[("service_name", "shop")]),
            (" shop {}", &[("service_name", "shop")]),
            (
                "shop{region=north, k8s.pod=a-1}",
                &[("k8s_pod", "a-1"), ("region", "north"), ("service_name", "shop")],
            ),
            (
                "shop{service_name=cart,__session_id__=7,empty=,=x,4x=y",
                &[("_4x", "y"), ("service_name", "cart")],
            ),
        ];
        for (name, expected) in cases {
            let found = labels(name).expect(name);
            let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(found, expected, "{name}");
        }
        for name in ["", " ", "{region=north}"] {
            assert!(labels(name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_a_profile_does_not_say_of_its_time_is_what_its_push_says() {
        let (from, until) = (nanos("1700000000"), nanos("1700000010000"));
        assert_eq!((from, until), (Some(1_700_000_000_000_000_000), Some(1_700_000_010_000_000_000)));
        assert_eq!(nanos("1700000000000001"), Some(1_700_000_000_000_001_000));
        assert_eq!(nanos("1700000000000000001"), Some(1_700_000_000_000_000_001));
        for text in ["", "now-1h", "-170000000", "+170000000", "12345678901", "9999999999999999999"] {
            assert_eq!(nanos(text), None, "{text}");
        }
        let mut silent = profile(&["cpu"]);
        assert!(set_time(&mut silent, from, until));
        assert_eq!((Some(silent.time_nanos), silent.duration_nanos), (from, 10_000_000_000));
        // It says all, or nobody does.
        assert!(!set_time(&mut silent, Some(5), Some(7)));
        assert!(!set_time(&mut profile(&["cpu"]), None, None));
    }

    #[test]
    fn types_and_units_get_names_that_selectors_can_have() {
        let mut profile = profile(&["inuse-space", "cpu"]);
        profile.string_table.push("bytes/s".to_owned());
        let period_type = ValueType { r#type: 1, unit: 3 };
        (profile.sample_type[1].unit, profile.period_type) = (3, Some(period_type));
        assert!(rename_types(&mut profile));
        let types = profile.sample_type.iter().chain(&profile.period_type);
        let names: Vec<_> =
            types.map(|of| (text_at(&profile, of.r#type), text_at(&profile, of.unit))).collect();
        assert_eq!(names, [("inuse_space", ""), ("cpu", "bytes_s"), ("inuse_space", "bytes_s")]);
        assert!(!rename_types(&mut profile));
    }
}
