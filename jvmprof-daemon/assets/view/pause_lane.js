// When JVMs stopped their threads: a lane of marks below the timeline, and beside it for how much
// of the time that was.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const HEIGHT = 10;
  /// JVMs that have a sentence each; the lane has all.
  const MAX_SENTENCES = 4;
  /// Pixels around the mouse in which a pause is meant.
  const NEAR = 4;

  const milliseconds = (ms) => (ms > 0 && ms < 10 ? `${ms < 0.005 ? "< 0.01" : ms.toFixed(2)} ms` : format.duration(ms * 1e6));
  const sinceStart = (ms) => `${(ms / 1_000).toFixed(3)} s`;
  const endOf = (mark) => mark.begin_ms + mark.to_safepoint_ms + mark.stopped_ms;

  /// Of one JVM's pauses what lies within `[from, to]` milliseconds: `{pauses, stopped,
  /// toSafepoint, time, longest}`. A pause is as long there as it lies within; `time` is that in
  /// which the JVM was followed. Null where only the sums are known, or where the first pauses are
  /// kept, not all of that time; of the longest ones (`hasLongest`) the sums are the least.
  jvmprof.pausesWithin = function (lane, [from, to], hasLongest = false) {
    const { marks, followed_from_ms: since, followed_ms: followed } = lane;
    const within = (begin, end) => Math.max(0, Math.min(end, to) - Math.max(begin, from));
    const keptUntil = hasLongest && marks.length ? Infinity : (marks.at(-1)?.begin_ms ?? since);
    if (marks.length < lane.pauses && to > keptUntil) return null;
    const spans = lane.followed_spans_ms ?? [[since, since + followed]];
    const time = spans.reduce((sum, [begin, end]) => sum + within(begin, end), 0);
    const sums = { pauses: 0, stopped: 0, toSafepoint: 0, time, longest: null };
    for (const mark of marks) {
      const { begin_ms: begin, to_safepoint_ms: toSafepoint, stopped_ms: stopped } = mark;
      const reached = begin + toSafepoint;
      if (reached + stopped <= from || begin >= to) continue;
      if (!sums.longest || stopped > sums.longest.stopped_ms) sums.longest = mark;
      sums.pauses += 1;
      sums.stopped += within(reached, reached + stopped);
      sums.toSafepoint += within(begin, reached);
    }
    return sums;
  };

  /// What a page says of its lane: how it writes a time (`clock`), what the time is that a JVM was
  /// followed (`time(ms)`), in all where a part is chosen (`allTime(ms)`), which pauses it keeps of
  /// too many (`kept`: first or longest), and the pixels before the timeline's start (`left()`).
  const OF_RECORDING = {
    clock: sinceStart,
    time: () => "the time",
    allTime: () => "the whole time",
    kept: "first",
    left: () => 0,
  };

  class PauseLane {
    constructor(words = {}) {
      this.words = { ...OF_RECORDING, ...words };
      this.canvas = element("canvas.pause-marks", { "aria-hidden": "true" });
      this.lane = element("div.pause-lane", { tabindex: "0", role: "application" }, this.canvas);
      this.text = element("div.pause-text");
      this.hint = element("div.timeline-hint", { "aria-live": "polite" });
      this.node = element("div.pauses", { hidden: true }, this.lane, this.text, this.hint);
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerleave", () => this.hint.replaceChildren());
      this.lane.addEventListener("keydown", (event) => this.key(event));
      this.lane.addEventListener("blur", () => this.choose(null));
      new ResizeObserver(() => this.draw()).observe(this.node);
      jvmprof.theme.listeners.push(() => this.draw());
    }

    /// Shows these lanes below a timeline that is `span` milliseconds wide; none hides it. `part`:
    /// what is chosen of it, or null. `more`: JVMs with pauses beside these. `notice`: what is
    /// wrong with them.
    show(lanes, { span, part = null, more = 0, notice = "" }) {
      this.node.hidden = lanes.length === 0 && !notice;
      if (this.node.hidden) return;
      Object.assign(this, { lanes, span, part, chosen: null });
      // Of JVMs whose sums alone are known there is nothing to draw.
      this.lane.hidden = lanes.every((lane) => lane.pauses > 0 && lane.marks.length === 0);
      this.hint.replaceChildren();
      this.marks = lanes.flatMap((lane) => lane.marks.map((mark) => ({ ...mark, jvm: lane.jvm }))).sort((one, two) => one.begin_ms - two.begin_ms);
      const others = lanes.length - MAX_SENTENCES;
      const sentences = lanes.slice(0, MAX_SENTENCES).map((lane) => this.sentence(lane));
      const unsaid = Math.max(0, others) + more;
      if (unsaid > 0) sentences.push(`and ${format.count(unsaid)} more JVM${unsaid === 1 ? "" : "s"}`);
      if (notice) sentences.push(notice);
      this.text.replaceChildren(...sentences.map((text) => element("div", {}, text)));
      this.lane.setAttribute("aria-label", `Pauses of JVMs: ${format.count(this.marks.length)}. Arrow keys go from one to the next.`);
      this.draw();
    }

    /// `20 ms at 3.210 s, 0.08 ms to the safepoint: ThreadDump`
    describe(mark) {
      return `${milliseconds(mark.stopped_ms)} at ${this.words.clock(mark.begin_ms)}, ${milliseconds(mark.to_safepoint_ms)} to the safepoint: ${mark.what}`;
    }

    /// The same with its end, and whose it is, if there are several.
    describeAlone(mark) {
      const { clock } = this.words;
      const whose = this.lanes.length > 1 ? `${mark.jvm}: ` : "";
      return `${whose}${clock(mark.begin_ms)} – ${clock(endOf(mark))} · stopped for ${milliseconds(mark.stopped_ms)}, ${milliseconds(mark.to_safepoint_ms)} to the safepoint: ${mark.what}`;
    }

    /// `Shop (7) was stopped for 20 ms, 3 % of the time, 12 pauses, and took ...`
    sentence(lane) {
      const hasLongest = this.words.kept === "longest";
      const inPart = this.part && jvmprof.pausesWithin(lane, this.part, hasLongest);
      if (inPart && inPart.time <= 0) return `${lane.jvm} wasn't followed in this part`;
      // Sums are of all pauses, marks only of those that are kept.
      const hasAll = lane.marks.length === lane.pauses;
      const isWhole = inPart || hasAll;
      const isLeast = inPart && hasLongest && !hasAll;
      const longest = lane.marks.reduce((most, mark) => (most && most.stopped_ms >= mark.stopped_ms ? most : mark), null);
      const sums = inPart ?? {
        pauses: lane.pauses,
        stopped: lane.stopped_ms,
        toSafepoint: lane.to_safepoint_ms,
        time: lane.followed_ms,
        longest,
      };
      const share = (ms) => format.share(ms, sums.time);
      const known = sums.pauses === 1 ? " whose time is known" : " whose times are known";
      const counted = `${format.count(sums.pauses)} pause${sums.pauses === 1 ? "" : "s"}`;
      const times = `${counted}${isLeast ? known : ""}`;
      const least = isLeast ? "at least " : "";
      const time = this.words[this.part && !inPart ? "allTime" : "time"](sums.time);
      const ofKept = isWhole || !lane.marks.length ? "" : `; the lane has the ${this.words.kept} ${format.count(lane.marks.length)}`;
      const what = sums.longest ? `${isWhole ? "; " : ", of them "}the longest ${this.describe(sums.longest)}` : "";
      const stopped = `${milliseconds(sums.stopped)}, ${share(sums.stopped)} of ${time}`;
      const reaching = `${milliseconds(sums.toSafepoint)} (${share(sums.toSafepoint)})`;
      return `${lane.jvm} was stopped for ${least}${stopped}, ${times}, and took ${least}${reaching} to reach safepoints${ofKept}${what}`;
    }

    draw() {
      const width = this.node.clientWidth;
      if (this.node.hidden || this.lane.hidden || !width) return;
      const ratio = devicePixelRatio || 1;
      Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(HEIGHT * ratio) });
      const context = this.canvas.getContext("2d");
      context.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const left = this.words.left();
      // A pause may have begun before the timeline.
      const x = (ms) => left + (Math.max(0, Math.min(ms, this.span)) / this.span) * (width - left);
      for (const mark of this.marks) {
        const reached = mark.begin_ms + mark.to_safepoint_ms;
        context.fillStyle = style.getPropertyValue("--faint");
        context.fillRect(x(mark.begin_ms), 3, x(reached) - x(mark.begin_ms), HEIGHT - 6);
        context.fillStyle = style.getPropertyValue("--error");
        context.fillRect(x(reached), 0, Math.max(1, x(endOf(mark)) - x(reached)), HEIGHT);
      }
      if (this.part) jvmprof.drawPart(context, this.part.map(x), HEIGHT);
      const chosen = this.marks[this.chosen];
      if (!chosen) return;
      context.fillStyle = style.getPropertyValue("--accent");
      const from = x(chosen.begin_ms);
      context.fillRect(from - 1, 0, Math.max(3, x(endOf(chosen)) - from + 1), HEIGHT);
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      const left = this.words.left();
      const near = (NEAR / (box.width - left)) * this.span;
      const time = ((event.clientX - box.left - left) / (box.width - left)) * this.span;
      const isNear = (mark) => mark.begin_ms - near <= time && time <= endOf(mark) + near;
      const marks = this.marks.filter(isNear).sort((one, two) => two.stopped_ms - one.stopped_ms);
      const more = marks.length > 1 ? ` · ${format.count(marks.length - 1)} more` : "";
      this.hint.textContent = marks.length ? `${this.describeAlone(marks[0])}${more}` : "";
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.marks.length) return;
      const last = this.marks.length - 1;
      const to = { ArrowLeft: (this.chosen ?? 1) - 1, ArrowRight: (this.chosen ?? -1) + 1, Home: 0, End: last }[event.key];
      if (to !== undefined) this.choose(Math.min(last, Math.max(0, to)));
      else if (event.key === "Escape" && this.chosen !== null) this.choose(null);
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    /// Points at one pause, or at none.
    choose(index) {
      this.chosen = index;
      this.hint.textContent = index === null ? "" : this.describeAlone(this.marks[index]);
      this.draw();
    }
  }

  jvmprof.PauseLane = PauseLane;
})(globalThis.jvmprof);
