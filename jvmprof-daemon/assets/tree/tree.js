// The tree as the page gets it (columns, see profile/call_tree/page_columns.rs) made into nodes,
// and searched.
"use strict";

(function (jvmprof) {
  /// By the number that stands for the kind in the data.
  jvmprof.KINDS = ["root", "label", "kernel", "native", "jit", "java", "marker", "pruned", "class", "stub"];

  jvmprof.KIND_NAMES = {
    java: "Java",
    class: "Class",
    jit: "JIT code",
    stub: "JVM stub",
    native: "Native",
    kernel: "Kernel",
    marker: "Unknown or truncated",
    label: "Group",
    pruned: "Pruned",
    root: "All samples",
  };

  const isWait = ({ kind, name }) => kind === "marker" && name.startsWith("[wait: ");

  /// What a function's kind is called.
  jvmprof.kindName = (fn) => (isWait(fn) ? "Cause of a wait" : jvmprof.KIND_NAMES[fn.kind]);

  /// The same of all functions of a kind, of which the table has these rows.
  jvmprof.kindNameOf = (kind, rows) => (kind === "marker" && rows.some(({ fn }) => isWait(fn)) ? "Waits, unknown or truncated" : jvmprof.KIND_NAMES[kind]);

  /// By the number that stands for how a Java method ran.
  jvmprof.HOW_NAMES = ["interpreted", "C1", "C2", "inlined", "native"];

  /// Characters that hide or turn around what stands beside them, written out.
  function visible(name) {
    return name.replace(
      /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
      (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
    );
  }

  jvmprof.functions = function (data) {
    const { kind, name, file, module } = data.functions;
    return kind.map((_, index) => {
      const fn = {
        index,
        kind: jvmprof.KINDS[kind[index]] ?? "native",
        name: visible(data.strings[name[index]]) || "(no name)",
        file: data.strings[file[index]],
        module: data.strings[module[index]],
      };
      fn.isJdk = fn.kind === "java" && jvmprof.isJdk(fn.name);
      return fn;
    });
  };

  /// Makes the columns of a recording's tree what they are elsewhere: it has of each node how far
  /// above its parent stands, and the samples that end in it; of a line or a way of running that
  /// all of its samples have, no number (profile/call_tree/page_columns.rs).
  jvmprof.unpackTree = function ({ nodes: { parent, total, lines, how } }) {
    for (let node = 1; node < parent.length; node++) parent[node] = node - parent[node];
    for (let node = total.length - 1; node > 0; node--) total[parent[node]] += total[node];
    for (const column of [lines, how]) column.forEach((row, node) => row.length === 1 && row.push(total[node]));
  };

  /// The nodes to draw, `{name, value, self, fn, lines, how, children, parent}`: the root, and for
  /// each node of the data the one that it became. With `fold`, a function that calls itself
  /// directly is one node with its caller. `frames` chooses frames, see `jvmprof.shownFrame`;
  /// `isMerged(fn)`, if there is one, says which ones their callers take in; `isExpanded(fn)` which
  /// ones of the JDK are shown in the application's view. With a `comparison` nodes have `sides`
  /// and `ownSides`, samples of the base and of the data, and their value is what is drawn.
  jvmprof.buildTree = function (data, functions, { fold = false, frames = "all", isMerged = null, isExpanded = null, comparison = null } = {}) {
    const { parent, function: functionOf, total, lines } = data.nodes;
    const how = data.nodes.how ?? [];
    const base = data.nodes.base ?? [];
    const nodes = new Array(parent.length);
    const childOf = new Map();
    const own = frames === "all" ? null : [base, total].map((counts) => jvmprof.ownSamples(parent, counts));
    // Where every node stays, it is the only one of its function below its caller.
    const isPlain = frames === "all" && !fold && !isMerged;
    const newNode = (fn, above) => ({ name: fn.name, fn, value: 0, base: 0, self: 0, lines: [], how: [], children: [], parent: above });
    const childWith = (above, fn) => {
      if (!childOf.has(above)) childOf.set(above, new Map());
      const children = childOf.get(above);
      if (!children.has(fn)) {
        const node = newNode(fn, above);
        above.children.push(node);
        children.set(fn, node);
      }
      return children.get(fn);
    };
    const count = (node, i, counts) => {
      node.base += counts[0][i] ?? 0;
      node.value += counts[1][i];
    };
    nodes[0] = newNode(functions[functionOf[0]], null);
    count(nodes[0], 0, [base, total]);
    for (let i = 1; isPlain && i < parent.length; i++) {
      const above = nodes[parent[i]];
      const node = newNode(functions[functionOf[i]], above);
      count(node, i, [base, total]);
      node.lines = lines[i].slice();
      node.how = how[i]?.slice() ?? [];
      above.children.push(node);
      nodes[i] = node;
    }
    for (let i = 1; !isPlain && i < parent.length; i++) {
      const above = nodes[parent[i]];
      const whole = functions[functionOf[i]];
      const fn = isMerged?.(whole) ? null : jvmprof.shownFrame(whole, above.fn, frames, isExpanded);
      if (fn === null) {
        nodes[i] = above;
        if (own && (own[1][i] || own[0][i]) && jvmprof.isAboveCode(above.fn)) count(childWith(above, jvmprof.NO_JAVA_CALLER), i, own);
        continue;
      }
      if (above.fn === fn && (fold || fn.isCollapsed)) nodes[i] = above;
      else {
        nodes[i] = childWith(above, fn);
        count(nodes[i], i, [base, total]);
      }
      if (fn.isCollapsed) continue;
      addLines(nodes[i].lines, lines[i]);
      addLines(nodes[i].how, how[i] ?? []);
    }
    const all = isPlain ? nodes : new Set(nodes);
    for (const children of childOf.values()) for (const node of children.values()) all.add(node);
    if (comparison) for (const node of all) compare(node, comparison);
    for (const node of all) {
      // What was spliced in is of the same time, but may have been counted a moment later.
      if (node.children.some((child) => child.value <= 0)) node.children = node.children.filter((child) => child.value > 0);
      node.self = Math.max(0, node.value - node.children.reduce((sum, child) => sum + child.value, 0));
      if (node.children.length < 2) continue;
      // Heaviest first, so that what matters is on the left; what was cut comes last.
      node.children.sort((a, b) => (a.fn.kind === "pruned") - (b.fn.kind === "pruned") || b.value - a.value);
    }
    return { root: nodes[0], nodes };
  };

  function compare(node, comparison) {
    const rest = (name) => Math.max(0, node[name] - node.children.reduce((sum, child) => sum + (child.sides?.[name === "base" ? 0 : 1] ?? child[name]), 0));
    node.ownSides = [rest("base"), rest("value")];
    node.sides = [node.base, node.value];
    node.value = comparison.drawn(node.sides);
  }

  /// Samples that end in each node.
  jvmprof.ownSamples = function (parent, total) {
    const own = Array.from(total);
    for (let i = 1; i < total.length; i++) own[parent[i]] -= total[i];
    return own;
  };

  /// Adds counts by number, `[number, samples, ...]`.
  jvmprof.addCounts = addLines;

  function addLines(lines, more) {
    for (let i = 0; i < more.length; i += 2) {
      const at = lines.findIndex((line, index) => index % 2 === 0 && line === more[i]);
      if (at < 0) lines.push(more[i], more[i + 1]);
      else lines[at + 1] += more[i + 1];
    }
  }

  /// Whether something below a node was pruned.
  jvmprof.hasPruned = function (node) {
    const todo = [node];
    while (todo.length) {
      const at = todo.pop();
      if (at.fn.kind === "pruned") return true;
      todo.push(...at.children);
    }
    return false;
  };

  /// Samples that end in what was pruned.
  jvmprof.prunedSamples = function ({ functions, nodes }) {
    const kind = jvmprof.KINDS.indexOf("pruned");
    return nodes.function.reduce((sum, fn, i) => sum + (functions.kind[fn] === kind ? nodes.total[i] : 0), 0);
  };

  /// The source places of a node: `[{place, samples}]`, heaviest first.
  jvmprof.places = function (node) {
    const places = [];
    for (let i = 0; i < node.lines.length; i += 2) {
      places.push({ place: `${node.fn.file}:${node.lines[i]}`, samples: node.lines[i + 1] });
    }
    return places.sort((a, b) => b.samples - a.samples).slice(0, 3);
  };

  /// How a node's method ran: `[{name, samples}]`, most samples first; empty where it isn't known.
  jvmprof.hows = function (node) {
    const hows = [];
    for (let i = 0; i < node.how.length; i += 2) {
      hows.push({ name: jvmprof.HOW_NAMES[node.how[i]] ?? "unknown", samples: node.how[i + 1] });
    }
    return hows.sort((a, b) => b.samples - a.samples);
  };

  /// What a search text asks for: `{matches(fn)}`, `{error}` where it is no regular expression, or
  /// null for no search. text        part of the name, any case "text"      the whole name /text/
  /// a regular expression module:text, file:text, kind:text, package:text
  jvmprof.parseSearch = function (text) {
    text = text.trim();
    if (!text) return null;
    if (text.length > 2 && text.startsWith('"') && text.endsWith('"')) {
      const name = text.slice(1, -1);
      return { matches: (fn) => fn.name === name };
    }
    if (text.length > 2 && text.startsWith("/") && text.endsWith("/")) {
      try {
        const expression = new RegExp(text.slice(1, -1), "i");
        return { matches: (fn) => expression.test(fn.name) };
      } catch (error) {
        return { error: error.message };
      }
    }
    const [, field, part] = /^(?:(module|file|kind|package):)?(.*)$/s.exec(text);
    const wanted = part.toLowerCase();
    if (field === "package") return { matches: (fn) => fn.kind === "java" && `${fn.name.toLowerCase()}.`.startsWith(`${wanted}.`) };
    const kinds = (fn) => (fn.kind === "java" ? `java ${fn.isJdk ? "jdk" : "application"}` : fn.kind);
    const of = field === "kind" ? kinds : (fn) => fn[field ?? "name"].toLowerCase();
    return { matches: (fn) => of(fn).includes(wanted) };
  };

  /// Samples whose stacks have a match; a match below a match counts once. Without recursion, for
  /// deep trees.
  jvmprof.matchedSamples = function (root, search) {
    let samples = 0;
    const todo = [root];
    while (todo.length) {
      const node = todo.pop();
      if (node.fn.kind !== "root" && search.matches(node.fn)) samples += node.value;
      else for (const child of node.children) todo.push(child);
    }
    return samples;
  };

  /// A name in two parts, of which the first may be cut: the package, and the class and method.
  jvmprof.nameParts = function ({ name, kind }) {
    const at = kind === "java" ? name.split("(")[0].lastIndexOf(".") : -1;
    const start = at > 0 ? name.lastIndexOf(".", at - 1) + 1 : 0;
    return [name.slice(0, start), name.slice(start)];
  };

  /// A name that fits: `OrderService.total` or `total` where `com.acme.shop.OrderService.total` has
  /// no room.
  jvmprof.shortName = function (fn, characters) {
    if (fn.name.length <= characters || (fn.kind !== "java" && fn.kind !== "jit")) return fn.name;
    const parts = fn.name.split("(")[0].split(".");
    if (parts.length < 3) return fn.name;
    const method = parts.pop();
    const type = `${parts.pop()}.${method}`;
    return type.length <= characters + 2 || method.length < 3 ? type : method;
  };
})(globalThis.jvmprof);
