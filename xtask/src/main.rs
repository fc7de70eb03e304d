mod proto;

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("proto") => proto::generate(&proto::committed()),
        _ => anyhow::bail!("usage: cargo xtask proto"),
    }
}
