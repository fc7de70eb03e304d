// Fingers on a flame graph. They can't point at a frame without pressing it, so that a tap shows
// the frame's details, with buttons for what the mouse does. A finger that rests opens the frame's
// menu, in browsers that open none by themselves, too.
"use strict";

(function (jvmprof) {
  const { element } = jvmprof;

  /// Milliseconds until a finger has rested. Browsers that say it themselves do so earlier.
  const REST = 600;
  /// A finger that moves further scrolls.
  const STILL = 10;

  class FlameTouch {
    /// `onRest(event)` gets where a finger rested.
    constructor(holder, onRest) {
      this.onRest = onRest;
      /// What was pressed last was pressed by a finger.
      this.isFinger = false;
      this.hasRested = false;
      holder.addEventListener("pointerdown", (event) => this.down(event));
      holder.addEventListener("pointermove", (event) => this.isAway(event) && this.cancel());
      for (const end of ["pointerup", "pointercancel", "contextmenu"]) holder.addEventListener(end, () => this.cancel());
    }

    down(event) {
      this.cancel();
      this.isFinger = event.pointerType === "touch";
      this.hasRested = false;
      // Two fingers zoom the page.
      if (!this.isFinger || !event.isPrimary) return;
      this.from = [event.clientX, event.clientY];
      this.timer = setTimeout(() => this.rest(event), REST);
    }

    isAway({ clientX, clientY }) {
      return this.from && Math.hypot(clientX - this.from[0], clientY - this.from[1]) > STILL;
    }

    cancel() {
      clearTimeout(this.timer);
    }

    rest(event) {
      this.hasRested = true;
      this.onRest(event);
    }

    /// Buttons for what a mouse does with the frame whose details a tap shows.
    static buttons({ onZoom, onMenu }) {
      const button = (name, onclick) => element("button.button", { type: "button", onclick }, name);
      return element("div.tip-buttons", {}, button("Zoom to it", onZoom), button("Menu", onMenu));
    }
  }

  jvmprof.FlameTouch = FlameTouch;
})(globalThis.jvmprof);
