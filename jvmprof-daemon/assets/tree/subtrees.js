// Subtrees that a tree of bounded size lost, and the short names of nodes by which they are asked
// for: hashes of the functions from the root to them, as profile/call_tree/path_hash.rs makes them.
// By them a zoomed frame is found again in newer data, too, and among callers and callees.
"use strict";

(function (jvmprof) {
  const ROOT = [0x811c9dc5, 0x01234567];
  const PRIME = 0x01000193;
  const SPREAD = 0x9e3779b1;

  const child = (parent, fn) => Math.imul(((parent << 5) | (parent >>> 27)) ^ fn, SPREAD) >>> 0;
  const hex = (lane) => lane.toString(16).padStart(8, "0");

  function functionHash(kind, ...texts) {
    let [a, b] = ROOT;
    const take = (unit) => {
      a = Math.imul(a ^ unit, PRIME);
      b = Math.imul(b ^ unit, PRIME);
    };
    take(kind);
    const text = texts.join("\0");
    for (let i = 0; i < text.length; i++) take(text.charCodeAt(i));
    return [a >>> 0, b >>> 0];
  }

  /// The hashes of all nodes of a tree as the page gets it.
  class PathHashes {
    constructor(data) {
      const { kind, name, file, module } = data.functions;
      const text = (index) => data.strings[index];
      const functions = kind.map((of, i) => functionHash(of, text(name[i]), text(file[i]), text(module[i])));
      const { parent, function: functionOf } = data.nodes;
      this.a = new Uint32Array(parent.length);
      this.b = new Uint32Array(parent.length);
      [this.a[0], this.b[0]] = ROOT;
      for (let i = 1; i < parent.length; i++) {
        const [a, b] = functions[functionOf[i]];
        this.a[i] = child(this.a[parent[i]], a);
        this.b[i] = child(this.b[parent[i]], b);
      }
    }

    hex(index) {
      return hex(this.a[index]) + hex(this.b[index]);
    }

    /// The index of the node with this hash; -1 if there is none.
    indexOf(hash) {
      const [a, b] = [parseInt(hash.slice(0, 8), 16), parseInt(hash.slice(8), 16)];
      for (let i = 1; i < this.a.length; i++) if (this.a[i] === a && this.b[i] === b) return i;
      return -1;
    }
  }

  const hashOf = ({ kind, name, file, module }) => functionHash(jvmprof.KINDS.indexOf(kind), name, file, module);

  /// The hash of a node of a drawn tree: of the functions below the root to it.
  jvmprof.drawnHash = function (node) {
    const path = [];
    for (let at = node; at.parent; at = at.parent) path.push(hashOf(at.fn));
    const [a, b] = path.reduceRight((above, fn) => above.map((lane, i) => child(lane, fn[i])), ROOT);
    return hex(a) + hex(b);
  };

  /// The node of a drawn tree with this hash; null if there is none.
  jvmprof.drawnNode = function (root, hash) {
    const known = new Map();
    const todo = [[root, ROOT]];
    while (todo.length) {
      const [node, lanes] = todo.pop();
      if (node !== root && hash === hex(lanes[0]) + hex(lanes[1])) return node;
      for (const below of node.children) {
        if (!known.has(below.fn)) known.set(below.fn, hashOf(below.fn));
        todo.push([below, lanes.map((lane, i) => child(lane, known.get(below.fn)[i]))]);
      }
    }
    return null;
  };

  /// Appends the functions of `data` that aren't there yet; returns the new index of each one of
  /// `more`.
  function addFunctions(data, more) {
    const key = (of, i) => {
      const { kind, name, file, module } = of.functions;
      return [kind[i], of.strings[name[i]], of.strings[file[i]], of.strings[module[i]]].join("\0");
    };
    const known = new Map(data.functions.kind.map((_, i) => [key(data, i), i]));
    const strings = new Map(data.strings.map((text, i) => [text, i]));
    const string = (text) => {
      if (!strings.has(text)) strings.set(text, data.strings.push(text) - 1);
      return strings.get(text);
    };
    return more.functions.kind.map((kind, i) => {
      const at = key(more, i);
      if (!known.has(at)) {
        known.set(at, data.functions.kind.push(kind) - 1);
        for (const column of ["name", "file", "module"]) {
          data.functions[column].push(string(more.strings[more.functions[column][i]]));
        }
      }
      return known.get(at);
    });
  }

  const COLUMNS = ["parent", "function", "total", "base", "lines", "how", "activity", "base_activity"];

  /// Nodes in which no sample of a JVM ends have no activities of their own: where the tree that
  /// they belong into has some, they are other processes'.
  function withOtherProcesses(nodes, tree) {
    const other = jvmprof.ACTIVITIES?.findIndex(({ key }) => key === "other");
    const column = (name) => (tree[name] && !nodes[name] ? { [name]: nodes.parent.map(() => [other]) } : {});
    return { ...nodes, ...column("activity"), ...column("base_activity") };
  }

  /// The names of the groups that the nodes with these hashes are in; none if that isn't known of
  /// each.
  jvmprof.groupsOf = function ({ strings, functions, nodes }, pathHashes, hashes) {
    const groups = hashes.map((hash) => {
      let at = pathHashes.indexOf(hash);
      while (at > 0 && nodes.parent[at] !== 0) at = nodes.parent[at];
      const of = nodes.function[at];
      return at > 0 && jvmprof.KINDS[functions.kind[of]] === "label" ? strings[functions.name[of]] : null;
    });
    return groups.includes(null) ? [] : [...new Set(groups)];
  };

  /// Gives a node of the new data the samples that it lacked, as far as its caller's `[pruned]` has
  /// them, and else its callers, too: those were counted where the node was too light to be kept.
  function addLacking(nodes, node, lacking, prunedBelow) {
    let [base, total] = lacking;
    for (let at = node; at > 0 && (base > 0 || total > 0); at = nodes.parent[at]) {
      nodes.total[at] += total;
      nodes.base[at] += base;
      const pruned = prunedBelow.get(nodes.parent[at]);
      if (pruned === undefined) continue;
      const taken = [Math.min(base, nodes.base[pruned]), Math.min(total, nodes.total[pruned])];
      nodes.base[pruned] -= taken[0];
      nodes.total[pruned] -= taken[1];
      [base, total] = [base - taken[0], total - taken[1]];
    }
  }

  /// The tree with all below the nodes `targets` (hashes) replaced by what `more` has there: the
  /// tree of the stacks through them. Callers of a target that the tree had pruned come back with
  /// it.
  jvmprof.withSubtrees = function (tree, more, targets) {
    const old = tree.nodes;
    const data = {
      ...tree,
      strings: tree.strings.slice(),
      functions: Object.fromEntries(Object.entries(tree.functions).map(([name, column]) => [name, column.slice()])),
      nodes: Object.fromEntries(COLUMNS.map((name) => [name, []])),
    };
    const functionOf = addFunctions(data, more);
    const hashes = new PathHashes(tree);
    const moreHashes = new PathHashes(more);
    const wanted = new Set(targets);
    const PRUNED = jvmprof.KINDS.indexOf("pruned");
    const isPruned = (index) => tree.functions.kind[old.function[index]] === PRUNED;
    const place = new Int32Array(old.parent.length).fill(-1);
    const placeOf = new Map();
    const prunedBelow = new Map();
    const append = (values) => {
      COLUMNS.forEach((name, at) => data.nodes[name].push(values[at]));
      return data.nodes.parent.length - 1;
    };
    const activities = (nodes, i) => [nodes.activity?.[i] ?? [], nodes.base_activity?.[i] ?? []];
    const isBelow = new Uint8Array(old.parent.length);
    for (let i = 0; i < old.parent.length; i++) {
      const parent = old.parent[i];
      const hash = hashes.hex(i);
      // Of a target stays the node itself.
      isBelow[i] = i > 0 && (isBelow[parent] || wanted.has(hashes.hex(parent))) ? 1 : 0;
      if (isBelow[i]) continue;
      const counts = [old.total[i], old.base?.[i] ?? 0];
      place[i] = append([i === 0 ? 0 : place[parent], old.function[i], ...counts, old.lines[i], old.how?.[i] ?? [], ...activities(old, i)]);
      if (isPruned(i)) prunedBelow.set(place[parent], place[i]);
      else placeOf.set(hash, place[i]);
    }
    const parts = withOtherProcesses(more.nodes, old);
    const below = {
      main: jvmprof.activitiesBelow(parts.parent, parts.total, parts.activity),
      base: jvmprof.activitiesBelow(parts.parent, parts.base, parts.base_activity),
    };
    const moved = [0];
    for (let i = 1; i < parts.parent.length; i++) {
      const above = moved[parts.parent[i]];
      const known = placeOf.get(moreHashes.hex(i));
      if (known !== undefined) {
        moved.push(known);
        if (wanted.has(moreHashes.hex(i))) {
          const lacking = [(parts.base?.[i] ?? 0) - data.nodes.base[known], parts.total[i] - data.nodes.total[known]];
          addLacking(data.nodes, known, lacking.map((samples) => Math.max(0, samples)), prunedBelow);
        }
        continue;
      }
      // It was among what is pruned below a node that stays.
      const pruned = prunedBelow.get(above);
      const counts = [parts.total[i], parts.base?.[i] ?? 0];
      if (pruned !== undefined) {
        data.nodes.total[pruned] = Math.max(0, data.nodes.total[pruned] - counts[0]);
        data.nodes.base[pruned] = Math.max(0, data.nodes.base[pruned] - counts[1]);
        data.nodes.activity[pruned] = jvmprof.withoutPart(data.nodes.activity[pruned], below.main[i]);
        data.nodes.base_activity[pruned] = jvmprof.withoutPart(data.nodes.base_activity[pruned], below.base[i]);
      }
      moved.push(append([above, functionOf[parts.function[i]], ...counts, parts.lines[i], parts.how?.[i] ?? [], ...activities(parts, i)]));
    }
    for (const name of ["base", "activity", "base_activity"]) if (!old[name]) delete data.nodes[name];
    return data;
  };

  jvmprof.PathHashes = PathHashes;
})(globalThis.jvmprof);
