// What only the collector knows of the stacks of a profile whose tree is cut: what edits leave of
// them, and all that have a function. What the tree has of it is shown until the answer is here.
"use strict";

(function (jvmprof) {
  /// Answers that are kept, so that the way back and forth asks for nothing.
  const MOST_KEPT = 4;

  const keyOf = ({ part = null, edits = [], through = "" }) => JSON.stringify([part, edits, through]);

  /// Samples of a drawn tree that end in what was pruned and may have had this function below it.
  jvmprof.prunedOutside = function (root, name) {
    let samples = 0;
    const todo = [root];
    while (todo.length) {
      const node = todo.pop();
      if (node.fn.kind !== "root" && node.name === name) continue;
      if (node.fn.kind === "pruned") samples += node.value;
      todo.push(...node.children);
    }
    return samples;
  };

  jvmprof.editsOf = (view) => view.state.edits.map(jvmprof.parseEdit).filter(Boolean);

  /// Waits of all kinds of threads as the whole data of a ProfileView has them: what the collector
  /// says of stacks without its filter has idle ones, too.
  jvmprof.waitsOfAllKinds = function (view) {
    const [functions, edits] = [jvmprof.functions(view.whole), jvmprof.editsOf(view)];
    return jvmprof.editedData(jvmprof.withoutIdle(view.whole, functions, edits).data, functions, edits);
  };

  /// Returns the stacks that a ProfileView shows: `{part, edits, basePart}`, those of a part of
  /// the time and what edits leave of them, beside those of another part if there are two.
  jvmprof.chosenStacks = function (view) {
    const edits = jvmprof.filters(jvmprof.editsOf(view), view.has());
    const { part, basePart } = view.times ? view.state : { part: null, basePart: null };
    return { part, edits: edits.map(({ text }) => text), basePart };
  };

  /// The stacks that a ProfileView shows though its data has only a part of them, `[[answers,
  /// stacks], ...]`.
  jvmprof.answeredStacks = function (view) {
    if (!view.data || !view.canFetch()) return [];
    const stacks = jvmprof.chosenStacks(view);
    const all = [[view.edited, stacks], [view.through, { ...stacks, through: view.state.sandwich }]];
    return all.filter(([answers, of]) => answers.treeOf(of));
  };

  /// The tree of all stacks with this function, once that is here, or else the one that a
  /// ProfileView draws.
  jvmprof.treeThrough = function (view, name) {
    const stacks = { ...jvmprof.chosenStacks(view), through: name };
    const answer = name && view.canFetch() ? view.through.treeOf(stacks) : null;
    const isCut = () => view.canFetch() && name !== jvmprof.NO_JAVA_CALLER.name && jvmprof.prunedOutside(view.tree, name) > 0;
    view.through.want(name && !answer && isCut() ? stacks : null);
    if (!answer) return view.tree;
    const functions = jvmprof.functions(answer);
    return jvmprof.buildTree(jvmprof.withoutIdle(answer, functions, jvmprof.editsOf(view)).data, functions, view.options).root;
  };

  /// Whether what edits leave of a tree may lack stacks, or the lines of functions: `edited` is the
  /// data with only that.
  jvmprof.lacksStacks = (data, edited) =>
    jvmprof.prunedSamples(data) > 0 || edited.total !== data.total || edited.base !== data.base;

  let fetching = 0;

  /// Promises what the promise does; until then the page shows that something is fetched.
  jvmprof.whileFetching = async function (promise) {
    const show = (change) => document.body.classList.toggle("fetching", (fetching += change) > 0);
    show(1);
    try {
      return await promise;
    } finally {
      show(-1);
    }
  };

  /// Nodes whose subtrees are asked for at once: as many as the collector takes.
  const MOST_TARGETS = 60;

  jvmprof.NOT_THERE = "The frame that this address zooms to has no samples here.";

  /// Fetches what is below these nodes of a ProfileView, if something of it was pruned or they
  /// aren't known.
  jvmprof.fetchPruned = async function (view, hashes, node) {
    const targets = hashes.filter((hash) => !view.asked.has(hash)).slice(0, MOST_TARGETS);
    if (!view.canFetch() || !targets.length || (node && !jvmprof.hasPruned(node))) return;
    targets.forEach((hash) => view.asked.add(hash));
    const { whole, part, applied } = view;
    const isShown = () => view.whole === whole && view.part === part && view.applied === applied;
    const groups = jvmprof.groupsOf(view.data, view.hashes, targets);
    try {
      const tree = await jvmprof.whileFetching(view.fetchStacks({ part, edits: applied, under: targets, groups }));
      if (!isShown() || !tree) return;
      if (tree.total + (tree.base ?? 0) > 0) view.showData(jvmprof.withSubtrees(view.data, tree, targets));
      else view.showNotices(jvmprof.NOT_THERE);
    } catch (error) {
      if (isShown()) view.showNotices(`What is below the frame couldn't be fetched: ${error.message}`);
    }
  };

  class Answers {
    /// `fetchStacks(stacks, signal)` promises the tree of some of the stacks (see requests.js), or
    /// is null where nobody has it; `onAnswer()` is called when that of those that are wanted is
    /// here, or the reason why it isn't.
    constructor(fetchStacks, onAnswer) {
      Object.assign(this, { fetchStacks, onAnswer });
      this.clear();
    }

    /// Forgets everything: another profile is shown.
    clear() {
      this.pending?.controller.abort();
      this.known = new Map();
      this.pending = this.wanted = this.failed = null;
    }

    /// The tree of these stacks; null if it isn't here.
    treeOf(stacks) {
      const key = keyOf(stacks);
      const tree = this.known.get(key);
      if (tree) this.keep(stacks, tree);
      return tree ?? null;
    }

    keep(stacks, tree) {
      const key = keyOf(stacks);
      this.known.delete(key);
      this.known.set(key, tree);
      if (this.known.size > MOST_KEPT) this.known.delete(this.known.keys().next().value);
    }

    /// Why the tree of the wanted stacks couldn't be had; null if nothing went wrong.
    get error() {
      return this.failed?.error ?? null;
    }

    /// Asks for the tree of these stacks, once; with null nothing is wanted any more. What was
    /// asked for before goes on until something else is.
    want(stacks) {
      this.wanted = stacks && keyOf(stacks);
      if (this.failed?.key !== this.wanted) this.failed = null;
      if (stacks && this.fetchStacks && !this.failed && this.pending?.key !== this.wanted) this.ask(stacks);
    }

    /// `asked`: a promise of the tree, if it was asked for elsewhere.
    async ask(stacks, asked = null) {
      this.pending?.controller.abort();
      const pending = (this.pending = { key: keyOf(stacks), controller: new AbortController() });
      let [tree, failed] = [null, null];
      try {
        tree = await jvmprof.whileFetching(asked ?? this.fetchStacks(stacks, pending.controller.signal));
      } catch (error) {
        // What was given up is asked for again when it is wanted.
        if (error.name !== "AbortError") failed = { key: pending.key, error: error.message };
      }
      if (this.pending !== pending) return;
      this.pending = null;
      if (tree) this.keep(stacks, tree);
      if (this.wanted !== pending.key || (!tree && !failed)) return;
      this.failed = failed;
      this.onAnswer();
    }
  }

  /// What the page says where only a part of an answer is shown; null if all of it is.
  jvmprof.unansweredNotice = (what, { error }) =>
    error && `${what} couldn't be fetched; shown is what the drawn frames have of it: ${error}`;

  jvmprof.Answers = Answers;
})(globalThis.jvmprof);
