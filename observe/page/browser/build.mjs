// Puts the page where the Rust side compiles it in, with a digest of what it was made of.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { crc32 } from "node:zlib";

const sources = [...readdirSync("src").map((name) => `src/${name}`), "index.html", "package-lock.json", "vite.config.ts"].sort();
const digest = sources.reduce((so_far, name) => crc32(readFileSync(name), so_far), 0);
writeFileSync("../assets/page.html", readFileSync("dist/index.html"));
writeFileSync("../assets/page.digest", `${digest.toString(16).padStart(8, "0")}\n`);
