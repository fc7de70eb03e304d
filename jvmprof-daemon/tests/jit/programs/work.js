// Three functions with different shares of the time, that are compiled, and one that isn't for most
// of it.
function primes(limit) {
  const sieve = new Uint8Array(limit);
  let count = 0;
  for (let i = 2; i < limit; i++) {
    if (sieve[i]) continue;
    count++;
    for (let j = i * 2; j < limit; j += i) sieve[j] = 1;
  }
  return count;
}
// Nothing is allocated: waiting for threads that collect garbage is time, but not CPU time.
const counts = new Int32Array(8192);
function words(count) {
  let hash = 7, distinct = 0;
  for (let i = 0; i < count; i++) {
    for (let c = 0; c < 12; c++) hash = Math.imul(hash, 31) + ((i * 7919 + c) & 63) | 0;
    if (counts[hash & 8191]++ === 0) distinct++;
  }
  return distinct;
}
class Matrix {
  constructor(n) { this.n = n; this.cells = Float64Array.from({ length: n * n }, (_, i) => i % 7); }
  square() {
    const { n, cells } = this, out = new Float64Array(n * n);
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++) {
        let sum = 0;
        for (let k = 0; k < n; k++) sum += cells[i * n + k] * cells[k * n + j];
        out[i * n + j] = sum;
      }
    return out[n];
  }
}
const end = Date.now() + Number(process.argv[2]);
const matrix = new Matrix(120);
let sum = 0;
while (Date.now() < end) {
  sum += primes(300000);
  sum += words(100000);
  sum += matrix.square();
}
console.error(sum > 0);
