// What a user takes out of a profile: stacks without or with a function, and frames that are merged
// into their callers; which packages of the JDK are expanded in the application's view; and what of
// a JVM's time and of its threads is shown. Each is text, `only:acme.Order.total`, which the
// address keeps; `acme.*` is all of a package or class.
"use strict";

(function (jvmprof) {
  const KINDS = {
    only: (what) => `Only stacks with ${what}`,
    hide: (what) => `Without stacks with ${what}`,
    merge: (what) => `${what} merged into callers`,
    expand: (what) => `${what} expanded`,
    activity: (what) => {
      const activity = jvmprof.ACTIVITIES.find(({ key }) => key === what);
      return activity && `Only ${activity.name}`;
    },
    thread: (what) => (jvmprof.THREAD_KINDS.some(({ key }) => key === what) ? `Only threads: ${what}` : undefined),
  };

  jvmprof.parseEdit = function (text) {
    const [, kind, what] = /^(only|hide|merge|expand|activity|thread):(.+)$/s.exec(text) ?? [];
    const title = kind && KINDS[kind](what);
    return title ? { kind, what, text, title } : null;
  };

  const matches = ({ what }, fn) =>
    jvmprof.isCode(fn) && (what.endsWith(".*") ? fn.name.startsWith(what.slice(0, -1)) : fn.name === what);

  /// The package and the class of a Java method's name.
  jvmprof.packageOf = (name) => {
    const parts = name.split("(")[0].split(".");
    const type = parts.findIndex((part) => /^[A-Z]/.test(part));
    const count = type > 0 ? type : Math.max(parts.length - 2, 0);
    return { package: parts.slice(0, count).join("."), type: parts.slice(0, -1).join(".") };
  };

  jvmprof.isCode = (fn) => fn.kind !== "root" && fn.kind !== "label" && fn.kind !== "pruned";

  /// Whether these edits leave the samples that end in a node, `(node) => boolean`; null if they
  /// leave those of all.
  jvmprof.keptNodes = function (data, functions, edits) {
    const filters = edits.filter(({ kind }) => kind === "only" || kind === "hide");
    if (!filters.length) return null;
    const { parent, function: functionOf } = data.nodes;
    const matched = filters.map((edit) => functions.map((fn) => matches(edit, fn)));
    // Bit `i`: filter `i` has matched on the way from the root. Nobody makes more than 31 of them.
    const seen = new Int32Array(parent.length);
    const wanted = filters.reduce((bits, { kind }, i) => (kind === "only" ? bits | (1 << i) : bits), 0);
    const unwanted = filters.reduce((bits, { kind }, i) => (kind === "hide" ? bits | (1 << i) : bits), 0);
    for (let node = 1; node < parent.length; node++) {
      seen[node] = seen[parent[node]];
      matched.forEach((of, i) => (seen[node] |= of[functionOf[node]] ? 1 << i : 0));
    }
    return (node) => (seen[node] & wanted) === wanted && (seen[node] & unwanted) === 0;
  };

  /// The data with only the samples that these edits leave. Lines and ways of running stay where
  /// all of a node's samples do: how they divide among others isn't known.
  jvmprof.editedData = function (data, functions, edits) {
    const isKept = jvmprof.keptNodes(data, functions, edits);
    return isKept ? jvmprof.withSamples(data, isKept) : data;
  };

  /// The data with only the own samples of nodes that `stays` keeps.
  jvmprof.withSamples = function (data, stays) {
    const keep = (total) => total && keptTotals(data.nodes.parent, total, stays);
    const total = keep(data.nodes.total);
    const base = keep(data.nodes.base);
    const same = (node) => total[node] === data.nodes.total[node];
    const nodes = {
      ...data.nodes,
      total,
      ...(base && { base }),
      lines: data.nodes.lines.map((lines, node) => (same(node) ? lines : [])),
      how: data.nodes.how?.map((how, node) => (same(node) ? how : [])),
    };
    return { ...data, nodes, total: total[0], ...(base && { base: base[0] }) };
  };

  function keptTotals(parent, total, stays) {
    const kept = jvmprof.ownSamples(parent, total).map((own, node) => (stays(node) ? Math.max(0, own) : 0));
    for (let node = parent.length - 1; node > 0; node--) kept[parent[node]] += kept[node];
    return kept;
  }

  function matcher(edits, wanted) {
    const chosen = edits.filter(({ kind }) => kind === wanted);
    return chosen.length ? (fn) => chosen.some((edit) => matches(edit, fn)) : null;
  }

  /// Which functions are merged into their callers; null for none.
  jvmprof.isMerged = (edits) => matcher(edits, "merge");

  /// Which functions of the JDK are shown like the application's; null for none.
  jvmprof.isExpanded = (edits) => matcher(edits, "expand");

  /// Whether an edit does something to the view of these frames, of data that says, or doesn't, in
  /// what its samples were taken.
  jvmprof.hasEffect = function ({ kind }, frames, hasActivities = true) {
    if (kind === "activity" || kind === "thread") return hasActivities;
    return kind !== "expand" || frames === "app";
  };

  /// Whether the edits leave no sample out and no frame.
  jvmprof.isWhole = (edits) => edits.every(({ kind }) => kind === "expand");
})(globalThis.jvmprof);
