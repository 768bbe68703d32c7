// Measures the page on a long trace: node test/bench.mjs EKIDEN TRACE [EVENTS]. Times in milliseconds, from the start of
// `ekiden view` to the finished picture, of zoom steps, and of one report. Says whether what was promised is kept, for traces of at
// least ten million events or so many as are named: open in two seconds, each step of zooming in a tenth of one. Exits with 116 if not.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { launch, settled, view } from "./chromium.mjs";

const [ekiden, trace, least = "10000000"] = process.argv.slice(2);
const limits = [];
/** Judges a figure. */
const judge = (name, figure, atMost) => {
  limits.push(figure <= atMost);
  console.log(`${name}: ${figure.toFixed(0)} ms of ${atMost} ms, ${figure <= atMost ? "met" : "MISSED"}`);
};
const events = JSON.parse(execFileSync(ekiden, ["trace", "info", "--json", trace]).toString()).records;
if (!(events >= Number(least))) {
  console.error(`${trace} has ${events} events, which says nothing of ${least}; next: ekiden sim periodic:tasks=1000:rounds=5000 --cpus 64 --trace ${trace}`);
  process.exit(2);
}
const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1600, height: 1000 } });
const page = await context.newPage();
const begin = performance.now();
const { url, stop } = await view(ekiden, trace);
await page.goto(url);
await settled(page);
const opened = performance.now() - begin;
judge(`open, ${events} events`, opened, 2000);
await page.waitForFunction(() => window.ekiden.summary.violations !== null, null, { timeout: 60000 });
console.log(`checks: ${(performance.now() - begin).toFixed(0)} ms after the start`);

/** Milliseconds from asking for a part of the trace to a picture, and to the finished one. */
const step = (from, until) =>
  page.evaluate(
    async ([from, until]) => {
      const begin = performance.now();
      window.ekiden.show(from, until);
      const isSettled = () => new Promise((resolve) => requestAnimationFrame(() => resolve(window.ekiden.isSettled())));
      let first = 0;
      for (;;) {
        const isOver = await isSettled();
        first ||= performance.now() - begin;
        if (isOver) return [first, performance.now() - begin];
      }
    },
    [from, until],
  );
const end = await page.evaluate(() => window.ekiden.summary.end_ns);
const steps = [];
for (const place of [0.5, 0.13, 0.77]) {
  for (let span = end; span > 2000; span /= 2) {
    const from = place * end - span / 2;
    steps.push(await step(from, from + span));
    // As long as a person needs to see it.
    await new Promise((resolve) => setTimeout(resolve, 400));
  }
}
judge("zoom, longest step until the first picture", Math.max(...steps.map(([first]) => first)), 100);
for (const [what, which] of [["first picture", 0], ["finished", 1]]) {
  const times = steps.map((step) => step[which]).sort((a, b) => a - b);
  const share = (part) => times[Math.floor(part * (times.length - 1))].toFixed(0);
  console.log(`zoom, ${what}: ${times.length} steps, median ${share(0.5)} ms, 95 % ${share(0.95)} ms, longest ${share(1)} ms`);
}
await stop();
await browser.close();
const directory = mkdtempSync(join(tmpdir(), "ekiden-page-"));
const report = join(directory, "report.html");
const before = performance.now();
execFileSync(ekiden, ["view", trace, "--report", report]);
console.log(`report: ${statSync(report).size} bytes in ${(performance.now() - before).toFixed(0)} ms`);
rmSync(directory, { recursive: true });
process.exit(limits.every(Boolean) ? 0 : 116);
