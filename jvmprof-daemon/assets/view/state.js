// How a profile is looked at, as parameters of the page's address.
"use strict";

(function (jvmprof) {
  const VIEWS = ["flame", "both", "table"];

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
  };
})(globalThis.jvmprof);
