//! Bodies of forms (`multipart/form-data`, RFC 7578), which are in memory as a whole.

use std::collections::HashMap;

use memchr::memmem::{self, Finder};

/// Parts of a form, at most.
const MAX_PARTS: usize = 16;
/// Characters of a boundary, at most (RFC 2046, 5.1.1).
const MAX_BOUNDARY: usize = 70;

/// Bytes that aren't a form as their content type says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidForm {
    #[error("a form whose content type has no boundary")]
    NoBoundary,
    #[error("a form that ends before its last boundary")]
    CutOff,
    #[error("a part of a form without a name")]
    NoName,
    #[error("a form with more than {MAX_PARTS} parts")]
    TooManyParts,
}

/// Returns the contents of a form's parts by their names; of two with one name the first one's.
///
/// # Errors
/// See [`InvalidForm`].
pub fn parts<'a>(content_type: &str, body: &'a [u8]) -> Result<HashMap<String, &'a [u8]>, InvalidForm> {
    let boundary = boundary(content_type).ok_or(InvalidForm::NoBoundary)?;
    let delimiter = format!("\r\n--{boundary}");
    let finder = Finder::new(&delimiter);
    // The first one may be where the body begins.
    let mut rest = match body.strip_prefix(&delimiter.as_bytes()[2..]) {
        Some(rest) => rest,
        None => split_at_delimiter(body, &finder)?.1,
    };
    let mut parts = HashMap::new();
    for _ in 0..=MAX_PARTS {
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        // What follows the boundary on its line is white space, and headers end with an empty line.
        let line_end = memmem::find(rest, b"\r\n").ok_or(InvalidForm::CutOff)?;
        rest = &rest[line_end..];
        let headers_end = memmem::find(rest, b"\r\n\r\n").ok_or(InvalidForm::CutOff)?;
        let name = name(&String::from_utf8_lossy(&rest[..headers_end])).ok_or(InvalidForm::NoName)?;
        let (contents, next) = split_at_delimiter(&rest[headers_end + 4..], &finder)?;
        parts.entry(name).or_insert(contents);
        rest = next;
    }
    Err(InvalidForm::TooManyParts)
}

/// Returns the bytes before the next delimiter, and those behind it.
fn split_at_delimiter<'a>(
    bytes: &'a [u8],
    delimiter: &Finder<'_>,
) -> Result<(&'a [u8], &'a [u8]), InvalidForm> {
    let at = delimiter.find(bytes).ok_or(InvalidForm::CutOff)?;
    Ok((&bytes[..at], &bytes[at + delimiter.needle().len()..]))
}

fn boundary(content_type: &str) -> Option<&str> {
    let boundary = parameter(content_type, "boundary")?;
    (1..=MAX_BOUNDARY).contains(&boundary.len()).then_some(boundary)
}

/// Returns the name of a part with these headers.
fn name(headers: &str) -> Option<String> {
    let disposition = headers.lines().find_map(|line| {
        let (header, value) = line.split_once(':')?;
        header.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    parameter(disposition?, "name").map(str::to_owned)
}

/// Returns a parameter of a header's value, such as `form-data; name="profile"`.
fn parameter<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    value.split(';').skip(1).find_map(|parameter| {
        let (found, value) = parameter.split_once('=')?;
        found.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=\"x7\"";

    fn part(name: &str, contents: &str) -> String {
        let file = "filename=\"a.pprof\"\r\nContent-Type: application/octet-stream";
        format!("--x7\r\nContent-Disposition: form-data; name=\"{name}\"; {file}\r\n\r\n{contents}\r\n")
    }

    fn texts(body: &str) -> Result<Vec<(String, String)>, InvalidForm> {
        let parts = parts(TYPE, body.as_bytes())?;
        let text = |(name, contents): (String, &[u8])| (name, String::from_utf8_lossy(contents).into_owned());
        let mut texts: Vec<_> = parts.into_iter().map(text).collect();
        texts.sort();
        Ok(texts)
    }

    #[test]
    fn parts_have_their_contents_to_the_byte() {
        // Line ends, what looks like a boundary, and nothing at all.
        let contents = ["", "\r\n", "a\r\n--x6\r\n--x\r\n", "--x7", "\r\n\r\n--"];
        for first in contents {
            for second in contents {
                let body = [part("profile", first), part("config", second), "--x7--\r\n".to_owned()].concat();
                let expected = [("config", second), ("profile", first)]
                    .map(|(name, contents)| (name.to_owned(), contents.to_owned()));
                assert_eq!(texts(&body), Ok(expected.to_vec()), "{body}");
                // Text before the first boundary, and behind the last one.
                assert_eq!(texts(&format!("preamble\r\n{body}epilogue")), Ok(expected.to_vec()));
            }
        }
        assert_eq!(texts("--x7--"), Ok(Vec::new()));
        let twice = [part("a", "first"), part("a", "second"), "--x7--".to_owned()].concat();
        assert_eq!(texts(&twice), Ok(vec![("a".to_owned(), "first".to_owned())]));
    }

    #[test]
    fn what_is_no_form_is_refused_with_what_is_wrong() {
        let whole = [part("profile", "abc"), "--x7--".to_owned()].concat();
        for end in 0..whole.len() {
            assert!(texts(&whole[..end]).is_err(), "{end}");
        }
        assert_eq!(texts(&whole[..whole.len() - 2]), Err(InvalidForm::CutOff));
        let nameless = "--x7\r\nContent-Type: text/plain\r\n\r\nabc\r\n--x7--";
        assert_eq!(texts(nameless), Err(InvalidForm::NoName));
        let many = |count| [part("a", "").repeat(count), "--x7--".to_owned()].concat();
        assert_eq!(texts(&many(MAX_PARTS)).map(|parts| parts.len()), Ok(1));
        assert_eq!(texts(&many(MAX_PARTS + 1)), Err(InvalidForm::TooManyParts));
        for content_type in ["multipart/form-data", "multipart/form-data; boundary=", "x; boundary"] {
            assert_eq!(parts(content_type, whole.as_bytes()), Err(InvalidForm::NoBoundary));
        }
        let long = format!("multipart/form-data; boundary={}", "x".repeat(MAX_BOUNDARY + 1));
        assert_eq!(parts(&long, whole.as_bytes()), Err(InvalidForm::NoBoundary));
    }

    proptest::proptest! {
        #[test]
        fn any_pieces_are_a_form_or_none(
            pieces in proptest::collection::vec(proptest::sample::select(vec![
                "--x7", "\r\n", "--", "\r\n\r\n", "Content-Disposition: form-data; name=", "\"a\"", ";", "b",
            ]), 0..60),
        ) {
            let body = pieces.concat();
            if let Ok(parts) = texts(&body) {
                let bytes: usize = parts.iter().map(|(_, contents)| contents.len()).sum();
                proptest::prop_assert!(parts.len() <= MAX_PARTS && bytes <= body.len());
            }
        }
    }
}
