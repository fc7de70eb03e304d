// How a profile is looked at, as parameters of the page's address.
"use strict";

(function (jvmprof) {
  const VIEWS = ["flame", "both", "table"];

  /// Up to this width graph and table stand below each other (`.panes` of style.css), where both
  /// together are too small.
  const NO_ROOM_FOR_BOTH = 1000;

  /// How a profile is looked at before anything is chosen.
  jvmprof.firstViewState = function () {
    const view = innerWidth > NO_ROOM_FOR_BOTH ? "both" : "flame";
    const chosen = { colour: "kind", by: "share", edits: [], part: null, basePart: null, sort: "", sandwichZoom: "" };
    return { search: "", view, rootOnTop: true, fold: false, frames: "all", zoom: "", sandwich: "", ...chosen };
  };

  /// What the table is sorted by: a column, with `-` in the reverse of its usual order.
  const SORT = /^-?(name|self|attributed|total)$/;

  /// The hashes of the nodes that are zoomed to among callers and among callees; one of them may be
  /// missing.
  const SANDWICH_ZOOM = /^([0-9a-f]{16}-([0-9a-f]{16})?|-[0-9a-f]{16})$/;

  /// Edits have a bit each in a number (see edits.js).
  const MOST_EDITS = 30;

  /// A part of a recording, `[from, to]` in milliseconds since its start; null for the whole.
  function readPart(text) {
    const [, from, to] = /^(\d{1,12})-(\d{1,12})$/.exec(text ?? "") ?? [];
    return Number(from) < Number(to) ? [Number(from), Number(to)] : null;
  }

  jvmprof.readViewState = function (query) {
    const zoom = query.get("zoom") ?? "";
    const frames = query.get("frames");
    const state = {
      search: query.get("q") ?? "",
      rootOnTop: query.get("root") !== "bottom",
      fold: query.get("fold") === "1",
      frames: Object.hasOwn(jvmprof.FRAMES, frames ?? "") ? frames : "all",
      zoom: /^[0-9a-f]{16}$/.test(zoom) ? zoom : "",
      sandwich: query.get("sandwich") ?? "",
      colour: Object.hasOwn(jvmprof.COLOURINGS, query.get("colour") ?? "") ? query.get("colour") : "kind",
      by: query.get("by") === "time" ? "time" : "share",
      edits: query.getAll("edit").filter((text) => jvmprof.parseEdit(text)).slice(0, MOST_EDITS),
      part: readPart(query.get("part")),
      basePart: readPart(query.get("part")) && readPart(query.get("base_part")),
      sort: SORT.test(query.get("sort") ?? "") ? query.get("sort") : "",
      sandwichZoom: SANDWICH_ZOOM.test(query.get("szoom") ?? "") ? query.get("szoom") : "",
    };
    if (VIEWS.includes(query.get("view"))) state.view = query.get("view");
    return state;
  };

  jvmprof.writeViewState = function (query, state) {
    if (state.search) query.set("q", state.search);
    if (state.view) query.set("view", state.view);
    if (state.rootOnTop === false) query.set("root", "bottom");
    if (state.fold) query.set("fold", "1");
    if (state.frames && state.frames !== "all") query.set("frames", state.frames);
    if (state.zoom) query.set("zoom", state.zoom);
    if (state.sandwich) query.set("sandwich", state.sandwich);
    if (state.sandwich && state.sandwichZoom) query.set("szoom", state.sandwichZoom);
    if (state.colour && state.colour !== "kind") query.set("colour", state.colour);
    if (state.by === "time") query.set("by", "time");
    for (const edit of state.edits ?? []) query.append("edit", edit);
    if (state.part) query.set("part", state.part.join("-"));
    if (state.part && state.basePart) query.set("base_part", state.basePart.join("-"));
    if (state.sort) query.set("sort", state.sort);
  };
})(globalThis.jvmprof);
