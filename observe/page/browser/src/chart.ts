// The panels: run-queue size, load, tasks, considered CPUs, one above the other on the same time axis.

import { Scale, consideredPlace, css, loadPlace, rgbOf, taskColor, tasksPlace } from "./colors";
import type { Rgb } from "./colors";
import { count, duration, escape, fixed, moment, percent, ranges, ticks } from "./format";
import { eachNoted, notesNear } from "./notes";
import { Raster, firstAfter, lastUpTo } from "./raster";
import type { Shown } from "./raster";
import type { Summary, Violation } from "./summary";
import { taskName } from "./summary";
import type { Piece, Tiles } from "./tiles";
import { NO_TASK } from "./tiles";

export type PanelName = "tasks" | "load" | "lanes" | "considered";

export interface State {
  from: number;
  until: number;
  panels: Set<PanelName>;
  shown: Shown;
  rowHeight: number;
  cpu: number | null;
  task: number | null;
  violation: Violation | null;
  /** Whether notes and hints are marked among the tasks. */
  notes: boolean;
}

export const GUTTER = 92;
const NODE_GAP = 4;
const TITLES: Record<PanelName, string> = {
  tasks: "Run-queue size (tasks that wait or run)",
  load: "Run-queue load (weights of these tasks, a group's shared by its tasks; 1024 is nice 0)",
  lanes: "Tasks (who had the CPU)",
  considered: "Considered CPUs (how often each was looked at in a decision)",
};
/** The decisions that a trace can tell of: observe/trace/src/record.rs. */
const WHAT: Record<number, string> = { 1: "new task", 2: "wake-up", 3: "enqueue", 4: "run", 5: "keep", 10: "stays idle", 11: "migration", 13: "kick" };

interface Panel {
  box: HTMLElement;
  legend: HTMLElement;
  canvas: HTMLCanvasElement;
}

export class Chart {
  /** CPUs from top to bottom: by node, cache, core. */
  readonly order: number[];
  private readonly rowOf: number[];
  private readonly nodeOfRow: number[];
  private readonly panels = new Map<PanelName, Panel>();
  private readonly axis: HTMLCanvasElement;
  private readonly cross: HTMLElement;
  private readonly image = document.createElement("canvas");
  private readonly taskColors: Rgb[] = [];
  private readonly programOf: number[];
  private readonly programs: [string, number][];
  private scales: Record<"tasks" | "load" | "considered", Scale>;
  private colors = { ground: "#ffffff", text: "#000000", faint: "#888888", mark: "#d55e00", look: "#0072b2", unknown: "#cccccc" };
  /** What was drawn last: for a pointer over it. */
  private pieces: Piece[] = [];
  isExact = false;
  isCoarse = false;

