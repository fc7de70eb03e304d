// What was taken out of the profile, each with a button that takes it back.
"use strict";

(function (jvmprof) {
  const { element, format, icon } = jvmprof;

  /// What a chip says of idle waits, `{title, isHidden}`: how much they are, and their share; null
  /// without any. `idle`: see `jvmprof.withoutIdle`; `total`: of the data with them.
  jvmprof.idleChip = function (idle, total, measure, comparison) {
    if (!idle) return null;
    const [, main] = idle.counts;
    const what = comparison ? comparison.beforeAfter(idle.counts) : measure.number(main);
    const share = comparison ? "" : ` (${format.share(main, total)})`;
    return { title: `${idle.isHidden ? "Without" : "With"} ${what} idle${share}`, isHidden: idle.isHidden };
  };

  class EditChips {
    /// `onChange(edits)` hears the texts of what stays, `onWhole()` that a part of the time is no
    /// longer wanted.
    constructor(onChange, onWhole) {
      this.onChange = onChange;
      this.onWhole = onWhole;
      this.node = element("div.edits", { role: "group", "aria-label": "What is shown of the profile", hidden: true });
    }

    /// Shows `part`, the text of a part of the time, and those edits that do something to the view
    /// of these `frames`, of data that `has` what `jvmprof.hasEffect` asks for; the others stay as
    /// they are. `idle`: see `jvmprof.idleChip`.
    show(edits, part, frames, has, idle = null) {
      this.texts = edits.map(({ text }) => text);
      this.shown = edits.filter((edit) => jvmprof.hasEffect(edit, frames, { ...has, hasIdle: idle !== null }));
      this.node.hidden = this.shown.length === 0 && !part && !idle;
      const hadIdle = document.activeElement?.dataset?.of === "idle";
      const chip = (title, of, does, onclick) => {
        const button = { type: "button", "aria-label": `${does}: ${title}`, title: does, "data-of": of, onclick };
        return element("div.chip", {}, element("span.chip-text", { title }, title), element("button.chip-remove", button, icon("close")));
      };
      const shown = ({ kind, title, text }) => chip(kind === "idle" ? idle.title : title, kind, "Take back", () => this.takeBack(text));
      const undo = element("button.chip.add", { type: "button", title: "Undo the last one (u)", onclick: () => this.undo() }, "Undo");
      this.node.replaceChildren(
        ...(idle?.isHidden ? [chip(idle.title, "idle", "Show idle waits", () => this.onChange([...this.texts, jvmprof.IDLE_SHOWN]))] : []),
        ...(part ? [chip(part, "part", "Take back", () => this.onWhole())] : []),
        ...this.shown.map(shown),
        ...(this.shown.length ? [undo] : []),
      );
      // It goes on where it was, since a press may take back what the one before it did.
      if (hadIdle) this.node.querySelector('[data-of="idle"]')?.focus();
    }

    /// Takes back the last one that is shown.
    undo() {
      if (this.shown?.length) this.takeBack(this.shown[this.shown.length - 1].text);
    }

    takeBack(text) {
      this.onChange(this.texts.filter((it) => it !== text));
    }
  }

  jvmprof.EditChips = EditChips;
})(globalThis.jvmprof);
