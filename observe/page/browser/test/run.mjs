// The page in a real browser: node test/run.mjs EKIDEN [PICTURES]. Pictures of it go to that directory.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { launch, opener, settled, spot, text, view } from "./chromium.mjs";

const here = dirname(dirname(fileURLToPath(import.meta.url)));
const [ekiden, pictures] = process.argv.slice(2);
const directory = mkdtempSync(join(tmpdir(), "ekiden-page-"));
const run = (...args) => execFileSync(ekiden, args, { encoding: "utf8", cwd: directory, maxBuffer: 1 << 28 });
const browser = await launch();
const open = opener(browser);

const shoot = async (page, name) => pictures && page.screenshot({ path: join(pictures, `${name}.png`) });
const span = (page) => page.evaluate(() => [window.ekiden.state.from, window.ekiden.state.until]);
const tests = {
  async "the page that is compiled in is what its sources build"() {
    const [major, minor] = process.versions.node.split(".").map(Number);
    const isNewEnough = major > 20 || (major === 20 && minor >= 19);
    assert.ok(isNewEnough, `Node ${process.versions.node} cannot build the page: 20.19 can; scripts/prepare tests installs it`);
    const built = join(directory, "built");
    execFileSync("npx", ["vite", "build", "--logLevel", "error", "--outDir", built], { cwd: here });
    const same = readFileSync(join(built, "index.html")).equals(readFileSync(join(here, "../assets/page.html")));
    assert.ok(same, "cd observe/page/browser && npm ci && npm run build");
  },

  async "a report shows the group imbalance bug without a network"() {
    const file = join(directory, "report.html");
    const load = "nas-lu:threads=60:start_ms=20:group=lu+r:count=4:ms=3000:on=56-63";
    const bug = ["--set", "group_imbalance=1", "--set", "group_construction=0", "--set", "missing_domains=0"];
    run("sim", load, "-p", "cfs", "--machine", "bulldozer64", ...bug, "--seed", "1", "--every", "50", "--persists", "20", "--waste", "1000", "--report", file);
    assert.ok(statSync(file).size < 10e6);
    const { page, close } = await open(pathToFileURL(file).href);
    assert.match(await text(page, "h1"), /nas-lu.* under cfs/);
    assert.match(await text(page, "#about"), /group_imbalance=1.*bulldozer64: 64 CPUs.*8 NUMA nodes.*seed 1.*simulated/);
    assert.match(await text(page, "#status"), /every change where it happened/);
    await shoot(page, "group-imbalance-light");

    // The check says who is idle and who is overloaded; the picture must agree.
    const violation = await page.evaluate(() => window.ekiden.summary.violations[3]);
    const [, idle, busy] = violation.message.match(/^CPUs? (\d+)\S* .* idle while on CPUs? (\d+)/).map(Number);
    const middle = (violation.since_ns + violation.at_ns) / 2;
    const colors = [];
    for (const cpu of [idle, busy, 16]) colors.push((await spot(page, "tasks", cpu, middle)).color);
    assert.equal(colors[0], "255,255,255", "an idle CPU is white");
    assert.equal(new Set(colors).size, 3, `idle, overloaded and busy look different: ${colors.join(" ")}`);
    const at = await spot(page, "tasks", busy, middle);
    await page.mouse.move(at.x, at.y);
    assert.match(await text(page, "#tip"), new RegExp(`CPU ${busy}, node ${busy >> 3}, cache ${busy >> 3}, core [\\s\\S]*size [2-9][\\s\\S]*lu \\(PID \\d+\\) runs for`));
    const none = await spot(page, "load", idle, middle);
    await page.mouse.move(none.x, none.y);
    assert.match(await text(page, "#tip"), new RegExp(`CPU ${idle}, node ${idle >> 3}[\\s\\S]*size 0, load 0[\\s\\S]*nothing runs`));

    // The list jumps to its place.
    await page.locator("#violations button").nth(3).click();
    await settled(page);
    const [from, until] = await span(page);
    assert.ok(from < violation.since_ns && until > violation.at_ns && until - from < 3 * (violation.at_ns - violation.since_ns));
    await shoot(page, "violation-light");
    await page.keyboard.press("n");
    assert.equal(await page.locator("#violations [aria-current=true]").getAttribute("data-index"), "4");
    await page.keyboard.press("Escape");
    assert.equal(await page.locator("#violations [aria-current=true]").count(), 0);

    // Keys.
    await page.keyboard.press("0");
    const [, end] = await span(page);
    await page.keyboard.press("+");
    const [a, b] = await span(page);
    assert.ok(Math.abs((b - a) / end - 0.5) < 0.01);
    await page.keyboard.press("ArrowRight");
    assert.ok((await span(page))[0] > a);
    await page.keyboard.press("2");
    await settled(page);
    assert.ok(await page.locator("#panel-load").isHidden());
    await page.keyboard.press("2");
    await page.keyboard.press("ArrowDown");
    assert.match(await page.locator("#live").textContent(), /^CPU 0, node 0/);
    await page.keyboard.press("?");
    assert.ok(await page.locator("#help").isVisible());
    await page.keyboard.press("Escape");
    await page.keyboard.press("0");
    await page.keyboard.press("t");
    await settled(page);
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
    assert.notEqual((await spot(page, "tasks", idle, middle)).color, "255,255,255");
    await shoot(page, "group-imbalance-dark");
    await close();

    const dark = await open(pathToFileURL(file).href, { colorScheme: "dark", viewport: { width: 800, height: 900 } });
    assert.equal(await dark.page.evaluate(() => document.documentElement.dataset.theme), "dark");
    await shoot(dark.page, "narrow-dark");
    await dark.close();
  },

  async "what a policy notes is marked where it was noted, and read out"() {
    const file = join(directory, "notes.html");
    const simulation = ["sim", "hogs:count=5:ms=30", "-p", "mlfq", "--machine", "1x1x2x1", "--seed", "1"];
    run(...simulation, "--trace", "noted");
    run(...simulation, "--report", file);
    const line = run("trace", "cat", "noted").split("\n").find((line) => /down_to_level/.test(line));
    const [, us, ns, cpu, pid, value] = line.match(/^ *(\d+)\.(\d+) \[ *(\d+)\] note +pid (\d+) down_to_level (\d+)/);
    const time = Number(us) * 1000 + Number(ns);
    const { page, close } = await open(pathToFileURL(file).href);
    assert.deepEqual(await page.evaluate(() => window.ekiden.summary.note_names), ["down_to_level"]);
    assert.match(await text(page, "#counters"), /notes down_to_level\s+\d+/);
    await page.evaluate((time) => window.ekiden.show(time - 50_000, time + 50_000), time);
    await settled(page);
    await shoot(page, "notes");
    const at = await spot(page, "lanes", Number(cpu), time);
    await page.mouse.move(at.x, at.y);
    assert.match(await text(page, "#tip"), new RegExp(`noted: down_to_level = ${value} about .*\\(PID ${pid}\\) at`));
    // The mark is at the upper edge of the row, and goes with the button and its key.
    const mark = () =>
      page.evaluate(([x, y]) => {
        const canvas = document.querySelector("#panel-lanes canvas");
        const [box, dpr] = [canvas.getBoundingClientRect(), window.devicePixelRatio || 1];
        const row = Math.floor((y - box.top) / window.ekiden.state.rowHeight) * window.ekiden.state.rowHeight;
        return [...canvas.getContext("2d").getImageData(Math.round((x - box.left) * dpr), Math.round((row + 0.5) * dpr), 1, 1).data].join();
      }, [at.x, at.y]);
    const marked = await mark();
    await page.keyboard.press("o");
    await settled(page);
    assert.notEqual(await mark(), marked);
    assert.equal(await page.locator("#notes").getAttribute("aria-pressed"), "false");
    await page.locator("#notes").click();
    await settled(page);
    assert.equal(await mark(), marked);
    await close();
  },

  async "waste that takes turns is drawn over time, and that there is none without the bug"() {
    const load = "make:jobs=64:files=40:ms=20:start_ms=20:from=0+r:count=2:ms=1500:from=20/44";
    // The strip at the top has the idle CPUs in its lower half, and those that are wasted in red.
    const red = async (bug) => {
      const file = join(directory, `make-${bug}.html`);
      const bugs = ["--set", `group_imbalance=${bug}`, "--set", "overload_on_wakeup=1"];
      run("sim", load, "-p", "cfs", "--machine", "bulldozer64", ...bugs, "--seed", "1", "--report", file);
      const { page, close } = await open(pathToFileURL(file).href);
      const checks = await page.evaluate(() => window.ekiden.summary.violations.map((violation) => violation.check));
      const pixels = await page.evaluate(() => {
        const canvas = document.getElementById("overview");
        const mark = getComputedStyle(document.documentElement).getPropertyValue("--mark");
        const probe = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
        probe.fillStyle = mark;
        probe.fillRect(0, 0, 1, 1);
        const wanted = probe.getImageData(0, 0, 1, 1).data;
        const [from, half] = [Math.round(canvas.width * 0.1), Math.round(canvas.height / 2) + 2];
        const { data } = canvas.getContext("2d").getImageData(from, half, canvas.width - from, 3);
        let count = 0;
        for (let at = 0; at < data.length; at += 4) count += [0, 1, 2].every((part) => Math.abs(data[at + part] - wanted[part]) < 40);
        return count / (data.length / 4);
      });
      await shoot(page, `waste-${bug}`);
      await close();
      return { checks, pixels };
    };
    const [bug, fixed] = [await red(1), await red(0)];
    assert.ok(bug.checks.length > 0 && bug.checks.every((check) => check === "wasted-time"), `${bug.checks}`);
    assert.deepEqual(fixed.checks, []);
    // Some per cent of the machine are wasted, most of it at one time.
    assert.ok(bug.pixels > 0.01 && fixed.pixels < 0.001, `${bug.pixels} of the strip is red with the bug, ${fixed.pixels} without`);
  },

  async "a server shows each single change, and only to this machine"() {
    run("sim", "requests:requests=20000", "-p", "wfq", "--machine", "2x1x4x1", "--seed", "3", "--trace", "out");
    const { url, stop } = await view(ekiden, join(directory, "out"));
    const { page, close } = await open(url);
    await page.waitForFunction(() => window.ekiden.summary.violations !== null);
    assert.match(await text(page, "#violations"), /every promise was kept/);
    assert.match(await text(page, "#status"), /a pixel counts all changes in/);
    await shoot(page, "requests-light");
    const [, end] = await span(page);
    const at = await spot(page, "lanes", 2, end / 2);
    await page.mouse.move(at.x, at.y);
    assert.match(await text(page, "#tip"), /all changes counted[\s\S]*size: mean/);
    for (let i = 0; i < 12; i++) {
      await page.mouse.wheel(0, -400);
      await settled(page);
    }
    const [from, until] = await span(page);
    assert.ok(until - from < end / 500);
    assert.match(await text(page, "#status"), /every change where it happened/);
    await shoot(page, "requests-close");

    // The run that is drawn last agrees with the trace.
    const told = run("trace", "cat", "out", "--cpu", "2").split("\n").map((line) => line.match(/^ *(\d+)\.(\d+) .* run +pid (\d+)/)).filter(Boolean);
    const runs = told.map(([, us, ns, pid]) => ({ time: Number(us) * 1000 + Number(ns), pid: Number(pid) }));
    const one = runs.filter(({ time }) => time > from && time < until).at(-1) ?? runs.find(({ time }) => time > until);
    await page.evaluate((time) => window.ekiden.show(time - 400, time + 400), one.time);
    await settled(page);
    const there = await spot(page, "lanes", 2, one.time + 20);
    await page.mouse.move(there.x, there.y);
    assert.match(await text(page, "#tip"), new RegExp(`PID ${one.pid}\\)`));

    const answer = (host, path) =>
      new Promise((resolve) => request(url + path, { headers: { host } }, (answer) => resolve(answer.resume().statusCode)).end());
    assert.equal(await answer("example.org", "summary"), 403);
    assert.equal(await answer("localhost:1", "summary"), 200);
    assert.equal(await answer("127.0.0.1", "tile/99/0"), 404);
    assert.equal(await answer("127.0.0.1", "../../etc/passwd"), 404);
    await close();
    assert.equal(await stop(), 0, "Ctrl-C ends it");
  },

  async "a report of a long trace has all of it coarsely, and says so"() {
    run("view", "out", "--report", "small.html", "--report-kb", "700");
    const { page, close } = await open(pathToFileURL(join(directory, "small.html")).href);
    assert.ok(statSync(join(directory, "small.html")).size <= 700e3);
    assert.match(await text(page, "#partial"), /too long for one file/);
    const [, end] = await span(page);
    await page.evaluate((end) => window.ekiden.show(end * 0.9, end * 0.9 + 5e4), end);
    await settled(page);
    assert.match(await text(page, "#status"), /coarser here/);
    await page.evaluate(() => window.ekiden.show(0, 2e4));
    await settled(page);
    assert.match(await text(page, "#status"), /every change where it happened/);
    await close();
  },
};

if (pictures) mkdirSync(pictures, { recursive: true });
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  const begin = performance.now();
  try {
    await test();
    console.log(`ok: ${name} (${((performance.now() - begin) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED: ${name}\n${error.stack}`);
  }
}
await browser.close();
rmSync(directory, { recursive: true });
process.exit(failed ? 1 : 0);
