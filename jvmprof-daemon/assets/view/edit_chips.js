// What was taken out of the profile, each with a button that takes it back; and which part of the
// time is shown, which another one can be compared with.
"use strict";

(function (jvmprof) {
  const { element, icon } = jvmprof;

  class EditChips {
    /// `onChange(edits)` gets the texts of what stays, `onParts({part, basePart})` the parts of the
    /// time that are shown from now on, or one of them.
    constructor(onChange, onParts) {
      this.onChange = onChange;
      this.onParts = onParts;
      this.node = element("div.edits", { role: "group", "aria-label": "What is shown of the profile", hidden: true });
    }

    /// Shows the parts of the time, `clock`: see view.js, and those edits that do something to the
    /// view of these `frames`, of data that says in what its samples were taken or doesn't; the
    /// others stay as they are.
    show(edits, { part, basePart, clock }, frames, hasActivities) {
      this.texts = edits.map(({ text }) => text);
      this.shown = edits.filter((edit) => jvmprof.hasEffect(edit, frames, hasActivities));
      this.node.hidden = this.shown.length === 0 && !part;
      const undo = element("button.chip.add", { type: "button", title: "Undo the last one (u)", onclick: () => this.undo() }, "Undo");
      this.node.replaceChildren(
        ...(part ? this.partChips(part, basePart, (of) => jvmprof.partText(of, clock)) : []),
        ...this.shown.map(({ title, text }) => this.chip(title, () => this.takeBack(text))),
        ...(this.shown.length ? [undo] : []),
      );
    }

    chip(title, onclick) {
      const remove = element("button.chip-remove", { type: "button", "aria-label": `Take back: ${title}`, title: "Take back", onclick }, icon("close"));
      return element("div.chip", {}, element("span.chip-text", { title }, title), remove);
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
