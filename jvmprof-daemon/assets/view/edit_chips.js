// What was taken out of the profile, each with a button that takes it back.
"use strict";

(function (jvmprof) {
  const { element, icon } = jvmprof;

  class EditChips {
    /// `onChange(edits)` hears the texts of what stays, `onWhole()` that a part of the time is no
    /// longer wanted.
    constructor(onChange, onWhole) {
      this.onChange = onChange;
      this.onWhole = onWhole;
      this.node = element("div.edits", { role: "group", "aria-label": "What is shown of the profile", hidden: true });
    }

    /// Shows `part`, the text of a part of the time, and those edits that do something to the view
    /// of these `frames`, of data that says in what its samples were taken or doesn't; the others
    /// stay as they are.
    show(edits, part, frames, hasActivities) {
      this.texts = edits.map(({ text }) => text);
      this.shown = edits.filter((edit) => jvmprof.hasEffect(edit, frames, hasActivities));
      this.node.hidden = this.shown.length === 0 && !part;
      const chip = (title, onclick) => {
        const remove = element("button.chip-remove", { type: "button", "aria-label": `Take back: ${title}`, title: "Take back", onclick }, icon("close"));
        return element("div.chip", {}, element("span.chip-text", { title }, title), remove);
      };
      const undo = element("button.chip.add", { type: "button", title: "Undo the last one (u)", onclick: () => this.undo() }, "Undo");
      this.node.replaceChildren(
        ...(part ? [chip(part, () => this.onWhole())] : []),
        ...this.shown.map(({ title, text }) => chip(title, () => this.takeBack(text))),
        ...(this.shown.length ? [undo] : []),
      );
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
