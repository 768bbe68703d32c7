// From tiles to pixels: what each pixel's time holds, of every change within it.

import type { Bins, Piece } from "./tiles";
import { NO_TASK } from "./tiles";

export type Field = "tasks" | "load" | "considered";

/** What a pixel shows of all that its time holds. */
export type Shown = "mean" | "max" | "min";

/** Of each CPU and each column of pixels. */
export interface Grid {
  width: number;
  /** Over the part of the column that is known; of decisions, their number. */
  values: Float32Array;
  /** How much of the column is known, from 0 to 1. */
  known: Float32Array;
}

/** The plane of bins, or the column of events, that tells of a field. */
const BINS = {
  tasks: { mean: "tasksMean", max: "tasksMax", min: "tasksMin" },
  load: { mean: "loadMean", max: "loadMax", min: "loadMin" },
} as const;

export class Raster {
  readonly nsPerPixel: number;

  constructor(readonly from: number, readonly until: number, readonly width: number, readonly nrCpus: number) {
    this.nsPerPixel = (until - from) / width;
  }

  grid(field: Field, pieces: Piece[], shown: Shown): Grid {
    const cells = this.width * this.nrCpus;
    const [values, known] = [new Float32Array(cells), new Float32Array(cells)];
    const grid: Grid = { width: this.width, values, known };
    if (field === "considered") {
      for (const piece of pieces) this.addDecisions(grid, piece);
      known.fill(1);
      return grid;
    }
    for (const piece of pieces) this.addValues(grid, field, piece, shown);
    if (shown === "mean") for (let cell = 0; cell < cells; cell++) if (known[cell] > 0) values[cell] /= known[cell];
    return grid;
  }

  private addValues(grid: Grid, field: "tasks" | "load", { tile, from, until }: Piece, shown: Shown): void {
    if (tile.kind === "bins") {
      const plane = tile[BINS[field][shown]];
      const [first, last] = binsOf(tile, from, until);
      for (let cpu = 0; cpu < this.nrCpus; cpu++) {
        for (let bin = first; bin < last; bin++) {
          const begin = tile.begin + bin * tile.binNs;
          const value = plane[cpu * tile.bins + bin];
          this.add(grid, cpu, begin < from ? from : begin, Math.min(until, begin + tile.binNs), value, shown);
        }
      }
      return;
    }
    for (let cpu = 0; cpu < this.nrCpus; cpu++) {
      const { time, [field]: values } = tile.cpus[cpu];
      for (let index = lastUpTo(time, from); index < time.length && time[index] < until; index++) {
        const end = index + 1 < time.length ? time[index + 1] : until;
        this.add(grid, cpu, Math.max(from, time[index]), Math.min(until, end), values[index], shown);
      }
    }
  }

  private add(grid: Grid, cpu: number, begin: number, end: number, value: number, shown: Shown): void {
    const x0 = Math.max(0, (begin - this.from) / this.nsPerPixel);
    const x1 = Math.min(this.width, (end - this.from) / this.nsPerPixel);
    const row = cpu * this.width;
    const { values, known } = grid;
    for (let x = Math.floor(x0); x < x1; x++) {
      const share = (x + 1 < x1 ? x + 1 : x1) - (x > x0 ? x : x0);
      const cell = row + x;
      if (shown === "mean") values[cell] += value * share;
      else if (known[cell] === 0) values[cell] = value;
      else values[cell] = shown === "max" ? Math.max(values[cell], value) : Math.min(values[cell], value);
      known[cell] += share;
    }
  }

  private addDecisions(grid: Grid, { tile, from, until }: Piece): void {
    if (tile.kind === "bins") {
      const [first, last] = binsOf(tile, from, until);
      for (let cpu = 0; cpu < this.nrCpus; cpu++) {
        for (let bin = first; bin < last; bin++) {
          const many = tile.considered[cpu * tile.bins + bin];
          if (!many) continue;
          const x = Math.floor((tile.begin + (bin + 0.5) * tile.binNs - this.from) / this.nsPerPixel);
          if (x >= 0 && x < this.width) grid.values[cpu * this.width + x] += many;
        }
      }
      return;
    }
    for (const decision of tile.decisions) {
      if (decision.time < from || decision.time >= until) continue;
      const x = Math.floor((decision.time - this.from) / this.nsPerPixel);
      if (x < 0 || x >= this.width) continue;
      for (const cpu of decision.considered) if (cpu < this.nrCpus) grid.values[cpu * this.width + x] += 1;
    }
  }

  /**
   * Calls `draw` for every stretch in which one task had a CPU, or most of it: with its share, and whether the task left
   * the CPU at its end, if that is known.
   */
  eachRun(
    pieces: Piece[],
    draw: (cpu: number, x0: number, x1: number, task: number, share: number, leaves: boolean | null) => void,
  ): void {
    const x = (time: number) => (time - this.from) / this.nsPerPixel;
    for (const { tile, from, until } of pieces) {
      if (tile.kind === "bins") {
        const [first, last] = binsOf(tile, from, until);
        for (let cpu = 0; cpu < this.nrCpus; cpu++) {
          // Bins alike are drawn at once.
          for (let bin = first; bin < last; ) {
            const cell = cpu * tile.bins + bin;
            const [task, share] = [tile.longest[cell], tile.longestShare[cell]];
            let end = bin + 1;
            while (end < last && tile.longest[cell + end - bin] === task && tile.longestShare[cell + end - bin] === share) end++;
            if (task !== NO_TASK) {
              const [begin, stop] = [tile.begin + bin * tile.binNs, tile.begin + end * tile.binNs];
              draw(cpu, x(Math.max(from, begin)), x(Math.min(until, stop)), task, share / 255, null);
            }
            bin = end;
          }
        }
        continue;
      }
      tile.cpus.forEach(({ runBegin, runEnd, runTask }, cpu) => {
        for (let index = firstAfter(runEnd, from); index < runBegin.length && runBegin[index] < until; index++) {
          draw(cpu, x(Math.max(from, runBegin[index])), x(Math.min(until, runEnd[index])), runTask[index], 1, runEnd[index] < until);
        }
      });
    }
  }
}

/** The bins that a time touches. */
function binsOf(tile: Bins, from: number, until: number): [number, number] {
  const [first, last] = [from, until].map((time) => (time - tile.begin) / tile.binNs);
  return [Math.max(0, Math.floor(first)), Math.min(tile.bins, Math.ceil(last))];
}

/** The place of the last that is not greater; 0 if there is none. */
export function lastUpTo(sorted: Float64Array, value: number): number {
  return Math.max(0, firstAfter(sorted, value) - 1);
}

/** The place of the first that is greater. */
export function firstAfter(sorted: Float64Array, value: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
