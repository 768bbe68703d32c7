// A browser and `ekiden view`, for tests.
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