  constructor(readonly root: HTMLElement, private readonly summary: Summary, private readonly state: State) {
    const key = (cpu: number) => summary.cpus[cpu];
    this.order = summary.cpus.map((_, cpu) => cpu).sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return x[0] - y[0] || x[1] - y[1] || x[2] - y[2] || a - b;
    });
    this.rowOf = [];
    this.order.forEach((cpu, row) => (this.rowOf[cpu] = row));
    const nodes = [...new Set(this.order.map((cpu) => key(cpu)[0]))];
    this.nodeOfRow = this.order.map((cpu) => nodes.indexOf(key(cpu)[0]));
    const names = new Map<string, number>();
    this.programOf = summary.names.map((name) => {
      const program = name.replace(/[-/:_#]?\d+$/, "");
      if (!names.has(program)) names.set(program, names.size);
      return names.get(program)!;
    });
    this.programs = [...names.entries()];
    this.axis = root.querySelector("#axis")!;
    this.cross = root.querySelector("#cross")!;
    this.scales = this.makeScales();
    for (const name of ["tasks", "load", "lanes", "considered"] as PanelName[]) {
      const box = document.createElement("section");
      box.className = "panel";
      box.id = `panel-${name}`;
      box.innerHTML = `<header><h2>${TITLES[name]}</h2><div class="legend"></div></header><canvas tabindex="0"></canvas>`;
      const canvas = box.querySelector("canvas")!;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `${TITLES[name]}, for each CPU over time. The arrow keys move.`);
      root.querySelector("#panels")!.append(box);
      this.panels.set(name, { box, legend: box.querySelector(".legend")!, canvas });
    }
    this.themed();
  }

  private makeScales() {
    const ground = rgbOf(this.colors.ground);
    return {
      tasks: new Scale(ground, tasksPlace),
      load: new Scale(ground, loadPlace(this.summary.load_max)),
      considered: new Scale(ground, consideredPlace),
    };
  }

  /** Reads the colours of the style sheet again. */
  themed(): void {
    const style = getComputedStyle(document.documentElement);
    for (const name of Object.keys(this.colors) as (keyof typeof this.colors)[]) {
      this.colors[name] = style.getPropertyValue(`--${name}`).trim();
    }
    this.scales = this.makeScales();
    this.legends();
  }

  private legends(): void {
    const swatch = (color: string, text: string) => `<span><i style="background:${color}"></i>${escape(text)}</span>`;
    const { tasks_max, load_max } = this.summary;
    const sizes = [0, 1, 2, 3, 4, 8, 16, 64].filter((n) => n <= Math.max(2, tasks_max));
    this.panels.get("tasks")!.legend.innerHTML = sizes
      .map((n) => swatch(this.scales.tasks.css(n), n === 0 ? "0, idle" : `${n}${n === sizes.at(-1) && n < tasks_max ? "+" : ""}`))
      .join("");
    const steps = [0, 16, 256, 1024, 2048, 4096, 8192, 16384, 65536, 262144].filter((n) => n <= load_max);
    if (load_max > (steps.at(-1) ?? 0)) steps.push(load_max);
    this.panels.get("load")!.legend.innerHTML = steps.map((n) => swatch(this.scales.load.css(n), count(n))).join("");
    const many = this.programs.length > 8;
    this.panels.get("lanes")!.legend.innerHTML =
      this.programs.slice(0, 8).map(([name, n]) => swatch(css(taskColor(n, 0)), name || "without a name")).join("") +
      (many ? `<span>and ${this.programs.length - 8} more</span>` : "") + swatch(this.colors.ground, "idle");
    this.panels.get("considered")!.legend.innerHTML = [0, 1, 2, 4, 16]
      .map((n) => swatch(this.scales.considered.css(n), `${n}${n === 16 ? "+" : ""}`))
      .join("");
  }

  /** Width of the part where time passes, in CSS pixels. */
  get plotWidth(): number {
    return Math.max(50, this.root.clientWidth - GUTTER);
  }

  get height(): number {
    return this.order.length * this.state.rowHeight + (this.nodeOfRow.at(-1)! ?? 0) * NODE_GAP;
  }

  private y(row: number): number {
    return row * this.state.rowHeight + this.nodeOfRow[row] * NODE_GAP;
  }

  timeAt(x: number): number {
    return this.state.from + ((x - GUTTER) / this.plotWidth) * (this.state.until - this.state.from);
  }

  cpuAt(y: number): number | null {
    for (let row = this.order.length - 1; row >= 0; row--) {
      if (y >= this.y(row)) return y < this.y(row) + this.state.rowHeight + NODE_GAP ? this.order[row] : null;
    }
    return null;
  }

  /** The canvas of a panel that is shown, and of which it is. */
  panelOf(element: EventTarget | null): PanelName | null {
    for (const [name, panel] of this.panels) if (panel.canvas === element) return name;
    return null;
  }

  draw(tiles: Tiles): void {
    const { from, until } = this.state;
    const dpr = window.devicePixelRatio || 1;
    const width = Math.round(this.plotWidth * dpr);
    const raster = new Raster(from, until, width, this.order.length);
    this.pieces = tiles.pieces(from, until, raster.nsPerPixel);
    this.isExact = this.pieces.length > 0 && this.pieces.every(({ tile }) => tile.kind === "events");
    this.isCoarse = this.pieces.some(({ tile }) => tile.kind === "bins" && tile.binNs > raster.nsPerPixel * 1.01);
    this.drawAxis(dpr);
    for (const [name, { box, canvas }] of this.panels) {
      box.hidden = !this.state.panels.has(name);
      if (box.hidden) continue;
      const ctx = this.prepare(canvas, this.height, dpr);
      if (name === "lanes") this.drawLanes(ctx, raster, dpr);
      else this.drawHeat(ctx, name, raster, dpr);
      this.drawDecisions(ctx, name);
      if (name === "lanes" && this.state.notes) this.drawNotes(ctx);
      this.drawViolation(ctx);
      this.drawGutter(ctx);
    }
  }

  private prepare(canvas: HTMLCanvasElement, height: number, dpr: number): CanvasRenderingContext2D {
    const width = GUTTER + this.plotWidth;
    const [w, h] = [Math.round(width * dpr), Math.round(height * dpr)];
    if (canvas.width !== w || canvas.height !== h) {
      [canvas.width, canvas.height] = [w, h];
      [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    }
    const ctx = canvas.getContext("2d")!;
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    ctx.clearRect(0, 0, width, height);
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    return ctx;
  }

  private drawHeat(ctx: CanvasRenderingContext2D, name: "tasks" | "load" | "considered", raster: Raster, dpr: number): void {
    const { width, values, known } = raster.grid(name, this.pieces, this.state.shown);
    const scale = this.scales[name];
    this.drawImage(ctx, width, dpr, (pixels) => {
      let [last, pixel] = [-1, 0];
      this.order.forEach((cpu, row) => {
        for (let x = 0; x < width; x++) {
          const cell = cpu * width + x;
          if (known[cell] === 0) continue;
          const value = values[cell];
          // Most are like the one before.
          if (value !== last) [last, pixel] = [value, scale.pixel(value)];
          pixels[row * width + x] = pixel;
        }
      });
    });
  }

  /** Draws an image with a row of pixels for each CPU, node by node. */
  private drawImage(ctx: CanvasRenderingContext2D, width: number, dpr: number, fill: (pixels: Uint32Array) => void): void {
    const rows = this.order.length;
    const image = new ImageData(width, rows);
    fill(new Uint32Array(image.data.buffer));
    if (this.image.width !== width || this.image.height !== rows) [this.image.width, this.image.height] = [width, rows];
    this.image.getContext("2d")!.putImageData(image, 0, 0);
    ctx.imageSmoothingEnabled = false;
    for (let row = 0; row < rows; ) {
      let last = row;
      while (last < rows && this.nodeOfRow[last] === this.nodeOfRow[row]) last++;
      const h = (last - row) * this.state.rowHeight;
      ctx.drawImage(this.image, 0, row, width, last - row, GUTTER, this.y(row), width / dpr, h);
      row = last;
    }
  }

  private colorOf(task: number): Rgb {
    return (this.taskColors[task] ??= taskColor(this.programOf[task] ?? 0, task));
  }

  /** A pixel has the colours of all tasks that ran in its time, by their shares, and the ground's for the rest. */
  private drawLanes(ctx: CanvasRenderingContext2D, raster: Raster, dpr: number): void {
    const { rowHeight, task: only } = this.state;
    const { width } = raster;
    const sums = new Float32Array(width * this.order.length * 4);
    /** Runs that are wide enough for an edge of their own. */
    const wide: [cpu: number, x0: number, x1: number, task: number, leaves: boolean][] = [];
    raster.eachRun(this.pieces, (cpu, x0, x1, task, share, leaves) => {
      const [r, g, b] = this.colorOf(task);
      const weight = only !== null && only !== task ? 0.12 * share : share;
      const row = this.rowOf[cpu] * width;
      for (let x = Math.max(0, Math.floor(x0)); x < x1 && x < width; x++) {
        const part = ((x + 1 < x1 ? x + 1 : x1) - (x > x0 ? x : x0)) * weight;
        const cell = (row + x) * 4;
        sums[cell] += r * part;
        sums[cell + 1] += g * part;
        sums[cell + 2] += b * part;
        sums[cell + 3] += part;
      }
      if (leaves !== null && x1 - x0 > 4 * dpr) wide.push([cpu, x0, x1, task, leaves]);
    });
    const end = Math.min(width, (this.summary.end_ns - this.state.from) / raster.nsPerPixel);
    const [r, g, b] = rgbOf(this.colors.ground);
    this.drawImage(ctx, width, dpr, (pixels) => {
      for (let row = 0; row < this.order.length; row++) {
        for (let x = 0; x < end; x++) {
          const cell = (row * width + x) * 4;
          const rest = Math.max(0, 1 - sums[cell + 3]);
          const [red, green, blue] = [sums[cell] + r * rest, sums[cell + 1] + g * rest, sums[cell + 2] + b * rest];
          pixels[row * width + x] = (255 << 24) | (Math.min(255, blue) << 16) | (Math.min(255, green) << 8) | Math.min(255, red);
        }
      }
    });
    ctx.fillStyle = this.colors.ground;
    if (rowHeight >= 6) this.order.forEach((_, row) => ctx.fillRect(GUTTER, this.y(row) + rowHeight - 1, this.plotWidth, 1));
    for (const [cpu, , x1, , leaves] of wide) if (leaves) ctx.fillRect(GUTTER + x1 / dpr - 0.5, this.y(this.rowOf[cpu]), 0.5, rowHeight);
    if (rowHeight < 10) return;
    ctx.fillStyle = "#000";
    for (const [cpu, x0, x1, task] of wide) {
      const [left, size, top] = [GUTTER + x0 / dpr, (x1 - x0) / dpr, this.y(this.rowOf[cpu])];
      if (size < 46) continue;
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, top, size - 2, rowHeight);
      ctx.clip();
      ctx.fillText(this.summary.names[task] || `${this.summary.pids[task]}`, Math.max(left, GUTTER) + 3, top + rowHeight / 2 + 0.5);
      ctx.restore();
    }
  }

  /** Lines from a CPU to those that it considered (papers/002, figure 5), where every decision is known. */
  private drawDecisions(ctx: CanvasRenderingContext2D, name: PanelName): void {
    const { cpu: only, rowHeight, from, until } = this.state;
    // Of all CPUs' decisions the marks would hide what they are about, unless they are few.
    const many = this.pieces.reduce((sum, { tile }) => sum + (tile.kind === "events" ? tile.decisions.length : 0), 0);
    if (only === null && (name !== "considered" || !this.isExact || many > this.plotWidth / 2)) return;
    const x = (time: number) => GUTTER + ((time - from) / (until - from)) * this.plotWidth;
    ctx.fillStyle = name === "considered" ? this.colors.mark : this.colors.look;
    for (const { tile, from: begin, until: end } of this.pieces) {
      if (tile.kind !== "events") continue;
      for (const decision of tile.decisions) {
        if (decision.time < begin || decision.time >= end) continue;
        if (only !== null && decision.cpu !== only) continue;
        const at = x(decision.time);
        if (only !== null) {
          ctx.fillStyle = this.colors.look;
          for (const cpu of decision.considered) {
            const row = this.rowOf[cpu];
            if (row !== undefined) ctx.fillRect(at, this.y(row), 2, rowHeight);
          }
          ctx.fillStyle = this.colors.mark;
        }
        const row = this.rowOf[decision.cpu];
        if (row !== undefined) ctx.fillRect(at, this.y(row) + rowHeight * 0.25, 3, Math.max(2, rowHeight * 0.5));
      }
    }
  }

  /** A mark at the upper edge of a CPU's row wherever the policy noted something about it, or heard or gave hints. */
  private drawNotes(ctx: CanvasRenderingContext2D): void {
    const { rowHeight, from, until } = this.state;
    ctx.fillStyle = this.colors.text;
    const height = Math.min(4, Math.max(1, rowHeight / 3));
    const x = (time: number) => GUTTER + ((time - from) / (until - from)) * this.plotWidth;
    eachNoted(this.pieces, this.order, (cpu, time) => ctx.fillRect(x(time) - 1, this.y(this.rowOf[cpu]), 2, height));
  }

  private drawViolation(ctx: CanvasRenderingContext2D): void {
    const violation = this.state.violation;
    if (!violation) return;
    const { from, until, rowHeight } = this.state;
    const x = (time: number) => GUTTER + ((time - from) / (until - from)) * this.plotWidth;
    const left = Math.max(GUTTER, x(violation.since_ns));
    const right = Math.min(GUTTER + this.plotWidth, Math.max(x(violation.at_ns), left + 2));
    if (right < GUTTER || left > GUTTER + this.plotWidth) return;
    ctx.strokeStyle = this.colors.mark;
    ctx.lineWidth = 1.5;
    ctx.setLineDash([6, 3]);
    for (const time of [violation.since_ns, violation.at_ns]) {
      const at = x(time);
      if (at < GUTTER) continue;
      ctx.beginPath();
      ctx.moveTo(at, 0);
      ctx.lineTo(at, this.height);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    // Neighbours share a frame.
    const rows = violation.cpus.map((cpu) => this.rowOf[cpu]).filter((row) => row !== undefined).sort((a, b) => a - b);
    for (let i = 0; i < rows.length; ) {
      let last = i;
      while (last + 1 < rows.length && rows[last + 1] === rows[last] + 1 && this.nodeOfRow[rows[last + 1]] === this.nodeOfRow[rows[i]]) last++;
      ctx.strokeRect(left, this.y(rows[i]) + 0.5, right - left, this.y(rows[last]) + rowHeight - this.y(rows[i]) - 1);
      i = last + 1;
    }
  }

  private drawGutter(ctx: CanvasRenderingContext2D): void {
    const { rowHeight, cpu: chosen, violation } = this.state;
    const every = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find((n) => n * rowHeight >= 14) ?? 1024;
    ctx.clearRect(0, 0, GUTTER, this.height);
    const concerned = new Set(violation?.cpus ?? []);
    let first = 0;
    this.order.forEach((cpu, row) => {
      const isFirst = row === 0 || this.nodeOfRow[row] !== this.nodeOfRow[row - 1];
      if (isFirst) first = row;
      const middle = this.y(row) + rowHeight / 2;
      // A last-level cache's own bar, which ends before the next one's begins.
      const next = this.summary.cpus[this.order[row + 1]];
      const isLast = next?.[1] !== this.summary.cpus[cpu][1];
      ctx.fillStyle = this.colors.look;
      ctx.fillRect(5, this.y(row), 1, rowHeight - (isLast ? Math.max(1, rowHeight / 4) : 0));
      if (concerned.has(cpu)) {
        ctx.fillStyle = this.colors.mark;
        ctx.fillRect(GUTTER - 5, this.y(row), 3, rowHeight);
      }
      if (cpu === chosen || (row - first) % every === 0) {
        ctx.textAlign = "right";
        ctx.fillStyle = cpu === chosen ? this.colors.look : this.colors.faint;
        const y = Math.max(middle, this.y(first) + 5.5);
        ctx.fillText(cpu === chosen ? `▸${cpu}` : `${cpu}`, GUTTER - 8, y);
      }
      if (isFirst) {
        let last = row;
        while (last + 1 < this.order.length && this.nodeOfRow[last + 1] === this.nodeOfRow[row]) last++;
        const bottom = this.y(last) + rowHeight;
        ctx.fillStyle = this.colors.faint;
        ctx.fillRect(2, this.y(row), 2, bottom - this.y(row) - 1);
        ctx.fillStyle = this.colors.text;
        ctx.textAlign = "left";
        if (bottom - this.y(row) >= 10) {
          ctx.fillText(`Node ${this.summary.cpus[cpu][0]}`, 9, (this.y(row) + bottom) / 2);
        }
      }
    });
    ctx.textAlign = "left";
  }

  private drawAxis(dpr: number): void {
    const ctx = this.prepare(this.axis, 26, dpr);
    const { from, until } = this.state;
    ctx.fillStyle = this.colors.text;
    ctx.strokeStyle = this.colors.faint;
    ctx.fillText("CPU", GUTTER - 30, 13);
    ctx.fillText("time →", 8, 13);
    let free = 0;
    for (const { at, text, major } of ticks(from, until, this.plotWidth / 90)) {
      const x = GUTTER + ((at - from) / (until - from)) * this.plotWidth;
      ctx.fillStyle = this.colors.faint;
      ctx.fillRect(x, 20, 1, 6);
      ctx.fillStyle = this.colors.text;
      const wide = ctx.measureText(text).width;
      const left = major ? x + 3 : x - wide / 2;
      const start = Math.max(GUTTER, Math.min(left, GUTTER + this.plotWidth - wide));
      if (start < free) continue;
      ctx.fillText(text, start, 12);
      free = start + wide + 12;
    }
  }

  /** Moves the lines that show where one points; takes them away if nowhere. */
  pointTo(time: number | null, cpu: number | null): void {
    const x = time === null ? -1 : GUTTER + ((time - this.state.from) / (this.state.until - this.state.from)) * this.plotWidth;
    this.cross.hidden = time === null || x < GUTTER || x > GUTTER + this.plotWidth;
    this.cross.style.left = `${x}px`;
    for (const { box, canvas } of this.panels.values()) {
      let line = box.querySelector<HTMLElement>(".row");
      if (!line) {
        line = document.createElement("div");
        line.className = "row";
        box.append(line);
      }
      line.hidden = cpu === null || box.hidden;
      if (cpu === null) continue;
      line.style.top = `${canvas.offsetTop + this.y(this.rowOf[cpu])}px`;
      line.style.height = `${this.state.rowHeight}px`;
    }
  }

  /** All that is known of a CPU at a moment, as lines of HTML. */
  describe(time: number, cpu: number): string {
    const lines: string[] = [];
    const [node, llc, core] = this.summary.cpus[cpu];
    lines.push(`<b>CPU ${cpu}</b>, node ${node}, cache ${llc}, core ${core}, at <b>${moment(time)}</b>`);
    const piece = this.pieces.find(({ from, until }) => from <= time && time < until);
    if (!piece) return lines.join("<br>");
    const { tile } = piece;
    if (tile.kind === "bins") {
      const bin = Math.min(tile.bins - 1, Math.floor((time - tile.begin) / tile.binNs));
      const cell = cpu * tile.bins + bin;
      lines.push(`In the ${duration(tile.binNs)} from ${moment(tile.begin + bin * tile.binNs)}, all changes counted:`);
      lines.push(`size: mean ${fixed(tile.tasksMean[cell], 2)}, from ${tile.tasksMin[cell]} to ${tile.tasksMax[cell]}`);
      lines.push(`load: mean ${count(tile.loadMean[cell])}, from ${count(tile.loadMin[cell])} to ${count(tile.loadMax[cell])}`);
      lines.push(`busy ${percent(tile.busy[cell])}, ${tile.runs[cell]} times a task began to run`);
      const task = tile.longest[cell];
      if (task !== NO_TASK) lines.push(`longest: ${escape(taskName(this.summary, task))}, ${percent(tile.longestShare[cell])}`);
      if (tile.considered[cell]) lines.push(`considered in ${tile.considered[cell]} decisions`);
      if (tile.notes[cell]) lines.push(`${tile.notes[cell]} notes`);
      return lines.join("<br>");
    }
    const events = tile.cpus[cpu];
    const at = lastUpTo(events.time, time);
    const end = at + 1 < events.time.length ? events.time[at + 1] : null;
    const until = end === null ? "" : ` until ${moment(end)}`;
    lines.push(`size <b>${events.tasks[at]}</b>, load <b>${count(events.load[at])}</b>, exactly, since ${at ? moment(events.time[at]) : "before"}${until}`);
    const run = firstAfter(events.runEnd, time);
    if (run < events.runBegin.length && events.runBegin[run] <= time) {
      const [begin, stop, waited] = [events.runBegin[run], events.runEnd[run], events.runWait[run]];
      lines.push(`<b>${escape(taskName(this.summary, events.runTask[run]))}</b> runs for ${duration(stop - begin)}`, `from ${moment(begin)} to ${moment(stop)}`);
      lines.push(`after ${duration(Math.floor(waited / 2))} in a run queue${waited % 2 ? ", woken up" : ""}`);
    } else {
      lines.push("nothing runs");
    }
    const near = (this.state.until - this.state.from) / this.plotWidth;
    const around = tile.decisions.filter((one) => Math.abs(one.time - time) <= 2 * near && (one.cpu === cpu || one.considered.includes(cpu)));
    const decision = around.find((one) => one.cpu === cpu) ?? around[0];
    if (decision) {
      const what = WHAT[decision.what] ?? "decision";
      lines.push(`${what} of CPU ${decision.cpu} at ${moment(decision.time)} considered ${ranges(decision.considered)}`);
    }
    lines.push(...notesNear(this.summary, tile, cpu, time, 2 * near));
    return lines.join("<br>");
  }

  /** The task that a CPU ran at a moment, if that is known. */
  taskAt(time: number, cpu: number): number | null {
    const tile = this.pieces.find(({ from, until }) => from <= time && time < until)?.tile;
    if (!tile) return null;
    if (tile.kind === "bins") {
      const bin = Math.min(tile.bins - 1, Math.floor((time - tile.begin) / tile.binNs));
      const task = tile.longest[cpu * tile.bins + bin];
      return task === NO_TASK ? null : task;
    }
    const { runBegin, runEnd, runTask } = tile.cpus[cpu];
    const run = firstAfter(runEnd, time);
    return run < runBegin.length && runBegin[run] <= time ? runTask[run] : null;
  }
}
