//! The span that a sample belongs to: labels of a sample here, a link in OTLP.

use opentelemetry_proto::tonic::profiles::v1development::Link;

use crate::types::hex;

/// Bytes of these ids (W3C Trace Context).
const TRACE_ID_BYTES: usize = 16;
const SPAN_ID_BYTES: usize = 8;

/// Returns the link to a span of these ids; `None` if one of them is none.
pub(super) fn link(trace_id: &str, span_id: &str) -> Option<Link> {
    let trace_id = bytes(trace_id, TRACE_ID_BYTES)?;
    let span_id = bytes(span_id, SPAN_ID_BYTES)?;
    Some(Link { trace_id, span_id })
}

/// Returns the ids of a link as labels have them; `None` for one that links nothing.
pub(super) fn ids(link: &Link) -> Option<[String; 2]> {
    let is_one = |id: &[u8], bytes| id.len() == bytes && id.iter().any(|byte| *byte != 0);
    let is_link = is_one(&link.trace_id, TRACE_ID_BYTES) && is_one(&link.span_id, SPAN_ID_BYTES);
    is_link.then(|| [&link.trace_id, &link.span_id].map(|id| hex(id)))
}

fn bytes(text: &str, len: usize) -> Option<Vec<u8>> {
    let digits = text.as_bytes().as_chunks::<2>().0;
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let is_id = text.len() == len * 2 && text.bytes().all(|it| it.is_ascii_hexdigit());
    if is_id { digits.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_way_through_a_link() {
        let [trace, span] = ["0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"];
        let link = link(trace, span).expect("ids");
        assert_eq!((link.trace_id.len(), link.span_id.len()), (16, 8));
        assert_eq!(ids(&link), Some([trace, span].map(str::to_owned)));
    }

    #[test]
    fn what_is_no_id_makes_no_link() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        for (trace, span) in
            [(trace, "b7ad"), (trace, "b7ad6b716920333+"), ("", ""), (&trace[1..], "b7ad6b7169203331")]
        {
            assert_eq!(link(trace, span), None, "{trace} {span}");
        }
        assert_eq!(ids(&Link::default()), None);
        assert_eq!(ids(&Link { trace_id: vec![0; 16], span_id: vec![1; 8] }), None);
    }
}
