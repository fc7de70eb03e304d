// Where a JVM's CPU time goes: a bar of shares, and below it a button for each, which shows that
// part alone. Two profiles beside each other have two bars.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  class ActivityBar {
    /// `onChoose(keys)` gets what is to be shown alone; none for all.
    constructor(onChoose) {
      this.onChoose = onChoose;
      this.title = element("span.activity-title");
      this.bars = element("div.activity-bars", { "aria-hidden": "true" });
      this.buttons = element("div.activity-buttons", { role: "group" });
      this.node = element("div.activity", { hidden: true }, this.title, this.bars, this.buttons);
      jvmprof.theme.listeners.push(() => this.draw());
    }

    /// `samples`: those of `jvmprof.activitySamples`, or null. `chosen`: a set of activities, or
    /// null. `comparison`: of the two sides, if there are two.
    show(samples, { chosen, isOne, measure, comparison }) {
      Object.assign(this, { samples, chosen, measure, comparison });
      this.node.hidden = !samples;
      if (!samples) return;
      const isHost = samples.main[jvmprof.ACTIVITIES.length - 1] > 0 || !isOne;
      this.title.textContent = isHost ? "Where the JVMs' time goes" : "Where this JVM's time goes";
      this.buttons.setAttribute("aria-label", `${this.title.textContent}: show a part alone`);
      this.draw();
    }

    draw() {
      if (!this.samples) return;
      const { main, base } = this.samples;
      const sides = this.comparison && base ? [["before", base], ["after", main]] : [["", main]];
      this.bars.replaceChildren(...sides.map(([name, counts]) => this.bar(name, counts)));
      const seen = jvmprof.ACTIVITIES.map((_, index) => index).filter((index) => main[index] > 0 || base?.[index] > 0);
      const had = this.buttons.contains(document.activeElement) ? document.activeElement.dataset.activity : null;
      this.buttons.replaceChildren(...seen.map((index) => this.button(index)));
      if (had) this.buttons.querySelector(`[data-activity="${had}"]`)?.focus();
    }

    sum(counts) {
      return counts.reduce((sum, count) => sum + count, 0);
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

    share(index) {
      const { main, base } = this.samples;
      const share = (counts) => format.share(counts[index], this.sum(counts));
      return this.comparison && base ? `${share(base)} → ${share(main)}` : share(main);
    }

    describe(index) {
      const { name, says } = jvmprof.ACTIVITIES[index];
      const { number, name: unit } = this.measure;
      const count = this.samples.main[index];
      return `${name}: ${this.share(index)}, ${number(count)} ${unit(count)}. ${says}.`;
    }

    button(index) {
      const { key, name, says } = jvmprof.ACTIVITIES[index];
      const swatch = element("span.swatch");
      swatch.style.background = jvmprof.activityColour(index);
      const button = element(
        "button.activity-button",
        {
          type: "button",
          "data-activity": key,
          title: `${says}. Click: only this; with Shift: this, too.`,
          "aria-pressed": String(this.chosen?.has(index) ?? false),
          onclick: (event) => this.choose(index, event),
        },
        swatch,
        element("span", {}, name),
        element("b", {}, this.share(index)),
      );
      button.classList.toggle("aside", this.isAside(index));
      return button;
    }

    choose(index, event) {
      const adds = event.shiftKey || event.ctrlKey || event.metaKey;
      const before = this.chosen ?? new Set();
      const isChosen = before.has(index);
      const after = adds ? new Set([...before, index]) : new Set([index]);
      if (isChosen) after.delete(index);
      if (isChosen && adds) for (const it of before) if (it !== index) after.add(it);
      this.onChoose([...after].sort((a, b) => a - b).map((it) => jvmprof.ACTIVITIES[it].key));
    }

    focus() {
      this.buttons.querySelector("button")?.focus();
    }
  }

  jvmprof.ActivityBar = ActivityBar;
})(globalThis.jvmprof);
