// Takes a picture of a page: node test/shot.mjs URL OUT.png [light|dark] [hash] [height]
import { chromium } from "playwright-core";

const [url, out, theme = "light", hash = "", height = "1000"] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const page = await browser.newPage({ viewport: { width: 1600, height: Number(height) }, colorScheme: theme });
page.on("console", (message) => console.log(message.text()));
page.on("pageerror", (error) => console.log("error", error));
await page.goto(url + (hash ? `#${hash}` : ""));
await page.waitForFunction(() => window.ekiden?.isSettled(), null, { timeout: 30000 });
await page.screenshot({ path: out });
await browser.close();
