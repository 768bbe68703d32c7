// The page of a live finding: node test/finding.mjs PAGE PICTURE IDLE BUSY PID,PID WHAT. On CPU BUSY these tasks wait, CPU IDLE does
// nothing. WHAT is in the evidence: 20 ms of it, or what balancing looked at meanwhile, where little else happens.
import assert from "node:assert/strict";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch, opener, settled, spot, text } from "./chromium.mjs";

const [file, picture, ...numbers] = process.argv.slice(2);
const [idle, busy] = numbers.map(Number);
const pids = numbers[2].split(",");
const what = numbers[3];
const browser = await launch();
const { page, close } = await opener(browser)(pathToFileURL(resolve(file)).href);

// In words: at the top, and in the list.
const who = `\\(PID (${pids.join("|")})\\)`;
const words = new RegExp(`CPUs ${idle} were idle for \\d+ ms while on CPUs ${busy} tasks waited.*${who}`);
assert.match(await text(page, "#heading"), words);
const [violation, ...others] = await page.evaluate(() => window.ekiden.summary.violations);
assert.match(violation.message, words);
assert.deepEqual(others, [], "there is nothing else");

// In the picture: one of them runs and another waits, next to a CPU that does nothing.
await page.locator("#violations button").click();
await settled(page);
const middle = (violation.since_ns + violation.at_ns) / 2;
const at = await spot(page, "tasks", busy, middle);
await page.mouse.move(at.x, at.y);
assert.match(await text(page, "#tip"), new RegExp(`CPU ${busy}[\\s\\S]*size [2-9]`));
await page.screenshot({ path: picture });
// A task may run there for a moment.
const parts = [0.3, 0.4, 0.5, 0.6, 0.7].map((part) => violation.since_ns + part * (violation.at_ns - violation.since_ns));
const spots = await Promise.all(parts.map((time) => spot(page, "tasks", idle, time)));
const none = spots.find(({ color }) => color === "255,255,255");
assert.ok(none, `an idle CPU is white: ${spots.map(({ color }) => color)}`);
await page.mouse.move(none.x, none.y);
assert.match(await text(page, "#tip"), new RegExp(`CPU ${idle}[\\s\\S]*nothing runs`));

// Behind it, 20 ms of evidence, and nothing else; or more, until balancing has looked.
const ends = await page.evaluate(() => window.ekiden.summary.end_ns);
const evidence_ms = (ends - violation.at_ns) / 1e6;
assert.ok(evidence_ms >= 20, `${evidence_ms} ms of evidence`);
if (what === "evidence") assert.ok(evidence_ms < 100, `${evidence_ms} ms of evidence`);
if (what === "balancing") {
  await page.evaluate(([from, until]) => window.ekiden.show(from, until), [violation.at_ns, ends]);
  await settled(page);
  const seen = new Set();
  for (let part = 0; part < 1; part += 0.004) {
    const { x, y } = await spot(page, "considered", idle, violation.at_ns + part * (ends - violation.at_ns));
    await page.mouse.move(x, y);
    for (const [, cpu, cpus] of (await text(page, "#tip")).matchAll(/of CPU (\d+) at .* considered (.*)/g)) seen.add(`${cpu}: ${cpus}`);
  }
  assert.ok(seen.has(`${idle}: ${Math.min(idle, busy)}–${Math.max(idle, busy)}`), `what balancing of the idle CPU looked at: ${[...seen]}`);
}
await close();
await browser.close();
console.log("ok: the page shows who waited where, and which CPU was idle");
