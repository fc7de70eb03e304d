// The page of one recorded file: the data stands in the page itself.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const recorded = JSON.parse(document.getElementById("profile").textContent);
  const [type] = recorded.types;
  const data = { ...recorded, ...type, tree: recorded.trees[type.tree] };
  document.title = `${data.title} · jvmprof`;

  const sampled =
    data.unit === "bytes"
      ? `allocation, a stack each ${format.bytes(data.period_ns)}`
      : `${format.duration(data.period_ns)} of CPU time a sample`;
  const facts = [
    data.title,
    `${format.time(data.start_ms)} · ${format.duration(data.duration_ns)} · ${sampled}`,
  ];
  document.getElementById("header").append(
    element("span.brand", {}, "jvmprof"),
    element("span.title", { title: facts[0] }, facts[0]),
    element("span.subtitle", {}, facts[1]),
    element("span.spacer"),
    jvmprof.helpButton(),
    jvmprof.theme.button(),
  );

  const app = document.getElementById("app");
  if (data.tree.total === 0) {
    app.append(
      element(
        "div.empty",
        {},
        element("h2", {}, "No samples"),
        element("p", {}, "None of the profiled processes ran on a CPU while it was recorded. Record for longer, or while there is load."),
      ),
    );
  } else {
    jvmprof.view = new jvmprof.ProfileView(app);
    jvmprof.view.show(data.tree, jvmprof.measure(data.unit, data.period_ns));
  }
})(globalThis.jvmprof);
