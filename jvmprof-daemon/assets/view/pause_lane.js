// When JVMs stopped their threads, in a recording that followed it: a lane of marks below the
// timeline, and beside it for how much of the time that was.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const HEIGHT = 10;
  /// JVMs that have a sentence each; the lane has all.
  const MAX_SENTENCES = 4;
  /// Pixels around the mouse in which a pause is meant.
  const NEAR = 4;

  const milliseconds = (ms) => format.duration(ms * 1e6);
  const describe = (mark) =>
    `${milliseconds(mark.stopped_ms)} at ${(mark.begin_ms / 1_000).toFixed(3)} s, ${milliseconds(mark.to_safepoint_ms)} to the safepoint: ${mark.what}`;

  /// Of one JVM's pauses what lies within `[from, to]` milliseconds: `{pauses, stopped,
  /// toSafepoint, time}`. A pause is as long there as it lies within.
  jvmprof.pausesWithin = function (lane, [from, to]) {
    const within = (begin, end) => Math.max(0, Math.min(end, to) - Math.max(begin, from));
    const sums = { pauses: 0, stopped: 0, toSafepoint: 0, time: to - from };
    for (const { begin_ms: begin, to_safepoint_ms: toSafepoint, stopped_ms: stopped } of lane.marks) {
      const reached = begin + toSafepoint;
      if (reached + stopped < from || begin > to) continue;
      sums.pauses += 1;
      sums.stopped += within(reached, reached + stopped);
      sums.toSafepoint += within(begin, reached);
    }
    return sums;
  };

  class PauseLane {
    constructor() {
      this.canvas = element("canvas.pause-marks", { "aria-hidden": "true" });
      this.text = element("div.pause-text");
      this.hint = element("div.timeline-hint", { "aria-hidden": "true" });
      this.node = element("div.pauses", { hidden: true }, this.canvas, this.text, this.hint);
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerleave", () => this.hint.replaceChildren());
      new ResizeObserver(() => this.draw()).observe(this.node);
      jvmprof.theme.listeners.push(() => this.draw());
    }

    /// Shows these lanes, of a recording whose timeline is `span` milliseconds wide; none hides it.
    /// `part`: what is chosen of it, or null.
    show(lanes, { span, part }) {
      this.node.hidden = lanes.length === 0;
      if (this.node.hidden) return;
      Object.assign(this, { lanes, span, part });
      this.marks = lanes.flatMap((lane) => lane.marks.map((mark) => ({ ...mark, jvm: lane.jvm })));
      const more = lanes.length - MAX_SENTENCES;
      const sentences = lanes.slice(0, MAX_SENTENCES).map((lane) => this.sentence(lane));
      if (more > 0) sentences.push(`and ${format.count(more)} more JVM${more === 1 ? "" : "s"}`);
      this.text.replaceChildren(...sentences.map((text) => element("div", {}, text)));
      this.draw();
    }

    /// `Shop (7) was stopped for 3 % of the time, 12 times, 0.4 % to reach safepoints; ...`
    sentence(lane) {
      // Sums are of all pauses, marks only of those that are kept.
      const isWhole = lane.marks.length === lane.pauses;
      const sums = this.part && isWhole
        ? jvmprof.pausesWithin(lane, this.part)
        : { pauses: lane.pauses, stopped: lane.stopped_ms, toSafepoint: lane.to_safepoint_ms, time: lane.followed_ms };
      const share = (ms) => format.share(ms, sums.time);
      const times = `${format.count(sums.pauses)} pause${sums.pauses === 1 ? "" : "s"}`;
      const [from, to] = this.part ?? [-Infinity, Infinity];
      const marks = lane.marks.filter((mark) => mark.begin_ms <= to && mark.begin_ms + mark.to_safepoint_ms + mark.stopped_ms >= from);
      const longest = marks.reduce((most, mark) => (most && most.stopped_ms >= mark.stopped_ms ? most : mark), null);
      const ofKept = isWhole ? "" : `; the lane has the first ${format.count(lane.marks.length)}`;
      const what = longest ? `${isWhole ? "; " : ", of them "}the longest ${describe(longest)}` : "";
      return `${lane.jvm} was stopped for ${share(sums.stopped)} of the time, ${times}, and took ${share(sums.toSafepoint)} to reach safepoints${ofKept}${what}`;
    }

    draw() {
      const width = this.node.clientWidth;
      if (this.node.hidden || !width) return;
      const ratio = devicePixelRatio || 1;
      Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(HEIGHT * ratio) });
      const context = this.canvas.getContext("2d");
      context.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const x = (ms) => (ms / this.span) * width;
      for (const { begin_ms: begin, to_safepoint_ms: toSafepoint, stopped_ms: stopped } of this.marks) {
        context.fillStyle = style.getPropertyValue("--faint");
        context.fillRect(x(begin), 3, Math.max(0, x(toSafepoint)), HEIGHT - 6);
        context.fillStyle = style.getPropertyValue("--error");
        context.fillRect(x(begin + toSafepoint), 0, Math.max(1, x(stopped)), HEIGHT);
      }
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      const near = (NEAR / box.width) * this.span;
      const time = ((event.clientX - box.left) / box.width) * this.span;
      const isNear = (mark) => mark.begin_ms - near <= time && time <= mark.begin_ms + mark.to_safepoint_ms + mark.stopped_ms + near;
      const marks = this.marks.filter(isNear).sort((one, two) => two.stopped_ms - one.stopped_ms);
      const more = marks.length > 1 ? ` · ${format.count(marks.length - 1)} more` : "";
      const whose = marks.length && this.lanes.length > 1 ? `${marks[0].jvm}: ` : "";
      this.hint.textContent = marks.length ? `${whose}${describe(marks[0])}${more}` : "";
    }
  }

  jvmprof.PauseLane = PauseLane;
})(globalThis.jvmprof);
