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

    show(edits, part) {
      this.node.hidden = edits.length === 0 && !part;
      const texts = edits.map(({ text }) => text);
      const chip = (title, onclick) => {
        const remove = element("button.chip-remove", { type: "button", "aria-label": `Take back: ${title}`, title: "Take back", onclick }, icon("close"));
        return element("div.chip", {}, element("span.chip-text", { title }, title), remove);
      };
      const undo = element("button.chip.add", { type: "button", title: "Undo the last one (u)", onclick: () => this.onChange(texts.slice(0, -1)) }, "Undo");
      this.node.replaceChildren(
        ...(part ? [chip(jvmprof.partText(part), () => this.onWhole())] : []),
        ...edits.map(({ title, text }) => chip(title, () => this.onChange(texts.filter((it) => it !== text)))),
        ...(edits.length ? [undo] : []),
      );
    }
  }

  jvmprof.EditChips = EditChips;
})(globalThis.jvmprof);
