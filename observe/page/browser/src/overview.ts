// The whole trace in a strip: how many CPUs are idle, and how many of these a waiting task could have used, how many tasks wait,
// where violations are, and what is shown below.

import { GUTTER } from "./chart";
import type { State } from "./chart";
import { Raster } from "./raster";
import type { Summary } from "./summary";
import type { Tiles } from "./tiles";

const HEIGHT = 60;

export class Overview {
  private drawn = "";
  private readonly back = document.createElement("canvas");

  constructor(readonly canvas: HTMLCanvasElement, private readonly summary: Summary, private readonly state: State) {}

  draw(tiles: Tiles, width: number): void {
    const dpr = window.devicePixelRatio || 1;
    const [w, h] = [Math.round((GUTTER + width) * dpr), Math.round(HEIGHT * dpr)];
    const pieces = tiles.pieces(0, this.summary.end_ns, this.summary.end_ns / width);
    const theme = document.documentElement.dataset.theme;
    const key = `${w} ${theme} ${this.summary.violations?.length} ${this.summary.waste?.wasted_ns.length} ${pieces.map(({ tile, from }) => `${tile.begin}/${from}/${tile.kind === "bins" ? tile.binNs : 0}`)}`;
    // What is below the window changes only as tiles arrive.
    if (key !== this.drawn) {
      this.drawn = key;
      [this.back.width, this.back.height] = [w, h];
      this.drawBack(new Raster(0, this.summary.end_ns, Math.round(width), this.summary.cpus.length), pieces, dpr);
    }
    if (this.canvas.width !== w || this.canvas.height !== h) {
      [this.canvas.width, this.canvas.height] = [w, h];
      [this.canvas.style.width, this.canvas.style.height] = [`${w / dpr}px`, `${HEIGHT}px`];
    }
    const ctx = this.canvas.getContext("2d")!;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.clearRect(0, 0, w, h);
    ctx.drawImage(this.back, 0, 0);
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    const style = getComputedStyle(document.documentElement);
    const x = (time: number) => GUTTER + (time / this.summary.end_ns) * width;
    const [left, right] = [x(this.state.from), Math.max(x(this.state.until), x(this.state.from) + 2)];
    ctx.fillStyle = style.getPropertyValue("--shade");
    ctx.fillRect(GUTTER, 0, left - GUTTER, HEIGHT);
    ctx.fillRect(right, 0, GUTTER + width - right, HEIGHT);
    ctx.strokeStyle = style.getPropertyValue("--text");
    ctx.strokeRect(left + 0.5, 0.5, right - left - 1, HEIGHT - 1);
  }

  private drawBack(raster: Raster, pieces: ReturnType<Tiles["pieces"]>, dpr: number): void {
    const ctx = this.back.getContext("2d")!;
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(`--${name}`).trim();
    const [width, nrCpus] = [raster.width, this.summary.cpus.length];
    const grid = raster.grid("tasks", pieces, "mean");
    const [idle, waiting] = [new Float64Array(width), new Float64Array(width)];
    for (let cpu = 0; cpu < nrCpus; cpu++) {
      for (let x = 0; x < width; x++) {
        const mean = grid.values[cpu * width + x];
        idle[x] += Math.max(0, 1 - mean);
        waiting[x] += Math.max(0, mean - 1);
      }
    }
    const most = Math.max(1, ...waiting);
    const half = HEIGHT / 2;
    ctx.fillStyle = color("ground");
    ctx.fillRect(GUTTER, 0, width, HEIGHT);
    for (let x = 0; x < width; x++) {
      ctx.fillStyle = color("waiting");
      const high = (waiting[x] / most) * (half - 2);
      ctx.fillRect(GUTTER + x, half - high, 1, high);
      ctx.fillStyle = color("idle");
      ctx.fillRect(GUTTER + x, half, 1, (idle[x] / nrCpus) * (half - 2));
    }
    const waste = wasted(this.summary, width);
    ctx.fillStyle = color("mark");
    for (let x = 0; x < width; x++) ctx.fillRect(GUTTER + x, half, 1, (waste[x] / nrCpus) * (half - 2));
    ctx.fillStyle = color("faint");
    ctx.fillRect(GUTTER, half, width, 0.5);
    ctx.fillStyle = color("mark");
    for (const { since_ns, at_ns } of this.summary.violations ?? []) {
      const x = (time: number) => GUTTER + (time / this.summary.end_ns) * width;
      ctx.fillRect(x(since_ns), 0, Math.max(2, x(at_ns) - x(since_ns)), 4);
    }
    ctx.font = "11px system-ui, sans-serif";
    ctx.fillStyle = color("waitingText");
    ctx.fillText("waiting ↑", 8, half - 8);
    ctx.fillStyle = color("faint");
    ctx.fillText(`max ${Math.round(most)}`, 8, half + 4);
    ctx.fillStyle = color("idleText");
    ctx.fillText("idle CPUs ↓", 8, half + 14);
    ctx.fillStyle = color("mark");
    ctx.fillText("wasted ↓", 8, half + 26);
  }
}

/** How many CPUs are wasted, on average, in each of `width` parts of the whole. */
export function wasted(summary: Summary, width: number): Float64Array {
  const parts = new Float64Array(width);
  const { bin_ns, wasted_ns } = summary.waste ?? { bin_ns: 1, wasted_ns: [] };
  const part = Math.max(1, summary.end_ns) / width;
  wasted_ns.forEach((ns, bin) => {
    // The last piece may reach beyond the end, where nothing is wasted.
    const [from, until] = [bin * bin_ns, Math.min((bin + 1) * bin_ns, summary.end_ns)];
    for (let x = Math.floor(from / part); x < width && x * part < until; x++) {
      const common = Math.min(until, (x + 1) * part) - Math.max(from, x * part);
      if (common > 0) parts[x] += ((ns / (until - from)) * common) / part;
    }
  });
  return parts;
}
