// node: compiled and interpreted JavaScript, garbage, regular expressions, JSON, callbacks from
// native code.
class Tree {
  constructor(depth, seed) {
    this.name = 'node ' + seed;
    this.children = depth ? [new Tree(depth - 1, seed * 3), new Tree(depth - 1, seed * 5)] : [];
  }
  sum() { return this.children.reduce((total, child) => total + child.sum(), this.name.length); }
}
function deep(depth) { return depth ? deep(depth - 1) + 1 : 0; }
console.log('ready');
for (let round = 1; ; round++) {
  let total = new Tree(8, round).sum() + deep(100);
  const words = Array.from({ length: 300 }, (_, i) => (i * round % 7919).toString(16));
  words.sort((a, b) => (a < b ? -1 : 1));
  total += JSON.parse(JSON.stringify({ words })).words.length;
  total += words.join(' ').replace(/([0-9a-f])([0-9])/g, (all, a, b) => b + a).length;
  const counts = new Map();
  for (const word of words) counts.set(word, (counts.get(word) || 0) + 1);
  try { null.x; } catch (error) { total += error.message.length; }
  if (total < 0) console.log(total);
}
