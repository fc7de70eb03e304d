// Two profiles beside each other: what is compared, what changed, and what may be chance. The same
// as in profile/comparison.rs; the tests of both have the same figures.
"use strict";

(function (jvmprof) {
  const { format } = jvmprof;

  /// Differences below this many standard errors may be chance: one in 370 functions that didn't
  /// change exceeds it.
  const SIGNIFICANT_Z = 3;
  /// Events of both sides together below which the test means nothing.
  const LEAST_EVENTS = 10;

  /// Units that are counts, and times: per second when compared by time.
  const PER_SECOND = new Set(["objects", "waits", "contentions", "pauses"]);
  const TIMES = new Set(["waiting_time", "lock_time", "wall_time", "pause_time"]);

  jvmprof.NORMALISATIONS = { share: "By share", time: "By time" };

  class Comparison {
    /// `sides`: `{period_ns, duration_ns, events, total}` of the base and of what is compared with
    /// it. `by`: share or time. `unit`: of the numbers.
    constructor(sides, by, unit) {
      this.by = by;
      this.unit = unit;
      this.sides = sides.map((side) => {
        const perEvent = side.events ? side.total / side.events : 1;
        const unitSeconds = side.period_ns ? side.period_ns / 1e9 : 1;
        const seconds = Math.max(side.duration_ns / 1e9, 1e-9);
        const size = by === "share" ? Math.max(side.events, 1) : seconds / (unitSeconds * perEvent);
        const scale = by === "share" ? 1 / Math.max(side.total, 1) : unitSeconds / seconds;
        return { ...side, perEvent, size, scale };
      });
      const [before, after] = this.sides;
      /// What makes the base's numbers comparable with the others.
      this.factor = before.scale / after.scale;
      this.isEmpty = this.emptySides().length > 0;
    }

    /// The width of a frame: half of both, so that nothing that either side has is missing.
    drawn([before, after]) {
      return (before * this.factor + after) / 2;
    }

    /// Normalised numbers.
    values(counts) {
      return counts.map((count, side) => count * this.sides[side].scale);
    }

    /// The normalised difference.
    change(counts) {
      const [before, after] = this.values(counts);
      return after - before;
    }

    /// The difference as a part of the larger of both, from -1 (gone) to 1 (new).
    relative(counts) {
      const [before, after] = this.values(counts);
      const most = Math.max(before, after);
      return most > 0 ? (after - before) / most : 0;
    }

    /// The names of the sides that have nothing that could be compared.
    emptySides() {
      const isEmpty = ({ total, duration_ns: duration }) => !(total > 0) && (this.by === "share" || !(duration > 0));
      return ["before", "after"].filter((_, side) => isEmpty(this.sides[side]));
    }

    z(counts) {
      if (this.isEmpty) return 0;
      const events = counts.map((count, side) => count / this.sides[side].perEvent);
      const sizes = this.sides.map(({ size }) => size);
      const all = events[0] + events[1];
      const pooled = all / (sizes[0] + sizes[1]);
      const variance = Math.max(0, this.by === "share" ? pooled * (1 - pooled) : pooled);
      const error = Math.sqrt(variance * (1 / sizes[0] + 1 / sizes[1]));
      if (all < LEAST_EVENTS || error <= 0) return 0;
      return (events[1] / sizes[1] - events[0] / sizes[0]) / error;
    }

    isNoise(counts) {
      return Math.abs(this.z(counts)) < SIGNIFICANT_Z;
    }

    /// The unit of normalised numbers where they have none themselves.
    get unitName() {
      const hasOwn = this.by === "share" || PER_SECOND.has(this.unit) || TIMES.has(this.unit) || this.unit === "bytes";
      return hasOwn ? "" : "CPUs";
    }

    /// A normalised number: `12.1 %`, `0.400`, `3 MiB/s`.
    number(value) {
      if (this.by === "share") return format.share(value, 1);
      if (this.unit === "bytes") return `${format.bytes(value)}/s`;
      if (PER_SECOND.has(this.unit)) return `${format.short(value)}/s`;
      if (TIMES.has(this.unit)) return `${format.duration(value)}/s`;
      return value > 0 && value < 10 ? value.toFixed(3) : format.short(value);
    }

    /// The difference, without a unit that all numbers have.
    changeNumber(counts) {
      const change = this.change(counts);
      if (change === 0) return "0";
      const number = this.number(Math.abs(change));
      const sign = change > 0 ? "+" : "−";
      return number.startsWith("< ") ? `${sign} ${number}` : `${sign}${number}`;
    }

    /// Before and after in a line, without a unit that all numbers have.
    beforeAfterNumbers(counts) {
      return this.values(counts).map((value) => this.number(value)).join(" → ");
    }

    withUnit(numbers) {
      return this.unitName ? `${numbers} ${this.unitName}` : numbers;
    }

    changeText(counts) {
      const number = this.changeNumber(counts);
      return number === "0" ? number : this.withUnit(number);
    }

    beforeAfter(counts) {
      return this.withUnit(this.beforeAfterNumbers(counts));
    }

    /// What says whether it may be chance.
    verdict(counts) {
      const z = this.z(counts);
      if (z === 0 && counts[0] + counts[1] > 0) return "too few samples, or no difference";
      return `${Math.abs(z).toFixed(1)} standard errors${this.isNoise(counts) ? ": may be chance" : ""}`;
    }

    /// What the page says of the test, `[line, more]`.
    notice() {
      const empty = this.emptySides();
      if (empty.length) return `There is nothing to compare: no samples ${empty.join(" and ")}.`;
      const test = this.by === "share" ? "two-proportion z-test of the samples' counts" : "z-test of two rates of samples";
      const [before, after] = this.sides;
      const weighted = [before, after].some(({ perEvent }) => Math.abs(perEvent - 1) > 1e-6);
      const others = this.by === "share" ? " A share also falls where others grow: compare by time to see what each took." : "";
      const weights = weighted ? " Numbers are estimates: each is taken as so many samples of equal weight." : "";
      const samples = `${format.count(before.events)} and ${format.count(after.events)} samples`;
      return [
        "Red is more than before, blue is less; grey may be chance.",
        `Grey is below ${SIGNIFICANT_Z} standard errors (${test}; ${samples}), ` +
          `or fewer than ${LEAST_EVENTS} samples.${others}${weights} ` +
          "One in 370 frames that didn't change is coloured all the same, and the load itself varies.",
      ];
    }
  }

  jvmprof.Comparison = Comparison;
})(globalThis.jvmprof);
