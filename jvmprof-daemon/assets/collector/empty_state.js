// What the collector's page says where there is nothing to show, and what helps.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  /// Names of this machine alone.
  const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\])$/i;

  /// The command of a profiler that pushes to the collector at the page's `location`.
  jvmprof.daemonCommand = function ({ protocol, hostname, port, origin }) {
    const isHere = LOOPBACK.test(hostname) && !protocol.startsWith("https");
    const to = isHere ? `--collector-address ${hostname}:${port || 80}` : `--remote-store-address ${origin}`;
    return `sudo jvmprof daemon ${to}`;
  };

  /// The content of a page without samples. `newest`: when the newest profile of any time ended
  /// that matches; null for none. `onChange(changes)` gets what is to be shown in its place.
  jvmprof.emptyState = function (newest, { matches }, onChange) {
    const act = (name, changes) => element("button.button", { type: "button", onclick: () => onChange(changes) }, name);
    if (newest !== null) {
      return [
        element("h2", {}, "No samples in this range"),
        element("p", {}, `The newest profile that matches ended ${format.time(newest)}.`),
        act("Show the 15 minutes before that", { from: newest - jvmprof.PRESETS["15m"], to: newest + 1 }),
      ];
    }
    if (matches.length) {
      return [
        element("h2", {}, "No series matches the label filters"),
        element("p", {}, "At no time did this collector receive a profile with these labels."),
        act("Remove the filters", { matches: [] }),
      ];
    }
    const code = (text) => element("code", {}, text);
    return [
      element("h2", {}, "No profiles yet"),
      element("p", {}, "This collector has received none. Start a profiler on this host, and samples appear here within seconds:"),
      element("pre", {}, jvmprof.daemonCommand(location)),
      element("p", {}, "From another host, let the collector listen on this host's address, ", code("--listen"), ", and push to that with ", code("--remote-store-address"), ". So does a profiler on this host where the collector asks for a token: ", code("--remote-store-bearer-token-file")),
      act("Look again", {}),
    ];
  };
})(globalThis.jvmprof);
