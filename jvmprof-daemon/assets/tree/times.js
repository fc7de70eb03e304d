// When each sample of a recording was taken, and where its stack ends in the tree
// (profile/call_tree/sample_times.rs): the load over time, and the tree of a part of it, or of two
// parts beside each other.
"use strict";

(function (jvmprof) {
  /// The numbers that base64 of LEB128 stands for.
  function numbersOf(text) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const numbers = new Uint32Array(bytes.reduce((sum, byte) => sum + (byte < 0x80 ? 1 : 0), 0));
    let at = 0;
    for (let i = 0; i < numbers.length; i++) {
      let [value, shift] = [0, 0];
      for (; bytes[at] >= 0x80; shift += 7) value |= (bytes[at++] & 0x7f) << shift;
      numbers[i] = value | (bytes[at++] << shift);
    }
    return numbers;
  }

  class SampleTimes {
    /// `data`: columns by entry, `nodes` (by how much each is above the one before it), `lines` and
    /// `activities` (numbers, see activities.js), or else `processes` (such numbers, too); and of
    /// the samples `steps`, milliseconds, and `entries`: base64 of LEB128.
    constructor({ nodes, lines, activities = [], processes = [], steps, entries }) {
      let [node, time] = [0, 0];
      Object.assign(this, { lines, activities, processes });
      this.nodes = nodes.map((above) => (node += above));
      this.times = Float64Array.from(numbersOf(steps), (step) => (time += step));
      this.entries = numbersOf(entries);
    }

    /// The same samples in a tree of other nodes: `nodeOf(node, number)` is the one that a node
    /// became for samples with this number.
    movedTo(nodeOf) {
      const numbers = this.activities.length ? this.activities : this.processes;
      const nodes = this.nodes.map((node, entry) => nodeOf(node, numbers[entry]));
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

    /// How many samples each entry has in a part, `[from, to]` in milliseconds; null: in all.
    counts(part = null) {
      const counts = new Uint32Array(this.nodes.length);
      const [begin, end] = part ? part.map((time) => this.from(time)) : [0, this.times.length];
      for (let i = begin; i < end; i++) counts[this.entries[i]]++;
      return counts;
    }

    /// The data with only the samples of a part, `[from, to]` in milliseconds.
    part(data, part) {
      const { parent } = data.nodes;
      const total = new Array(parent.length).fill(0);
      const activity = this.hasActivities(data) ? parent.map(() => []) : [];
      this.counts(part).forEach((samples, entry) => {
        const node = this.nodes[entry];
        total[node] += samples;
        if (activity.length && samples) jvmprof.addCounts(activity[node], [this.activities[entry], samples]);
      });
      for (let node = parent.length - 1; node > 0; node--) total[parent[node]] += total[node];
      const none = () => [];
      const nodes = { ...data.nodes, total, lines: parent.map(none), how: parent.map(none) };
      if (activity.length) nodes.activity = activity;
      return { ...data, nodes, total: total[0] };
    }

    /// Whether it is known of these samples and of the data what they were taken in.
    hasActivities({ nodes }) {
      return this.activities.length > 0 && nodes.activity?.length > 0;
    }

    /// Whether edits leave the samples of an entry, `(entry) => boolean`, in the data that the
    /// nodes are of.
    kept(data, functions, edits) {
      const isKeptNode = jvmprof.keptNodes(data, functions, edits) ?? (() => true);
      const [activities, threadKinds] = [jvmprof.chosenActivities(edits), jvmprof.chosenThreadKinds(edits)];
      const isChosen = (entry) => !this.hasActivities(data) || jvmprof.isSampledIn(this.activities[entry], activities, threadKinds);
      return (entry) => isKeptNode(this.nodes[entry]) && isChosen(entry);
    }

    /// Which lines took the time that is attributed to each function, by its index: `{samples,
    /// lines}`, of the samples in a part (null: in all) that these edits leave.
    lineCounts(data, functions, part = null, edits = []) {
      const { parent, function: functionOf } = data.nodes;
      const isKept = this.kept(data, functions, edits);
      const counts = new Map();
      this.counts(part).forEach((samples, entry) => {
        const end = this.nodes[entry];
        // Where frames were pruned, the line may be one of theirs.
        if (!samples || functions[functionOf[end]].kind === "pruned" || !isKept(entry)) return;
        const fn = nearest(end, parent, functionOf, functions).index;
        if (!counts.has(fn)) counts.set(fn, { samples: 0, lines: new Map() });
        const of = counts.get(fn);
        of.samples += samples;
        const line = this.lines[entry];
        if (line) of.lines.set(line, (of.lines.get(line) ?? 0) + samples);
      });
      return counts;
    }

    /// The data of a part beside those of another one, the base, and what both sides are compared
    /// by: `{data, sides}`. A sample stands for `periodNs`.
    compared(data, [base, part], periodNs) {
      const [before, after] = [base, part].map((of) => this.part(data, of));
      const { total, activity } = before.nodes;
      const nodes = { ...after.nodes, base: total, ...(activity && { base_activity: activity }) };
      const side = ([from, to], { total: samples }) => ({ period_ns: periodNs, duration_ns: (to - from) * 1e6, events: samples, total: samples });
      return {
        data: { ...after, nodes, base: before.total },
        sides: [side(base, before), side(part, after)],
      };
    }
  }

  /// What the time of a node is attributed to.
  function nearest(node, parent, functionOf, functions) {
    for (let at = node; at > 0; at = parent[at]) if (jvmprof.takesCallees(functions[functionOf[at]])) return functions[functionOf[at]];
    return functions[functionOf[node]];
  }

  /// Gives rows without lines those of the samples that are attributed to their functions, where
  /// the times of all of these are known; with those of the base, if there is one.
  jvmprof.withPartLines = function (rows, lineCounts, baseCounts = null) {
    const none = { samples: 0, lines: new Map() };
    const counts = (samples) => ({ self: null, attributed: samples, total: null });
    for (const row of rows) {
      const [own, before] = [lineCounts, baseCounts].map((of) => of?.get(row.fn.index) ?? none);
      const isKnown = own.samples === row.attributed && (!baseCounts || before.samples === row.base.attributed);
      if (row.lines.length || !isKnown) continue;
      const all = [...new Set([...own.lines.keys(), ...before.lines.keys()])];
      const lines = all.map((line) => [line, own.lines.get(line) ?? 0, before.lines.get(line) ?? 0]);
      const heaviest = lines.sort((a, b) => Math.max(b[1], b[2]) - Math.max(a[1], a[2])).slice(0, 10);
      row.lines = heaviest.map(([line, samples, base]) => ({ line, ...counts(samples), base: baseCounts && counts(base) }));
    }
    return rows;
  };

  jvmprof.SampleTimes = SampleTimes;
})(globalThis.jvmprof);
