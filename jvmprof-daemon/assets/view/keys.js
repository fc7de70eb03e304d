// The keys of a profile's view; help.js lists them.
"use strict";

(function (jvmprof) {
  /// Chooses the next one of the choices of a part of the view's state.
  function next(view, name, choices) {
    const all = Object.keys(choices);
    view.change({ [name]: all[(all.indexOf(view.state[name]) + 1) % all.length] });
  }

  /// Does what a key says wherever the focus is.
  jvmprof.viewKey = function (view, event) {
    const typing = event.target.closest?.("input, select, textarea, dialog, .frame-menu");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      view.searchBox.focus();
      view.searchBox.select();
    } else if (event.key === "Escape") view.escape();
    else if (event.key === "i") view.change({ rootOnTop: !view.state.rootOnTop });
    else if (event.key === "r") view.change({ fold: !view.state.fold });
    else if (event.key === "j") next(view, "frames", jvmprof.FRAMES);
    else if (event.key === "c" && !view.sides) next(view, "colour", jvmprof.COLOURINGS);
    else if (event.key === "n" && view.sides) next(view, "by", jvmprof.NORMALISATIONS);
    else if (event.key === "u") view.edits.undo();
    else if (event.key === "s") jvmprof.toggleSandwich(view);
    else if (event.key === "1") view.change({ view: "flame" });
    else if (event.key === "2") view.change({ view: "both" });
    else if (event.key === "3") view.change({ view: "table" });
    else if (event.key === "f") view.focusGraph();
    else if (event.key === "t") view.activityBar.focus();
    else if (event.key === "?") jvmprof.help();
  };
})(globalThis.jvmprof);
