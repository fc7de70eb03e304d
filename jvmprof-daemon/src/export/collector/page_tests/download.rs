//! The download of pprof where it can't be what is shown.

use super::*;
use crate::proto::pprof::ValueType;

/// Types that Go's heap profiles have beside those of ours.
const GO_HEAP: [(&str, &str); 2] = [("inuse_objects", "count"), ("inuse_space", "bytes")];

/// Stores a profile of allocation, with further types.
fn add_heap(page: &PageClient, comm: &str, more: &[(&str, &str)]) {
    let of = series(&[("comm", comm)], vec![(vec![frame(FrameKind::Native, "leaf")], 3)]);
    let batch = Batch { event: EventType::Allocation, ..batch(vec![of]) };
    let mut profile = pprof::for_push(&batch, &batch.series[0]);
    let mut string = |text: &str| {
        profile.string_table.push(text.to_owned());
        profile.string_table.len() as i64 - 1
    };
    let more = more.iter().map(|(name, unit)| ValueType { r#type: string(name), unit: string(unit) });
    profile.sample_type.extend(more);
    for sample in &mut profile.sample {
        sample.value.resize(profile.sample_type.len(), 0);
    }
    let profile = NewProfile {
        labels: with_name(&batch.series[0].labels, "memory").into(),
        start: UnixNanos(START * 1_000_000),
        duration: Duration::from_secs(10),
        samples: 3,
        pprof: pprof::to_bytes(&profile).unwrap().into(),
    };
    page.store.append(&[profile]).unwrap();
}

fn types(body: &[u8]) -> Vec<String> {
    let profile = decode(body, DecodeLimits::default()).unwrap();
    profile.sample_type.iter().map(|of| profile.string_table[of.r#type as usize].clone()).collect()
}

#[tokio::test]
async fn profiles_of_other_types_are_refused_rather_than_left_out() {
    let page = PageClient::new();
    add_heap(&page, "java", &[]);
    add_heap(&page, "go", &GO_HEAP);
    let of = |rest: &str| format!("/api/pprof?{}", range(&format!("&type=memory:alloc_space{rest}")));
    let (status, error) = page.error(&of("")).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let ours = "alloc_objects/count, alloc_space/bytes";
    for part in
        [&format!("{ours} (period"), &format!("{ours}, inuse_objects/count, inuse_space/bytes (period")]
    {
        assert!(error.contains(part), "{error} instead of {part}");
    }
    assert!(error.contains("choose fewer series or another type"), "{error}");
    // As it says.
    let (status, _, body) = page.get(&of("&match=comm=go")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(types(&body), ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]);
    let (status, _, body) = page.get(&of("&match=comm=java")).await;
    assert_eq!((status, types(&body).len()), (StatusCode::OK, 2));
    let of_cpu = format!("/api/pprof?{}", range("&type=process_cpu:samples"));
    assert_eq!(page.get(&of_cpu).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_download_says_in_a_comment_what_it_lacks() {
    let page = PageClient::new();
    let comments = async || {
        let (status, _, body) = page.get(&format!("/api/pprof?{}", range(""))).await;
        assert_eq!(status, StatusCode::OK);
        let profile = decode(&body, DecodeLimits::default()).unwrap();
        let text = |at: &i64| profile.string_table[*at as usize].clone();
        (pprof::total(&profile), profile.comment.iter().map(text).collect::<Vec<_>>())
    };
    assert_eq!(comments().await, (10, Vec::<String>::new()));
    let files = walk(page.dir.path());
    let mut stored = files.iter().filter(|path| path.extension().is_some_and(|ending| ending == "gz"));
    std::fs::write(stored.next().unwrap(), b"not a profile").unwrap();
    // As if its room had been needed since the request began.
    std::fs::remove_file(stored.next().unwrap()).unwrap();
    let (samples, said) = comments().await;
    assert!(samples < 10);
    assert_eq!(said, ["missing, since they could not be read: 2 of 3 profiles"]);
}
