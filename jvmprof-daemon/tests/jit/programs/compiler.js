// Checks the types of TypeScript's own declarations again and again: the path of its package, for
// how many milliseconds of CPU time.
const ts = require(process.argv[2]);
const declarations = require.resolve(process.argv[2]).replace(/\.js$/, ".d.ts");
const options = { noEmit: true, target: ts.ScriptTarget.ES2022, types: [] };
function checkAll() {
  return ts.getPreEmitDiagnostics(ts.createProgram([declarations], options)).length;
}
let rounds = 0, errors = 0;
do { errors += checkAll(); rounds++; } while (process.cpuUsage().user < Number(process.argv[3]) * 1000);
console.error(`${rounds} rounds, ${errors} errors`);
process.exitCode = errors === 0 ? 0 : 1;
