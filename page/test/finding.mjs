// The page of a live finding: node test/finding.mjs PAGE PICTURE IDLE BUSY PID,PID. On CPU BUSY these tasks wait, CPU IDLE does nothing.
import assert from "node:assert/strict";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch, opener, settled, spot, text } from "./chromium.mjs";

const [file, picture, ...numbers] = process.argv.slice(2);
const [idle, busy] = numbers.map(Number);
const pids = numbers[2].split(",");
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
// Somebody may run there for a moment.
const parts = [0.3, 0.4, 0.5, 0.6, 0.7].map((part) => violation.since_ns + part * (violation.at_ns - violation.since_ns));
const spots = await Promise.all(parts.map((time) => spot(page, "tasks", idle, time)));
const none = spots.find(({ color }) => color === "255,255,255");
assert.ok(none, `an idle CPU is white: ${spots.map(({ color }) => color)}`);
await page.mouse.move(none.x, none.y);
assert.match(await text(page, "#tip"), new RegExp(`CPU ${idle}[\\s\\S]*nothing runs`));

// Behind it, the evidence: what balancing looked at, in 20 ms or more.
const { counters, end_ns } = await page.evaluate(() => window.ekiden.summary);
assert.ok(end_ns >= violation.at_ns + 20e6, `the trace ends at ${end_ns} ns, the finding at ${violation.at_ns}`);
const [, considered] = counters.find(([name]) => name === "decisions with CPUs considered");
assert.ok(Number(considered) > 0, "nothing is seen of balancing");
await close();
await browser.close();
console.log("ok: the page shows who waited where, which CPU was idle, and what balancing looked at");
