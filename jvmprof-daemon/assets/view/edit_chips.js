// What was taken out of the profile, each with a button that takes it back; and which part of the
// time is shown, which another one can be compared with.
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
    /// `onChange(edits)` gets the texts of what stays, `onParts({part, basePart})` the parts of the
    /// time that are shown from now on, or one of them.
    constructor(onChange, onParts) {
      this.onChange = onChange;
      this.onParts = onParts;
      this.node = element("div.edits", { role: "group", "aria-label": "What is shown of the profile", hidden: true });
    }

    /// Shows the parts of the time, `clock`: see view.js, and those edits that do something to the
    /// view of these `frames`, of data that `has` what `jvmprof.hasEffect` asks for; the others
    /// stay as they are. `idle`: see `jvmprof.idleChip`.
    show(edits, { part, basePart, clock }, frames, has, idle = null) {
      this.texts = edits.map(({ text }) => text);
      this.shown = edits.filter((edit) => jvmprof.hasEffect(edit, frames, { ...has, hasIdle: idle !== null }));
      this.node.hidden = this.shown.length === 0 && !part && !idle;
      const hadIdle = document.activeElement?.dataset?.of === "idle";
      const shown = ({ kind, title, text }) => this.chip(kind === "idle" ? idle.title : title, () => this.takeBack(text), kind);
      const undo = element("button.chip.add", { type: "button", title: "Undo the last one (u)", onclick: () => this.undo() }, "Undo");
      this.node.replaceChildren(
        ...(idle?.isHidden ? [this.chip(idle.title, () => this.onChange([...this.texts, jvmprof.IDLE_SHOWN]), "idle", "Show idle waits")] : []),
        ...(part ? this.partChips(part, basePart, (of) => jvmprof.partText(of, clock)) : []),
        ...this.shown.map(shown),
        ...(this.shown.length ? [undo] : []),
      );
      // It goes on where it was, since a press may take back what the one before it did.
      if (hadIdle) this.node.querySelector('[data-of="idle"]')?.focus();
    }

    chip(title, onclick, of = "part", does = "Take back") {
      const button = { type: "button", "aria-label": `${does}: ${title}`, title: does, "data-of": of, onclick };
      return element("div.chip", {}, element("span.chip-text", { title }, title), element("button.chip-remove", button, icon("close")));
    }

    partChips(part, basePart, text) {
      const showWhole = () => this.onParts({ part: null, basePart: null });
      if (basePart) {
        const before = this.chip(`before: ${text(basePart)}`, () => this.onParts({ basePart: null }));
        return [before, this.chip(`after: ${text(part)}`, showWhole)];
      }
      const title = "Compare the part that is chosen next with this one";
      const compare = element("button.chip.add", { type: "button", title, onclick: () => this.onParts({ basePart: part }) }, "Compare with another part");
      return [this.chip(text(part), showWhole), compare];
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
