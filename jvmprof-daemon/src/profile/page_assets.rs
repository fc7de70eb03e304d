//! The page's files, built into the program. The recorded file carries them inside, the collector
//! serves them.

/// A file of the page as it is in `assets/`.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its name in `/assets/`.
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! asset {
    ($name:literal, $path:literal) => {
        Asset { name: $name, text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/", $path)) }
    };
}

/// Scripts of the view that both pages have, in the order in which they must run.
pub const VIEW_SCRIPTS: [Asset; 28] = [
    asset!("base.js", "view/base.js"),
    asset!("tree.js", "tree/tree.js"),
    asset!("frames.js", "tree/frames.js"),
    asset!("subtrees.js", "tree/subtrees.js"),
    asset!("activities.js", "tree/activities.js"),
    asset!("edits.js", "tree/edits.js"),
    asset!("rows.js", "tree/rows.js"),
    asset!("compare.js", "tree/compare.js"),
    asset!("times.js", "tree/times.js"),
    asset!("answers.js", "tree/answers.js"),
    asset!("colour.js", "view/colour.js"),
    asset!("time_chart.js", "view/time_chart.js"),
    asset!("heatmap.js", "view/heatmap.js"),
    asset!("pause_lane.js", "view/pause_lane.js"),
    asset!("activity_bar.js", "view/activity_bar.js"),
    asset!("figures.js", "view/figures.js"),
    asset!("state.js", "view/state.js"),
    asset!("flame_layout.js", "flame/flame_layout.js"),
    asset!("flame_canvas.js", "flame/flame_canvas.js"),
    asset!("flame_touch.js", "flame/flame_touch.js"),
    asset!("flame.js", "flame/flame.js"),
    asset!("sandwich.js", "view/sandwich.js"),
    asset!("table.js", "view/table.js"),
    asset!("menu.js", "view/menu.js"),
    asset!("edit_chips.js", "view/edit_chips.js"),
    asset!("help.js", "view/help.js"),
    asset!("keys.js", "view/keys.js"),
    asset!("view.js", "view/view.js"),
];

/// The library that the collector's page alone needs: it is larger than all other scripts.
pub const D3: Asset = asset!("d3.min.js", "vendor/d3.min.js");

pub const STYLE: Asset = asset!("style.css", "view/style.css");

pub(super) const RECORD_SCRIPT: Asset = asset!("record.js", "record/record.js");

pub(super) const RECORD_LOADER: Asset = asset!("loader.js", "record/loader.js");

pub(super) const RECORD_PAGE: Asset = asset!("record.html", "record/record.html");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_can_end_the_element_it_is_put_in() {
        for asset in VIEW_SCRIPTS.into_iter().chain([RECORD_SCRIPT, RECORD_LOADER]) {
            let text = asset.text.to_ascii_lowercase();
            assert!(!text.contains("</script") && !text.contains("<!--"), "{}", asset.name);
        }
        assert!(!STYLE.text.to_ascii_lowercase().contains("</style"));
    }

    #[test]
    fn the_collectors_page_loads_all_scripts_of_the_view_in_their_order() {
        let page = include_str!("../../assets/collector/collector.html");
        let places = VIEW_SCRIPTS.map(|asset| {
            let place = page.find(&format!("src=\"/assets/{}\"", asset.name));
            place.unwrap_or_else(|| panic!("{} isn't loaded", asset.name))
        });
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        let ours = VIEW_SCRIPTS.iter().chain([&STYLE, &RECORD_SCRIPT, &RECORD_LOADER, &RECORD_PAGE]);
        for asset in ours {
            let text = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http://") && !text.contains("https://"), "{}", asset.name);
            assert!(!text.contains("@import") && !text.contains("url("), "{}", asset.name);
        }
    }
}
