// What a user takes out of a profile: stacks without or with a function, and frames that are merged
// into their callers; which packages of the JDK are expanded in the application's view; and what of
// a JVM's time and of its threads is shown. Each is text, `only:acme.Order.total`, which the
// address keeps; `acme.*` is all of a package or class. Idle waits are left out without an edit,
// and shown by one.
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
    idle: (what) => (what === "shown" ? "With idle waits" : undefined),
  };

  /// The edit that shows idle waits.
  jvmprof.IDLE_SHOWN = "idle:shown";

  jvmprof.parseEdit = function (text) {
    const [, kind, what] = /^(only|hide|merge|expand|activity|thread|idle):(.+)$/s.exec(text) ?? [];
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

  /// The leaf of a wait in which a thread had nothing to do, as pipeline/off_cpu/wait_labels.rs
  /// names it. A profile that was read from pprof has it as native code of no file.
  const IDLE_LEAF = /^\[wait: [a-z_]+, idle(\]|: )/;
  const isIdle = ({ kind, name, module }) => (kind === "marker" || (kind === "native" && !module)) && IDLE_LEAF.test(name);

  /// The data without idle waits, unless an edit shows them, and what they are: `{data, idle}`, of
  /// which `idle` is null where there are none, or `{counts, isHidden}`, their sums in the base and
  /// the data.
  jvmprof.withoutIdle = function (data, functions, edits) {
    const { parent, function: functionOf, total, base } = data.nodes;
    const leaves = new Set(functions.filter(isIdle));
    const isOfIdle = (node) => leaves.has(functions[functionOf[node]]);
    const sum = (own) => own.reduce((all, of, node) => (isOfIdle(node) ? all + of : all), 0);
    const counts = leaves.size ? [base ?? [], total].map((of) => sum(jvmprof.ownSamples(parent, of))) : [0, 0];
    if (!(counts[0] > 0 || counts[1] > 0)) return { data, idle: null };
    const isHidden = !edits.some(({ kind }) => kind === "idle");
    return { data: isHidden ? jvmprof.withSamples(data, (node) => !isOfIdle(node)) : data, idle: { counts, isHidden } };
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

  /// Those that leave samples out of data that `has` (see `jvmprof.hasEffect`) in what these were
  /// taken, or hasn't: the collector knows them by the same texts.
  jvmprof.filters = (edits, { hasActivities = false, hasThreadKinds = false }) =>
    edits.filter(({ kind }) => ({ only: true, hide: true, activity: hasActivities, thread: hasThreadKinds })[kind] ?? false);

  /// Whether an edit does something to the view of these frames, of data that has, or hasn't, what
  /// JVMs' samples were taken in, by which kinds of threads, and idle waits.
  jvmprof.hasEffect = function ({ kind }, frames, { hasActivities = true, hasThreadKinds = true, hasIdle = true } = {}) {
    const needs = { activity: hasActivities, thread: hasThreadKinds, idle: hasIdle, expand: frames === "app" };
    return needs[kind] ?? true;
  };

  /// Whether the edits leave no sample out and no frame.
  jvmprof.isWhole = (edits) => edits.every(({ kind }) => kind === "expand" || kind === "idle");
})(globalThis.jvmprof);
