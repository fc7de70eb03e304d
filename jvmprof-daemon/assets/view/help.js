// The dialog with keys and search syntax.
"use strict";

(function (jvmprof) {
  const { element, icon } = jvmprof;

  const KEYS = [
    ["/", "search"],
    ["Esc", "end the search, zoom out"],
    ["f", "go to the flame graph; from callers to callees and back"],
    ["t", "go to where the JVM's time goes"],
    ["← → ↑ ↓", "in the graph: move between frames"],
    ["Enter", "in the graph: zoom to the frame"],
    ["Shift ← →", "in the collector's timeline: choose a part, which Enter shows"],
    ["m", "in the graph, or on a function of the table: its menu, as by the right mouse button"],
    ["u", "undo the last focus, hide, merge or expand"],
    ["i", "root on top or at the bottom"],
    ["r", "fold recursion"],
    ["j", "all frames, Java's, the application's"],
    ["s", "callers and callees of a function, then of one among them; back"],
    ["c", "colour by kind, by package, by how methods ran"],
    ["n", "compared: by share or by time"],
    ["1 2 3", "flame graph, both, table"],
  ];
  const SEARCHES = [
    ["total", "part of a name, any case"],
    ['"acme.Order.total"', "the whole name"],
    ["/Order|Cart/", "a regular expression"],
    ["package:com.acme", "methods of a package and those below it"],
    ["module:libc", "where the code is from; also file: and kind:"],
  ];

  jvmprof.help = function () {
    const list = (rows) =>
      element("dl", {}, ...rows.flatMap(([key, what]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, what)]));
    const dialog = element(
      "dialog.help",
      { "aria-label": "Help", onclose: () => dialog.remove(), onclick: (event) => event.target === dialog && dialog.close() },
      element(
        "form",
        { method: "dialog" },
        element("h2", {}, "Keys"),
        list(KEYS),
        element("h2", {}, "Search"),
        list(SEARCHES),
        element("p", {}, "On a touch screen a tap shows a frame's details, with buttons to zoom and for its menu, which a finger that rests opens, too."),
        element("p", {}, "A frame's width is its share of the samples. The order from left to right is by weight, not time."),
        element("button", { autofocus: true }, "Close"),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  };

  jvmprof.helpButton = function () {
    return element("button.plain", { type: "button", title: "Help (?)", "aria-label": "Help", onclick: jvmprof.help }, icon("help"));
  };
})(globalThis.jvmprof);
