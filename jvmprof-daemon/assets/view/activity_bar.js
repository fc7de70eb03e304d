// Where a JVM's CPU time goes: a bar of shares, and below it a button for each, which shows that
// part alone. Two profiles beside each other have two bars. Below them, and of waits by themselves,
// a button for each kind of thread.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const sum = (counts) => counts.reduce((all, count) => all + count, 0);

  /// The keys of what is chosen after a click on one: this one alone, or with Shift this one, too.
  function chosenKeys(all, chosen, index, event) {
    const adds = event.shiftKey || event.ctrlKey || event.metaKey;
    const before = chosen ?? new Set();
    const after = new Set(adds ? [...before, index] : [index]);
    if (before.has(index)) after.delete(index);
    return [...after].sort((a, b) => a - b).map((it) => all[it].key);
  }

  class ActivityBar {
    /// `onChoose(kind, keys)` gets what is to be shown alone: of the edits of a kind, `activity` or
    /// `thread`, those with these keys; none for all.
    constructor(onChoose) {
      this.onChoose = onChoose;
      this.title = element("span.activity-title");
      this.bars = element("div.activity-bars", { "aria-hidden": "true" });
      this.buttons = element("div.activity-buttons", { role: "group" });
      this.threads = element("div.activity-buttons", { role: "group", "aria-label": "Kinds of threads: show one alone" });
      this.node = element("div.activity", { hidden: true }, this.title, this.bars, this.buttons, this.threads);
      jvmprof.theme.listeners.push(() => this.draw());
    }

    /// `samples`: those of `jvmprof.activitySamples`, or null; `threadSamples`: those of
    /// `jvmprof.threadKindSamples`, or null. `all`: what both are shares of, other processes
    /// included: those of `jvmprof.activitySamples` of whatever is counted. `chosen` and
    /// `threadKinds`: sets of them, or null. `comparison`: of the two sides, if there are two;
    /// `ofThreads`: stacks are grouped by threads or their kinds.
    show(samples, threadSamples, { all, chosen, threadKinds, isOne, ofThreads, measure, comparison }) {
      Object.assign(this, { samples, threadSamples, all, chosen, threadKinds, measure, comparison });
      // What isn't known stands last.
      this.kinds = threadSamples ? this.seen(threadSamples, jvmprof.THREAD_KINDS).sort((a, b) => (a === 0) - (b === 0) || a - b) : [];
      this.threads.hidden = this.kinds.filter((index) => index > 0).length < 2 && !(threadSamples && threadKinds);
      this.node.hidden = !samples && this.threads.hidden;
      for (const part of [this.title, this.bars, this.buttons]) part.hidden = !samples;
      if (samples) this.nameTime(samples, isOne, ofThreads);
      this.draw();
    }

    nameTime(samples, isOne, ofThreads) {
      const isHost = samples.main[jvmprof.ACTIVITIES.length - 1] > 0 || !isOne;
      const whose = ofThreads ? "the threads'" : isHost ? "the JVMs'" : "this JVM's";
      this.title.textContent = `Where ${whose} time goes`;
      this.buttons.setAttribute("aria-label", `${this.title.textContent}: show a part alone`);
    }

    draw() {
      if (this.node.hidden) return;
      const had = document.activeElement?.dataset?.edit;
      const { main, base } = this.samples ?? {};
      const sides = this.comparison && base ? [["before", base], ["after", main]] : main ? [["", main]] : [];
      this.bars.replaceChildren(...sides.map(([name, counts]) => this.bar(name, counts)));
      const activities = this.samples ? this.seen(this.samples, jvmprof.ACTIVITIES) : [];
      this.buttons.replaceChildren(...activities.map((index) => this.button(index)));
      this.threads.replaceChildren(element("span.activity-name", {}, "Threads"), ...this.kinds.map((index) => this.threadButton(index)));
      if (had) this.node.querySelector(`[data-edit="${had}"]`)?.focus();
    }

    /// The indices of those that have samples or are chosen.
    seen({ main, base }, all) {
      const chosen = all === jvmprof.THREAD_KINDS ? this.threadKinds : this.chosen;
      return all.map((_, index) => index).filter((index) => main[index] > 0 || base?.[index] > 0 || chosen?.has(index));
    }

    isAside(index) {
      return this.chosen !== null && !this.chosen.has(index);
    }

    bar(name, counts) {
      const bar = element("div.activity-bar", {});
      counts.forEach((count, index) => {
        if (!count) return;
        const part = element("span.activity-part", { title: this.describe(index), onclick: (event) => this.choose(index, event) });
        Object.assign(part.style, { flexGrow: String(count), background: jvmprof.activityColour(index) });
        part.classList.toggle("aside", this.isAside(index));
        bar.append(part);
      });
      return name ? element("div.activity-side", {}, element("span.activity-side-name", {}, name), bar) : bar;
    }

    share({ main, base }, index) {
      const share = (counts, all) => format.share(counts[index], sum(all));
      const now = share(main, this.all.main);
      return this.comparison && base ? `${share(base, this.all.base)} → ${now}` : now;
    }

    describe(index) {
      const { name, says } = jvmprof.ACTIVITIES[index];
      const { number, name: unit } = this.measure;
      const count = this.samples.main[index];
      return `${name}: ${this.share(this.samples, index)}, ${number(count)} ${unit(count)}. ${says}.`;
    }

    button(index) {
      const { key, name, says } = jvmprof.ACTIVITIES[index];
      const swatch = element("span.swatch");
      swatch.style.background = jvmprof.activityColour(index);
      const onclick = (event) => this.choose(index, event);
      const button = this.choice("activity", { key, says, isChosen: this.chosen?.has(index), onclick }, swatch, element("span", {}, name), element("b", {}, this.share(this.samples, index)));
      button.classList.add("activity-button");
      button.classList.toggle("aside", this.isAside(index));
      return button;
    }

    threadButton(index) {
      const { key, says } = jvmprof.THREAD_KINDS[index];
      const isChosen = this.threadKinds?.has(index);
      const onclick = (event) => this.onChoose("thread", chosenKeys(jvmprof.THREAD_KINDS, this.threadKinds, index, event));
      const button = this.choice("thread", { key, says, isChosen, onclick }, element("span", {}, key), element("b", {}, this.share(this.threadSamples, index)));
      button.classList.add("thread-button");
      return button;
    }

    choice(kind, { key, says, isChosen, onclick }, ...children) {
      const title = `${says}. Click: only this; with Shift: this, too.`;
      const state = { "data-edit": `${kind}:${key}`, "aria-pressed": String(isChosen ?? false) };
      return element("button", { type: "button", title, ...state, onclick }, ...children);
    }

    choose(index, event) {
      this.onChoose("activity", chosenKeys(jvmprof.ACTIVITIES, this.chosen, index, event));
    }

    focus() {
      this.node.querySelector("button")?.focus();
    }
  }

  jvmprof.ActivityBar = ActivityBar;
})(globalThis.jvmprof);
