// A browser and `ekiden view`, for tests.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** The browser of this machine. It is told to leave the network alone. */
export const launch = () =>
  chromium.launch({
    executablePath: process.env.CHROMIUM ?? PLACES.find((path) => existsSync(path)),
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync",
    ],
  });

/** Waits until all is drawn. */
export const settled = (page) => page.waitForFunction(() => window.ekiden?.isSettled(), null, { timeout: 30000 });

/** Opens pages that may ask no server but their own, and must not complain. */
export const opener = (browser) => async (url, options = {}) => {
  const context = await browser.newContext({ viewport: { width: 1500, height: 1000 }, colorScheme: "light", ...options });
  const page = await context.newPage();
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("console", (message) => {
    // Only this test reads canvases back.
    if (["error", "warning"].includes(message.type()) && !message.text().includes("getImageData")) wrong.push(message.text());
  });
  page.on("request", (asked) => {
    const own = url.startsWith("file:") ? asked.url() === url : asked.url().startsWith(new URL(url).origin);
    if (!own && !asked.url().startsWith("data:")) wrong.push(`asks ${asked.url()}`);
  });
  await page.goto(url);
  await settled(page);
  return { page, close: async () => (assert.deepEqual(wrong, []), context.close()) };
};

export const text = (page, selector) => page.locator(selector).innerText();

/** Where a moment of a CPU is drawn in a panel: in the canvas, and in the window. */
export const spot = (page, panel, cpu, time) =>
  page.evaluate(
    ([panel, cpu, time]) => {
      const { state, summary } = window.ekiden;
      const canvas = document.querySelector(`#panel-${panel} canvas`);
      const node = summary.cpus[cpu][0];
      const rect = canvas.getBoundingClientRect();
      const x = 92 + ((time - state.from) / (state.until - state.from)) * (rect.width - 92);
      const y = (cpu + 0.5) * state.rowHeight + node * 4;
      const [r, g, b] = canvas.getContext("2d").getImageData(Math.round(x), Math.round(y - 0.5), 1, 1).data;
      return { x: rect.left + x, y: rect.top + y, color: `${r},${g},${b}` };
    },
    [panel, cpu, time],
  );

/** Starts `ekiden view`; `stop` is Ctrl-C, and tells how it ended. */
export async function view(ekiden, trace, ...more) {
  const child = spawn(ekiden, ["view", trace, "--no-open", ...more], { stdio: ["ignore", "pipe", "inherit"] });
  process.on("exit", () => child.kill("SIGINT"));
  const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve(signal ?? code)));
  const url = await new Promise((resolve, reject) => {
    let text = "";
    child.stdout.on("data", (piece) => {
      text += piece;
      if (text.includes("\n")) resolve(text.trim());
    });
    child.on("exit", () => reject(new Error("ekiden view ended at once")));
  });
  const stop = () => {
    child.kill("SIGINT");
    return ended;
  };
  return { url, stop };
}
