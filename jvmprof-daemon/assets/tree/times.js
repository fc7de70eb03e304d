// When each sample of a recording was taken, and where its stack ends in the tree
// (profile/call_tree/sample_times.rs): the load over time, and the tree of a part of it, or of two
// parts beside each other.
"use strict";

(function (jvmprof) {
  class SampleTimes {
    /// `data`: columns `nodes`, `lines` and `activities` (numbers, see activities.js), by entry,
    /// and the samples: base64 of LEB128.
    constructor({ nodes, lines, activities = [], samples }) {
      Object.assign(this, { nodes, lines, activities });
      const bytes = Uint8Array.from(atob(samples), (character) => character.charCodeAt(0));
      const count = bytes.reduce((sum, byte) => sum + (byte < 0x80 ? 1 : 0), 0) / 2;
      this.times = new Float64Array(count);
      this.entries = new Uint32Array(count);
      let [at, time] = [0, 0];
      const number = () => {
        let [value, shift] = [0, 0];
        for (; bytes[at] >= 0x80; shift += 7) value |= (bytes[at++] & 0x7f) << shift;
        return (value | (bytes[at++] << shift)) >>> 0;
      };
      for (let i = 0; i < count; i++) {
        time += number();
        this.times[i] = time;
        this.entries[i] = number();
      }
    }

    /// The same samples in a tree of other nodes: `nodeOf(node, number)` is the one that a node
    /// became for samples with this number.
    movedTo(nodeOf) {
      const nodes = this.nodes.map((node, entry) => nodeOf(node, this.activities[entry]));
      return Object.assign(Object.create(SampleTimes.prototype), this, { nodes });
    }

    /// The index of the first sample at this time or later.
    from(time) {
      let [low, high] = [0, this.times.length];
      while (low < high) {
        const middle = (low + high) >>> 1;
        if (this.times[middle] < time) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    /// Samples of these activities and kinds of threads (null: of all), in slots of `step`
    /// milliseconds. What is behind the last one counts in it.
    slots(step, count, activities = null, threadKinds = null) {
      const slots = new Float64Array(count);
      const isKept = (entry) => !this.activities.length || jvmprof.isSampledIn(this.activities[entry], activities, threadKinds);
      const kept = this.nodes.map((_, entry) => isKept(entry));
      for (let i = 0; i < this.times.length; i++) {
        if (kept[this.entries[i]]) slots[Math.min(count - 1, Math.floor(this.times[i] / step))]++;
      }
      return slots;
    }

    /// The data with only the samples of a part, `[from, to]` in milliseconds. `lineCounts` says of
    /// each function, by its index, which lines took the time that is attributed to it.
    part(data, functions, [from, to]) {
      const { parent, function: functionOf } = data.nodes;
      const total = new Array(parent.length).fill(0);
      const lineCounts = new Map();
      const activity = this.activities.length ? parent.map(() => []) : [];
      const behind = this.from(to);
      for (let i = this.from(from); i < behind; i++) {
        const entry = this.entries[i];
        total[this.nodes[entry]]++;
        if (activity.length) jvmprof.addCounts(activity[this.nodes[entry]], [this.activities[entry], 1]);
        const end = this.nodes[entry];
        // Where frames were pruned, the line may be one of theirs.
        if (!this.lines[entry] || functions[functionOf[end]].kind === "pruned") continue;
        const fn = nearest(end, parent, functionOf, functions).index;
        if (!lineCounts.has(fn)) lineCounts.set(fn, new Map());
        const lines = lineCounts.get(fn);
        lines.set(this.lines[entry], (lines.get(this.lines[entry]) ?? 0) + 1);
      }
      for (let node = parent.length - 1; node > 0; node--) total[parent[node]] += total[node];
      const none = () => [];
      const nodes = { ...data.nodes, total, lines: parent.map(none), how: parent.map(none) };
      if (activity.length) nodes.activity = activity;
      return { ...data, nodes, total: total[0], lineCounts };
    }

    /// The data of a part beside those of another one, the base, and what both sides are compared
    /// by: `{data, sides}`. A sample stands for `periodNs`.
    compared(data, functions, [base, part], periodNs) {
      const [before, after] = [base, part].map((of) => this.part(data, functions, of));
      const { total, activity } = before.nodes;
      const nodes = { ...after.nodes, base: total, ...(activity && { base_activity: activity }) };
      const side = ([from, to], { total: samples }) => ({ period_ns: periodNs, duration_ns: (to - from) * 1e6, events: samples, total: samples });
      return {
        data: { ...after, nodes, base: before.total, baseLineCounts: before.lineCounts },
        sides: [side(base, before), side(part, after)],
      };
    }
  }

  /// What the time of a node is attributed to.
  function nearest(node, parent, functionOf, functions) {
    for (let at = node; at > 0; at = parent[at]) if (jvmprof.takesCallees(functions[functionOf[at]])) return functions[functionOf[at]];
    return functions[functionOf[node]];
  }

  /// The lines of rows in a part, by what is attributed to them; with those of the base, if there
  /// is one.
  jvmprof.withPartLines = function (rows, { lineCounts, baseLineCounts = null }) {
    const counts = (samples) => ({ self: null, attributed: samples, total: null });
    for (const row of rows) {
      const [own, base] = [lineCounts, baseLineCounts].map((of) => of?.get(row.fn.index) ?? new Map());
      const lines = [...new Set([...own.keys(), ...base.keys()])].map((line) => [line, own.get(line) ?? 0, base.get(line) ?? 0]);
      const heaviest = lines.sort((a, b) => Math.max(b[1], b[2]) - Math.max(a[1], a[2])).slice(0, 10);
      row.lines = heaviest.map(([line, samples, before]) => ({ line, ...counts(samples), base: baseLineCounts && counts(before) }));
    }
    return rows;
  };

  jvmprof.SampleTimes = SampleTimes;
})(globalThis.jvmprof);
