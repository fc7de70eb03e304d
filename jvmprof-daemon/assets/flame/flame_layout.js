// Where the frames of a graph stand: rows by depth, and in each row the boxes from left to right.
// Without recursion, for trees of a hundred thousand nodes and stacks of thousands of frames.
"use strict";

(function (jvmprof) {
  /// A node's place: columns from `x0` to `x1`, as parts of the graph's width.
  class Box {
    constructor(data, parent) {
      this.data = data;
      this.parent = parent;
      this.depth = parent ? parent.depth + 1 : 0;
      this.children = [];
      this.x0 = this.x1 = this.was0 = this.was1 = 0;
      this.highlight = this.isCaller = false;
      this.colour = null;
    }

    get width() {
      return this.x1 - this.x0;
    }
  }

  class FlameLayout {
    /// Of a tree of nodes with `value` and `children`, the heaviest first.
    constructor(tree) {
      this.root = new Box(tree, null);
      this.rows = [];
      for (let row = [this.root]; row.length; ) {
        this.rows.push(row);
        const below = [];
        for (const box of row) {
          for (const child of box.data.children) {
            const of = new Box(child, box);
            box.children.push(of);
            below.push(of);
          }
        }
        row = below;
      }
      this.root.descendants = () => this.rows.flat();
      this.zoom(this.root);
    }

    /// Gives a box and what it calls all of the width; its callers have it, too, and all others
    /// none.
    zoom(to) {
      const { root, rows } = this;
      for (const row of rows) {
        for (const box of row) {
          box.was0 = box.x0;
          box.was1 = box.x1;
          box.x0 = box.x1 = 0;
          box.isCaller = false;
        }
      }
      for (let at = to.parent; at; at = at.parent) {
        at.x1 = 1;
        at.isCaller = true;
      }
      to.x1 = to.data.value > 0 || to === root ? 1 : 0;
      const scale = to.data.value > 0 ? 1 / to.data.value : 0;
      // Rows below it hold boxes beside it as well, whose parents have no width.
      for (let depth = to.depth; depth < rows.length; depth++) {
        for (const box of rows[depth]) {
          if (box.x1 <= box.x0) continue;
          let x = box.x0;
          for (const child of box.children) {
            child.x0 = x;
            x += child.data.value * scale;
            child.x1 = x;
          }
        }
      }
    }

    /// The boxes of each row that are at least this part of the width wide.
    wide(least) {
      return this.rows.map((row) => row.filter((box) => box.x1 - box.x0 >= least));
    }
  }

  /// The box of a row, from left to right, at a part of the width; undefined where there is none.
  jvmprof.boxAt = function (row, x) {
    let [low, high] = [0, row.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (row[middle].x1 <= x) low = middle + 1;
      else high = middle;
    }
    return row[low] && row[low].x0 <= x ? row[low] : undefined;
  };

  jvmprof.FlameLayout = FlameLayout;
})(globalThis.jvmprof);
