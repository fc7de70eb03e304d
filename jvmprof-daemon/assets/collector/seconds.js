// The heatmap of sub-seconds: samples by their own times. The collector is asked for these only
// while it is shown, and only of ranges that a page draws by seconds.
"use strict";

(function (jvmprof) {
  const { format } = jvmprof;

  /// What the address says while it is shown (see timeline_heat.js).
  jvmprof.SECONDS = "seconds";

  /// The longest range of which the collector tells the times of samples.
  const LONGEST = 15 * 60_000;

  /// Why there are no samples by their own times, of what is counted and compared from when to
  /// when; null if there are.
  jvmprof.whyNoTimes = function ({ type, base }, [from, to]) {
    if (base) return "Sub-seconds aren't shown beside a comparison.";
    if (type && !type.startsWith("process_cpu:")) return "Sub-seconds are shown of CPU time alone.";
    if (to - from > LONGEST) return "Sub-seconds are shown of at most 15 minutes: choose a shorter time, by a drag over the bars, say.";
    return null;
  };

  /// Says of how many samples the times aren't known, `[line, more]`; null if those of all are.
  jvmprof.untimedNotice = function ({ untimed = 0 }, total) {
    if (!untimed) return null;
    const share = untimed === total ? "these" : `${format.share(untimed, total)} of these`;
    return [
      `When ${share} samples were taken isn't known: they are in no part of the time.`,
      "They are in the graph of the whole time. A daemon sends the times with --sample-times.",
    ];
  };
})(globalThis.jvmprof);
